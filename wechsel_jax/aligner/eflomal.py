"""eflomal (Östling and Tiedemann, 2016): links by Gibbs sampling of an HMM with fertility. Two runs give different links."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wechsel_jax.errors import UserError


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
    try:
        import eflomal
    except ImportError:
        raise UserError(
            "--aligner=eflomal: the package eflomal is not installed; pip install 'wechsel-jax[align]', or take "
            "--aligner=diagonal"
        ) from None
    forward, backward = directory / "forward", directory / "backward"
    texts = [[" ".join(map(str, sentence.tolist())) for sentence in side] for side in (first, second)]
    eflomal.Aligner().align(*texts, links_filename_fwd=str(forward), links_filename_rev=str(backward))
    return forward, backward
