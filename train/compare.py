"""Compares initialisations: `python -m train.compare --config=configs/demo.py --workdir=runs/demo`."""

from wechsel_jax.program import program

if __name__ == "__main__":
    with program("python -m train.compare", last=True):
        from train.program import run

        run("wechsel_jax.comparison", "compare")
