"""Fine-tunes a model on labelled examples: `python -m train.finetune --config=configs/finetune.py --workdir=DIR`."""

from wechsel_jax.program import program

if __name__ == "__main__":
    with program("python -m train.finetune", last=True):
        from train.program import run

        run("wechsel_jax.training", "finetune")
