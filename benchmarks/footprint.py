"""SALT's Table 9: how many tokens a sentence has, and how many parameters a model, with its own vocabulary and with a new one.

    python -m benchmarks.footprint gpt2=GPT2 SmolLM2-135M=SMOLLM2 Gemma-3-270M=GEMMA --data=DATA

GPT2 and the others are directories with config.json and tokenizer.json; no weights are read. DATA holds NTREX-128 and the
tokenizers of FOCUS's authors, 50,000 tokens each, as TARGETS names them. Special tokens are not counted.
"""

import gzip
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.results import named_places, write_results
from wechsel_jax.errors import UserError
from wechsel_jax.files.json import read_json
from wechsel_jax.models import family
from wechsel_jax.program import program
from wechsel_jax.tokens import load_tokenizer

OUTPUT = Path(__file__).with_name("footprint.json")
# Text and tokenizer of each language below DATA.
TARGETS = {
    name: (f"parallel/ntrex/{code}.txt.gz", f"tokenizers/{name}/bpe-50k")
    for name, code in (("de", "deu"), ("ar", "arb"), ("sw", "swa"))
}


def measure(models: dict[str, Path], data: Path) -> dict[str, Any]:
    """Returns of every model and language the mean tokens of a sentence before and after, and the parameters.

    Raises:
      UserError: there is no model, or a file is missing or damaged.
    """
    if not models:
        raise UserError("expected directories of models, such as gpt2=DIR")
    found: dict[str, Any] = {}
    texts = {name: gzip.decompress((data / text).read_bytes()).decode().splitlines() for name, (text, _) in TARGETS.items()}
    new = {name: load_tokenizer(data / tokenizer) for name, (_, tokenizer) in TARGETS.items()}
    for model, directory in models.items():
        config = read_json(directory / "config.json", "a model's config.json", "name its directory")
        old = load_tokenizer(directory)
        targets = {
            name: {
                "tokens": _mean_length(old, texts[name]),
                "new_tokens": _mean_length(new[name], texts[name]),
                "parameters": _parameters(config, len(new[name])),
            }
            for name in TARGETS
        }
        found[model] = {"parameters": _parameters(config, config["vocab_size"]), "targets": targets}
    return {
        "command": "see benchmarks/footprint.py",
        "sentences": {name: len(text) for name, text in texts.items()},
        "models": found,
    }


def _mean_length(tokenizer, sentences: list[str]) -> float:
    encoded = tokenizer.backend_tokenizer.encode_batch(sentences, add_special_tokens=False)
    return round(sum(len(one) for one in encoded) / len(sentences), 2)


def _parameters(config: dict[str, Any], vocabulary_size: int) -> int:
    model = family(config["model_type"])
    return sum(math.prod(shape) for shape in model.shapes(model.config({**config, "vocab_size": vocabulary_size})).values())


def table(result: dict[str, Any]) -> str:
    """A line a model and language: lengths and parameters before and after, and what is saved."""
    lines = [
        "| model | to | tokens a sentence | with the new vocabulary | parameters | with the new vocabulary |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, model in result["models"].items():
        for language, one in model["targets"].items():
            cells = [f"{one['tokens']:.1f}", f"{one['new_tokens']:.1f} ({one['new_tokens'] / one['tokens'] - 1:+.0%})"]
            cells += [f"{model['parameters'] / 1e6:,.0f} M"]
            cells += [f"{one['parameters'] / 1e6:,.0f} M ({one['parameters'] / model['parameters'] - 1:+.0%})"]
            lines.append(f"| {name} | {language} | " + " | ".join(cells) + " |")
    told = ", ".join(f"{name} {count:,}" for name, count in result["sentences"].items())
    return "\n".join([*lines, f"\nSentences of NTREX-128: {told}. New vocabularies of 50,000 tokens."])


if __name__ == "__main__":
    with program("benchmarks.footprint"):
        arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--data=")]
        folders = [argument.removeprefix("--data=") for argument in sys.argv[1:] if argument.startswith("--data=")]
        if not folders:
            raise UserError("--data: missing; expected the folder with parallel/ntrex and tokenizers")
        measured = measure(dict(named_places(arguments)), Path(folders[-1]))
        write_results(OUTPUT, measured)
        print(table(measured))
