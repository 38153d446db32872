"""What TreLM's half models write: transformers' own logits sentence by sentence, numpy's rules, and sacrebleu's programme."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.evaluation.tiny_models import save
from wechsel_jax import cli
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.directory import write_checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.crossing import cross
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.models import family
from wechsel_jax.models.weights import unflatten
from wechsel_jax.tokens import load_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SENTENCES = ["der Hund", "die Katze und der Hund, die Katze!", "x", "ein Haus am See ist ein Haus am See", "und"]


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A TreLM model of a BERT of two layers with large random weights, so that it writes something else at each place."""
    folder, generator = tmp_path_factory.mktemp("crossing"), np.random.default_rng(2)
    source = Checkpoint.open(save(folder / "bert", "bert"))
    described = source.config | {"model_type": "tri-bert", "language_count": 2, "tri_layer": True}
    tri, tokenizer = family("tri-bert"), load_tokenizer(source.directory)
    config = tri.config(described)
    drawn = {path: 0.5 * generator.normal(size=shape) + path.endswith("scale") for path, shape in tri.shapes(config).items()}
    drawn["head/bias"][tokenizer.sep_token_id] += 2.0
    (folder / "half").mkdir()
    params = unflatten({path: value.astype(np.float32) for path, value in drawn.items()})
    write_checkpoint(folder / "half", described, tri.to_hugging_face(params, config), tokenizer)
    return LoadedModel.open(folder / "half")


def reference(half, sentence, to):
    """What a BERT of transformers with a layer more predicts; languages and positions are added by hooks."""
    params = half.parameters
    tensors = half.family.to_hugging_face(jax.tree.map(np.asarray, params), half.config)
    languages = torch.tensor(tensors.pop("bert.embeddings.language_embeddings.weight"))
    renamed = {
        name.replace("encoder.layer.1.", "encoder.layer.2.").replace("encoder.tri_layer.", "encoder.layer.1."): torch.tensor(x)
        for name, x in tensors.items()
    }
    fields = transformers.AutoConfig.from_pretrained(half.directory.parent / "bert")
    fields.num_hidden_layers = 3
    oracle = transformers.BertForMaskedLM(fields).eval()
    oracle.load_state_dict(renamed, strict=False)
    positions = oracle.bert.embeddings.position_embeddings.weight
    hooks = [
        oracle.bert.embeddings.LayerNorm.register_forward_pre_hook(lambda _, given: (given[0] + languages[1 - to],)),
        oracle.bert.encoder.layer[1].register_forward_pre_hook(
            lambda _, given: (given[0] + languages[to] + positions[: given[0].shape[1]], *given[1:])
        ),
    ]
    ids = half.tokenizer(sentence)["input_ids"]
    with torch.no_grad():
        logits = oracle(torch.tensor([ids])).logits[0].numpy()
    for hook in hooks:
        hook.remove()
    return logits


@pytest.mark.parametrize("to", [0, 1])
def test_translations_are_the_likeliest_tokens_of_transformers_without_repetitions(half, to):
    written, found = cross(half, SENTENCES, to=to), []
    for sentence in SENTENCES:
        guessed = reference(half, sentence, to).argmax(axis=1)[1:]
        kept = []
        for token in guessed:
            if token == half.tokenizer.sep_token_id:
                break
            if not kept or token != kept[-1]:
                kept.append(int(token))
        found.append((len(guessed), len(kept), half.tokenizer.decode(kept, skip_special_tokens=True).strip()))
    assert written == [text for *_, text in found]
    assert any(written), "something shall be written"
    assert len({*written}) > 1 and any(kept < size for size, kept, _ in found)


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


def test_the_verb_writes_and_scores_as_sacrebleu_does(half, tmp_path, capsys):
    (tmp_path / "source").write_text("\n".join(SENTENCES) + "\n")
    written = cross(half, SENTENCES, to=0)
    references = [
        text[: len(text) // 2] + " und NOCH" if number % 2 else text or "nichts" for number, text in enumerate(written)
    ]
    (tmp_path / "reference").write_text("\n".join(references) + "\n")
    sides = [f"--input={tmp_path / 'source'}", f"--reference={tmp_path / 'reference'}"]
    cli.main(["translate", str(half.directory), *sides, "--to=first", "--tokenize=char"])
    printed = capsys.readouterr()
    assert printed.out == "\n".join(written) + "\n"
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
    # "BLEU|... = SCORE P1/P2/P3/P4 (BP = ...)"
    precisions = theirs.split(" = ")[1].split()[1]
    assert f"BLEU-1/2/3/4 {precisions} (" in printed.err and precisions.split("/")[0] not in ("0.0", "100.0")
    for flags, message in ((["--beams=3"], "--beams: is not for a model of TreLM; leave it out"),):
        with pytest.raises(SystemExit) as ended:
            cli.main(["translate", str(half.directory), sides[0], *flags])
        assert ended.value.code == 2 and message in capsys.readouterr().err
