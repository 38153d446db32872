"""A real English model becomes German by several methods and is trained; PyTorch scores it, on text that it has not seen.

    PYTHONPATH=. python -m benchmarks.trained_model --source=SMOLLM2 --text=german.txt --validation=german.validation.txt
        --english=english.txt --dictionary=german.tsv --vectors=en.bin,de.bin --scratch=runs/smollm2
        --output=benchmarks/trained_model.json

Runs the commands of a user one after the other (tokenizer, then for each method transfer and train.pretrain with
configs/smollm2.py); what stands in the scratch folder is kept, so an interrupted run goes on where it stopped, and a method
more costs no other one again: what the output holds of others stays. Its `made_from.json` says what from, and another source,
text, dictionary, vectors or size of the vocabulary is refused there. Then `transformers` and PyTorch load the transferred and
the exported models and give bits per byte of the beginning of the validation text, which no code of this project computes.
Tokenizer, batches and schedule are the same for all methods.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.real_models import machine, perplexity
from benchmarks.results import read_flags, read_results, write_results
from wechsel_jax.errors import UserError
from wechsel_jax.files import file_hash, require_file
from wechsel_jax.program import program
from wechsel_jax.records.names import EXPORT, METRICS_FILE
from wechsel_jax.training.metrics import read_metrics

VALUES = flags.FlagValues()
flags.DEFINE_string("source", None, "Directory of the English model.", flag_values=VALUES)
flags.DEFINE_string("text", None, "German text.", flag_values=VALUES)
flags.DEFINE_string("validation", None, "Other German text.", flag_values=VALUES)
flags.DEFINE_string("english", None, "English text, which anker counts.", flag_values=VALUES)
flags.DEFINE_string("dictionary", None, "English-German dictionary, for anker and wechsel.", flag_values=VALUES)
flags.DEFINE_list("vectors", None, "English and German word vectors, for wechsel.", flag_values=VALUES)
flags.DEFINE_list("methods", ["anker", "wechsel", "fvt"], "Names in `METHODS`.", flag_values=VALUES)
flags.DEFINE_string("scratch", None, "Folder for the tokenizer, and for each method's transfer and run.", flag_values=VALUES)
flags.DEFINE_string("output", None, "JSON file for the result.", flag_values=VALUES)
some = {"lower_bound": 1, "flag_values": VALUES}
flags.DEFINE_integer("vocab_size", 16384, "Tokens of the new vocabulary.", **some)
flags.DEFINE_integer("steps", 300, "Updates.", **some)
flags.DEFINE_integer("rows", 4, "Rows of 128 tokens in an update.", **some)
flags.DEFINE_integer("scored", 60_000, "Characters of the validation text that PyTorch scores.", **some)
SHARED = ("--overlap=exact", "--noise=multivariate")
# The best of each at step 0 in benchmarks/real_models.json: what shared tokens and noise get. `anker_german` counts German on
# both sides, since the model saw some; it, `multivariate` and `anker_residual` have not been run to their end.
METHODS = {
    "anker": ("--method=anker",),
    "anker_german": ("--method=anker", "--dictionary=identical", "--overlap=exact"),
    "wechsel": ("--method=wechsel", *SHARED),
    "fvt": ("--method=fvt", *SHARED),
    "multivariate": ("--method=multivariate", "--overlap=exact"),
    "anker_residual": ("--method=anker", "--residual=2"),
}
NEEDS = {"wechsel": ("vectors", "dictionary")} | dict.fromkeys(("anker", "anker_residual"), ("english", "dictionary"))


def main() -> None:
    """Makes, trains and scores the models."""
    unknown = [name for name in VALUES.methods if name not in METHODS]
    if unknown or not VALUES.methods:
        raise UserError(f"--methods={','.join(unknown[:1])}: unknown; expected some of {', '.join(METHODS)}")
    needed = ["source", "text", "validation", "scratch", "output"]
    needed += [name for method in VALUES.methods for name in NEEDS.get(method, ())]
    missing = [name for name in needed if not VALUES[name].value]
    if missing:
        raise UserError(f"--{missing[0]} is required")
    if VALUES.vectors and len(VALUES.vectors) != 2:
        raise UserError(f"--vectors={','.join(VALUES.vectors)}: expected two files with a comma between, the English one first")
    if (output := Path(VALUES.output)).is_dir():
        raise UserError(f"{output}: is a directory; expected the name of a file, such as {output / 'trained_model.json'}")
    scratch = Path(VALUES.scratch)
    hashes = same_inputs(scratch)
    tokenizer = scratch / "tokenizer"
    if not tokenizer.exists():
        library("tokenizer", f"--input={VALUES.text}", f"--vocab_size={VALUES.vocab_size}", f"--output={tokenizer}")
    text = Path(VALUES.validation).read_text(encoding="utf-8")[: VALUES.scored]
    result = {
        "machine": machine(),
        "source": {"name": Path(VALUES.source).name, **perplexity(Path(VALUES.source), text, 512)},
        "settings": {name: VALUES[name].value for name in ("vocab_size", "steps", "rows", "scored")},
        "methods": {},
    }
    if before := read_results(output):
        if (before["settings"], before["source"]["tokens"]) != (result["settings"], result["source"]["tokens"]):
            raise UserError(f"{VALUES.output}: is of other settings or other text; expected the same; name another file")
        result["methods"] = before["methods"]
    files = {name: hashes[name] for name in ("source", "text", "validation")}
    for name, found in result["methods"].items():
        # Earlier results have none.
        differing = [part for part, known in found.get("sha256", {}).items() if files[part] != known]
        if differing:
            raise UserError(f"{VALUES.output}: {name} has another --{differing[0]}; expected the same; name another file")
    for name in VALUES.methods:
        result["methods"][name] = trained(name, scratch / name, tokenizer, text) | {"sha256": files}
    write_results(output, result)


def same_inputs(scratch: Path) -> dict[str, Any]:
    """Returns sha256 of the files that are read, the size of the vocabulary beside, and records them in the scratch folder.

    Raises:
      UserError: a file is missing, or what lies in the folder was made from others.
    """
    given = {name: VALUES[name].value for name in ("text", "validation", "english", "dictionary") if VALUES[name].value}
    given |= {f"vectors {number}": file for number, file in enumerate(VALUES.vectors or ())}
    for name, file in given.items():
        require_file(file, f"what --{name.split()[0]} names")
    weights = sorted(Path(VALUES.source).glob("*.safetensors"))
    if not weights:
        raise UserError(f"--source={VALUES.source}: has no *.safetensors; expected the directory of a model")
    found = {"source": {file.name: file_hash(file) for file in weights}, "vocab_size": VALUES.vocab_size}
    found |= {name: file_hash(file) for name, file in given.items()}
    before = read_results(record := scratch / "made_from.json")
    if not before and (scratch / "tokenizer").exists():
        raise UserError(
            f"{scratch}: does not say what it was made from; expected a folder of this version; name another --scratch"
        )
    if other := [name for name, value in found.items() if before.get(name, value) != value]:
        raise UserError(f"{scratch}: was made from another --{other[0].split()[0]}; expected the same; name another --scratch")
    scratch.mkdir(parents=True, exist_ok=True)
    write_results(record, before | found)
    return found


def trained(method: str, place: Path, tokenizer: Path, text: str) -> dict:
    """Transfers, trains and scores by one method."""
    transferred, run = place / "transfer", place / "run"
    if not transferred.exists():
        given = (f"--source={VALUES.source}", f"--target_tokenizer={tokenizer}", f"--output={transferred}")
        library("transfer", *METHODS[method], *inputs(method), *given)
    arguments = f"model={transferred},text={VALUES.text},validation={VALUES.validation}"
    arguments += f",steps={VALUES.steps},rows={VALUES.rows}"
    run_program("train.pretrain", f"--config=configs/smollm2.py:{arguments}", f"--workdir={run}")
    lines = read_metrics(run / METRICS_FILE)
    training = [line for line in lines if line["kind"] == "train"]
    found = {
        "options": METHODS[method],
        "torch": {"0": perplexity(transferred, text, 128), str(VALUES.steps): perplexity(run / EXPORT, text, 128)},
        "held_out": [[line["step"], line["perplexity"]] for line in lines if line["kind"] == "eval"],
        "seconds": training[-1]["seconds"],
        "tokens_per_second": training[-1]["tokens_per_second"],
    }
    rates = ", ".join(
        f"{score['bits_per_byte']:.3f} bits per byte after {step} steps" for step, score in found["torch"].items()
    )
    print(f"{method}: {rates}", flush=True)
    return found


def inputs(method: str) -> tuple[str, ...]:
    """The files that a method reads beside the model."""
    if method in ("anker", "anker_residual"):
        return f"--source_text={VALUES.english}", f"--target_text={VALUES.text}", f"--dictionary={VALUES.dictionary}"
    if method == "anker_german":
        return f"--source_text={VALUES.text}", f"--target_text={VALUES.text}"
    if method == "wechsel":
        source, target = VALUES.vectors
        return f"--source_vectors={source}", f"--target_vectors={target}", f"--dictionary={VALUES.dictionary}"
    return ()


def library(*arguments: str) -> None:
    """Runs a verb of the library."""
    run_program("wechsel_jax", *arguments)


def run_program(name: str, *arguments: str) -> None:
    """Runs a program and ends with it where it fails."""
    done = subprocess.run([sys.executable, "-m", name, *arguments], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    with program("benchmarks.trained_model"):
        read_flags(VALUES, __doc__, sys.argv[1:])
        main()
