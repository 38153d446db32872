r"""TreLM: an English encoder learns a second language in three phases (Li et al., 2021, section 3.2 and appendix A.5).

Command:  wechsel-jax align and wechsel-jax transfer make what it begins with, see docs/trelm.md; then
          python -m train.trelm --workdir=DIR \
            --config=configs/trelm.py:model=bert-joint,pairs=pairs,held_out=pairs.held-out,text=zh.txt,validation=zh.valid.txt
Phases:   `commonality`: 20,000 steps of masked language modelling on both sides of the pairs; layers are frozen.
          `forward`: 20,000 steps of CdLM from the first language to the second, and of MLM on the second, in one batch; the
          lower half of the layers is frozen. `backward`: the other way round, and the upper half is.
          `language`: both half models are combined to an ordinary encoder with a layer more, and trained for 80,000 steps on
          text of the second language; everything trains.
Cost:     of the paper's settings unknown: not run by this project. Shorter: `steps=0.01` takes that share of all steps.

`depth` is the model's number of layers, of which half are frozen. `objective=tlm` takes translation language modelling in place
of CdLM, `objective=brlm` bridge language modelling, and `tri_layer=0` leaves the TRILayer out (tables 7 and 8); see
benchmarks/trelm.py for these at a small scale. `common` and `common_held_out` are text of both languages for the first phase
alone (of `wechsel-jax align --aligner=none`); without, it reads the pairs. `parity=1` computes
as the paper's public code does. `nsp=1` adds next sentence prediction, the paper's secondary objective, to the last phase;
`text` and `validation` then have a sentence a line and a blank line between documents.

`first=bert-english` is the paper's CdLM*: the model's vocabulary is the second language's alone, that of `first` the first's;
the two share nothing, there is no table of languages, and CdLM and MLM take turns, step by step.
"""

from ml_collections import ConfigDict

from wechsel_jax.errors import UserError
from wechsel_jax.training import config_arguments, default_trelm_config
from wechsel_jax.training.trelm import PHASES

STEPS = {"commonality": 20_000, "forward": 20_000, "backward": 20_000, "language": 80_000}
WARMUP_STEPS = 500
# With so many times the steps their number still is an int32.
LONGEST = 10_000


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        **{"model": "bert-joint", "pairs": "pairs", "held_out": "pairs.held-out", "text": "train.txt"},
        **{"validation": "valid.txt", "depth": 12, "steps": 1.0, "objective": ("cdlm", "tlm", "brlm")},
        **{"tri_layer": ("1", "0"), "parity": ("0", "1"), "first": "", "common": "", "common_held_out": "", "nsp": ("0", "1")},
    )
    if not 0 < chosen["steps"] <= LONGEST:
        raise UserError(f"--config: steps={chosen['steps']}: expected a share of all steps, above 0 and at most {LONGEST:,}")
    middle = chosen["depth"] // 2
    config = default_trelm_config()
    config.source, config.first = chosen["model"], chosen["first"]
    config.tri_layer, config.parity = chosen["tri_layer"] == "1", chosen["parity"] == "1"
    for name in PHASES:
        phase = config[name]
        phase.objective = chosen["objective"] if name in ("forward", "backward") else "mlm"
        in_turns = "_in_turns" if chosen["first"] else ""
        phase.data.rows = {"commonality": "masked", "language": ""}.get(name, name + in_turns)
        sides = {"commonality": ("common", "common_held_out"), "language": ("text", "validation")}.get(
            name, ("pairs", "held_out")
        )
        both = [chosen[side] or chosen[pairs] for side, pairs in zip(sides, ("pairs", "held_out"), strict=True)]
        phase.data.train, phase.data.validation = ((place,) for place in both)
        phase.steps = max(2, round(chosen["steps"] * STEPS[name]))
        phase.batch_size = 128
        phase.block_length = 512
        phase.dtype = "bfloat16"
        # The paper's appendix has 2e-5 for the last phase, its public code 3e-5 for all.
        peak = 2e-5 if name == "language" else 3e-5
        phase.optimizer.update({"peak_learning_rate": peak, "b2": 0.999, "eps": 1e-8, "clip_norm": 5.0})
        trains = {"commonality": {"trainable": r"^(?!layers/)"}}.get(name, {"trainable": "all"})
        layers = {"forward": f"{middle}:", "backward": f":{middle}"}.get(name, "")
        warmup = min(WARMUP_STEPS, phase.steps // 10)
        phase.phases = ({"name": name, "fraction": 1.0, "warmup_steps": warmup, "layers": layers, **trains},)
        phase.eval_every = phase.checkpoint_every = max(1, min(2_500, phase.steps // 8))
        phase.log_every = 100
    if chosen["nsp"] == "1":
        config.language.objective, config.language.data.documents = "mlm_nsp", "paragraphs"
    return config
