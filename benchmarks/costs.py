"""What the inputs of a start cost: FLOPs of training word vectors and a helper, and the text that is read for them.

`benchmarks.initializers` counts with it. FLOPs are of what the training multiplies and adds, forward and backward. Drawing
samples, cutting text and waiting for memory, which take most of fastText's time, are none.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.files.json import read_json
from wechsel_jax.records import read_run
from wechsel_jax.records.compute import compute

if TYPE_CHECKING:
    import fasttext

_VECTORS = re.compile(r"(\w+) vectors")


def made(workdir: Path, name: str) -> dict[str, float]:
    """Returns {"flops", "text_bytes"} of an input of a comparison, by its name in seconds.json; text counts in each pass.

    Raises:
      UserError: the vectors, or the run of the helper, are not there or recorded no cost.
    """
    if not (vectors := _VECTORS.fullmatch(name)):
        run = read_run(workdir / name)
        used, scored = compute(run), run.evaluations[-1:]
        if used is None or used.flops is None or not scored or not scored[0].bytes:
            raise UserError(f"{run.path}: did not record what it cost; expected a run of this version")
        return {"flops": used.flops, "text_bytes": round(run.tokens * scored[0].bytes / scored[0].tokens)}
    import fasttext

    model = fasttext.load_model(str(workdir / "vectors" / f"{vectors[1]}.bin"))
    texts = read_json(workdir / "texts.json", "the texts of a comparison", "name its workdir")
    # As in `comparison.inputs.make_inputs`.
    kinds = {"source": ("source",), "target": ("words", "train")}.get(vectors[1], ("train",))
    read = next(filter(None, (texts[kind] for kind in kinds)))
    return {"flops": fasttext_flops(model), "text_bytes": model.f.getArgs().epoch * sum(file["bytes"] for file in read)}


def fasttext_flops(model: "fasttext.FastText._FastText") -> float:
    """FLOPs that training a model took, as Bojanowski et al. (2017) and fastText 0.9.3 train it, from its words and settings.

    A word w is kept with probability min(1, sqrt(t / f) + t / f), its window reaches as far as a number drawn from 1 to ws. For
    each word kept and each word in its window (skip-gram), or all of them at once (cbow), the g rows that are read are averaged
    (g m), compared with a word and its negative samples (1 + neg times: 2 m for the product, 2 m for the gradient, 2 m for the
    row that it moves), and moved (2 g m). The ends of lines, where windows are cut, are left out of account.
    """
    args = model.f.getArgs()
    words, counts = model.get_words(include_freq=True)
    counts = np.asarray(counts, np.float64)
    share = counts / counts.sum()
    kept = counts * np.minimum(1.0, np.sqrt(args.t / share) + args.t / share)
    # With "<" and ">"; the end of a line has no n-grams.
    lengths = np.array([0 if word == "</s>" else len(word) + 2 for word in words])
    # "<" and ">" alone are no n-grams.
    ngrams = sum(np.maximum(lengths - n + 1 - 2 * (n == 1), 0) for n in range(args.minn, args.maxn + 1) if n)
    # A word of its own row and its n-grams; what is read twice in a window counts twice.
    rows = 1 + np.average(np.broadcast_to(ngrams, counts.shape), weights=kept)
    window, positions = args.ws + 1.0, args.epoch * kept.sum()
    if args.model.name == "cbow":
        rows, window = rows * window, 1.0
    return float(positions * window * args.dim * (3 * rows + 6 * (1 + args.neg)))
