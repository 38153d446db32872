"""Compares initialisations: `python -m train.compare --config=configs/demo.py --workdir=runs/demo`."""

from train.program import run
from wechsel_jax.comparison import compare

if __name__ == "__main__":
    run(compare)
