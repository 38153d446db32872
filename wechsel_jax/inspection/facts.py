"""Gathers what is known of a transfer before any training: from its record, its plan, its tables and a little text."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wechsel_jax.errors import UserError, naming
from wechsel_jax.files import require_directory
from wechsel_jax.inspection.origins import drawn_origins, require_fit, source_here
from wechsel_jax.inspection.verdict import verdict
from wechsel_jax.records import ORIGINS, Finding, Mixture, TransferRecord
from wechsel_jax.records.names import PLAN_FILE, RECORD_FILE

if TYPE_CHECKING:
    from wechsel_jax.checkpoint import Checkpoint, VocabularyTensor
    from wechsel_jax.initializers import TransferPlan
    from wechsel_jax.tokens import Vocabulary
    from wechsel_jax.vectors import WordVectors

SAMPLES = 10
# Words that nearest neighbors are sought for and among; the most frequent ones.
_SAMPLED_WORDS, _SEARCHED_WORDS = 5_000, 50_000
_WORD_NEIGHBORS = 3


def score(
    directory: str | os.PathLike,
    text: str | os.PathLike | None = None,
    *,
    plan: str | os.PathLike | None = None,
    source: str | os.PathLike | None = None,
    tokens_limit: int = 20_000,
    seed: int = 0,
    samples: int = SAMPLES,
) -> dict[str, Any]:
    """Scores a transfer before training; what a directory lacks is None.

    Args:
      directory: what `wechsel-jax transfer` wrote; or any model directory; or a transfer_plan.npz, of which only the counts and
        the weights are reported.
      text: UTF-8 text of the target language, a document a line, for the perplexity before training.
      plan: a plan to use in place of the directory's.
      source: the source model, where it is no longer where the record says; its tables are compared with.
      tokens_limit: how many tokens of `text` are read at most.
      seed: of the sample of tokens, and of the masks of a masked model.
      samples: how many target tokens are shown with their source tokens.

    Returns:
      Ready for JSON: "directory", "vocabulary_size", "counts" and "shares" of copied, mixed and random rows, "redrawn" (whether
      all other parameters are new too), "dictionary" and "noise" (as given), "method", "parity", "source", "target",
      "coverage", "alignment" and "similarity" (as recorded), "special_tokens", "mixture" and "regression" (see the functions
      of `tables`), "duplicates" (rows of the plan that equal another), "tables" (see `tables.compared`), "perplexity" (see
      `step_zero.perplexity_at_zero`), "samples", "notes", and "findings": the verdict on all of it.

    Raises:
      UserError: a file is missing or damaged, or the directory holds neither a model nor a transfer.
    """
    from wechsel_jax.checkpoint import Checkpoint
    from wechsel_jax.evaluation.step_zero import perplexity_at_zero
    from wechsel_jax.initializers import TransferPlan

    place = Path(directory)
    if place.is_file():
        if text is not None:
            raise UserError(f"{place}: is a plan, which cannot read {text}; expected a model directory for a perplexity")
        return _judged({"directory": None, **_of_plan(TransferPlan.load(place))})
    require_directory(place, f"a model directory, what `wechsel-jax transfer` wrote, or a {PLAN_FILE}")
    record = TransferRecord.read(place) if (place / RECORD_FILE).exists() else None
    found: dict[str, Any] = {"directory": str(place), **_of_record(record)}
    loaded = None
    if plan is not None or (place / PLAN_FILE).exists():
        loaded = TransferPlan.load(place / PLAN_FILE if plan is None else Path(plan))
        found |= _of_plan(loaded)
    checkpoint = None
    # The record may have been kept without the weights.
    if (place / "config.json").exists() and any(place.glob("*.safetensors")):
        checkpoint = Checkpoint.open(place)
        beside = source_here(record) if source is None else source
        original = None if beside is None else Checkpoint.open(beside)
        sizes = {side: getattr(record, side).get("vocabulary_size") for side in ("source", "target")} if record else {}
        found["tables"] = _tables(checkpoint, original, sizes, record.norms if record else None)
        if loaded is not None:
            found |= _of_tokens(checkpoint, original, loaded, record, seed, samples)
    elif loaded is None and record is None:
        if (place / "config.json").exists():
            Checkpoint.open(place)  # says what is missing
        raise UserError(
            f"{place}: holds no config.json, {PLAN_FILE} or {RECORD_FILE}; expected a model directory, or what "
            "`wechsel-jax transfer` wrote"
        )
    if text is not None:
        options = {"tokens_limit": tokens_limit, "seed": seed}
        found["perplexity"] = (
            perplexity_at_zero(checkpoint, text, **options) if checkpoint else {"reason": f"{place} holds no model"}
        )
    return _judged(found)


def completed(record: TransferRecord) -> TransferRecord:
    """Returns a record with what the plan and the model beside it tell: `mixture`, `tables`, `findings`, and missing `counts`.

    What the transfer measured itself is taken from the record. Else whole tables are read; what they told is kept for as long
    as the process runs and the files stay as they are.

    Raises:
      UserError: a file beside the record is damaged.
    """
    if record.file is None:
        return record
    place = record.file.parent
    if record.measures is not None:
        facts = _judged({**_of_record(record), **record.measures})
    else:
        files = sorted(place.glob("*"))
        facts = _scored(place, tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files))
    mixture, found, notes = facts.get("mixture"), facts["counts"], record.notes
    if record.counts and dict(record.counts) != found:
        ours, theirs = (", ".join(f"{counts[how]} {how}" for how in ORIGINS) for counts in (record.counts, found))
        notes += (f"{RECORD_FILE} and {PLAN_FILE} are not of one transfer: {ours}, but {theirs} in the plan.",)
    return dataclasses.replace(
        record,
        counts=record.counts or found,
        notes=notes,
        mixture=mixture and Mixture(mixture["effective_neighbors"], mixture["source_tokens"]),
        tables=tuple({"source": None, "ratios": None, **table} for table in facts.get("tables") or ()),
        findings=tuple(Finding(**finding) for finding in facts["findings"]),
    )


@functools.lru_cache(maxsize=64)
def _scored(place: Path, stamps: tuple[tuple[str, int, int], ...]) -> dict[str, Any]:
    """The score of a directory whose files have these sizes and times."""
    del stamps
    return score(place, samples=0)


def measure(
    plan: "TransferPlan", made: "Checkpoint", source: "Checkpoint", target: "Vocabulary", source_size: int
) -> dict[str, Any]:
    """Measures what a transfer has just written, for `TransferRecord.measures`; both models' tables are read once.

    Args:
      plan: of the transfer, V_t tokens.
      made: the model that was written.
      source: the model that it was made of.
      target: the V_t tokens.
      source_size: V_s; what stands behind is padding.

    Returns:
      "vocabulary_size", "shares", "mixture", "regression", "duplicates", "special_tokens" and "tables" as `score` returns them.
    """
    found = _of_plan(plan) | {"special_tokens": _special_tokens(target, plan)}
    del found["counts"]
    sizes = {"source": source_size, "target": len(target)}
    return found | {"tables": _tables(made, source, sizes, None)}


def score_vectors(
    source: "str | os.PathLike | WordVectors",
    target: "str | os.PathLike | WordVectors",
    dictionary: str | os.PathLike,
    *,
    seed: int = 0,
    samples: int = SAMPLES,
) -> dict[str, Any]:
    """Scores two languages' word vectors before any transfer: aligns them, and looks up the nearest words of some.

    Args:
      source: word vectors of the source language, a file or loaded.
      target: word vectors of the target language.
      dictionary: file of word pairs, or "identical" for the words that both languages spell the same.
      seed: of the held-out words and of the sample.
      samples: how many target words are shown with the source words nearest to them.

    Returns:
      Ready for JSON: "alignment" (see `vectors.Alignment.report`), "similarity" of frequent target words to the nearest source
      word ("mean_top1", "median_top1"), "samples" and "findings".

    Raises:
      UserError: a file is missing or damaged, or no pair of words has vectors.
    """
    from wechsel_jax.search import nearest_neighbors
    from wechsel_jax.vectors import align, load_vectors, read_dictionary

    sides = [load_vectors(side) if isinstance(side, str | os.PathLike) else side for side in (source, target)]
    pairs = "identical" if os.fspath(dictionary) == "identical" else read_dictionary(dictionary)
    with naming(f"{dictionary}: "):
        alignment = align(*sides, pairs, seed=seed)
    source, target = sides
    keys = alignment.map_source(source.rows(np.arange(min(_SEARCHED_WORDS, len(source.words)))))
    queries = alignment.map_target(target.rows(np.arange(min(_SAMPLED_WORDS, len(target.words)))))
    similarity, ids = nearest_neighbors(queries, keys, min(_WORD_NEIGHBORS, len(keys)))
    top = similarity[:, 0]
    chosen = np.sort(np.random.default_rng(seed).permutation(len(queries))[:samples])
    shown = [
        {
            "target": target.words[i],
            "how": "nearest",
            "sources": [[source.words[j], round(float(s), 4)] for j, s in zip(ids[i], similarity[i], strict=True)],
        }
        for i in chosen
    ]
    nearest = {"mean_top1": float(top.mean()), "median_top1": float(np.median(top))}
    return _judged({"alignment": alignment.report, "similarity": nearest, "samples": shown})


def _judged(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "findings": [vars(finding) for finding in verdict(found)]}


def _of_record(record: TransferRecord | None) -> dict[str, Any]:
    from wechsel_jax.initializers import METHODS

    names = ("method", "parity", "source", "target", "counts", "alignment", "similarity")
    return {
        **{name: getattr(record, name, None) for name in names},
        "redrawn": record is not None and record.method in METHODS and METHODS[record.method].redraw_inner,
        "dictionary": record.settings.get("dictionary") if record else None,
        "noise": record.settings.get("noise") if record else None,
        "coverage": record.coverage or None if record else None,
        "notes": list(record.notes) if record else [],
    }


def _of_plan(plan: "TransferPlan") -> dict[str, Any]:
    from wechsel_jax.inspection.tables import equal_origins, mixture, regression

    counts, twins = plan.counts(), equal_origins(plan)
    return {
        "vocabulary_size": len(plan),
        "counts": counts,
        "shares": {how: count / max(len(plan), 1) for how, count in counts.items()},
        "mixture": mixture(plan),
        "regression": regression(plan),
        "duplicates": {"rows": twins, "share": twins / max(len(plan), 1)},
    }


def _tables(
    checkpoint: "Checkpoint",
    original: "Checkpoint | None",
    sizes: Mapping[str, int | None],
    norms: Mapping[str, Mapping[str, float]] | None,
) -> list[dict[str, Any]]:
    """The tables beside the source's, or beside the norms that were recorded of its embeddings."""
    from wechsel_jax.inspection.tables import compared, statistics

    def described(model: "Checkpoint", tensor: "VocabularyTensor", side: str) -> dict[str, Any]:
        # Padding behind the tokenizer's last id is not part of the vocabulary.
        return statistics(tensor.rows(model.read(tensor.name))[: sizes.get(side)])

    found = []
    for tensor in checkpoint.vocabulary_tensors():
        target, before = described(checkpoint, tensor, "target"), None
        if original is not None and tensor.name in original.tensors:
            before = described(original, tensor, "source")
        elif norms and tensor.role == "input":
            before = {"norm_mean": norms["source"]["mean"], "norm_std": norms["source"]["std"]}
        found.append(compared(tensor.name, tensor.role, target, before))
    return found


