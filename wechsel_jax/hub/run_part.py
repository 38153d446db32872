"""The part of a model card that tells of the training: text, settings, scores and compute."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from wechsel_jax.files.json import is_number
from wechsel_jax.hub.markdown import code, inline, public, table
from wechsel_jax.hub.run_facts import SIDES, Compute, RunFacts

_MOST_ROWS = 12
_PHASE_FIELDS = ("name", "steps", "fraction", "trainable", "warmup", "warmup_steps", "decay", "peak", "floor", "keep_optimizer")
_CONVERSION = (
    "Energy was not measured. To estimate it in kWh, multiply the device hours by the average power of one device in kW and by "
    "the data centre's power usage effectiveness; for emissions, multiply that by the carbon intensity of its electricity. "
    "A device is what JAX counts as one: half a chip on TPU v2 and v3, a chip on later TPUs and on GPUs. Work that was lost to "
    "interruptions is not among the hours."
)


def score_lines(evaluations: Sequence[Mapping[str, Any]], facts: RunFacts | None = None) -> list[str]:
    """Held-out perplexities, thinned, the best one marked."""
    found = [line for line in evaluations if "step" in line]
    if not found:
        return []
    finite = [line for line in found if is_number(line.get("perplexity"))]
    best = min(finite, key=lambda line: line["perplexity"], default=None)
    shown = _thinned(found, best)
    rows = [
        (
            f"{line['step']:,}",
            f"{line['perplexity']:,.1f}" if is_number(line.get("perplexity")) else "not finite",
            "the best" if line is best and len(finite) > 1 else "",
        )
        for line in shown
    ]
    lines = table(("step", "held-out perplexity", ""), rows, (0, 1))
    if len(shown) < len(found):
        lines += [f"{len(shown)} of {len(found)} evaluations are shown.", ""]
    if facts is not None:
        told = f"These weights are those of step {facts.step:,}"
        tokens = best.get("tokens") if best else None
        counted = f" Perplexity is over {tokens:,.0f} tokens of the validation text." if is_number(tokens) else ""
        lines += [f"{told}{'' if facts.last else ', which was not evaluated'}.{counted}", ""]
    return lines


def run_lines(facts: RunFacts) -> list[str]:
    """The sections about text, settings and compute."""
    return [*_data_lines(facts), *_setting_lines(facts), *_compute_lines(facts.compute)]


def _data_lines(facts: RunFacts) -> list[str]:
    rows = []
    for side in SIDES:
        manifest = facts.data.get(side)
        if manifest is None:
            named = [public(place) for place in (facts.config.get("data") or {}).get(side) or []]
            if named:
                rows.append((side, ", ".join(map(code, named)), "", "not recorded"))
            continue
        inputs = manifest.get("inputs")
        for entry in [entry for entry in inputs if isinstance(entry, dict)] if isinstance(inputs, list) else []:
            size = f"{entry['bytes']:,}" if is_number(entry.get("bytes")) else ""
            rows.append((side, code(entry.get("name", "")), size, code(str(entry.get("sha256", ""))[:16])))
    lines = ["## Text", "", *table(("", "source", "bytes", "sha256"), rows, (2,))] if rows else []
    for side, manifest in facts.data.items():
        counts = [f"{manifest[name]:,} {name}" for name in ("documents", "tokens") if is_number(manifest.get(name))]
        stream = f" (sha256 of the tokens {code(manifest['sha256'][:16])})" if isinstance(manifest.get("sha256"), str) else ""
        if counts:
            lines += [f"{side.capitalize()}: {' with '.join(counts)}{stream}.", ""]
    return lines


def _setting_lines(facts: RunFacts) -> list[str]:
    config = facts.config
    rows = [("objective", code(config.get("objective", "")))]
    planned = f" of {config['steps']:,} planned" if is_number(config.get("steps")) and config["steps"] != facts.step else ""
    rows.append(("steps", f"{facts.step:,}{planned}"))
    batch, length = config.get("batch_size"), config.get("block_length")
    if is_number(batch) and is_number(length):
        rows.append(("batch", f"{batch:,} x {length:,} = {batch * length:,} tokens"))
        rows.append(("tokens seen", f"{facts.step * batch * length:,}"))
    optimizer = config.get("optimizer") or {}
    if is_number(optimizer.get("peak_learning_rate")):
        rows.append(("peak learning rate", f"{optimizer['peak_learning_rate']:g}"))
    others = {name: value for name, value in optimizer.items() if name != "peak_learning_rate"}
    if others:
        rows.append(("optimizer", "AdamW: " + ", ".join(inline(f"{name} {value}") for name, value in others.items())))
    for name in ("dtype", "seed"):
        if name in config:
            rows.append((name, code(config[name])))
    lines = ["## Training", "", *table(("setting", "value"), rows)]
    phases = config.get("phases") or []
    fields = [name for name in _PHASE_FIELDS if any(phase.get(name) is not None for phase in phases)]
    if fields:
        head = [name if name != "name" else "phase" for name in fields]
        lines += table(head, [[_shown(phase.get(name)) for name in fields] for phase in phases])
    if facts.versions:
        lines += [f"Trained with {', '.join(inline(f'{name} {one}') for name, one in facts.versions.items())}.", ""]
    return lines


def _compute_lines(compute: Compute | None) -> list[str]:
    if compute is None:
        return []
    rows = [("devices", ", then ".join(map(inline, compute.devices)) or "not recorded"), ("hours", _hours(compute.seconds))]
    if compute.device_seconds is not None:
        rows.append(("device hours", _hours(compute.device_seconds)))
    if compute.tokens_per_second is not None:
        rows.append(("tokens a second (median)", f"{compute.tokens_per_second:,.0f}"))
    if compute.utilisation is not None:
        rows.append(("model FLOPs utilisation (median)", f"{compute.utilisation:.1%}"))
    return ["## Compute and carbon", "", *table(("", ""), rows), _CONVERSION, ""]


def _thinned(lines: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """At most twelve lines, evenly spread, the first, the last and the best among them."""
    if len(lines) <= _MOST_ROWS:
        return list(lines)
    chosen = {round(i * (len(lines) - 1) / (_MOST_ROWS - 2)) for i in range(_MOST_ROWS - 1)}
    return [line for i, line in enumerate(lines) if i in chosen or line is best]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if is_number(value) else code(value if isinstance(value, str) else json.dumps(value))


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"
