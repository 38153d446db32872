"""What frozen models know: a linear classifier on the means of their last hidden states."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wechsel_jax.data.examples import Task, find_labels, read_examples
from wechsel_jax.data.rows import LabelledRows, encode_examples, padding_id, with_special_tokens
from wechsel_jax.errors import UserError, from_extra
from wechsel_jax.evaluation.labels import LabelScores
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.search.threads import one_thread


def probe(
    model: LoadedModel,
    train: Sequence[str | os.PathLike],
    test: Sequence[str | os.PathLike],
    task: Task,
    *,
    length: int = 128,
    batch_size: int = 32,
) -> LabelScores:
    """Trains a logistic regression on what a frozen language model makes of examples, and scores it.

    A text is the mean of its tokens' last hidden states, a pair the two means side by side, a word the mean of its tokens
    (Minixhofer et al., 2022, appendix A). Features are scaled to mean 0 and variance 1 of the training examples.

    Args:
      model: a language model.
      train: files or data sets to train the classifier on, see `read_examples`.
      test: those to score it on.
      task: what examples are, "classification" or "tagging".
      length: tokens of the longest row.
      batch_size: rows that the model reads at once, rounded up to what the devices share.

    Returns:
      The scores, for tagging of words; "accuracy" counts, "majority" is that of the most frequent training label, and "cut" is
      how many of the examples that are scored were too long and lost their ends, where there are any.

    Raises:
      UserError: scikit-learn is not installed, an example is not what it should be, or the weights give no numbers.
    """
    with from_extra("eval", "to train the probe"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    if task.form not in ("classification", "tagging"):
        raise UserError(f"probe: {task.form} cannot be probed; expected classification or tagging; fine-tune the model")
    examples = [read_examples(names, task) for names in (train, test)]
    labels = find_labels(examples[0], task.form)
    if len(labels) < 2:
        raise UserError(f"{', '.join(map(str, train))}: has the label {labels[0]!r} alone; expected at least two; see the task")
    tokenizer = with_special_tokens(model.tokenizer, model.family.causal)
    encode = partial(
        encode_examples,
        tokenizer=tokenizer,
        form=task.form,
        labels=(*labels, *(label for label in find_labels(examples[1], task.form) if label not in labels)),
        length=min(length, model.config.max_length),
        pad_id=padding_id(model.config.pad_token_id, tokenizer),
        segments=model.config.type_vocabulary_size > 1,
    )
    rows = [encode(some) for some in examples]
    # An unknown token is part of a word, unless it also ends documents, as GPT-2's.
    special = [token_id for token_id, roles in enumerate(model.vocabulary.roles) if roles and roles != {"unk"}]
    (features, right), (new, gold) = (_features(model, one, special, model.rows_for(batch_size)) for one in rows)
    if not (np.isfinite(features).all() and np.isfinite(new).all()):
        raise model.useless("the state of a token is no finite number")
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    # Of many small products, which threads that wait for each other made ten times as slow on two cores with other work.
    with one_thread():
        found = classifier.fit(features, right).predict(new)
    correct = found == gold
    names = np.asarray(rows[1].labels)
    # How many labels each example has; words of a sentence depend on each other, so sentences are the items.
    counts = [len(example.texts) if task.form == "tagging" else 1 for example in rows[1].examples]
    places = [example.place for example, count in zip(rows[1].examples, counts, strict=True) for _ in range(count)]
    majority = float(np.mean(gold == np.bincount(right).argmax()))
    return LabelScores(
        metrics={"accuracy": float(correct.mean()), "majority": majority, **({"cut": rows[1].cut} if rows[1].cut else {})},
        metric="accuracy",
        places=places,
        predicted=names[found].tolist(),
        numerators=[float(part.sum()) for part in np.split(correct, np.cumsum(counts)[:-1])],
        denominators=list(map(float, counts)),
    )


def _features(model: LoadedModel, rows: LabelledRows, special: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Means of hidden states (n, d), or (n, 2 d) for pairs, and labels (n,); n texts, or all words, in their order."""
    size = model.config.hidden_size
    if rows.form == "tagging":
        # What follows the first token of a word belongs to it, but for special tokens; a row begins with no word of its own.
        owner = np.repeat(rows.sources, np.diff(rows.starts))
        begins = np.concatenate([[0], np.cumsum([len(example.texts) for example in rows.examples])])
        first = rows.marks >= 0
        last_first = np.maximum.accumulate(np.where(first, np.arange(rows.tokens.size), -1))
        inside = (last_first >= np.repeat(rows.starts[:-1], np.diff(rows.starts))) & (first | ~np.isin(rows.tokens, special))
        unit = np.where(inside, begins[owner] + rows.marks[last_first], -1)
        total, parts = int(begins[-1]), 1
        numbers = {label: number for number, label in enumerate(rows.labels)}
        labels = np.asarray([numbers[label] for example in rows.examples for label in example.target])
    else:
        parts = len(rows.examples[0].texts)
        owner = np.repeat(np.arange(len(rows)), np.diff(rows.starts))
        unit = np.where(rows.marks >= 0, owner * parts + rows.marks, -1)
        total, labels = len(rows) * parts, rows.targets
    sums, sizes = np.zeros((total, size)), np.zeros(total)
    for batch in rows.evaluation_batches(count):
        read = {name: model.place(batch[name]) for name in ("tokens", "mask", "types") if name in batch}
        hidden = _hidden(model.family, model.config, model.dtype, model.parameters, **read)
        for states, row in zip(np.asarray(hidden, np.float64), batch["row"], strict=True):
            if row >= 0:
                units = unit[rows.starts[row] : rows.starts[row + 1]]
                (kept,) = np.nonzero(units >= 0)
                np.add.at(sums, units[kept], states[kept])
                np.add.at(sizes, units[kept], 1)
    means = (sums / np.maximum(sizes, 1)[:, None]).reshape(-1, parts * size)
    return means, labels


@partial(jax.jit, static_argnums=(0, 1, 2))
def _hidden(of_model: Family, config: ModelConfig, dtype: str, parameters: Any, **read: jax.Array) -> jax.Array:
    return of_model.hidden(parameters, config, **read, dtype=jnp.dtype(dtype)).astype(jnp.float32)
