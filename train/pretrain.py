"""Trains a model, from a checkpoint or anew: `python -m train.pretrain --config=configs/NAME.py --workdir=DIR`."""

from train.program import run
from wechsel_jax.training import train

if __name__ == "__main__":
    run(train)
