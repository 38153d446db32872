"""eflomal (Östling and Tiedemann, 2016): links by Gibbs sampling of an HMM with fertility. Two runs give different links."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wechsel_jax.errors import from_extra


def align_eflomal(first: Sequence[np.ndarray], second: Sequence[np.ndarray], directory: Path) -> tuple[Path, Path]:
    """Runs the `eflomal` package with its defaults.

    Args:
      first: tokens of the first sentences, numbers.
      second: of the second.
      directory: for its files.

    Returns:
      Files for `read_links`: one link at most for each token of the second sentences, and for each of the first.

    Raises:
      UserError: the package is not installed.
    """
    with from_extra("align", "for --aligner=eflomal", "or take --aligner=diagonal"):
        import eflomal
    forward, backward = directory / "forward", directory / "backward"
    texts = [[" ".join(map(str, sentence.tolist())) for sentence in side] for side in (first, second)]
    eflomal.Aligner().align(*texts, links_filename_fwd=str(forward), links_filename_rev=str(backward))
    return forward, backward
