"""The text of a run: found, prepared where it is not yet, and held against the settings and the model."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.data import Dataset, TokenBlocks, prepare, prepare_split, wait_for
from wechsel_jax.data.encoder import Encoder
from wechsel_jax.data.manifest import MANIFEST, MadeOtherwise, read_manifest, remove_prepared
from wechsel_jax.data.ngrams import NgramModel, SoftTargets
from wechsel_jax.data.parallel import FACTS, ParallelRows, vocabulary_hash
from wechsel_jax.data.sentences import SentencePairs, require_sentences
from wechsel_jax.errors import UserError
from wechsel_jax.files.json import TEXT, mismatch, read_json
from wechsel_jax.records.run import SIDES
from wechsel_jax.text.sources import HUB, SAVED, find_sources, identify
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.training import distributed
from wechsel_jax.training.config import default_config
from wechsel_jax.training.run_spec import ModelSpec
from wechsel_jax.training.schedules import soft_share

# Held-out tokens that an n-gram model is told of by.
_SCORED = 1 << 20


class Data(NamedTuple):
    """What a run trains on, and what it is evaluated on."""

    train: Dataset
    validation: Dataset


def open_data(config: ConfigDict, model: ModelSpec, workdir: Path, *, fresh: bool, say: Callable[[str], None] = print) -> Data:
    """Opens the text of a run; what is not prepared yet is made into token blocks in `workdir/data`.

    The first process reads all tokens once, so that damage on the disk is found before anything is trained on it.

    Args:
      config: settings of the run.
      model: of the run.
      workdir: of the run.
      fresh: whether no run has begun here, so that tokens that were made with other settings may be made again.
      say: shows one line to the user.

    Raises:
      UserError: text is missing, the tokens are damaged, or do not fit the model or the settings.
    """
    find_data(config, model.config.language_count)
    check_pairs(config, model)
    place = config.model.tokenizer or str(Checkpoint.open(config.model.checkpoint).directory)
    blocks = {side: _blocks(config, side, place, workdir / "data" / side, fresh, say) for side in SIDES}
    size = model.config.vocabulary_size
    for side, block in blocks.items():
        if block.vocabulary_size > size:
            raise UserError(f"data.{side}: was made with {block.vocabulary_size} tokens; expected the model's {size}")
    return Data(**blocks)


def trained_on(data: Data) -> list[str]:
    """Names of held-out text that is training text, too: the same file, or the same part of a data set.

    Of prepared text that is asked of what it was made from, and of a text that was split into both sides not at all.
    """
    if any(isinstance(one, ParallelRows) for one in data):
        return []
    made = [read_json(one.directory / MANIFEST, "the record of prepared data", "prepare it again") for one in data]
    if made[0].get("side") != made[1].get("side"):
        return []

    def known(text: Mapping[str, Any]) -> tuple[str | None, str]:
        # Splits of a directory of `datasets` lie in the same files.
        name = text.get("name", "")
        return text.get("sha256"), name if name.startswith((SAVED, HUB)) else ""

    training = {known(text) for text in made[0].get("inputs", ()) if text.get("sha256")}
    return [text.get("name", "a file") for text in made[1].get("inputs", ()) if known(text) in training]


def soft_targets(config: ConfigDict, data: Data, step: int, say: Callable[[str], None]) -> Dataset | SoftTargets:
    """Returns what the batches of a run come from: its training data, or with `soft_targets` that beside an n-gram model.

    Each process counts for itself, which takes seconds and gives all of them the same.

    Args:
      config: settings of the run.
      data: of the run.
      step: that it goes on from; it may be past them.
      say: shows one line to the user.
    """
    settings = config.soft_targets
    if not soft_share(settings, config.steps, step):
        return data.train
    model = NgramModel.of(data.train.stream, data.train.vocabulary_size, settings.order)
    perplexity = model.perplexity(data.validation.stream[:_SCORED])
    say(f"soft targets of a {settings.order}-gram model, whose perplexity on held-out text is {perplexity:,.1f}")
    return SoftTargets(data.train, model, settings.continuations, functools.partial(soft_share, settings, config.steps))


def find_data(config: ConfigDict, languages: int = 0) -> None:
    """Looks for what the settings name: a mistake on the second side shall not wait for hours of work on the first.

    Args:
      config: settings of a run without labelled examples.
      languages: how many the model knows.

    Raises:
      UserError: there is no such data, or not of the kind that the objective needs.
    """
    for side in SIDES:
        texts = [str(text) for text in config.data[side]]
        _check_rows(config, side, languages)
        guesses = config.objective == "mlm_nsp"
        if _is_prepared(texts) and guesses:
            require_sentences(texts[0])
        elif not _is_prepared(texts) and not _is_prepared(texts, FACTS):
            sources = find_sources(texts, config.data.text_field)
            if guesses and config.data.documents == "lines" and (lines := [one.name for one in sources if one.kind == "text"]):
                raise UserError(
                    f"data.{side}: {lines[0]}: each line is a document, in which no second sentence can follow (mlm_nsp); "
                    "expected data.documents=paragraphs, for a sentence a line and a blank line between documents, or files"
                )


def identified(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Says of each text, or of the prepared data, which it is: {"name", "sha256"}, and of text its size."""
    for record, kind in ((MANIFEST, TEXT), (FACTS, {"*": TEXT})):
        if _is_prepared(texts, record):
            place = Path(texts[0])
            found = read_json(place / record, "the record of prepared data", advice := "prepare it again")
            if problem := mismatch(found, {"sha256": kind}):
                raise UserError(f"{place / record}: {problem}; {advice}")
            return [{"name": place.name, "sha256": found["sha256"]}]
    return identify(find_sources(texts), len(os.sched_getaffinity(0)))[1]


