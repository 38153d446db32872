"""Whether embeddings will train well: any table opened, measured, and judged by the findings of Kim et al. (2024)."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.files.json import read_json
from wechsel_jax.inspection import analogies, positions
from wechsel_jax.inspection.distribution import MOST_SHUFFLED, STEPS, TableRows, distribution, moments_of, transformed
from wechsel_jax.inspection.origins import require_fit, rows_by_origin
from wechsel_jax.inspection.verdict import worst_first
from wechsel_jax.records import Finding
from wechsel_jax.records.embeddings import Absorption, Analogies, Distribution, Embeddings
from wechsel_jax.records.names import PLAN_FILE

# Deviations of table 2 over those of Xavier's draws for table 5's vocabularies: BERT's, 3 to 5 times as spread out, trained
# as well or better; GloVe's, 24 to 74 times, trained worse, and T5's, 700 to 2,500 times, hardly.
RATIO, RATIO_WRONG = 5.0, 20.0
# Table 6: after sqrt(D), the positions' share of the variance is 86 % with Xavier's embeddings and some 22 % with BERT's (.045
# times sqrt(768) beside .67), which both train well, and 1 % with GloVe's, which do not.
SHARE, SHARE_WRONG = 0.1, 0.02
# Table 4: unscaled Xavier embeddings with positions have a share above 99 %, and 13 % of the analogies in place of 87 %. After
# sqrt(D) a large narrow table with Xavier's spread, which is what a new model begins with, has such a share, too.
SHARE_MOST = 0.98
# Mean cosines of all pairs. Those of the paper's BERT have .36 by its table 2 (mean -.03, deviation .04), those of SmolLM2 .44,
# and both train; what follows from more is not measured. Of fewer rows than this it says nothing.
ALIKE, ALIKE_WRONG, FEW = 0.6, 0.9, 10
LENGTH = 64


def open_tables(path: str | os.PathLike, *, max_words: int | None = None, length: int = LENGTH) -> list[TableRows]:
    """Opens the tables of whatever holds embeddings; no row is read but those of word vectors in text files.

    Args:
      path: a model directory or hub id (its input table and, where that is another, its head; after a transfer its rows have
        the plan's origins as groups), a .safetensors file of `wechsel-jax table`, or word vectors of any format.
      max_words: of word vectors only so many, the most frequent.
      length: how many positions of a model's position table are read.

    Raises:
      UserError: it is missing, damaged or something else.
    """
    place = Path(path)
    if place.is_file() and place.suffix == ".safetensors":
        return [_new_table(place)]
    if place.is_file():
        from wechsel_jax.vectors import load_vectors

        vectors = load_vectors(place, max_words)
        shape = (len(vectors.words), vectors.dim)
        return [TableRows(str(path), "words", shape, np.dtype(np.float32), vectors.rows, words=tuple(vectors.words))]
    from wechsel_jax.checkpoint import Checkpoint
    from wechsel_jax.initializers import TransferPlan
    from wechsel_jax.tokens import Vocabulary, load_tokenizer

    checkpoint = Checkpoint.open(path)
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(checkpoint.directory))
    words = vocabulary.starting_words()
    groups: Mapping[str, np.ndarray] = {}
    if (checkpoint.directory / PLAN_FILE).exists():
        plan = TransferPlan.load(checkpoint.directory / PLAN_FILE)
        require_fit(plan, vocabulary, path)
        groups = rows_by_origin(plan)
    found = []
    for tensor in checkpoint.vocabulary_tensors():
        if tensor.role == "bias":
            continue
        # Padding behind the tokenizer's last id is not part of the vocabulary.
        table = checkpoint.read(tensor.name)[: len(vocabulary)]
        known = {"words": words[: len(table)], "groups": {name: where[: len(table)] for name, where in groups.items()}}
        if tensor.role == "input":
            known["positions"] = positions.of_checkpoint(checkpoint, length)
        found.append(TableRows.of(table, str(path), table=tensor.name, **known))
    return found


def _new_table(place: Path) -> TableRows:
    """What `wechsel-jax table` wrote: the table, and its record beside it."""
    from wechsel_jax.checkpoint.tensors import read_header

    stored = read_header(place)
    what = "a table that `wechsel-jax table` writes, with its .json beside it, a model directory, or word vectors"
    if stored.keys() != {"embeddings"} or len(stored["embeddings"].shape) != 2 or 0 in stored["embeddings"].shape:
        found = [f"{name} {list(tensor.shape)}" for name, tensor in stored.items()]
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise UserError(f"{place}: holds {', '.join(found[:3]) or 'no tensor'}{more}; expected {what}")
    record = read_json(place.with_suffix(".json"), what)
    table = stored["embeddings"].read()
    words, missing = record.get("words"), record.get("missing_ids")
    fits = words is None or (
        isinstance(words, list) and len(words) == len(table) and all(isinstance(word, str | None) for word in words)
    )
    if not fits or not isinstance(missing, list) or not all(type(i) is int and 0 <= i < len(table) for i in missing):
        raise UserError(f"{place.with_suffix('.json')}: is not of a table with {len(table)} rows; expected {what}")
    drawn = np.zeros(len(table), bool)
    drawn[missing] = True
    groups = {"found": ~drawn, "drawn": drawn} if missing else {}
    return TableRows.of(table, str(place), table="embeddings", words=words and tuple(words), groups=groups)


def study(
    rows: TableRows,
    *,
    steps: Sequence[str] = STEPS,
    kinds: Sequence[str] = ("sinusoidal", "paired"),
    length: int = LENGTH,
    probe: bool = False,
    questions: Sequence[analogies.Question] = (),
    max_words: int | None = None,
    position_rows: int = 1024,
    seed: int = 0,
) -> Embeddings:
    """Measures a table, and judges it.

    Args:
      rows: see `open_tables`.
      steps: what is done to the table, each by itself; distributions are measured after each. Where entries are too many to be
        shuffled, that step is left out.
      kinds: of the sinusoidal positions that a new model would add, names of `positions.FORMULAS`.
      length: L, how many positions the input is measured over.
      probe: also train probes, see `positions.probe`.
      questions: analogies to be answered after each of `analogies.VARIANTS`; none where empty.
      max_words: answer among so many of the first words only; all where None.
      position_rows: rows of the position table that is added for analogies.
      seed: of all draws.

    Raises:
      UserError: a row holds NaN, infinity or a number that no Transformer can scale, all entries are the same, or no row's word
        is known and analogies were asked for.
    """
    plain = distribution(rows)
    furthest = max(plain.least, plain.largest, key=abs)
    with np.errstate(over="ignore"):
        scaled = np.float64(furthest * math.sqrt(rows.shape[1])).astype(rows.dtype).astype(np.float32)
    if not np.isfinite(scaled):
        raise UserError(
            f"{rows.name}: {rows.table} holds {furthest:g}, which times the root of {rows.shape[1]} dimensions is beyond "
            f"{rows.dtype}; expected smaller numbers; make it again, or divide all of it"
        )
    found = [plain, *(distribution(rows, group=name, where=where) for name, where in rows.groups.items() if where.any())]
    for step in steps:
        if step != "elements" or math.prod(rows.shape) <= MOST_SHUFFLED:
            found.append(distribution(transformed(rows, step, plain, seed=seed), steps=(step,)))
    met = _absorptions(rows, plain, kinds, length, probe, seed)
    answered = _analogies(rows, questions, max_words, position_rows, seed) if questions else []
    settings: dict[str, Any] = {"seed": seed, "length": length}
    if rows.positions is not None:
        settings |= {"positions": rows.positions.kind, "embedding_scale": rows.positions.scale}
    if questions:
        settings |= {"position_rows": position_rows, "words": len(_worded(rows, max_words))}
    table = Embeddings(rows.name, rows.table, *rows.shape, settings, tuple(found), tuple(met), tuple(answered))
    return dataclasses.replace(table, findings=judged(table))


def _absorptions(
    rows: TableRows, plain: Distribution, kinds: Sequence[str], length: int, probe: bool, seed: int
) -> list[Absorption]:
    mean, covariance = moments_of(rows)
    root, factor = math.sqrt(rows.shape[1]), plain.xavier_sd / plain.sd if plain.sd else 0.0
    asked = [((), rows.positions, rows.positions.scale)] if rows.positions else []
    for kind in kinds:
        added = positions.sinusoidal(kind, length, rows.shape[1])
        xavier = ("pretrained_xavier",)
        scales = (((), 1.0), ((), root), (xavier, 1.0), (xavier, root), (("xavier",), root))
        asked += [(steps, added, scale) for steps, scale in scales if factor or not steps]
    found = []
    for steps, added, scale in asked:
        size = len(added.table[:length]) if added.table is not None else length
        # Another spread is one more shift and scale of all rows, and a draw has none but its own: nothing is read again.
        shift, times = (plain.mean, factor * scale) if steps else (0.0, scale)
        moments = (mean - shift, covariance)
        if steps == ("xavier",):
            moments = (np.zeros_like(mean), plain.sd**2 * np.eye(len(mean)))
        share, linear = positions.absorption(*moments, added, size, times)
        one = Absorption(steps, added.kind, size, scale, share, linear, plain.sd * times, positions.position_sd(added, size))
        if probe and added.kind != "relative":
            read = transformed(rows, *steps, plain, seed=seed) if steps else rows
            reading = positions.probe(read, added, size, scale, seed=seed)
            one = dataclasses.replace(one, probe_r2=reading.r2, probe_accuracy=reading.accuracy)
        found.append(one)
    return found


def _worded(rows: TableRows, most: int | None) -> list[int]:
    """Ids of the first row of each word, at most so many."""
    first: dict[str, int] = {}
    for i, word in enumerate(rows.words or ()):
        if word is not None:
            first.setdefault(word, i)
    return list(first.values())[:most]


def _analogies(
    rows: TableRows, questions: Sequence[analogies.Question], max_words: int | None, position_rows: int, seed: int
) -> list[Analogies]:
    ids = _worded(rows, max_words)
    if not ids:
        raise UserError(f"{rows.name}: no row of {rows.table} is a word's; expected words; leave --analogies out")
    words, table = [rows.words[i] for i in ids], rows.read(np.array(ids))
    table = table.astype(np.float32, copy=False)
    found = []
    for steps in analogies.VARIANTS:
        changed = analogies.with_steps(table, steps, length=position_rows, seed=seed)
        found.append(analogies.counted(analogies.answer(words, changed, questions), len(questions), steps))
    return found


def judged(table: Embeddings) -> tuple[Finding, ...]:
    """Judges what was measured of a table by the thresholds above, worst first."""
    found = [_spread(table), *_alike(table)]
    own = next((one for one in table.absorptions if one.positions == table.settings.get("positions")), None)
    if own is not None:
        found.append(_own(own))
    new = next((one for one in table.absorptions if not one.steps and one.scale != 1 and one is not own), None)
    if new is not None:
        drawn = (one for one in table.absorptions if one.steps == ("xavier",) and one.positions == new.positions)
        found.append(_new(new, next(drawn, None)))
    return worst_first(found)


def _spread(table: Embeddings) -> Finding:
    ratio = table.distributions[0].ratio
    told = f"The entries spread {ratio:.3g} times as far as Xavier's would in a table of this size"
    if 1 / RATIO <= ratio <= RATIO:
        return Finding("ok", "spread", ratio, f"{told}: a new Transformer trains from them as they are.")
    if ratio < 1:
        spreads = "`wechsel-jax table --standardize=pretrained_xavier` spreads them"
        text = f"{told}: they begin closer together than a new model's; {spreads}."
        return Finding("look", "spread", ratio, text)
    severity = "wrong" if ratio > RATIO_WRONG else "look"
    known = "like GloVe's and T5's, from which models trained badly" if severity == "wrong" else "between BERT's and GloVe's"
    advice = "for a new Transformer, `wechsel-jax table --standardize=pretrained_xavier` gives them Xavier's spread"
    own = " (their own model is used to them)" if "positions" in table.settings else ""
    return Finding(severity, "spread", ratio, f"{told}, {known}: {advice}{own}.")


def _alike(table: Embeddings) -> list[Finding]:
    """Of all rows, or else of the groups whose rows point in one direction."""
    kinds = [one for one in table.distributions if not one.steps and one.rows >= FEW and (one.anisotropy or 0) > ALIKE]
    found = []
    for one in kinds[:1] if kinds and kinds[0].group == "all" else kinds:
        severity = "wrong" if one.anisotropy > ALIKE_WRONG else "look"
        which = "The rows" if one.group == "all" else f"The {one.rows:,} {one.group} rows"
        text = (
            f"{which} are alike, their mean cosine is {one.anisotropy:.3f}: a model hardly tells their tokens apart before it "
            "has moved them. Subtract the mean of all rows, or draw such rows at random."
        )
        found.append(Finding(severity, "likeness", one.anisotropy, text))
    return found


def _own(met: Absorption) -> Finding:
    if met.positions == "relative":
        text = "In its own model no position is added: attention alone knows of them, whatever the scale of the embeddings."
        return Finding("ok", "own positions", None, text)
    told = f"positions explain {100 * met.share:.3g} % of the input's variance"
    if met.positions == "rotary":
        text = (
            "In its own model queries and keys are turned by their positions and nothing is added: no scale of the embeddings "
            f"absorbs them. Of rows that are turned themselves, {told}, by the direction that all rows share."
        )
        return Finding("ok", "own positions", met.share, text)
    text = f"In its own model {told}, and a linear reader finds {100 * met.linear:.3g} % of their number's variance."
    return Finding("ok", "own positions", met.share, text)


def _new(met: Absorption, drawn: Absorption | None) -> Finding:
    """Judges what a new model would add; `drawn` is the same of Xavier's draw in place of the table."""
    reader = f"a linear reader still finds {100 * met.linear:.3g} % of their number's variance"
    told = f"In a new Transformer (times sqrt(D), sinusoidal positions) positions explain {100 * met.share:.3g} % of the input"
    if met.share < SHARE:
        severity = "wrong" if met.share < SHARE_WRONG else "look"
        what = "they are absorbed" if severity == "wrong" else "they are faint"
        text = f"{told}: {what}, though {reader}. Standardise the table, or use positions that are not added."
        return Finding(severity, "new positions", met.share, text)
    if met.share > SHARE_MOST and (drawn is None or 1 - met.share < (1 - drawn.share) / 2):
        text = f"{told}: they drown what embeddings say of words. Use a larger scale, or positions that are not added."
        return Finding("look", "new positions", met.share, text)
    return Finding("ok", "new positions", met.share, f"{told}, and {reader}.")
