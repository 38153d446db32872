"""Measures how fast a causal model writes, beside `generate` of `transformers` with torch on the same machine.

    PYTHONPATH=. taskset -c 0 python benchmarks/generation.py --output=benchmarks/generation.json

Two models: GPT-2 small in its shape with random weights (no end of text, so that all texts are of one length), and the bundled
English one. Both sides write greedily in float32, the same number of tokens after the same prompts, after a first run that
compiles; the sides take turns, and a figure is the median over `--rounds`. With one core, as above, seconds are those of the
processor, so that others may use the machine too; with several they are those of the clock. Needs torch.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import torch
import transformers
from absl import app, flags

from benchmarks.machine import processor
from benchmarks.results import write_results
from wechsel_jax import demo
from wechsel_jax.evaluation import generation
from wechsel_jax.evaluation.loaded import LoadedModel

_ROUNDS = flags.DEFINE_integer("rounds", 5, "How often each side is measured.", lower_bound=1)
_PROMPT = flags.DEFINE_integer("prompt_tokens", 32, "Tokens of each prompt.", lower_bound=1)
_TOKENS = flags.DEFINE_integer("max_tokens", 64, "New tokens of each text.", lower_bound=1)
_BATCHES = flags.DEFINE_list("batches", ["1", "16"], "Prompts at once.")
_MODELS = flags.DEFINE_list("models", ["gpt2-small", "english-gpt2"], "Which models.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file for the result.")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    with tempfile.TemporaryDirectory(prefix="wechsel-generation-") as scratch:
        places = {"gpt2-small": Path(scratch), "english-gpt2": Path(demo.path("english-gpt2"))}
        if "gpt2-small" in _MODELS.value:
            make_small(places["gpt2-small"])
        runs = [measure(name, places[name], int(batch)) for name in _MODELS.value for batch in _BATCHES.value]
    result = {"machine": machine(), "prompt_tokens": _PROMPT.value, "max_tokens": _TOKENS.value, "runs": runs}
    print(json.dumps(result, indent=2))
    if _OUTPUT.value:
        write_results(_OUTPUT.value, result)


def make_small(directory: Path) -> None:
    """GPT-2 small's shape, random weights, the bundled tokenizer in the first rows of its table."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((Path(demo.path("english-gpt2")) / name).read_bytes())


def measure(name: str, directory: Path, batch: int) -> dict:
    """Tokens a second of both sides."""
    ours = LoadedModel.open(directory)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    # No side may stop early.
    theirs.config.eos_token_id = theirs.generation_config.eos_token_id = None
    generation.end_tokens = lambda model: frozenset()
    rng = np.random.default_rng(0)
    prompts = rng.integers(1, len(ours.tokenizer), (batch, _PROMPT.value)).tolist()
    given = torch.tensor(prompts)

    def write_ours() -> list:
        return [list(text.tokens) for text in generation.generate(ours, prompts, max_tokens=_TOKENS.value, batch_size=batch)]

    def write_theirs() -> list:
        settings = {"do_sample": False, "use_cache": True, "max_new_tokens": _TOKENS.value, "pad_token_id": 0}
        return theirs.generate(given, attention_mask=torch.ones_like(given), **settings)[:, _PROMPT.value :].tolist()

    same = float(np.mean(np.asarray(write_ours()) == np.asarray(write_theirs())))
    compiled = generation._next_tokens._cache_size()
    seconds = {"wechsel_jax": [], "transformers": []}
    for _ in range(_ROUNDS.value):
        seconds["wechsel_jax"].append(timed(write_ours))
        seconds["transformers"].append(timed(write_theirs))
    assert generation._next_tokens._cache_size() == compiled, "a batch was compiled again"
    speeds = {side: round(batch * _TOKENS.value / statistics.median(values), 1) for side, values in seconds.items()}
    ratio = statistics.median(b / a for a, b in zip(*seconds.values(), strict=True))
    return {"model": name, "batch": batch, "tokens_per_second": speeds, "ratio": round(ratio, 2), "same_tokens": same}


def timed(run: Callable[[], list]) -> float:
    clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    start = clock()
    run()
    return clock() - start


def machine() -> dict:
    cores = len(os.sched_getaffinity(0))
    return {
        "processor": processor(),
        "cores": cores,
        "clock": "cpu" if cores == 1 else "wall",
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    app.run(main)