def check_pairs(config: ConfigDict, model: ModelSpec, known: dict[str, tuple[str, str]] | None = None) -> None:
    """Checks that prepared text and aligned sentences fit the model, and each other.

    Args:
      config: settings of the run.
      model: of the run.
      known: the languages of aligned sentences that were looked at before, by where these are; what is found is added.

    Raises:
      UserError: they are another tokenizer's, have no links that are read, or their languages are others, or turned round.
    """
    known = {} if known is None else known
    for side in SIDES:
        texts = [str(text) for text in config.data[side]]
        if _is_prepared(texts):
            manifest = read_manifest(texts[0])
            made, own = manifest["tokenizer"], vocabulary_hash(model.tokenizer.backend_tokenizer, manifest["vocabulary_size"])
            # Those of earlier versions do not say whose tokens they hold.
            if made.get("vocabulary", own) != own:
                raise UserError(
                    f"data.{side}: {texts[0]}: was prepared with the tokens of another tokenizer ({made.get('name')}); "
                    "expected the model's; prepare the text again with --tokenizer=MODEL"
                )
            if manifest["end_token"] != (end := Encoder.of(model.tokenizer, str(model.tokenizer.name_or_path)).end):
                raise UserError(
                    f"data.{side}: {texts[0]}: was prepared with {manifest['end_token']} as the token that ends a text; "
                    f"expected the model's, {end} (None: its tokenizer's own); prepare the text again with --tokenizer=MODEL"
                )
        if _is_prepared(texts, FACTS):
            pairs = ParallelRows.open(texts[0], config.block_length, config.data.rows)
            pairs.check(model.tokenizer.backend_tokenizer, links=config.objective in ("cdlm", "brlm"))
            own = tuple(pairs.facts["languages"])
            if other := next((place for place, languages in known.items() if languages != own), None):
                raise UserError(
                    f"data.{side}: {texts[0]}: is of {' and '.join(own)}; expected {' and '.join(known[other])}, in order, "
                    f"as {other} is; align it with --languages={','.join(known[other])}"
                )
            known[texts[0]] = own


