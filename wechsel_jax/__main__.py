"""`python -m wechsel_jax VERB ...`: `wechsel-jax`, of whichever Python."""

from wechsel_jax.cli import main

if __name__ == "__main__":
    main()
