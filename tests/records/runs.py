"""Run directories as training and transfer leave them, with figures that were measured once on a small German model."""

import json
import math
from pathlib import Path

import numpy as np

from wechsel_jax.initializers.plan import TransferPlan

STEPS = tuple(range(0, 201, 25))
CURVES = {
    "wechsel": (5806, 1120, 655, 500, 421, 369, 331, 306, 296),
    "trans_inner": (8203, 2603, 1033, 690, 543, 459, 402, 364, 349),
    "full_rand": (8587, 2410, 1410, 1098, 905, 771, 672, 604, 576),
}
COUNTS = {
    "wechsel": {"copied": 3, "mixed": 91, "random": 6},
    "trans_inner": {"copied": 3, "mixed": 0, "random": 97},
    "full_rand": {"copied": 0, "mixed": 0, "random": 100},
}
ALL = {"name": "all", "fraction": 1.0, "trainable": "all", "warmup": 0.1, "decay": "linear", "peak": 1.0}
TWO_PHASES = [{**ALL, "name": "tokens", "fraction": 0.1, "trainable": "tokens"}, {**ALL, "fraction": 0.9}]


def metrics(method: str, last: int = 200) -> str:
    """The lines of metrics.jsonl up to a step."""
    lines = []
    for step, perplexity in zip(STEPS, CURVES[method], strict=True):
        if step > last:
            break
        if step:
            training = {"loss": 5.0, "learning_rate": 1e-3, "gradient_norm": 1.0, "tokens_per_second": 2900.0 + step}
            lines.append({"kind": "train", "step": step, "phase": "all", **training, "seconds": step * 0.7})
        lines.append({"kind": "eval", "step": step, "loss": math.log(perplexity), "perplexity": perplexity, "tokens": 98304.0})
    return "".join(json.dumps(line) + "\n" for line in lines)


def config(method: str, seed: int = 0) -> dict:
    """What config.json of a run holds, shortened."""
    phases = TWO_PHASES if method == "trans_inner" else [ALL]
    sizes = {"steps": 200, "batch_size": 16, "block_length": 128}
    return {"seed": seed, "objective": "clm", **sizes, "phases": phases, "optimizer": {"peak_learning_rate": 1.5e-3}}


def plan(method: str) -> TransferPlan:
    """A plan of 100 rows with the counts of `COUNTS`: the weights of a mixed row are 1/2, 1/4, 1/4."""
    counts = COUNTS[method]
    weights = np.tile(np.array([0.5, 0.25, 0.25], np.float32), (100, 1))
    neighbors = np.arange(300).reshape(100, 3) % 50
    copy = np.where(np.arange(100) < counts["copied"], np.arange(100), -1)
    noise = np.arange(100) >= 100 - counts["random"]
    return TransferPlan.mixed(neighbors, weights).with_noise(noise).with_copies(copy.astype(np.int32))


def record(method: str) -> dict:
    """What transfer.json holds."""
    mixed = {"target": "ĠfÃ¼r", "how": "mixed", "sources": [["Ġfor", 0.5], ["Ġof", 0.3], ["Ġto", 0.2]]}
    copied = {"target": "▁haus", "how": "copied", "sources": [["Ġhouse", 1.0]]}
    examples = [mixed, copied, {"target": "Ã", "how": "random", "sources": []}]
    alignment = {"pairs": 21384, "pairs_given": 49211, "weighting": "unique", "held_out_words": 912, "precision_at_1": 0.3147}
    wechsel = method == "wechsel"
    return {
        "format": 1,
        "method": method,
        "parity": False,
        "settings": {"neighbors": 10, "temperature": 0.1, "seed": 0},
        "source": {"model": "models/english-gpt2", "architecture": "gpt2", "vocabulary_size": 50, "tied": True},
        "target": {"tokenizer": "tokenizer", "vocabulary_size": 100},
        "counts": COUNTS[method],
        "alignment": {**alignment, "residual": 0.6821} if wechsel else None,
        "similarity": {"mean_top1": 0.6123, "median_top1": 0.6301} if wechsel else None,
        "tensors": [{"name": "transformer.wte.weight", "role": "input", "shape": [100, 8], "dtype": "float32"}],
        "norms": {"source": {"mean": 1.843, "std": 0.31}, "target": {"mean": 1.21, "std": 0.24}},
        "examples": examples if wechsel else [{"target": "Ġa", "how": "random", "sources": []}],
        "behaviour": ["Equal similarities are ordered by the lower token id."],
        "notes": [],
        "versions": {"python": "3.12.4", "jax": "0.10.2"},
        "timings": {"making the plan": 1.102, "writing the model": 0.088},
    }


def make_run(root: Path, method: str, *, last: int = 200, name: str | None = None, seed: int = 0) -> Path:
    """Writes a run directory."""
    run = root / (name or method)
    (run / "transfer").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(config(method, seed)))
    (run / "metrics.jsonl").write_text(metrics(method, last))
    (run / "transfer" / "transfer.json").write_text(json.dumps(record(method)))
    plan(method).save(run / "transfer" / "transfer_plan.npz")
    return run
