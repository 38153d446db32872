"""What TreLM's half models write in the other language, without links between the sentences (Li et al., 2021, table 6)."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp

from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.translation import sentence_batches
from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.models.encoder import Crossing
from wechsel_jax.objectives.loss import without_padding
from wechsel_jax.tokens.encoding import around, plain_backend


def cross(model: LoadedModel, sentences: Sequence[str], *, to: int = 1, batch_size: int = 64) -> list[str]:
    """Reads sentences in one language and writes, at each of their tokens, the likeliest token of the other.

    Nothing is reordered: who has the source alone has no links ("the same successive alignment that MLM uses"). All tokens are
    predicted at once. The first separator ends a translation, and of tokens that stand several times in a row one is kept. A
    translation has therefore at most as many tokens as its source.

    Args:
      model: of TreLM, with languages: RUN/forward/export or RUN/backward/export.
      sentences: in the language that is not `to`; what is longer than the model reads is cut.
      to: the language to write, 0 or 1: 1 for a forward model, 0 for a backward one.
      batch_size: sentences at once; rounded up to a multiple of the model's devices.

    Returns:
      One translation a sentence, in their order.

    Raises:
      UserError: the model has no two languages, a sentence is empty, or a number is impossible.
    """
    if model.config.language_count != 2:
        raise UserError(f"{model.directory}: has no two languages; expected a model of TreLM, such as RUN/forward/export")
    if to not in (0, 1) or batch_size < 1:
        raise UserError(f"to {to}, batch_size {batch_size}: expected 0 or 1, and at least 1")
    backend = plain_backend(model.tokenizer)
    before, after = around(backend)
    given = (model.family, model.config, model.dtype, len(model.tokenizer), to, model.parameters)
    written: dict[int, list[int]] = {}
    for chosen, tokens, mask in sentence_batches(model, sentences, batch_size):
        guessed = jax.device_get(_guess(*given, model.place(tokens), model.place(mask)))
        for row, i in enumerate(chosen):
            ids = guessed[row, mask[row]][len(before) :].tolist()
            ids = ids[: ids.index(after[0])] if after and after[0] in ids else ids
            written[i] = [token for token, _ in groupby(ids)]
    texts = backend.decode_batch([written[i] for i in range(len(sentences))], skip_special_tokens=True)
    return [text.strip() for text in texts]


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _guess(
    of_model: Family, config: ModelConfig, dtype: str, size: int, to: int, parameters: Any, tokens: jax.Array, mask: jax.Array
) -> jax.Array:
    """int32 (B, L): the likeliest of `size` tokens at each position."""
    languages = jnp.full(tokens.shape[0], to, jnp.int32)
    crossing = Crossing(1 - languages, target_languages=languages)
    hidden = of_model.hidden(parameters, config, tokens, mask, crossing=crossing, dtype=jnp.dtype(dtype))
    head = of_model.head(parameters)

    def likeliest(hidden: jax.Array) -> jax.Array:
        return jnp.argmax(without_padding(of_model.logits(head, config, hidden, dtype=jnp.dtype(dtype)), size), axis=-1)

    # Row by row: the logits of all positions would be gigabytes.
    return jax.lax.map(likeliest, hidden)
