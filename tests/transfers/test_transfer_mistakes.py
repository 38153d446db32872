"""Bad input: one line that names the file, and nothing left behind."""

import errno
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from wechsel_jax.checkpoint import Checkpoint, surgery, tensors
from wechsel_jax.checkpoint.tensors import read_header, write_tensors
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.transfers.inputs import _length
from wechsel_jax.transfers.job import transfer


def quiet(_line: str) -> None:
    """Progress that no test reads."""


def run(source, tokenizer, output, **options) -> dict:
    return transfer(source, tokenizer, output, log=quiet, **options)


def _spoiled_model(world, save_source, tmp_path, spoil) -> dict:
    directory, _ = save_source("gpt2")
    copy = tmp_path / "inputs" / "model"
    shutil.copytree(directory, copy)
    spoil(copy)
    return {"source": copy}


def _write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _turned(pairs: Path, output: Path) -> Path:
    """A file of two columns with its columns exchanged."""
    lines = (line.split("\t") for line in pairs.read_text(encoding="utf-8").splitlines())
    return _write(output, "".join(f"{second}\t{first}\n" for first, second in lines))


def _truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def _nan_weight(model: Path) -> None:
    stored = {name: np.array(tensor.read()) for name, tensor in read_header(model / "model.safetensors").items()}
    stored["transformer.h.0.attn.c_attn.weight"][3, 1] = np.nan
    write_tensors(model / "model.safetensors", stored)


def _nan_rows(model: Path) -> None:
    stored = {name: np.array(tensor.read()) for name, tensor in read_header(model / "model.safetensors").items()}
    stored["transformer.wte.weight"][1:, 2] = np.nan
    write_tensors(model / "model.safetensors", stored)


def _few_rows(model: Path) -> None:
    stored = {name: np.array(tensor.read()) for name, tensor in read_header(model / "model.safetensors").items()}
    stored["transformer.wte.weight"] = stored["transformer.wte.weight"][:650]
    write_tensors(model / "model.safetensors", stored)
    config = json.loads((model / "config.json").read_text()) | {"vocab_size": 650}
    (model / "config.json").write_text(json.dumps(config))


def _whole_epsilon(model: Path) -> None:
    config = json.loads((model / "config.json").read_text()) | {"layer_norm_epsilon": 0}
    (model / "config.json").write_text(json.dumps(config))


def _vec(word_lines: str) -> str:
    return word_lines + "".join(f"w{i} " + " ".join("0.5" for _ in range(24)) + "\n" for i in range(9))