def _of_tokens(
    checkpoint: "Checkpoint",
    original: "Checkpoint | None",
    plan: "TransferPlan",
    record: TransferRecord | None,
    seed: int,
    count: int,
) -> dict[str, Any]:
    """The special tokens, and a sample of tokens with their source tokens."""
    from wechsel_jax.tokens import Vocabulary, load_tokenizer

    target = Vocabulary.from_tokenizer(load_tokenizer(checkpoint.directory))
    require_fit(plan, target, checkpoint.directory)
    roles = _special_tokens(target, plan)
    if original is None:
        # What was drawn at the time of the transfer.
        return {"special_tokens": roles, "samples": record.content()["examples"][:count] if record else []}
    source = Vocabulary.from_tokenizer(load_tokenizer(original.directory))
    require_fit(plan, target, checkpoint.directory, source)
    return {"special_tokens": roles, "samples": drawn_origins(plan, source, target, seed, count)}


def _special_tokens(vocabulary: "Vocabulary", plan: "TransferPlan") -> dict[str, Any]:
    from wechsel_jax.tokens import ROLES

    special = np.flatnonzero(vocabulary.special)
    return {
        "total": len(special),
        "named": [vocabulary.strings[i] for i in special if not vocabulary.roles[i].isdisjoint(ROLES)],
        "random": [vocabulary.strings[i] for i in special if plan.random[i]],
    }
