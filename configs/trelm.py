r"""The schedules of TreLM's three phases for a BERT (Li et al., 2021, section 3.2 and appendix A.5).

Command:  python -m train.pretrain --workdir=DIR --config=configs/trelm.py:phase=commonality,model=bert,text=train.txt
Phases:   `commonality`: 20,000 steps, embeddings and head train, all layers are frozen.
          `transfer`: 20,000 steps, the lower half of the layers is frozen (`half=upper` trains the upper half, the default);
          `half=lower` is the other direction's model.
          `language`: 80,000 steps, everything trains.
Cost:     not run by this project yet.

This is what freezes and how long, with masked language modelling. TRILayer and the cross-lingual objective (CdLM) are not
part of this project yet, and neither is the merging of the two half models.
"""

from ml_collections import ConfigDict

from wechsel_jax.training import config_arguments, default_config

STEPS = {"commonality": 20_000, "transfer": 20_000, "language": 80_000}
WARMUP_STEPS = 500


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        **{"phase": (*STEPS,), "half": ("upper", "lower"), "depth": "12"},
        **{"model": "bert-target", "text": "train.txt", "validation": "valid.txt"},
    )
    middle = int(chosen["depth"]) // 2
    trains = {
        "commonality": {"trainable": r"^(?!layers/)"},
        "transfer": {"trainable": "all", "layers": f"{middle}:" if chosen["half"] == "upper" else f":{middle}"},
        "language": {"trainable": "all"},
    }[chosen["phase"]]
    config = default_config()
    config.model.checkpoint = chosen["model"]
    # Unrolled, frozen layers cost no gradients of their weights; in a loop they would be computed and thrown away.
    config.model.scan_layers = not trains.get("layers")
    config.data.train = (chosen["text"],)
    config.data.validation = (chosen["validation"],)
    config.objective = "mlm"
    config.steps = STEPS[chosen["phase"]]
    config.batch_size = 128
    config.block_length = 512
    config.dtype = "bfloat16"
    peak = 2e-5 if chosen["phase"] == "language" else 3e-5
    config.optimizer.update({"peak_learning_rate": peak, "b2": 0.999, "eps": 1e-8, "clip_norm": 5.0})
    config.phases = ({"name": chosen["phase"], "fraction": 1.0, "warmup_steps": WARMUP_STEPS, **trains},)
    config.eval_every = 2_500
    config.checkpoint_every = 2_500
    config.log_every = 100
    return config
