"""What a model card tells, as sections: how the vocabulary was replaced, and how the model was trained."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wechsel_jax.files.hub import REPOSITORY
from wechsel_jax.files.json import is_number
from wechsel_jax.records import ORIGINS, Evaluation, RunRecord, TransferRecord, best_evaluation
from wechsel_jax.records.compute import compute
from wechsel_jax.records.run import FILLED, SIDES
from wechsel_jax.report.curves import chosen_steps
from wechsel_jax.report.display import NO_VALUE
from wechsel_jax.report.section import Block, Code, Items, Section, Table, Text, Token, joined
from wechsel_jax.report.transfer_sections import alignment_table, shared_tokens, source_tokens
from wechsel_jax.text.parallel import BESIDE
from wechsel_jax.text.sources import HUB

# Settings that name files, or a model that may be a directory; some hold several.
_PLACES = ("source_vectors", "target_vectors", "dictionary", "helper", "source_text", "target_text", "parallel")
_MOST_ROWS = 12
_PHASE_FIELDS = (
    *("name", "steps", "fraction", "trainable", "layers", "warmup", "warmup_steps"),
    *("decay", "decay_fraction", "peak", "floor", "keep_optimizer"),
)
_GROUP_FIELDS = ("match", "kind", "rate", "weight_decay", "warmup", "warmup_steps", "coordinates", "shared")
_FIRST_FIELDS = {"name": "phase", "match": "parameters"}
_CONVERSION = (
    "Energy was not measured. To estimate it in kWh, multiply the device hours by the average power of one device in kW and by "
    "the data centre's power usage effectiveness; for emissions, multiply that by the carbon intensity of its electricity. "
    "A device is what JAX counts as one: half a chip on TPU v2 and v3, a chip on later TPUs and on GPUs. Work that was lost to "
    "interruptions is not among the hours."
)


def transfer_sections(record: TransferRecord) -> list[Section]:
    """Returns the sections about where the tokens came from and how."""
    origins: list[Block] = []
    if record.counts:
        origins.append(Table(("", "tokens"), tuple((how, f"{record.counts[how]:,}") for how in ORIGINS)))
    if any(row["tokens"] for row in record.coverage.get("rows") or ()):
        origins += shared_tokens(record.coverage)
    if record.alignment or record.similarity:
        origins.append(alignment_table(record.alignment or {}, record.similarity or {}))
    if record.examples:
        shown = tuple(
            (Token(one.target), one.how, source_tokens(one, record.settings.get("noise", ""))) for one in record.examples
        )
        origins.append(Table(("target token", "how", "source tokens (weight)"), shown, text=(0, 1, 2)))
    how: list[Block] = []
    if record.behaviour or record.notes:
        how.append(Items(tuple(_without_folders(sentence, record) for sentence in (*record.behaviour, *record.notes))))
    if record.settings:
        settings = {"parity": record.parity, **record.settings}
        settings |= {name: ", ".join(map(public, _listed(settings[name]))) for name in _PLACES if settings.get(name)}
        how.append(
            Table(("setting", "value"), tuple((name, Code(str(value))) for name, value in settings.items()), text=(0, 1))
        )
    if record.versions:
        how.append("Made with " + ", ".join(f"{name} {version}" for name, version in record.versions.items()) + ".")
    parts = (("Where the tokens came from", origins), ("How the vocabulary was replaced", how))
    return [Section(heading, tuple(blocks)) for heading, blocks in parts if blocks]


def public(place: str) -> str:
    """A place by name only, but for the hub's: a card is public, and the folders of whoever made the model are not.

    Of two files beside each other, both are.
    """
    shown = []
    for one in place.split(BESIDE):
        repository = re.split("[@:#]", one.removeprefix(HUB))[0] if one.startswith(HUB) else one
        shown.append(one if hub_id(repository) else Path(one).name.strip() or one)
    return BESIDE.join(shown)


def name_of(place: str) -> str:
    """What to call the model or tokenizer at a place."""
    path = Path(place)
    return path.parent.name if path.name == "tokenizer.json" and path.parent.name else path.name or place


def hub_id(place: str) -> str | None:
    """The place itself where it is a model of the hub; None for a directory."""
    return place if REPOSITORY.fullmatch(place) and not Path(place).exists() else None


def _listed(value: object) -> list[str]:
    return [str(place) for place in (value if isinstance(value, list | tuple) else [value]) if place]


def _without_folders(sentence: str, record: TransferRecord) -> str:
    """A sentence with files by name only."""
    for name in _PLACES:
        for place in _listed(record.settings.get(name)):
            # One of two files may be named without the other.
            for one in place.split(BESIDE):
                sentence = sentence.replace(one, public(one))
    return sentence


def scores(run: RunRecord, step: int, averaged: Sequence[int] = ()) -> list[Block]:
    """Returns held-out bits per byte and perplexities, thinned, the best one marked, and which weights these are."""
    if not run.evaluations:
        return []
    told = f"These weights are those of step {step:,}"
    if averaged:
        several = f"{', '.join(f'{one:,}' for one in averaged[:-1])} and {step:,}"
        told = f"These weights are the mean of those after steps {several}; scores here are of step {step:,} alone"
    if all(one.step != step for one in run.evaluations):
        told += ", which was not evaluated"
    best = best_evaluation(run.evaluations)
    shown = _thinned(run.evaluations, best)
    if any(one.score is not None for one in run.evaluations):
        # Of labelled examples; no text was predicted.
        found = [
            (
                f"{one.step:,}",
                NO_VALUE if one.score is None else f"{one.score:.4f}",
                f"{one.loss:.4f}",
                "the best" if one is best else "",
            )
            for one in shown
        ]
        head = ("step", shown[-1].metric.replace("_", " "), "loss", "")
        return [Table(head, tuple(found), text=(0, 3)), f"{told}."]
    # Runs of earlier versions have no bits per byte.
    in_bits = any(one.bits_per_byte is not None for one in shown)
    rows = tuple(
        (
            f"{one.step:,}",
            *([NO_VALUE if one.bits_per_byte is None else f"{one.bits_per_byte:.3f}"] if in_bits else []),
            f"{one.perplexity:,.1f}" if math.isfinite(one.perplexity) else "not finite",
            "the best" if one is best and len(run.evaluations) > 1 else "",
        )
        for one in shown
    )
    tokens = next((one.tokens for one in reversed(run.evaluations) if one.tokens is not None), None)
    counted = f" Perplexity is over {tokens:,.0f} tokens of the validation text." if tokens is not None else ""
    thinned = [f"{len(shown)} of {len(run.evaluations)} evaluations are shown."] if len(shown) < len(run.evaluations) else []
    head = ("step", *(["bits per byte"] if in_bits else []), "held-out perplexity", "")
    if in_bits:
        counted += " Bits per byte of it can be compared between tokenizers, perplexities cannot."
    return [Table(head, rows, text=(0, len(head) - 1)), *thinned, f"{told}.{counted}"]


def run_sections(run: RunRecord, step: int) -> list[Section]:
    """Returns the sections about text, settings and compute."""
    parts = (("Text", _text(run)), ("Training", _settings(run, step)), ("Compute and carbon", _compute(run)))
    return [Section(heading, tuple(blocks)) for heading, blocks in parts if blocks]


def _text(run: RunRecord) -> list[Block]:
    rows: list[tuple[Text, ...]] = []
    counted: list[Block] = []
    for side in SIDES:
        manifest = run.data.get(side)
        named = [Code(public(place)) for place in (run.config.get("data") or {}).get(side) or ()]
        if manifest is None and named:
            rows.append((side, joined(named), "", "not recorded"))
        if manifest is None:
            continue
        for entry in manifest.get("inputs") or ():
            size = f"{entry['bytes']:,}" if entry.get("bytes") is not None else ""
            rows.append((side, Code(public(entry.get("name") or "")), size, Code((entry.get("sha256") or "")[:16])))
        counts = [f"{manifest[name]:,} {name}" for name in ("documents", "tokens") if manifest.get(name) is not None]
        stream = (" (sha256 of the tokens ", Code(manifest["sha256"][:16]), ")") if manifest.get("sha256") else ()
        if counts:
            counted.append((f"{side.capitalize()}: {' with '.join(counts)}", *stream, "."))
    return [*([Table(("", "source", "bytes", "sha256"), tuple(rows), text=(0, 1, 3))] if rows else []), *counted]


def _settings(run: RunRecord, step: int) -> list[Block]:
    config = run.config
    if not config:
        return []
    rows: list[tuple[Text, ...]] = [("objective", Code(str(config.get("objective", ""))))]
    planned = f" of {config['steps']:,} planned" if is_number(config.get("steps")) and config["steps"] != step else ""
    rows.append(("steps", f"{step:,}{planned}"))
    batch, length = config.get("batch_size"), config.get("block_length")
    if is_number(batch) and is_number(length):
        filled = config.get("objective") in FILLED
        size = f"{batch:,} x {length:,} = {batch * length:,} tokens" if filled else f"{batch:,} x at most {length:,} tokens"
        rows.append(("batch", size))
    if run.tokens:
        rows.append(("tokens seen", f"{run.tokens:,}"))
    optimizer = config.get("optimizer") or {}
    if is_number(optimizer.get("peak_learning_rate")):
        rows.append(("peak learning rate", f"{optimizer['peak_learning_rate']:g}"))
    others = ", ".join(f"{name} {value}" for name, value in optimizer.items() if name not in ("peak_learning_rate", "groups"))
    name = "AdamW, where no group below says otherwise" if optimizer.get("groups") else "AdamW"
    rows += [("optimizer", f"{name}: {others}")] if others else []
    soft = config.get("soft_targets") or {}
    if is_number(soft.get("share")) and soft["share"]:
        what = f"of an n-gram model (n = {soft.get('order')}), {soft['share']:g} of each target at first, 0 after step "
        rows.append(("soft targets", what + str(soft.get("steps") or config.get("steps"))))
    rows += [(name, Code(str(config[name]))) for name in ("dtype", "seed") if name in config]
    blocks: list[Block] = [Table(("setting", "value"), tuple(rows), text=(0, 1))]
    for parts, known in ((config.get("phases") or [], _PHASE_FIELDS), (optimizer.get("groups") or [], _GROUP_FIELDS)):
        fields = [name for name in known if any(part.get(name) is not None for part in parts)]
        if fields:
            head = tuple(_FIRST_FIELDS.get(name, name) for name in fields)
            told = tuple(tuple(_value(part.get(name)) for name in fields) for part in parts)
            blocks.append(Table(head, told, text=tuple(range(len(fields)))))
    versions = run.starts[-1].get("versions") if run.starts else None
    if versions:
        blocks.append(f"Trained with {', '.join(f'{name} {one}' for name, one in versions.items())}.")
    return blocks


def _compute(run: RunRecord) -> list[Block]:
    used = compute(run)
    if used is None:
        return []
    rows = [("devices", ", then ".join(used.devices) or "not recorded"), ("hours", _hours(used.seconds))]
    if used.device_seconds is not None:
        rows.append(("device hours", _hours(used.device_seconds)))
    if used.tokens_per_second is not None:
        rows.append(("tokens per second (median)", f"{used.tokens_per_second:,.0f}"))
        size = next((one.bytes / one.tokens for one in reversed(run.evaluations) if one.bytes and one.tokens), None)
        if size is not None:
            rows.append(("bytes of text per token, per second", f"{size:.2f}, {used.tokens_per_second * size:,.0f}"))
    if used.flops is not None:
        rows.append(("FLOPs of the model", f"{used.flops:.3g}"))
    if used.utilisation is not None:
        rows.append(("model FLOPs utilisation (median)", f"{used.utilisation:.1%}"))
    return [Table(("", ""), tuple(rows), text=(0, 1)), _CONVERSION]


def _thinned(evaluations: Sequence[Evaluation], best: Evaluation | None) -> list[Evaluation]:
    """At most twelve, evenly spread, the first, the last and the best among them."""
    if len(evaluations) <= _MOST_ROWS:
        return list(evaluations)
    chosen = chosen_steps([one.step for one in evaluations], _MOST_ROWS - 1)
    return [one for one in evaluations if one.step in chosen or one is best]


def _value(value: Any) -> Text:
    if value is None:
        return ""
    return f"{value:g}" if is_number(value) else Code(value if isinstance(value, str) else json.dumps(value))


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"
