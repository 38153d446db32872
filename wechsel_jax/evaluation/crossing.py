"""What TreLM's half models write in the other language, without links between the sentences (Li et al., 2021, table 6)."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.generation import NOTHING
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.translation import sentence_batches
from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.models.encoder import Crossing
from wechsel_jax.tokens.encoding import around, plain_backend
from wechsel_jax.tokens.extension import is_beside, unreached_from

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def cross(
    model: LoadedModel,
    sentences: Sequence[str],
    *,
    to: int = 1,
    batch_size: int = 64,
    first_tokenizer: "PreTrainedTokenizerFast | None" = None,
) -> list[str]:
    """Reads sentences in one language and writes, at each of their tokens, the likeliest token of the other.

    Nothing is reordered: who has the source alone has no links ("the same successive alignment that MLM uses"). All tokens are
    predicted at once. The first separator ends a translation, and of tokens that stand several times in a row one is kept. A
    translation has therefore at most as many tokens as its source.

    Args:
      model: of TreLM, with languages: RUN/forward/export or RUN/backward/export.
      sentences: in the language that is not `to`; what is longer than the model reads is cut.
      to: the language to write, 0 or 1: 1 for a forward model, 0 for a backward one.
      batch_size: sentences at once; rounded up to a multiple of the model's devices.
      first_tokenizer: of language 0, where the two have separate vocabularies; then only tokens of `to` are written.

    Returns:
      One translation a sentence, in their order.

    Raises:
      UserError: the model has no two languages, its weights give no numbers, a sentence is empty, or a number is impossible.
    """
    behind, size = unreached_from(model.tokenizer), len(model.tokenizer)
    if behind is None and model.config.language_count != 2:
        raise UserError(f"{model.directory}: has no two languages; expected a model of TreLM, such as RUN/forward/export")
    if to not in (0, 1) or batch_size < 1:
        raise UserError(f"to {to}, batch_size {batch_size}: expected 0 or 1, and at least 1")
    if (behind is None) != (first_tokenizer is None) or (first_tokenizer and not is_beside(model.tokenizer, first_tokenizer)):
        expected = "none" if behind is None else "that of the first language"
        raise UserError(f"first_tokenizer: {model.directory}: expected {expected}; see docs/trelm.md, separate vocabularies")
    backend = model.backend
    before, after = around(backend)
    allowed, rows = np.ones(model.config.vocabulary_size, bool), None
    # Rows behind the vocabulary are no tokens.
    allowed[size:] = False
    if first_tokenizer is not None:
        first = plain_backend(first_tokenizer)
        allowed[behind:] = to == 0
        allowed[:behind] &= (to == 1) | model.vocabulary.special[:behind]
        if to:
            most = model.config.max_length - len(before) - len(after)
            found = first.encode_batch([sentence.strip() for sentence in sentences], add_special_tokens=False)
            rows = [[*before, *(i + behind for i in one.ids[:most]), *after] for one in found]
    given = (model.family, model.config, model.dtype, to, model.parameters, allowed)
    written: dict[int, list[int]] = {}
    for chosen, tokens, mask in sentence_batches(model, sentences, batch_size, rows):
        guessed = jax.device_get(_guess(*given, model.place(tokens), model.place(mask)))
        for row, i in enumerate(chosen):
            ids = guessed[row, mask[row]][len(before) :].tolist()
            if NOTHING in ids:
                raise model.useless("the score of a token is no number")
            ids = ids[: ids.index(after[0])] if after and after[0] in ids else ids
            written[i] = [token for token, _ in groupby(ids)]
    if first_tokenizer is not None and not to:
        # Special tokens are the second language's.
        backend, written = first, {i: [token - behind for token in ids if token >= behind] for i, ids in written.items()}
    texts = backend.decode_batch([written[i] for i in range(len(sentences))], skip_special_tokens=True)
    return [text.strip() for text in texts]


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _guess(
    of_model: Family,
    config: ModelConfig,
    dtype: str,
    to: int,
    parameters: Any,
    allowed: jax.Array,
    tokens: jax.Array,
    mask: jax.Array,
) -> jax.Array:
    """int32 (B, L): the likeliest of the allowed tokens, bool (V,), at each position; `NOTHING` where scores are no numbers."""
    languages = jnp.full(tokens.shape[0], to, jnp.int32)
    crossing = Crossing(1 - languages, target_languages=languages)
    hidden = of_model.hidden(parameters, config, tokens, mask, crossing=crossing, dtype=jnp.dtype(dtype))
    head = of_model.head(parameters)

    def likeliest(hidden: jax.Array) -> jax.Array:
        logits = of_model.logits(head, config, hidden, dtype=jnp.dtype(dtype))
        scores = jnp.where(allowed, logits, -jnp.inf)
        return jnp.where(jnp.isnan(scores.max(axis=-1)), NOTHING, jnp.argmax(scores, axis=-1))

    # Row by row: the logits of all positions would be gigabytes.
    return jax.lax.map(likeliest, hidden)