BAD = {
    "no source": lambda w, s, t: ({"source": t / "nowhere"}, "nowhere: no such directory"),
    "source is no model": lambda w, s, t: ({"source": w.root}, r"config\.json: no such file"),
    "truncated weights": lambda w, s, t: (
        _spoiled_model(w, s, t, lambda d: _truncate(d / "model.safetensors", 5000)), r"model\.safetensors: truncated",
    ),
    "nan in an inner tensor": lambda w, s, t: (_spoiled_model(w, s, t, _nan_weight), "c_attn.weight holds NaN"),
    "fewer rows than ids": lambda w, s, t: (_spoiled_model(w, s, t, _few_rows), "700 ids, but transformer.wte.weight only 650"),
    "a field that transformers refuses": lambda w, s, t: (
        _spoiled_model(w, s, t, _whole_epsilon), r"model/config\.json: transformers refuses it \(.*'layer_norm_epsilon'",
    ),
    "no source tokenizer": lambda w, s, t: (
        _spoiled_model(w, s, t, lambda d: (d / "tokenizer.json").unlink()), "model: holds no tokenizer",
    ),
    "no target tokenizer": lambda w, s, t: ({"target_tokenizer": t / "nope"}, "nope: no such file or directory"),
    "broken target tokenizer": lambda w, s, t: (
        {"target_tokenizer": _write(t / "inputs" / "tokenizer.json", "{")}, r"tokenizer\.json: .*not JSON: .* line 1 ",
    ),
    "missing vectors": lambda w, s, t: ({"source_vectors": t / "en.bin"}, r"en\.bin: no such file"),
    "empty vectors": lambda w, s, t: ({"target_vectors": _write(t / "inputs" / "de.bin", "")}, r"de\.bin: the file is empty"),
    "truncated vectors": lambda w, s, t: (
        {"target_vectors": _write(t / "inputs" / "de.bin", w.vectors("german").read_bytes()[:90_000])}, r"de\.bin: ",
    ),
    "nan in vectors": lambda w, s, t: (
        {"target_vectors": _write(t / "inputs" / "de.vec", _vec("haus " + "nan " * 23 + "1\n"))}, r"de\.vec: ",
    ),
    "dimensions of aligned vectors": lambda w, s, t: (
        {"target_vectors": _write(t / "inputs" / "de.vec", "a 1 2\nb 3 4\n"), "dictionary": "none"}, r"de\.vec: 2 dimensions",
    ),
    "no target token has a vector": lambda w, s, t: (
        {"target_vectors": _write(t / "inputs" / "de.vec", _vec("")), "dictionary": "none"}, r"de\.vec: no target token",
    ),
    "no source token has a vector": lambda w, s, t: (
        {"source_vectors": _write(t / "inputs" / "en.vec", _vec("")), "dictionary": "none"}, r"en\.vec: no source token",
    ),
    "missing dictionary": lambda w, s, t: ({"dictionary": t / "d.tsv"}, r"d\.tsv: no such file"),
    "useless dictionary": lambda w, s, t: ({"dictionary": _write(t / "inputs" / "d.tsv", "q\tx\n")}, r"d\.tsv: none of the 1"),
    "malformed dictionary": lambda w, s, t: ({"dictionary": _write(t / "inputs" / "d.tsv", "a\tb\nc\n")}, r"d\.tsv: line 2"),
    "dictionary in latin-1": lambda w, s, t: (
        {"dictionary": _write(t / "inputs" / "d.tsv", "a\tb\nküste\tcoast\n".encode("latin-1"))}, r"d\.tsv: ",
    ),
    "no dictionary": lambda w, s, t: ({"dictionary": None}, "method wechsel: no dictionary"),
    "unknown method": lambda w, s, t: ({"method": "wexel"}, "'wexel': no such method"),
    "unknown option value": lambda w, s, t: ({"head_bias": "half"}, "head_bias 'half'"),
    "too many neighbors": lambda w, s, t: ({"neighbors": 10_000}, "10000 neighbors"),
    "no temperature": lambda w, s, t: ({"temperature": 0.0}, "temperature 0.0"),
    "unknown setting": lambda w, s, t: ({"neigbors": 3}, "neigbors: no such setting; expected one of alignment, "),
    "refinement backwards": lambda w, s, t: ({"refine": -1}, "refine -1: expected at least 0"),
    "word start below zero": lambda w, s, t: ({"word_start": -0.1}, "word_start -0.1: expected at least 0"),
    "word start without end": lambda w, s, t: ({"word_start": float("inf")}, "word_start inf: expected at most 100"),
    "residuals of no regression": lambda w, s, t: (
        {"method": "anker", "residual": 2.0, "regression": False}, "residual 2: without a regression there are no residuals",
    ),
    "a number that is none": lambda w, s, t: ({"temperature": float("nan")}, "temperature nan: expected at least 1e-06"),
    "a number that is text": lambda w, s, t: ({"neighbors": "9"}, "neighbors '9': expected a whole number from 1 to 1048576"),
    "half a neighbor": lambda w, s, t: ({"neighbors": 9.5}, "neighbors 9.5: expected a whole number"),
    "a bonus without bounds": lambda w, s, t: ({"word_start": 1e308}, r"word_start 1e\+308: expected at most 100"),
    "padding without bounds": lambda w, s, t: ({"pad_to": 2**63}, "pad_to 9223372036854775808: expected at most 65536"),
    "refinement without end": lambda w, s, t: ({"refine": 2**63}, "refine 9223372036854775808: expected at most 1000"),
    "word start with parity": lambda w, s, t: (
        {"word_start": 0.1, "parity": True}, "word_start 0.1: no reference implementation has it; expected 0 with parity",
    ),
    "calibration without text": lambda w, s, t: ({"calibrate": "unigram"}, "calibrate unigram: no target_text; expected text"),
    "calibration with parity": lambda w, s, t: (
        {"calibrate": "unigram", "parity": True, "target_text": w.root / "german.txt"}, "calibrate unigram: no reference",
    ),
    "calibration of factors": lambda w, s, t: (
        {"calibrate": "unigram", "target_text": "de.txt", "latent_dimension": 4, "factorised": True}, "written as factors too",
    ),
    "calibration on a line of text": lambda w, s, t: (
        {"calibrate": "unigram", "target_text": _write(t / "inputs" / "de.txt", "Guten Tag.\n")},
        r"de\.txt: \d+ tokens; expected at least \d+ to calibrate on; give more target_text",
    ),
    "calibration on no text": lambda w, s, t: ({"calibrate": "unigram", "target_text": t / "de.txt"}, r"de\.txt: no such file"),
    "seed below zero": lambda w, s, t: ({"seed": -1}, "seed -1: expected at least 0"),
    "factors of nothing": lambda w, s, t: ({"factorised": True}, "factorised: .* expected a latent_dimension above zero"),
    "more dimensions than there are": lambda w, s, t: ({"latent_dimension": 17}, "latent_dimension 17: .* expected 1 to 16"),
    "refining aligned vectors": lambda w, s, t: ({"dictionary": "none", "refine": 1}, "refine: dictionary 'none' says"),
    "aligning aligned vectors": lambda w, s, t: (
        {"dictionary": "none", "alignment": "adversarial"}, "alignment 'adversarial': dictionary 'none' says",
    ),
    "map of an unknown token": lambda w, s, t: ({"map": "Ġand:Donaudampf"}, "map Ġand:Donaudampf: the target tokenizer has no"),
    "map without a colon": lambda w, s, t: ({"map": ["Ġand"]}, "map Ġand: has no colon"),
    "kept source of another kind": lambda w, s, t: (
        {"keep_source": True, "target_tokenizer": wordpiece(t), "method": "trans_inner"}, "cannot be appended to",
    ),
    "axes of a source that is drawn again": lambda w, s, t: (
        {"latent_dimension": 4, "method": "full_rand"}, "latent_dimension 4: full_rand keeps nothing of the source model",
    ),
    "kept source drawn again": lambda w, s, t: ({"keep_source": True, "method": "full_rand"}, "keep_source: full_rand draws"),
    "regression with parity": lambda w, s, t: ({"regression": True, "parity": True}, "regression: no reference implementation"),
    "regression with text of one language": lambda w, s, t: (
        {"regression": True, "target_text": w.root / "german.txt"}, "regression: text of one language only, to count its",
    ),
    "regression of rows that are drawn": lambda w, s, t: (
        {"method": "multivariate", "regression": True},
        "regression: multivariate does not read it; expected method wechsel, .*, fvt, mean; or leave it out",
    ),
    "regression on nothing": lambda w, s, t: (
        {"method": "fvt", "regression": True}, "regression: fvt has no vectors .*; expected source_text and target_text",
    ),
    "no parallel text": lambda w, s, t: (
        {"method": "trans_tokenization"}, "trans_tokenization: no parallel; expected parallel text",
    ),
    "parallel text that is nowhere": lambda w, s, t: (
        {"method": "trans_tokenization", "parallel": f"{w.dictionary}::{t / 'en.txt'}"}, r"en\.txt: no such file",
    ),
    "parallel text with one column": lambda w, s, t: (
        {"method": "trans_tokenization", "parallel": _write(t / "inputs" / "p.tsv", "a\tb\nc\n")}, r"p\.tsv: line 2: has 1 col",
    ),
    "parallel text of two lines": lambda w, s, t: (
        {"method": "trans_tokenization", "parallel": _write(t / "inputs" / "p.tsv", "a\tb\nc\td\n")},
        "no pair of words was aligned 10 times; expected more parallel text",
    ),
    "parallel text the other way round": lambda w, s, t: (
        {"method": "trans_tokenization", "parallel": _turned(w.dictionary, t / "inputs" / "p.tsv")},
        r"p\.tsv: the languages look swapped: the source tokenizer takes [\d,]+ tokens .*; expected the source language first",
    ),
    "parallel text for another method": lambda w, s, t: (
        {"parallel": w.dictionary}, "parallel: wechsel does not read it; expected method trans_tokenization, or no parallel",
    ),
    "no helper": lambda w, s, t: ({"method": "omp"}, "method omp: no helper; expected the directory"),
    "helper that is nowhere": lambda w, s, t: ({"method": "clp", "helper": t / "de"}, "de: no such directory"),
    "helper that is no model": lambda w, s, t: ({"method": "clp", "helper": w.root}, r"config\.json: no such file"),
    "helper with nan": lambda w, s, t: (
        {"method": "clp", "helper": _spoiled_model(w, s, t, _nan_rows)["source"]}, "wte.weight holds NaN or infinity",
    ),
    "helper with fewer rows than ids": lambda w, s, t: (
        {"method": "salt", "helper": _spoiled_model(w, s, t, _few_rows)["source"]}, "650 rows; .* that the helper was",
    ),
    "symbols of ofa": lambda w, s, t: ({"method": "ofa", "symbols": True, "parity": True}, "symbols: ofa has no rule"),
    "overlap that deepfocus lacks": lambda w, s, t: (
        {"method": "focus", "overlap": "nospace", "parity": True}, "overlap 'nospace': deepfocus has no such rule",
    ),
    "words where tokens are wanted": lambda w, s, t: (
        {"method": "focus", "target_vectors": _write(t / "inputs" / "de.vec", _vec(""))}, r"de\.vec: no target token",
    ),
    "roberta without mask": lambda w, s, t: (
        {"source": s("roberta")[0], "target_tokenizer": w.tokenizer("german", "gpt2")}, "has no pad, mask token",
    ),
    "gpt2 without an end": lambda w, s, t: ({"target_tokenizer": endless(w, t)}, "has no eos token"),
}  # fmt: skip


