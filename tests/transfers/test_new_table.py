"""Embedding tables for a task: which rows are found, what is done to them, what fills the others, and the verb."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.evaluation.tiny_models import save
from wechsel_jax.commands import table as verb
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.transforms import SHUFFLES, STANDARDIZATIONS, scalar_moments
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.transfers.new_table import MISSING, make_table, read_words, text_vocabulary, vocabulary_table
from wechsel_jax.vectors import PlainVectors

WORDS = [f"w{i}" for i in range(80)]
D = 10


@pytest.fixture(scope="module")
def glove():
    return PlainVectors(WORDS, np.random.default_rng(0).normal(0.1, 0.4, (80, D)).astype(np.float32))


def vocabulary(*tokens):
    raw = tuple(token.replace("▁", " ").encode() for token in tokens)
    roles = tuple(frozenset({"pad"}) if token == "<pad>" else frozenset() for token in tokens)
    return Vocabulary(tokens, raw, np.array([r.startswith(b" ") for r in raw]), roles, "sentencepiece")


def test_rows_of_word_vectors(glove):
    found = vocabulary_table(["w5", "strange", "w79"], glove)
    assert found.found.tolist() == [True, False, True]
    np.testing.assert_array_equal(found.embeddings[[0, 2]], glove.rows(np.array([5, 79])))
    assert found.embeddings.dtype == np.float32 and found.embeddings[1].all()
    tokens = vocabulary_table(vocabulary("▁w5", "<pad>", "w6", "▁"), glove)
    assert tokens.found.tolist() == [True, False, True, False]
    np.testing.assert_array_equal(tokens.embeddings[[0, 2]], glove.rows(np.array([5, 6])))


def test_a_damaged_model_makes_no_table(tmp_path):
    directory = save(tmp_path / "model", "gpt2")
    tensors = load_file(directory / "model.safetensors")
    tensors["transformer.wte.weight"][7, 3] = np.nan
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"row 7 of transformer\.wte\.weight: NaN or infinity; expected finite numbers"):
        make_table(tmp_path / "t.safetensors", tmp_path / "t.json", source=str(directory), tokenizer=str(directory))
    assert not (tmp_path / "t.json").exists()


def test_rows_of_a_model():
    known = vocabulary("<pad>", "dog", "▁dog", "▁cat", "s")
    matrix = np.arange(24, dtype=np.float16).reshape(6, 4)  # a row of padding at the end
    words = vocabulary_table(["cat", "dog", "s", "cow"], (matrix, known), missing="zeros")
    assert words.found.tolist() == [True, True, False, False]
    np.testing.assert_array_equal(words.embeddings, np.concatenate([matrix[[3, 2]], np.zeros((2, 4))]))
    tokens = vocabulary_table(vocabulary("dog", "<pad>", "▁cow"), (matrix, known), missing="zeros")
    np.testing.assert_array_equal(tokens.embeddings, np.concatenate([matrix[[1, 0]], np.zeros((1, 4))]))


@pytest.mark.parametrize("size", [40, 400])
def test_standardized_rows_have_the_deviation_of_the_whole_table(glove, size):
    words = WORDS[:40] + [f"missing{i}" for i in range(size - 40)]
    made = vocabulary_table(words, glove, standardize="pretrained_xavier")
    rows = made.embeddings[made.found]
    sigma = math.sqrt(2 / (size + D))
    assert scalar_moments(rows) == pytest.approx((0, sigma), abs=1e-6)
    source = glove.rows(np.arange(40)).astype(np.float64)
    np.testing.assert_allclose(rows, (source - source.mean()) * sigma / source.std(ddof=1), atol=1e-6)
    assert made.moments == pytest.approx((source.mean(), source.std(ddof=1)))
    others = made.embeddings[~made.found]
    if len(others):
        assert np.abs(others).max() <= math.sqrt(6 / (size + D)) and others.std() == pytest.approx(sigma, rel=0.05)


@pytest.mark.parametrize("missing", MISSING)
def test_missing_rows(glove, missing):
    words = [*WORDS[:50], *(f"missing{i}" for i in range(3000))]
    made = vocabulary_table(words, glove, missing=missing, seed=4)
    rows, others = made.embeddings[made.found], made.embeddings[~made.found]
    mean, deviation = {
        "normal": scalar_moments(rows),
        "xavier": (0, math.sqrt(2 / (3050 + D))),
        "mean": (rows.mean(), rows.mean(0).std()),
        "zeros": (0, 0),
    }[missing]
    assert (others.mean(), others.std()) == pytest.approx(
        (mean, deviation), abs=max(5 * float(deviation) / math.sqrt(30000), 1e-6)
    )
    assert len(np.unique(others, axis=0)) == (1 if missing in ("mean", "zeros") else 3000)
    again = vocabulary_table(words, glove, missing=missing, seed=4).embeddings
    assert again.tobytes() == made.embeddings.tobytes()
    if missing in ("normal", "xavier"):
        other_seed = vocabulary_table(words, glove, missing=missing, seed=5).embeddings[50:]
        assert (other_seed != others).mean() > 0.99


@pytest.mark.parametrize("kind", SHUFFLES)
def test_only_found_rows_are_shuffled(glove, kind):
    words = [*WORDS[:50], "missing"]
    plain, mixed = (vocabulary_table(words, glove, shuffle=shuffle, missing="zeros").embeddings for shuffle in (None, kind))
    assert not mixed[50].any() and (mixed[:50] != plain[:50]).mean() > 0.9
    np.testing.assert_array_equal(np.sort(mixed, axis=None), np.sort(plain, axis=None))


def test_what_is_refused(glove, tmp_path):
    for words, message in (([], "is empty"), (["a", "b"], "none of 2 tokens"), (["w1", "w1"], "'w1' occurs 2 times")):
        with pytest.raises(UserError, match=message):
            vocabulary_table(words, glove)
    with pytest.raises(UserError, match="expected one of normal"):
        vocabulary_table(["w1"], glove, missing="noise")
    (tmp_path / "words").write_text("a\n\n b \na\n")
    with pytest.raises(UserError, match="line 4: 'a' stood in line 1 already"):
        read_words(tmp_path / "words")


def test_words_of_a_text(tmp_path):
    (tmp_path / "one").write_text("b a  b\tC\n\nc c d\n", encoding="utf-8")
    (tmp_path / "two").write_text("d a\n", encoding="utf-8")
    paths = [tmp_path / "one", tmp_path / "two"]
    assert text_vocabulary(paths) == ["a", "b", "c", "d", "C"]
    assert text_vocabulary(paths, lowercase=True) == ["c", "a", "b", "d"]
    assert text_vocabulary(paths, lowercase=True, min_count=3) == ["c"]
    assert text_vocabulary(paths, max_words=2) == ["a", "b"]
    with pytest.raises(UserError, match="no word occurs 9 times"):
        text_vocabulary(paths, min_count=9)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "glove.txt").write_text("".join(f"w{i} {i}.5 -1 {i % 7}\n" for i in range(30)), encoding="utf-8")
    (tmp_path / "text").write_text("w3 w3 w4 w4 new new rare <pad> <pad>\n", encoding="utf-8")
    return tmp_path


def run(*arguments):
    from absl import flags

    values = flags.FlagValues()
    verb.define(values)
    values(["wechsel-jax", *arguments])
    verb.run(values, [])


def test_the_verb_writes_a_table_and_a_record(files, capsys):
    output = files / "out" / "table.safetensors"
    arguments = [f"--vectors={files / 'glove.txt'}", f"--input={files / 'text'}", "--min_count=2", f"--output={output}"]
    run(*arguments, "--special_tokens=<pad>,<unk>", "--standardize=pretrained_xavier")
    stored, record = load_file(output), json.loads((files / "out" / "table.json").read_text(encoding="utf-8"))
    assert record["words"] == ["<pad>", "<unk>", "new", "w3", "w4"] and record["missing_ids"] == [0, 1, 2]
    assert (record["found"], record["missing"], record["dimensions"], record["tokens"]) == (2, 3, 3, 5)
    assert record["settings"]["standardize"] == "pretrained_xavier" and record["settings"]["min_count"] == 2
    assert set(stored) == {"embeddings"} and stored["embeddings"].shape == (5, 3)
    rows = np.array([[3.5, -1, 3], [4.5, -1, 4]])
    expected = (rows - rows.mean()) / rows.std(ddof=1) * math.sqrt(2 / (5 + 3))
    np.testing.assert_allclose(stored["embeddings"][3:], expected, rtol=1e-5)
    printed = capsys.readouterr().out
    assert "2 of 5 tokens" in printed and f"{record['embedding_sd']:.4g}, 1,024 sinusoidal positions" in printed
    assert sorted(path.name for path in output.parent.iterdir()) == ["table.json", "table.safetensors"]
    with pytest.raises(UserError, match="exists already"):
        run(*arguments)
    assert record["settings"]["special_tokens"] == ["<pad>", "<unk>"]
    with pytest.raises(UserError, match=r"--output=.*table\.npz: expected a name that ends in \.safetensors"):
        run(*arguments[:-1], f"--output={files / 'table.npz'}")


def test_the_text_may_be_a_field_of_records(files):
    (files / "lines.jsonl").write_text('{"body": "w3 w3"}\n{"body": "w4"}\n', encoding="utf-8")
    arguments = [f"--vectors={files / 'glove.txt'}", f"--input={files / 'lines.jsonl'}", f"--output={files / 't.safetensors'}"]
    with pytest.raises(UserError, match="has no field 'text' but 'body': name it with text_field"):
        run(*arguments)
    run(*arguments, "--text_field=body")
    assert json.loads((files / "t.json").read_text(encoding="utf-8"))["words"] == ["w3", "w4"]


def test_the_verb_never_writes_over_what_it_reads(files):
    vectors, text = files / "glove.txt", files / "text"
    for output in (vectors, text):
        before = output.read_bytes()
        with pytest.raises(UserError, match="is the same and would be lost"):
            run(f"--vectors={vectors}", f"--input={text}", f"--output={output}", "--overwrite")
        assert output.read_bytes() == before


def test_the_verb_needs_one_source_and_one_vocabulary(files):
    output = f"--output={files / 't.safetensors'}"
    vectors, text = f"--vectors={files / 'glove.txt'}", f"--input={files / 'text'}"
    for arguments in (
        (output, text),
        (output, vectors),
        (output, vectors, "--source=x", text),
        (output, vectors, text, "--words=x"),
    ):
        with pytest.raises(UserError, match=r"expected one (source|vocabulary)"):
            run(*arguments)
    with pytest.raises(UserError, match="a tokenizer brings its own"):
        run(output, vectors, "--tokenizer=x", "--special_tokens=<pad>")
    for flag in ("min_count", "max_document_bytes"):
        with pytest.raises(UserError, match=f"--{flag}: is for the words of --input"):
            run(output, vectors, "--words=x", f"--{flag}=2")
    assert not (files / "t.safetensors").exists()


def test_the_verb_knows_the_librarys_choices():
    from absl import flags

    values = flags.FlagValues()
    verb.define(values)
    known = {name: tuple(values[name].parser.enum_values) for name in ("standardize", "shuffle", "missing")}
    assert known == {"standardize": STANDARDIZATIONS, "shuffle": SHUFFLES, "missing": MISSING}


def test_a_models_rows_for_another_tokenizer(files):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    from wechsel_jax.tokens.training import train_tokenizer

    (files / "corpus").write_text("the dog and the cat saw the other dog\n" * 30, encoding="utf-8")
    for name, size in (("model", 275), ("task", 268)):
        train_tokenizer(files / "corpus", size, files / name, style="gpt2")
    torch.manual_seed(0)
    rows = len(transformers.AutoTokenizer.from_pretrained(files / "model"))
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=4, vocab_size=rows)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(files / "model")
    matrix = model.get_input_embeddings().weight.detach().numpy()
    report = make_table(files / "t.safetensors", files / "t.json", source=str(files / "model"), tokenizer=str(files / "task"))
    made = load_file(files / "t.safetensors")["embeddings"]
    ids = [transformers.AutoTokenizer.from_pretrained(files / name).get_vocab() for name in ("model", "task")]
    assert report["missing"] == len(set(ids[1]) - set(ids[0]))
    for token in set(ids[0]) & set(ids[1]):
        np.testing.assert_array_equal(made[ids[1][token]], matrix[ids[0][token]])
