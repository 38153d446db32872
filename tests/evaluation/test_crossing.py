"""What TreLM's half models write: transformers' own logits sentence by sentence, numpy's rules, and sacrebleu's programme."""

import dataclasses
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.evaluation.tiny_models import save
from tests.tiny_tokenizers import byte_bpe
from wechsel_jax import cli
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.directory import write_checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import crossing
from wechsel_jax.evaluation.crossing import cross
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.models import family
from wechsel_jax.models.weights import unflatten
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.extension import place_beside

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SENTENCES = ["der Hund", "die Katze und der Hund, die Katze!", "x", "ein Haus am See ist ein Haus am See", "und"]


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A TreLM model of a BERT of two layers with large random weights, so that it writes something else at each place."""
    folder = tmp_path_factory.mktemp("crossing")
    source = Checkpoint.open(save(folder / "bert", "bert"))
    return made(source, folder / "half", load_tokenizer(source.directory), 2)


@pytest.fixture(scope="module")
def apart(half, tmp_path_factory):
    """The same without languages, and with the tokens of another tokenizer behind its own; that one, and where they begin."""
    first = byte_bpe(False)
    joined, behind = place_beside(half.tokenizer, first)
    source = Checkpoint.open(half.directory.parent / "bert")
    return made(source, tmp_path_factory.mktemp("apart") / "half", joined, 0), first, behind


def made(source, place, tokenizer, languages):
    generator = np.random.default_rng(3)
    described = source.config | {"model_type": "tri-bert", "language_count": languages, "tri_layer": True}
    described["vocab_size"] = max(len(tokenizer), described["vocab_size"])
    tri = family("tri-bert")
    config = tri.config(described)
    drawn = {path: 0.5 * generator.normal(size=shape) + path.endswith("scale") for path, shape in tri.shapes(config).items()}
    drawn["head/bias"][tokenizer.sep_token_id] += 2.0
    place.mkdir()
    params = unflatten({path: value.astype(np.float32) for path, value in drawn.items()})
    write_checkpoint(place, described, tri.to_hugging_face(params, config), tokenizer)
    return LoadedModel.open(place)


def reference(half, ids, to, plain):
    """What a BERT of transformers with a layer more predicts; languages and positions are added by hooks."""
    params = half.parameters
    tensors = half.family.to_hugging_face(jax.tree.map(np.asarray, params), half.config)
    languages = torch.zeros(2, 1)
    if half.config.language_count:
        languages = torch.tensor(tensors.pop("bert.embeddings.language_embeddings.weight"))
    renamed = {
        name.replace("encoder.layer.1.", "encoder.layer.2.").replace("encoder.tri_layer.", "encoder.layer.1."): torch.tensor(x)
        for name, x in tensors.items()
    }
    fields = transformers.AutoConfig.from_pretrained(plain)
    fields.num_hidden_layers, fields.vocab_size = 3, half.config.vocabulary_size
    oracle = transformers.BertForMaskedLM(fields).eval()
    oracle.load_state_dict(renamed, strict=False)
    positions = oracle.bert.embeddings.position_embeddings.weight
    hooks = [
        oracle.bert.embeddings.LayerNorm.register_forward_pre_hook(lambda _, given: (given[0] + languages[1 - to],)),
        oracle.bert.encoder.layer[1].register_forward_pre_hook(
            lambda _, given: (given[0] + languages[to] + positions[: given[0].shape[1]], *given[1:])
        ),
    ]
    with torch.no_grad():
        logits = oracle(torch.tensor([ids])).logits[0].numpy()
    for hook in hooks:
        hook.remove()
    return logits


def without_repetitions(guessed, separator):
    kept = []
    for token in guessed:
        if token == separator:
            break
        if not kept or token != kept[-1]:
            kept.append(int(token))
    return kept


@pytest.mark.parametrize("to", [0, 1])
def test_translations_are_the_likeliest_tokens_of_transformers_without_repetitions(half, to):
    written, found = cross(half, SENTENCES, to=to), []
    for sentence in SENTENCES:
        ids = half.tokenizer(sentence)["input_ids"]
        guessed = reference(half, ids, to, half.directory.parent / "bert").argmax(axis=1)[1:]
        kept = without_repetitions(guessed, half.tokenizer.sep_token_id)
        found.append((len(guessed), len(kept), half.tokenizer.decode(kept, skip_special_tokens=True).strip()))
    assert written == [text for *_, text in found]
    assert any(written), "something shall be written"
    assert len({*written}) > 1 and any(kept < size for size, kept, _ in found)


@pytest.mark.parametrize("to", [0, 1])
def test_with_separate_vocabularies_each_language_has_its_own_tokens(half, apart, to):
    """What is read has the tokens of its language, and of what transformers computes only those of the other are written."""
    model, first, behind = apart
    second, found = half.tokenizer, []
    special = [token in second.all_special_ids for token in range(behind)]
    for sentence in SENTENCES:
        ids = second(sentence)["input_ids"]
        if to:
            own = first(sentence, add_special_tokens=False)["input_ids"]
            ids = [ids[0], *(token + behind for token in own), ids[-1]]
        logits = reference(model, ids, to, half.directory.parent / "bert")
        logits[:, behind:] = logits[:, behind:] if to == 0 else -np.inf
        logits[:, :behind] = np.where(np.asarray(special) | (to == 1), logits[:, :behind], -np.inf)
        kept = without_repetitions(logits.argmax(axis=1)[1:], second.sep_token_id)
        text = second.decode(kept, skip_special_tokens=True)
        found.append((text if to else first.decode([token - behind for token in kept if token >= behind])).strip())
    assert cross(model, SENTENCES, to=to, first_tokenizer=first) == found and len({*found}) > 1
    own = "that of the first language"
    for which, tokenizer, expected in ((model, None, own), (model, second, own), (half, first, "none")):
        with pytest.raises(UserError, match=f"first_tokenizer: .*: expected {expected}"):
            cross(which, SENTENCES, to=to, first_tokenizer=tokenizer)


def test_the_verb_reads_the_first_tokenizer(half, apart, tmp_path, capsys):
    model, first, _ = apart
    first.save_pretrained(tmp_path / "first")
    (tmp_path / "source").write_text("\n".join(SENTENCES) + "\n")
    flags = [f"--input={tmp_path / 'source'}", f"--first_tokenizer={tmp_path / 'first'}"]
    cli.main(["translate", str(model.directory), *flags])
    assert capsys.readouterr().out == "\n".join(cross(model, SENTENCES, first_tokenizer=first)) + "\n"
    with pytest.raises(SystemExit):
        cli.main(["translate", str(half.directory), *flags])
    assert "first_tokenizer: " in capsys.readouterr().err


def test_the_language_and_nothing_else_decides(half):
    assert cross(half, SENTENCES, to=0) != cross(half, SENTENCES, to=1)
    assert cross(half, SENTENCES, to=1, batch_size=1) == cross(half, SENTENCES[::-1], to=1)[::-1]


def test_mistakes(half):
    with pytest.raises(UserError, match="sentence 2: is empty"):
        cross(half, ["a", " "])
    with pytest.raises(UserError, match="to 2, batch_size 64: expected 0 or 1"):
        cross(half, ["a"], to=2)
    with pytest.raises(UserError, match="bert: has no two languages; expected a model of TreLM"):
        cross(LoadedModel.open(half.directory.parent / "bert"), ["a"])


def test_scores_that_are_no_numbers_make_no_translation(half):
    damaged = dataclasses.replace(half, parameters=jax.tree.map(lambda one: one * np.nan, half.parameters))
    with pytest.raises(UserError, match="the score of a token is no number; expected weights that give one"):
        cross(damaged, SENTENCES)


def test_the_verb_says_what_was_too_long(half, tmp_path, capsys):
    longest = half.config.max_length
    (tmp_path / "long").write_text(f"{'a ' * longest}\n{SENTENCES[0]}\n")
    cli.main(["translate", str(half.directory), f"--input={tmp_path / 'long'}", "--to=first"])
    assert f"note: 1 of 2 sentences have more than the {longest} tokens that the model reads" in capsys.readouterr().err


def test_the_verb_writes_and_scores_as_sacrebleu_does(half, tmp_path, capsys, monkeypatch):
    (tmp_path / "source").write_text("\n".join(SENTENCES) + "\n")
    written = cross(half, SENTENCES, to=0)
    references = [
        text[: len(text) // 2] + " und NOCH" if number % 2 else text or "nichts" for number, text in enumerate(written)
    ]
    (tmp_path / "reference").write_text("\n".join(references) + "\n")
    sides = [f"--input={tmp_path / 'source'}", f"--reference={tmp_path / 'reference'}"]
    cli.main(["translate", str(half.directory), *sides, "--to=first", "--tokenize=char"])
    printed = capsys.readouterr()
    assert printed.out == "\n".join(written) + "\n" and "note: " not in printed.err
    (tmp_path / "written").write_text(printed.out)
    call = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(tmp_path / "reference"),
        "-i",
        str(tmp_path / "written"),
        "-tok",
        "char",
        "-lc",
    ]
    theirs = subprocess.run([*call, "-f", "text"], capture_output=True, text=True, check=True).stdout
    # Each in its line, also where a model writes a line break.
    monkeypatch.setattr(crossing, "cross", lambda *_, **__: [f"{text}\nmore" for text in written])
    cli.main(["translate", str(half.directory), sides[0], "--to=first"])
    assert capsys.readouterr().out.splitlines() == [f"{text} more" for text in written]
    # "BLEU|... = SCORE P1/P2/P3/P4 (BP = ...)"
    precisions = theirs.split(" = ")[1].split()[1]
    assert f"BLEU-1/2/3/4 {precisions} (" in printed.err and precisions.split("/")[0] not in ("0.0", "100.0")
    # A run says which of the two it has learnt to write.
    run = tmp_path / "backward"
    shutil.copytree(half.directory, run / "export")
    (run / "metrics.jsonl").write_text("")
    (run / "config.json").write_text('{"data": {"rows": "backward"}}')
    for model, flags, message in (
        (half.directory, ["--beams=3"], "--beams: is not for a model of TreLM; leave it out"),
        (half.directory, ["--tokenize=char"], "--tokenize: is for --reference; leave it out"),
        (half.directory, [sides[1], "--tokenize=klingon"], "--tokenize: klingon: sacrebleu has no such tokenizer; expected"),
        (run, [], "backward was trained to write the first language; expected --to=first"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["translate", str(model), sides[0], *flags])
        assert ended.value.code == 2 and message in capsys.readouterr().err