def endless(world, tmp_path) -> Path:
    state = json.loads((world.tokenizer("german", "gpt2") / "tokenizer.json").read_text(encoding="utf-8"))
    state["added_tokens"] = []
    state["model"]["vocab"] = {("end" if i == 0 else string): i for string, i in state["model"]["vocab"].items()}
    return _write(tmp_path / "inputs" / "endless.json", json.dumps(state))


def wordpiece(tmp_path) -> Path:
    tokens = ["[UNK]", "[CLS]", "[SEP]", "haus", "##tür"]
    model = tokenizers.models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    return _write(tmp_path / "inputs" / "tokenizer.json", tokenizers.Tokenizer(model).to_str())


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_leaves_nothing(world, save_source, source, tmp_path, case):
    options, message = BAD[case](world, save_source, tmp_path)
    arguments = {"source": source, "target_tokenizer": world.tokenizer("german", "gpt2"), **world.inputs()} | options
    with pytest.raises(UserError, match=message) as caught:
        transfer(output=tmp_path / "out", log=quiet, **arguments)
    assert {path.name for path in tmp_path.iterdir()} <= {"inputs"} and "\n" not in str(caught.value)


def test_existing_output_is_kept_without_overwrite_and_never_is_the_source(world, save_source, tmp_path):
    directory, _ = save_source("gpt2")
    _write(tmp_path / "out" / "diary.txt", "keep me")
    tokenizer = world.tokenizer("german", "gpt2")
    with pytest.raises(UserError, match="out: exists already"):
        run(directory, tokenizer, tmp_path / "out", method="trans_inner")
    with pytest.raises(UserError, match=r"out: it holds no record of that .*; only what transfer wrote is replaced"):
        run(directory, tokenizer, tmp_path / "out", method="trans_inner", overwrite=True)
    assert (tmp_path / "out" / "diary.txt").read_text() == "keep me"
    (tmp_path / "out" / "diary.txt").unlink()
    run(directory, tokenizer, tmp_path / "out", method="trans_inner")
    model = tmp_path / "out" / "model.safetensors"
    before = model.stat().st_ino
    run(directory, tokenizer, tmp_path / "out", method="trans_inner", overwrite=True)
    assert model.stat().st_ino != before
    with pytest.raises(UserError, match="is the source model itself"):
        run(directory, tokenizer, directory, method="trans_inner", overwrite=True)
    assert Checkpoint.open(directory).vocabulary_size == 700


