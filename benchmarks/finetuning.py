"""Measures a pass of fine-tuning over XNLI's 2,490 German development pairs: a RoBERTa of 6 x 384, beside torch.

Command:  PYTHONPATH=. python -m benchmarks.finetuning --data=labelled/xnli --work=DIR [--output=benchmarks/finetuning.json]
Cost:     nine minutes on 2 CPU cores.

Both orders of the batches are measured: drawn at random, and texts of like length together (`task.group_by_length`). The whole
call is timed, reading, compiling, one batch of evaluation and the export included. torch trains the same model (transformers'
class, weights from the export) on the same rows of each batch, padded to the longest of the batch as its collator does; only
its steps are timed. Weights are random: what is learnt is not looked at. On a machine that others use too, compare CPU seconds.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import installed, processor
from configs.finetune import get_config
from wechsel_jax.files import new_file
from wechsel_jax.records.names import EXPORT
from wechsel_jax.text.files import read_lines
from wechsel_jax.tokens.training import train_tokenizer
from wechsel_jax.training import train
from wechsel_jax.training.labelled import open_labelled

ROOT = Path(__file__).parents[1]
SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/finetuning.json")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    text = given.work / "text.txt"
    text.write_text("\n".join(line for _, line in read_lines(given.data / "dev-de.tsv.gz", "")), encoding="utf-8")
    if not (given.work / "tokenizer").exists():
        train_tokenizer([str(text)], 8192, given.work / "tokenizer", style="roberta")
    result: dict[str, Any] = {
        "machine": {"processor": processor(), "cores": os.cpu_count(), **installed("jax", "torch", "transformers")},
        "load_before": round(os.getloadavg()[0], 1),
    }
    for name, together in (("random", False), ("group_by_length", True)):
        config = get_config("task=xnli,lang=de")
        config.data.train = (str(given.data / "dev-de.tsv.gz"),)
        config.data.validation = (str(given.data / "test-de.tsv.gz"),)
        config.model.checkpoint, config.model.tokenizer = "", str(given.work / "tokenizer")
        config.model.config = {"model_type": "roberta", "vocab_size": 8192, "max_position_embeddings": 130, **SHAPE}
        config.epochs, config.eval_batches, config.task.group_by_length = 1.0, 1, together
        config.mesh.data = 1
        workdir = given.work / name
        began, used = time.perf_counter(), time.process_time()
        train(config, workdir)
        ours = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used}
        config, data = open_labelled(config, given.work / "data", print)
        rows = [data.train.drawn(step, config.batch_size, config.seed) for step in range(config.steps)]
        positions = sum(data.train.positions(step, config.batch_size, config.seed) for step in range(config.steps))
        theirs = torch_pass(workdir / EXPORT, [data.train.padded(each, int(data.train.sizes(each).max())) for each in rows])
        result[name] = {
            "steps": config.steps,
            "tokens": int(sum(data.train.sizes(each).sum() for each in rows)),
            "positions": int(positions),
            "wechsel_jax": {key: round(value, 1) for key, value in ours.items()},
            "torch": {key: round(value, 1) for key, value in theirs.items()},
        }
        print(json.dumps(result[name], indent=1))
    with new_file(given.output, "w") as handle:
        json.dump(result, handle, indent=1)
        handle.write("\n")


def torch_pass(directory: Path, batches: list[dict[str, Any]]) -> dict[str, float]:
    """One pass of transformers' class with AdamW: how long its steps took, and the positions that they had."""
    import torch
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(directory).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, eps=1e-8, weight_decay=0.0)
    began, used = time.perf_counter(), time.process_time()
    for batch in batches:
        tokens, mask, labels = (torch.from_numpy(batch[name]).long() for name in ("tokens", "mask", "labels"))
        model(tokens, attention_mask=mask, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    figures = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used}
    return figures | {"positions": float(sum(batch["tokens"].size for batch in batches))}


if __name__ == "__main__":
    main()
