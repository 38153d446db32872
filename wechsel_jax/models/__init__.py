"""Models as pure functions of nested dictionaries of parameters; `family(model_type)` is the way in.

In the order in which one explains the next:

- `config`: what a model is, one `ModelConfig` for all families; `rotary` is a part of it.
- `layers`: norms, attention, feed-forward, the loop over layers; `attention` is their one kernel, `dropout` their random bits.
- `cache`: what a decoder keeps of the tokens that it has read.
- `decoder`: the causal transformer (GPT-2, Llama 2 and 3, SmolLM2, Mistral, Qwen2, Gemma 1 to 3, XGLM).
- `encoder`: the masked one (BERT, RoBERTa, XLM-R).
- `gpt2`, `llama`, `gemma`, `xglm`, `bert`, `roberta`: how each family's `config.json` becomes a `ModelConfig`, and where its
  tensors are named otherwise than in `decoder` or `encoder`; `weights` reads and writes tensors by these names.
- `family`: all that training and transfer ask of an architecture, in one record; `registry`: the records, and how a mesh splits
  their parameters.
- `trilayer`: TreLM's encoders, which know languages and may reorder: how one begins, two become one, one becomes plain.
- `vanilla`: PyTorch's encoder and encoder-decoder, which are trained from any table.
- `heads`: the same families with a head for labels in place of the one for tokens, or with that of `trees`.
"""

from wechsel_jax.errors import from_extra

with from_extra("train", "to run a model"):
    import flax  # noqa: F401

from wechsel_jax.models.config import ModelConfig
from wechsel_jax.models.family import Family
from wechsel_jax.models.registry import family

__all__ = ["Family", "ModelConfig", "family"]
