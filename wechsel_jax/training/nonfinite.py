"""What is needed to make an update again whose loss or gradient was not finite."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

import wechsel_jax
from wechsel_jax.data import TokenBlocks, training_indices
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.training.config import as_dict


def stop_report(
    config: ConfigDict, workdir: Path, blocks: TokenBlocks, line: dict[str, Any], checkpoint: int | None, skipped: list[int]
) -> UserError:
    """Writes `workdir/nonfinite-step-N.json` and returns the error that ends the run.

    The file names the blocks of the batch (as `TokenBlocks.blocks` counts them), the sha256 of its tokens as int32, and the
    checkpoint to start from; the keys of masking and dropout follow from seed and step.

    Args:
      config: settings of the run.
      workdir: of the run.
      blocks: that are trained on.
      line: what the metrics say about the update: step (N, the updates made with it), phase, loss, gradient_norm,
        learning_rate.
      checkpoint: step of the newest one, None where there is none.
      skipped: earlier steps whose updates were skipped.
    """
    step = line["step"]
    chosen = training_indices(len(blocks), step - 1, config.batch_size, config.seed)
    tokens = np.ascontiguousarray(blocks.blocks(chosen))
    report = {
        **{name: line[name] for name in ("step", "phase", "learning_rate")},
        **{name: str(line[name]) for name in ("loss", "gradient_norm")},
        "seed": config.seed,
        "blocks": chosen.tolist(),
        "tokens_sha256": hashlib.sha256(tokens.tobytes()).hexdigest(),
        "data": {"directory": str(blocks.directory), "fingerprint": blocks.fingerprint},
        "checkpoint": None if checkpoint is None else str(workdir / "checkpoints" / str(checkpoint)),
        "skipped_before": skipped,
        "versions": {"wechsel_jax": wechsel_jax.__version__, "jax": jax.__version__},
        "config": as_dict(config),
    }
    file = workdir / f"nonfinite-step-{step}.json"
    if jax.process_index() == 0:
        with new_file(file, "w") as handle:
            json.dump(report, handle, indent=1)
    kept = "no checkpoint had been saved" if checkpoint is None else f"the checkpoint of step {checkpoint} is kept"
    allowed = f" after {len(skipped)} skipped updates" if skipped else ""
    return UserError(
        f"{workdir}: loss {line['loss']} and gradient norm {line['gradient_norm']} at step {step}{allowed}; "
        f"expected finite numbers; {kept}, {file.name} holds the batch; "
        "lower optimizer.peak_learning_rate, or set skip_nonfinite, and train in another workdir"
    )
