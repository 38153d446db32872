"""Brings an encoder to a second language by TreLM: `python -m train.trelm --config=configs/trelm.py --workdir=DIR`."""

from wechsel_jax.program import program

if __name__ == "__main__":
    with program("python -m train.trelm", last=True):
        from train.program import run

        run("wechsel_jax.training", "train_trelm", "default_trelm_config")
