"""What the processes of `forked` begin with: no PyTorch, as in programs that a user starts."""

from wechsel_jax.program import without_torch

without_torch()