@pytest.mark.parametrize("lost", ["source", "target_tokenizer", "target_text", "pattern", "dictionary"])
def test_overwriting_never_takes_an_input_with_it(world, source, tmp_path, lost):
    place = tmp_path / "mine"
    text = _write(place / "german.txt", (world.root / "german.txt").read_bytes())
    given = {"source": source, "target_tokenizer": world.tokenizer("german", "gpt2")}
    texts = {"source_text": world.root / "english.txt", "target_text": world.root / "german.txt"}
    if lost in given:
        given[lost] = shutil.copytree(given[lost], place / lost)
    elif lost == "dictionary":
        texts[lost] = _write(place / "pairs.tsv", "the\tder\n")
    else:
        texts["target_text"] = text if lost == "target_text" else place / "*.txt"
    before = sorted(place.rglob("*"))
    with pytest.raises(UserError, match=f"^{re.escape(str(place))}: .* lies in it and would be lost; choose another output"):
        run(given["source"], given["target_tokenizer"], place, method="anker", overwrite=True, **texts)
    assert sorted(place.rglob("*")) == before


def test_a_dictionary_is_read_before_the_model(world, tmp_path):
    dictionary = _write(tmp_path / "d.tsv", "a\tb\nc\n")
    for method, kind in (("wechsel", "vectors"), ("anker", "text")):
        given = {f"{side}_{kind}": dictionary for side in ("source", "target")}
        with pytest.raises(UserError, match=r"d\.tsv: line 2"):
            run("no/model", "no/tokenizer", tmp_path / "out", method=method, dictionary=dictionary, **given)