def _check_rows(config: ConfigDict, side: str, languages: int) -> None:
    """Raises `UserError` where text and aligned sentences are taken for each other."""
    rows, objective, found = config.data.rows, config.objective, ", ".join(map(str, config.data[side])) or "no file"
    if not _is_prepared([str(text) for text in config.data[side]], FACTS):
        if rows or objective in ("cdlm", "tlm", "brlm"):
            raise UserError(
                f"data.{side}: {found}: holds no aligned sentences, which {f'data.rows={rows}' if rows else objective} is for; "
                "expected a directory of `wechsel-jax align`"
            )
    elif objective not in ("mlm", "cdlm", "tlm", "brlm") or (objective == "mlm") != rows.startswith("masked"):
        raise UserError(
            f"data.{side}: {found}: aligned sentences with objective={objective} and data.rows={rows!r}; expected cdlm, tlm "
            "or brlm with rows such as forward, or mlm with rows masked or masked_second"
        )
    elif languages == 1:
        raise UserError(f"data.{side}: {found}: has two languages, and the model 1; expected language_count to be 2, or 0")
    else:
        for name in ("documents", "text_field", "max_bytes", "deduplicate"):
            if (given := config.data[name]) != (usual := default_config().data[name]):
                raise UserError(
                    f"data.{name}: is {given!r}, and data.{side} is aligned already ({found}); expected {usual!r}: it is for "
                    "text"
                )


def _blocks(
    config: ConfigDict, side: str, tokenizer: str, output: Path, fresh: bool, say: Callable[[str], None]
) -> TokenBlocks | ParallelRows | SentencePairs:
    """The data of one side; called for "train" first, because that makes both sides of a split."""
    data, guesses = config.data, config.objective == "mlm_nsp"
    texts = [str(text) for text in data[side]]
    first = distributed.is_first()

    def opened(place: str | Path) -> TokenBlocks | SentencePairs:
        if guesses:
            return SentencePairs.open(place, config.block_length, load_tokenizer(tokenizer), verify=first)
        return TokenBlocks.open(place, config.block_length, verify=first)

    if _is_prepared(texts, FACTS):
        return ParallelRows.open(texts[0], config.block_length, data.rows, verify=first)
    if _is_prepared(texts):
        for name in ("validation_fraction", "max_bytes", "deduplicate"):
            if data[name] and side == "train":
                raise UserError(
                    f"data.{name}: data.train is prepared already ({texts[0]}); expected text; "
                    f"or give --{name} to `wechsel-jax prepare`, and here the directories that it wrote"
                )
        manifest = read_manifest(texts[0])
        for name, recorded in (("documents", "documents_are"), ("text_field", "text_field")):
            if data[name] not in (default_config().data[name], made := manifest.get(recorded)):
                raise UserError(
                    f"data.{name}: is {data[name]!r}, and {texts[0]} is prepared already, with {made!r}; expected that, or text"
                )
        return opened(texts[0])
    settings = {name: data[name] for name in ("documents", "text_field", "max_document_bytes", "deduplicate")}
    settings["sentences"] = guesses
    # What is held out is the same for subsamples of any size.
    max_bytes = data.max_bytes if side == "train" else 0
    split = output.parent / "split"
    output = split / side if data.validation_fraction else output

    def make() -> None:
        if not data.validation_fraction:
            prepare(texts, tokenizer, output, max_bytes=max_bytes, **settings)
        elif side == "train":
            fraction = data.validation_fraction
            prepare_split(texts, tokenizer, split, validation_fraction=fraction, max_bytes=max_bytes, **settings)

    if first:
        try:
            make()
        except MadeOtherwise as other:
            if not fresh:
                began = f"{str(other).rpartition(';')[0]}, and this run has been trained on it"
                raise UserError(f"{began}; restore the text or the tokenizer, or use another workdir") from other
            say(f"{str(other).rpartition(';')[0]}, and nothing was trained on it; it is made again")
            remove_prepared(split if data.validation_fraction else output)
            make()
    else:
        # Not in a collective, which would give up while an hour's text is prepared.
        wait_for(output)
    distributed.barrier(f"data.{side}")
    return opened(output)


def _is_prepared(texts: list[str], record: str = MANIFEST) -> bool:
    return len(texts) == 1 and (Path(texts[0]) / record).is_file()
