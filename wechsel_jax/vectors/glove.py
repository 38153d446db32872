"""GloVe (Pennington et al., 2014): vectors whose products are the logarithms of how often tokens stand near each other."""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread

# As in the authors' program; the paper has a ceiling of 100 (section 4.2).
_CEILING, _EXPONENT = 10.0, 0.75
# Tokens whose rows of the matrix are worked on together.
_BLOCK = 128
# Three times the program's: a step stands for many of its own. With this rate 15 epochs reach the loss of its 15.
_RATE = 0.15


@one_thread()
def glove_vectors(
    counts: csr_array,
    generator: np.random.Generator,
    *,
    dim: int = 300,
    epochs: int = 15,
    progress: Callable[[int, float], None] | None = None,
) -> np.ndarray:
    """Trains a vector for each token that stands near another.

    Minimised is sum f(X_ij) (w_i . c_j + b_i + d_j - log X_ij)^2 / 2 over the pairs that occur, with f(x) = (x / 10)^0.75 but
    at most 1 (section 3, equation 8), by AdaGrad. Other than in the authors' program, whose threads take one pair at a time and
    race, a step sums the gradients of all pairs of 128 tokens, and since X is symmetric, tokens take turns as w and as c;
    AdaGrad's sums begin at 0, there at 1. So the same counts and generator give the same vectors.

    A step is a dense product, since a few tokens stand near most others: an epoch takes 6 V^2 dim operations, whatever the
    length of the text.

    Args:
      counts: (V, V) symmetric, X, none of them negative.
      generator: of the first vectors and of the order.
      dim: m.
      epochs: how often each pair is visited.
      progress: called after each epoch with its number and the mean loss per pair before its steps.

    Returns:
      float32 (V, m), w + c as in the authors' program; zeros where a token stands near none.
    """
    met = np.flatnonzero(np.diff(counts.indptr))
    order = generator.permutation(met)
    near = counts[order][:, order].tocsr()
    near.eliminate_zeros()
    logs = np.log(near.data).astype(np.float32)
    weights = np.minimum((near.data / _CEILING) ** _EXPONENT, 1).astype(np.float32)
    size = len(order)
    # Of both roles: vectors with the bias in the last column, and the sums of their squared gradients.
    roles = [((generator.random((size, dim + 1)) - 0.5) / dim).astype(np.float32) for _ in range(2)]
    squares = [np.full((size, dim + 1), 1e-12, np.float32) for _ in range(2)]
    starts = np.arange(0, size, _BLOCK)
    work.product(3 * epochs, size, size, dim)
    for epoch in range(epochs):
        loss = 0.0
        for turn, start in enumerate(generator.permutation(starts), epoch):
            rows = slice(start, min(start + _BLOCK, size))
            places = slice(near.indptr[rows.start], near.indptr[rows.stop])
            row = np.repeat(np.arange(rows.stop - rows.start), np.diff(near.indptr[rows.start : rows.stop + 1]))
            column = near.indices[places]
            first, second = roles[turn % 2], roles[1 - turn % 2]
            product = first[rows, :-1] @ second[:, :-1].T
            missed = product[row, column] + first[rows, -1][row] + second[column, -1] - logs[places]
            product[:] = 0
            product[row, column] = missed * weights[places]
            loss += float(np.dot(missed * weights[places], missed)) / 2
            here = np.column_stack([product @ second[:, :-1], product.sum(axis=1)])
            there = np.column_stack([product.T @ first[rows, :-1], product.sum(axis=0)])
            for vectors, total, gradient in (
                (first[rows], squares[turn % 2][rows], here),
                (second, squares[1 - turn % 2], there),
            ):
                total += np.square(gradient)
                vectors -= _RATE * gradient / np.sqrt(total)
        if progress is not None:
            progress(epoch + 1, loss / max(len(logs), 1))
    vectors = np.zeros((counts.shape[0], dim), np.float32)
    vectors[order] = roles[0][:, :-1] + roles[1][:, :-1]
    return vectors
