"""Trains a model, from a checkpoint or anew: `python -m train.pretrain --config=configs/NAME.py --workdir=DIR`."""

from wechsel_jax.program import program

if __name__ == "__main__":
    with program("python -m train.pretrain", last=True):
        from train.program import run

        run("wechsel_jax.training", "train")
