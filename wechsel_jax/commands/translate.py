"""Translates with an encoder-decoder that `train.finetune` trained, and scores it where the right translations are given.

  wechsel-jax translate run --input=test.de > test.hypotheses
  wechsel-jax translate run --input=test.de --beams=5 --reference=test.en > test.hypotheses
  wechsel-jax translate trelm/forward --input=test.en --reference=test.zh --tokenize=zh > test.hypotheses

Every line of the input is a sentence, and every line of the output its translation. Scores are said on stderr: BLEU and chrF of
sacrebleu, with its signature, of the text as it is read. A model whose tokenizer knows no capitals is scored without case.
A model is a directory, or a run's, whose export is taken. A half model of TreLM writes the likeliest word at each place of its
source, all at once; see docs/trelm.md.
"""

import json
import sys
import time
from pathlib import Path

from absl import flags

from wechsel_jax.commands import choice, number, picked
from wechsel_jax.errors import UserError
from wechsel_jax.records.names import CONFIG_FILE
from wechsel_jax.records.run import exported_model

ARGUMENTS = "DIR"
REQUIRED = ("input",)


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `evaluation.translation.translate` and the files."""
    to = {"flag_values": values}
    flags.DEFINE_string("input", None, "Text with a sentence on each line, compressed or not.", **to)
    flags.DEFINE_string("reference", None, "The right translations, line by line: score BLEU and chrF (extra eval).", **to)
    flags.DEFINE_integer(
        "beams", 1, "Translations that are kept at each step; 1: greedy.", lower_bound=1, upper_bound=1024, **to
    )
    number(values, "length_penalty", 1.0, "Of --beams: above 0 favours long translations.", 0, 100)
    most = {"lower_bound": 1, "upper_bound": 1 << 24, **to}
    flags.DEFINE_integer("max_tokens", 128, "Of a translation at most.", **most)
    flags.DEFINE_integer("batch_size", 64, "Sentences at once.", **most)
    choice(values, "to", "second", ("first", "second"), "Of a model of TreLM: the language to write")
    apart = "Of a model of TreLM with separate vocabularies: the tokenizer of its first language."
    flags.DEFINE_string("first_tokenizer", None, apart, **to)
    counted = "What BLEU counts, as sacrebleu calls it: 13a (words), char (characters), zh, ja-mecab and others."
    flags.DEFINE_string("tokenize", "13a", counted, **to)
    choice(values, "dtype", "float32", ("float32", "bfloat16"), "What matrix products compute in")


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Reads everything, translates, prints, and scores."""
    from wechsel_jax.text.files import read_lines

    if values["tokenize"].present and not values.reference:
        raise UserError("--tokenize: is for --reference; leave it out")
    if values["length_penalty"].present and values.beams == 1:
        raise UserError("--length_penalty: has no effect on a greedy translation; leave it out, or ask for more --beams")
    sides = picked(values, "input", "reference").items()
    lines = {name: [line for _, line in read_lines(place, "sentences, one a line")] for name, place in sides if place}
    if values.reference:
        from wechsel_jax.evaluation.translation import require_sacrebleu

        require_sacrebleu("--reference", "--tokenize", values.tokenize)
        if len(lines["reference"]) != len(lines["input"]):
            counts = f"{len(lines['reference']):,} lines and {values.input} {len(lines['input']):,}"
            raise UserError(f"{values.reference}: has {counts}; expected the translation of each line")
    for place, line in enumerate(lines["input"], 1):
        if not line.strip():
            raise UserError(f"{values.input}: line {place}: is empty; expected a sentence; remove the line")
    if not lines["input"]:
        raise UserError(f"{values.input}: is empty; expected a sentence on each line")
    from wechsel_jax.checkpoint import Checkpoint
    from wechsel_jax.evaluation.crossing import cross
    from wechsel_jax.evaluation.loaded import LoadedModel
    from wechsel_jax.evaluation.translation import score_translations, translate, writes_lowercase
    from wechsel_jax.models.trilayer import PREFIX
    from wechsel_jax.tokens import load_tokenizer
    from wechsel_jax.tokens.encoding import plain_backend

    crossing = str(Checkpoint.open(exported_model(arguments[0])).config.get("model_type")).startswith(PREFIX)
    for name in ("beams", "length_penalty", "max_tokens") if crossing else ("to", "first_tokenizer"):
        if values[name].present:
            raise UserError(f"--{name}: is not for {'a model of TreLM' if crossing else 'an encoder-decoder'}; leave it out")
    trained = _written_by(arguments[0]) if crossing else ""
    if trained not in ("", values.to):
        raise UserError(
            f"--to={values.to}: {arguments[0]} was trained to write the {trained} language; expected --to={trained}"
        )
    model = LoadedModel.open(arguments[0], dtype=values.dtype, translation=not crossing)
    to = ("first", "second").index(values.to)
    first = load_tokenizer(values.first_tokenizer) if values.first_tokenizer else None
    began = time.perf_counter()
    if crossing:
        written = cross(model, lines["input"], to=to, batch_size=values.batch_size, first_tokenizer=first)
    else:
        options = picked(values, "beams", "length_penalty", "max_tokens", "batch_size")
        found = translate(model, lines["input"], **options)
        written = [one.text for one in found]
    seconds = time.perf_counter() - began
    # A break within one would move all that follow to other lines.
    written = [" ".join(text.splitlines()) for text in written]
    print(*written, sep="\n")
    read = plain_backend(first if first and to else model.tokenizer).encode_batch([line.strip() for line in lines["input"]])
    if cut := sum(len(one.ids) > model.config.max_length for one in read):
        told = f"{cut:,} of {len(read):,} sentences have more than the {model.config.max_length} tokens that the model reads"
        print(f"note: {told}; the rest of them was left out", file=sys.stderr)
    print(f"{len(written):,} sentences in {seconds:.1f} s", file=sys.stderr)
    if values.reference:
        writer = first if first and not to else model.target_tokenizer or model.tokenizer
        options = {"lowercase": writes_lowercase(writer), "tokenize": values.tokenize}
        scores = score_translations(written, lines["reference"], **options)
        precisions = "/".join(f"{one:.1f}" for one in scores["precisions"])
        told = f"BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}, BLEU-1/2/3/4 {precisions} ({scores['signature']})"
        print(told, file=sys.stderr)


def _written_by(run: str) -> str:
    """The language that a run of a half model was trained to write; "" where the place is no such run."""
    try:
        rows = json.loads((Path(run) / CONFIG_FILE).read_bytes())["data"]["rows"]
        return {"forward": "second", "backward": "first"}.get(rows, "")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
