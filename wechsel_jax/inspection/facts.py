"""Gathers what is known of a transfer before any training: from its record, its plan, its tables and a little text."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_directory
from wechsel_jax.inspection.origins import PLAN_FILE, RECORD_FILE
from wechsel_jax.inspection.records import read_record
from wechsel_jax.inspection.verdict import verdict

if TYPE_CHECKING:
    from wechsel_jax.checkpoint import Checkpoint, VocabularyTensor
    from wechsel_jax.initializers import TransferPlan
    from wechsel_jax.tokens import Vocabulary
    from wechsel_jax.vectors import Alignment, WordVectors

SAMPLES = 10
_NAMED_ROLES = frozenset({"bos", "eos", "pad", "unk", "mask", "cls", "sep"})
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
        the weights are told.
      text: UTF-8 text of the target language, a document a line, for the perplexity before training.
      plan: a plan to use in place of the directory's.
      source: the source model, where it is no longer where the record says; its tables are compared with.
      tokens_limit: how many tokens of `text` are read at most.
      seed: of the sample of tokens, and of the masks of a masked model.
      samples: how many target tokens are shown with their source tokens.

    Returns:
      Ready for JSON: "directory", "method", "vocabulary_size", "counts" and "shares" of copied, mixed and random rows,
      "redrawn" (whether all other parameters are new too), "dictionary" (as it was given), "coverage", "alignment" and
      "similarity" (as recorded), "special_tokens", "mixture" (see `mixtures.mixture`), "duplicates" (rows of the plan that
      equal another), "tables" (see `tables.compared`), "perplexity" (see `step_zero.perplexity_at_zero`), "samples", "notes",
      and "findings": the verdict on all of it.

    Raises:
      UserError: a file is missing or damaged, or the directory holds neither a model nor a transfer.
    """
    place = Path(directory)
    if place.is_file():
        if text is not None:
            raise UserError(f"{place}: is a plan, which cannot read {text}; expected a model directory for a perplexity")
        return _judged({"directory": None, **_of_plan(_load_plan(place))})
    require_directory(place, f"a model directory, what `wechsel-jax transfer` wrote, or a {PLAN_FILE}")
    record = read_record(place / RECORD_FILE) if (place / RECORD_FILE).exists() else {}
    found: dict[str, Any] = {"directory": str(place), **_of_record(record)}
    loaded = None
    if plan is not None or (place / PLAN_FILE).exists():
        loaded = _load_plan(place / PLAN_FILE if plan is None else Path(plan))
        found |= _of_plan(loaded)
    checkpoint, original = _open(place, record, source)
    if checkpoint is None and loaded is None and not record:
        _refuse(place)
    if checkpoint is not None:
        found["tables"] = _tables(checkpoint, original, record)
        if loaded is not None:
            found |= _of_tokens(checkpoint, original, loaded, record, seed, samples)
    if text is not None:
        found["perplexity"] = _perplexity(place, checkpoint, text, tokens_limit, seed)
    return _judged(found)


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
    from wechsel_jax.vectors import align, load_vectors, read_dictionary

    sides = [load_vectors(side) if isinstance(side, str | os.PathLike) else side for side in (source, target)]
    pairs = "identical" if os.fspath(dictionary) == "identical" else read_dictionary(dictionary)
    alignment = align(*sides, pairs, seed=seed)
    similarity, shown = _nearest_words(*sides, alignment, seed, samples)
    return _judged({"alignment": alignment.report, "similarity": similarity, "samples": shown})


def _refuse(place: Path) -> NoReturn:
    from wechsel_jax.checkpoint import Checkpoint

    if (place / "config.json").exists():
        Checkpoint.open(place)  # says what is missing
    raise UserError(
        f"{place}: holds no config.json, {PLAN_FILE} or {RECORD_FILE}; expected a model directory, or what "
        "`wechsel-jax transfer` wrote"
    )


def _judged(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "findings": [vars(finding) for finding in verdict(found)]}


def _load_plan(path: Path) -> "TransferPlan":
    from wechsel_jax.initializers import TransferPlan

    return TransferPlan.load(path)


def _of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    from wechsel_jax.initializers import METHODS

    names = ("method", "parity", "source", "target", "counts", "alignment", "similarity")
    redrawn = record.get("method") in METHODS and METHODS[record["method"]].redraw_inner
    return {
        **{name: record.get(name) for name in names},
        "redrawn": redrawn,
        "dictionary": (record.get("settings") or {}).get("dictionary"),
        "coverage": record.get("coverage") or None,
        "notes": list(record.get("notes") or ()),
    }


def _of_plan(plan: "TransferPlan") -> dict[str, Any]:
    from wechsel_jax.inspection.mixtures import equal_origins, mixture, regression

    counts = plan.counts()
    twins = equal_origins(plan)
    return {
        "vocabulary_size": len(plan),
        "counts": counts,
        "shares": {how: count / max(len(plan), 1) for how, count in counts.items()},
        "mixture": mixture(plan),
        "regression": regression(plan),
        "duplicates": {"rows": twins, "share": twins / max(len(plan), 1)},
    }