def test_both_texts_are_looked_for_before_the_model(world, tmp_path):
    texts = {"source_text": world.root / "english.txt", "target_text": _write(tmp_path / "empty.txt", "")}
    with pytest.raises(UserError, match=r"empty\.txt: the file is empty"):
        run("no/model", "no/tokenizer", tmp_path / "out", method="anker", dictionary="identical", **texts)


def test_an_output_that_cannot_be_written_is_refused_before_any_work(world, source, tmp_path):
    tokenizer = world.tokenizer("german", "gpt2")
    file, link = _write(tmp_path / "file", "keep me"), tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    said = []
    for output, overwrite, message in (
        (file / "out", False, "file is a file; expected a directory to write in"),
        (file, True, "is a file; expected a directory to write"),
        (link, False, "is a link; expected a directory to write"),
        ("~/out", False, f"the shell left ~ as it is; expected a path; write {Path.home() / 'out'}"),
        (Path.cwd().parent, True, "lies in it and would be lost"),
        ("/", True, "lies in it and would be lost"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            transfer(source, tokenizer, output, method="trans_inner", overwrite=overwrite, log=said.append)
    # Where not even root can make a file, whatever the rights say.
    with pytest.raises(UserError, match=r"^/proc/deep/out: /proc cannot be written to; choose another place"):
        transfer(source, tokenizer, "/proc/deep/out", method="trans_inner", log=said.append)
    assert not said and sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"] and file.read_text() == "keep me"


@pytest.mark.parametrize("where", [(tensors, "fsync"), (surgery, "write_checkpoint")], ids=["weights", "config"])
def test_a_full_disk_leaves_nothing_behind(world, source, tmp_path, monkeypatch, where):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    module, name = where
    monkeypatch.setattr(module.os if name == "fsync" else module, name, full)
    with pytest.raises(OSError, match="No space left"):
        run(source, world.tokenizer("german", "gpt2"), tmp_path / "out", method="trans_inner")
    assert list(tmp_path.iterdir()) == []


def test_text_that_a_tokenizer_does_not_know_is_not_short(tmp_path):
    """A word of another script is one unknown token, and would make its side the shorter one."""
    tokenizer = load_tokenizer(wordpiece(tmp_path))
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert len(tokenizer("ภาษาไทย", add_special_tokens=False).input_ids) == 1
    assert _length(tokenizer, vocabulary, ["ภาษาไทย"]) == len("ภาษาไทย")
