"""A real English model becomes German and is trained; PyTorch scores it before and after, on text that it has not seen.

    PYTHONPATH=. python -m benchmarks.trained_model --source=SMOLLM2 --text=german.txt --validation=german.validation.txt
        --scratch=runs/smollm2 --output=benchmarks/trained_model.json

Runs the commands of a user one after the other (tokenizer, transfer, train.pretrain with configs/smollm2.py); what stands in
the scratch folder is kept, so an interrupted run goes on where it stopped. Then `transformers` and PyTorch load the transferred
and the exported model and give bits per byte of the beginning of the validation text, which no code of this project computes.
"""

import json
import subprocess
import sys
from pathlib import Path

from absl import flags

from benchmarks.real_models import machine, perplexity
from wechsel_jax.errors import UserError, exit_on_user_error
from wechsel_jax.files import new_file
from wechsel_jax.training.metrics import read_metrics

VALUES = flags.FlagValues()
flags.DEFINE_string("source", None, "Directory of the English model.", flag_values=VALUES)
flags.DEFINE_string("text", None, "German text.", flag_values=VALUES)
flags.DEFINE_string("validation", None, "Other German text.", flag_values=VALUES)
flags.DEFINE_string("scratch", None, "Folder for tokenizer, transfer and run.", flag_values=VALUES)
flags.DEFINE_string("output", None, "JSON file for the result.", flag_values=VALUES)
flags.DEFINE_integer("vocab_size", 16384, "Tokens of the new vocabulary.", flag_values=VALUES)
flags.DEFINE_integer("steps", 300, "Updates.", flag_values=VALUES)
flags.DEFINE_integer("rows", 4, "Rows of 128 tokens in an update.", flag_values=VALUES)
flags.DEFINE_integer("scored", 60_000, "Characters of the validation text that PyTorch scores.", flag_values=VALUES)
METHOD = "fvt"


def main() -> None:
    """Makes, trains and scores the model."""
    missing = [name for name in ("source", "text", "validation", "scratch", "output") if not VALUES[name].value]
    if missing:
        raise UserError(f"--{missing[0]} is required")
    scratch = Path(VALUES.scratch)
    tokenizer, transferred, run = scratch / "tokenizer", scratch / "transfer", scratch / "run"
    if not tokenizer.exists():
        library("tokenizer", f"--input={VALUES.text}", f"--vocab_size={VALUES.vocab_size}", f"--output={tokenizer}")
    if not transferred.exists():
        places = (f"--source={VALUES.source}", f"--target_tokenizer={tokenizer}", f"--output={transferred}")
        library("transfer", f"--method={METHOD}", "--noise=multivariate", *places)
    arguments = f"model={transferred},text={VALUES.text},validation={VALUES.validation}"
    arguments += f",steps={VALUES.steps},rows={VALUES.rows}"
    program("train.pretrain", f"--config=configs/smollm2.py:{arguments}", f"--workdir={run}")
    text = Path(VALUES.validation).read_text(encoding="utf-8")[: VALUES.scored]
    lines = read_metrics(run / "metrics.jsonl")
    training = [line for line in lines if line["kind"] == "train"]
    result = {
        "machine": machine(),
        "source": Path(VALUES.source).name,
        "method": METHOD,
        "settings": {name: VALUES[name].value for name in ("vocab_size", "steps", "rows", "scored")},
        "torch": {
            "source": perplexity(Path(VALUES.source), text, 512),
            "step 0": perplexity(transferred, text, 128),
            f"step {VALUES.steps}": perplexity(run / "export", text, 128),
        },
        "held_out": [[line["step"], line["perplexity"]] for line in lines if line["kind"] == "eval"],
        "seconds": training[-1]["seconds"],
        "tokens_per_second": training[-1]["tokens_per_second"],
    }
    with new_file(VALUES.output, "w") as handle:
        json.dump(result, handle, indent=1)
        handle.write("\n")
    print(json.dumps(result["torch"], indent=1))


def library(*arguments: str) -> None:
    """Runs a verb of the library."""
    program("wechsel_jax.cli", *arguments)


def program(name: str, *arguments: str) -> None:
    """Runs a program and ends with it where it fails."""
    done = subprocess.run([sys.executable, "-m", name, *arguments], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    VALUES(sys.argv)
    with exit_on_user_error("benchmarks.trained_model"):
        main()