def _open(
    place: Path, record: Mapping[str, Any], source: str | os.PathLike | None
) -> tuple["Checkpoint | None", "Checkpoint | None"]:
    """The model of a directory and, where it lies on this machine, the one it was made of. Nothing is downloaded."""
    from wechsel_jax.checkpoint import Checkpoint

    # The record may have been kept without the weights.
    if not (place / "config.json").exists() or not any(place.glob("*.safetensors")):
        return None, None
    named = (record.get("source") or {}).get("model")
    if source is None and not (isinstance(named, str) and (Path(named) / "config.json").is_file()):
        return Checkpoint.open(place), None
    return Checkpoint.open(place), Checkpoint.open(named if source is None else source)


def _tables(checkpoint: "Checkpoint", original: "Checkpoint | None", record: Mapping[str, Any]) -> list[dict[str, Any]]:
    from wechsel_jax.inspection.tables import compared, statistics

    def described(model: "Checkpoint", tensor: "VocabularyTensor", side: str) -> dict[str, Any]:
        # Padding behind the tokenizer's last id is not part of the vocabulary.
        return statistics(tensor.rows(model.read(tensor.name))[: (record.get(side) or {}).get("vocabulary_size")])

    found = []
    for tensor in checkpoint.vocabulary_tensors():
        target = described(checkpoint, tensor, "target")
        if original is not None and tensor.name in original.tensors:
            before = described(original, tensor, "source")
        else:
            norms = (record.get("norms") or {}).get("source") if tensor.role == "input" else None
            before = {"norm_mean": norms["mean"], "norm_std": norms["std"]} if norms else None
        found.append(compared(tensor.name, tensor.role, target, before))
    return found


def _of_tokens(
    checkpoint: "Checkpoint",
    original: "Checkpoint | None",
    plan: "TransferPlan",
    record: Mapping[str, Any],
    seed: int,
    count: int,
) -> dict[str, Any]:
    from wechsel_jax.initializers.origins import origin
    from wechsel_jax.tokens import Vocabulary, load_tokenizer

    target = Vocabulary.from_tokenizer(load_tokenizer(checkpoint.directory))
    if len(target) != len(plan):
        raise UserError(
            f"{checkpoint.directory}: the plan is for {len(plan)} tokens, the tokenizer has {len(target)}; "
            "expected one directory's; write it again with `wechsel-jax transfer`"
        )
    found: dict[str, Any] = {"special_tokens": _special_tokens(target, plan)}
    if original is None:
        # What was drawn at the time of the transfer.
        return found | {"samples": list(record.get("examples") or ())[:count]}
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(original.directory))
    ordinary = np.flatnonzero(~np.asarray(target.special) & np.array([bool(string) for string in target.strings], bool))
    chosen = np.sort(np.random.default_rng(seed).permutation(ordinary)[:count])
    return found | {"samples": [origin(plan, vocabulary, target, int(token_id)) for token_id in chosen]}


def _special_tokens(vocabulary: "Vocabulary", plan: "TransferPlan") -> dict[str, Any]:
    special = np.flatnonzero(vocabulary.special)
    random = [vocabulary.strings[i] for i in special if plan.random[i]]
    return {
        "total": len(special),
        "named": [vocabulary.strings[i] for i in special if vocabulary.roles[i] & _NAMED_ROLES],
        "random": random,
    }


def _perplexity(
    place: Path, checkpoint: "Checkpoint | None", text: str | os.PathLike, tokens_limit: int, seed: int
) -> dict[str, Any]:
    from wechsel_jax.evaluation.step_zero import perplexity_at_zero

    if checkpoint is None:
        return {"reason": f"{place} holds no model"}
    return perplexity_at_zero(checkpoint, text, tokens_limit=tokens_limit, seed=seed)


def _nearest_words(
    source: "WordVectors", target: "WordVectors", alignment: "Alignment", seed: int, count: int
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    from wechsel_jax.search import nearest_neighbors

    keys = alignment.map_source(source.rows(np.arange(min(_SEARCHED_WORDS, len(source.words)))))
    queries = alignment.map_target(target.rows(np.arange(min(_SAMPLED_WORDS, len(target.words)))))
    similarity, ids = nearest_neighbors(queries, keys, min(_WORD_NEIGHBORS, len(keys)))
    top = similarity[:, 0]
    chosen = np.sort(np.random.default_rng(seed).permutation(len(queries))[:count])
    shown = [
        {
            "target": target.words[i],
            "how": "nearest",
            "sources": [[source.words[j], round(float(s), 4)] for j, s in zip(ids[i], similarity[i], strict=True)],
        }
        for i in chosen
    ]
    return {"mean_top1": float(top.mean()), "median_top1": float(np.median(top))}, shown
