"""The arithmetic behind docs/scaling.md: what a step needs on TPU slices, from programs compiled for them on this machine.

    pip install libtpu            # the version that `pip install jax[tpu]` names; no TPU is needed
    PYTHONPATH=. python benchmarks/scaling_plan.py --output=benchmarks/scaling_plan.json --document=docs/scaling.md

For every plan the training step of the whole model is compiled ahead of time by XLA's TPU compiler for a description of the
slice (`jax.experimental.topologies`). From the program come the bytes of each device and every collective with its size,
counted as often as the loops around it run. Nothing is executed: times and utilisation are the arithmetic that
docs/scaling.md explains, from the figures in `SLICES`. A plan takes a minute or more; those that the output holds already are
kept. The tables of the document stand between `<!-- NAME -->` and `<!-- /NAME -->` and are written anew.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import re
import time
from collections import Counter
from typing import Any

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
import numpy as np
from absl import app, flags
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from benchmarks.results import with_tables
from wechsel_jax.files import new_file
from wechsel_jax.models import family
from wechsel_jax.models.weights import unflatten
from wechsel_jax.objectives import make_objective
from wechsel_jax.training import default_config, sharding
from wechsel_jax.training.optimizer import make_optimizer, split
from wechsel_jax.training.step import TrainState, make_train_step, state_shardings, train_key

_ONLY = flags.DEFINE_string("only", "", "Regex of the plans to make; all by default.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file for the result.")
_DOCUMENT = flags.DEFINE_string("document", None, "Markdown file whose tables are written from the output.")

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Slice:
    """A TPU slice as Cloud TPU names it; a device is what JAX calls one: a core on v3, a chip later.

    Attributes:
      devices: how many.
      chips: how many.
      topology: what `get_topology_desc` is asked for.
      peak: bf16 FLOP/s of a device.
      memory: bytes of a device.
      link: bytes a second that a device can send over all its links in a slice of this shape.
      price: dollars an hour and chip, on demand.
      spot: the same, preemptible.
    """

    devices: int
    chips: int
    topology: dict[str, Any]
    peak: float
    memory: int
    link: float
    price: float
    spot: float


# Peaks and memory: Google's pages of the TPU versions. Links: v3 4 x 70 GB/s and v4 6 x 50 GB/s a chip (Jouppi et al., 2023:
# TPU v4: An Optically Reconfigurable Supercomputer, table 4), of which the chips of a 2x2 have two; v5p 1200 GB/s in both
# directions together (Google's page). Prices: tpu_scripts/prices.tsv.
_HOST = {"chips_per_host_bounds": (2, 2, 1)}
SLICES = {
    "v3-8": Slice(8, 4, {"topology_name": "v3:2x2", **_HOST}, 61.5e12, 16 * GIB, 70e9, 2.00, 0.51),
    "v4-128": Slice(
        64, 64, {"topology_name": "v4:4x4x4", "chip_config_name": "megacore", **_HOST}, 275e12, 32 * GIB, 300e9, 3.22, 0.92
    ),
    "v5p-256": Slice(
        128, 128, {"topology_name": "v5p:4x4x8", "chip_config_name": "megacore", **_HOST}, 459e12, 95 * GIB, 600e9, 4.20, 0.93
    ),
}
MODELS = {
    "RoBERTa-base": {
        "model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "pad_token_id": 1, "type_vocab_size": 1,
    },
    "GPT-2": {"model_type": "gpt2", "vocab_size": 50257},
    "Llama-2-7B": {"model_type": "llama", "vocab_size": 32000, "max_position_embeddings": 4096},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run: a batch of `rows` x `length` tokens in `accumulation` parts, on a mesh of data x fsdp x tensor."""

    model: str
    slice: str
    mesh: tuple[int, int, int]
    rows: int
    length: int
    accumulation: int = 1
    remat: str = "none"
    loss_chunk: int = 128

    @property
    def name(self) -> str:
        mesh = "x".join(str(size) for size in self.mesh)
        return f"{self.slice} {self.model} {mesh} {self.rows}x{self.length}/{self.accumulation} {self.remat} {self.loss_chunk}"


PLANS = (
    Plan("GPT-2", "v3-8", (8, 1, 1), 512, 512, accumulation=8, loss_chunk=32),
    Plan("RoBERTa-base", "v3-8", (8, 1, 1), 512, 512, accumulation=8),
    Plan("Llama-2-7B", "v3-8", (1, 8, 1), 64, 512, accumulation=8, remat="full"),
    Plan("GPT-2", "v4-128", (64, 1, 1), 512, 512),
    Plan("RoBERTa-base", "v4-128", (64, 1, 1), 512, 512),
    Plan("Llama-2-7B", "v4-128", (1, 64, 1), 256, 2048, remat="full", loss_chunk=32),
    Plan("Llama-2-7B", "v4-128", (1, 64, 1), 256, 2048, remat="full", loss_chunk=512),
    Plan("Llama-2-7B", "v4-128", (1, 16, 4), 256, 2048, remat="full", loss_chunk=512),
    Plan("GPT-2", "v5p-256", (128, 1, 1), 512, 512),
    Plan("RoBERTa-base", "v5p-256", (128, 1, 1), 512, 512),
    Plan("Llama-2-7B", "v5p-256", (1, 128, 1), 512, 2048, remat="dots", loss_chunk=512),
)
# The runs: the paper's 250,000 x 512 x 512 tokens for the base models; SALT's order of magnitude, 10 B tokens, for 7B.
TOKENS = {"RoBERTa-base": 250_000 * 512 * 512, "GPT-2": 250_000 * 512 * 512, "Llama-2-7B": 10_000_000_000}


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    jax.config.update("jax_platforms", "cpu")
    record = {"compiler": described(), "slices": {name: dataclasses.asdict(piece) for name, piece in SLICES.items()}}
    results = kept(record)
    for plan in PLANS:
        if plan.name in results or not re.search(_ONLY.value, plan.name):
            continue
        results[plan.name] = examine(plan)
        print(json.dumps(results[plan.name]), flush=True)
        if _OUTPUT.value:
            ordered = [results[plan.name] for plan in PLANS if plan.name in results]
            with new_file(_OUTPUT.value, "w") as handle:
                handle.write(json.dumps({**record, "plans": ordered}, indent=1) + "\n")
    if _DOCUMENT.value:
        write_tables(_DOCUMENT.value, [results[plan.name] for plan in PLANS if plan.name in results])


def kept(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Plans that the output holds already, made by the same compiler with the same figures: each takes minutes."""
    if not _OUTPUT.value or not os.path.exists(_OUTPUT.value):
        return {}
    with open(_OUTPUT.value, encoding="utf-8") as handle:
        old = json.load(handle)
    if {name: old.get(name) for name in record} != json.loads(json.dumps(record)):
        return {}
    return {result["plan"]["name"]: result for result in old["plans"]}


def described() -> dict[str, str]:
    """Which compiler spoke."""
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")}


def mesh_of(plan: Plan) -> Mesh:
    """Returns the plan's mesh over devices that are only described."""
    devices = topologies.get_topology_desc(platform="tpu", **SLICES[plan.slice].topology).devices
    return jax.make_mesh(plan.mesh, sharding.AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def examine(plan: Plan) -> dict[str, Any]:
    """Compiles a plan's step and reads what it needs."""
    kind = family(MODELS[plan.model]["model_type"])
    model = kind.config(MODELS[plan.model], remat=plan.remat)
    roles = {} if kind.causal else {"mask_token_id": model.vocabulary_size - 1, "special_ids": range(4)}
    objective = make_objective("clm" if kind.causal else "mlm", kind, model, dtype="bfloat16", chunk=plan.loss_chunk, **roles)
    mesh, optimizer, shapes = mesh_of(plan), make_optimizer(default_config().optimizer), kind.shapes(model)
    where, notes = sharding.parameter_shardings(mesh, kind.sharding_rules, shapes)
    nested = unflatten({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()})
    trainable = frozenset(shapes)
    shardings = state_shardings(mesh, where, optimizer, trainable, nested)
    values = TrainState(nested, jax.eval_shape(optimizer.init, split(nested, trainable)[0]), jax.ShapeDtypeStruct((), np.int32))
    state = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), values, shardings)
    batch = {
        "tokens": jax.ShapeDtypeStruct(
            (plan.accumulation, plan.rows // plan.accumulation, plan.length),
            np.int32,
            sharding=sharding.batch_sharding(mesh, accumulated=True),
        )
    }
    tokens = plan.rows * plan.length
    flops = kind.flops_per_token(model, plan.length, objective.head_fraction)
    result = {
        "plan": {**dataclasses.asdict(plan), "name": plan.name},
        "parameters": sum(math.prod(shape) for shape in shapes.values()),
        "parameter_bytes": held(state.params),
        "optimizer_bytes": held(state.opt_state),
        "unsplit": notes,
        "flops_per_token": flops,
    }
    began = time.perf_counter()
    step = make_train_step(objective, optimizer, trainable, shardings)
    # Not `set_mesh`: nothing can be executed on devices that are only described.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        try:
            compiled = step.lower(state, batch, jax.ShapeDtypeStruct((), np.float32), train_key(0)).compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            text = " ".join(str(error).split())
            needed = re.search(r"temporaries \(([\d.]+)G\)", text)
            return {**result, "fits": False, "message": text[:200], "temporary_bytes": needed and int(float(needed[1]) * GIB)}
    memory = compiled.memory_analysis()
    sent, calls = collectives(compiled.as_text(), mesh.devices.size)
    return {
        **result,
        "compile_seconds": round(time.perf_counter() - began, 1),
        **fit(plan, memory),
        "sent_bytes": dict(sent),
        "collective_calls": dict(calls),
        **timing(plan, flops * tokens, sum(sent.values())),
    }


def held(tree: Any) -> int:
    """Bytes of a tree on one device."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def fit(plan: Plan, memory: Any) -> dict[str, Any]:
    """The bytes of a device: what stays from step to step and what the step takes besides."""
    state, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    total = state + temporary + max(0, fresh)
    return {
        "state_bytes": state,
        "not_donated_bytes": fresh,
        "temporary_bytes": temporary,
        "total_bytes": total,
        "fits": total <= SLICES[plan.slice].memory,
    }


def timing(plan: Plan, model_flops: float, sent: float) -> dict[str, Any]:
    """Seconds of a step at best, and what a run costs; see docs/scaling.md."""
    piece = SLICES[plan.slice]
    # Whole layers again: a third more than forward and backward; products kept: the scores of the attention only.
    again = {"none": 1.0, "dots": 1.05, "full": 4 / 3}[plan.remat]
    efficiency = 0.65 if plan.model.startswith("Llama") else 0.5
    compute = model_flops * again / (piece.peak * piece.devices * efficiency)
    links = sent / piece.link
    seconds = {"hidden": max(compute, links), "exposed": compute + links}
    steps = TOKENS[plan.model] / (plan.rows * plan.length)
    return {
        "compute_seconds": compute,
        "link_seconds": links,
        "mfu": {name: model_flops / (value * piece.peak * piece.devices) for name, value in seconds.items()},
        "tokens_per_second": {name: plan.rows * plan.length / value for name, value in seconds.items()},
        "days": {name: steps * value / 86400 for name, value in seconds.items()},
        "dollars": {name: steps * value / 3600 * piece.chips * piece.price for name, value in seconds.items()},
        "spot_dollars": {name: steps * value / 3600 * piece.chips * piece.spot for name, value in seconds.items()},
    }


_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
_SHAPE = re.compile(r"\b(pred|[suf]\d+|bf16)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(-start)?\((?!.*calls=)")
_CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations)=\{?%?([\w.\-]+(?:, %?[\w.\-]+)*)")


def collectives(program: str, devices: int) -> tuple[Counter, Counter]:
    """Bytes that one device sends in a step, by kind of collective, and how many there are.

    A ring over g devices sends (g - 1) / g of what is gathered or scattered, and twice that for an all-reduce.
    """
    computations, entry, current = {}, "", ""
    for line in program.splitlines():
        if found := _COMPUTATION.match(line):
            current = found[1]
            computations[current] = []
            entry = current if line.startswith("ENTRY") else entry
        elif current:
            computations[current].append(line)
    sent, calls = Counter(), Counter()

    def visit(name: str, times: int) -> None:
        for line in computations.get(name, ()):
            if found := _COLLECTIVE.search(line):
                kind = found[2]
                if kind == "all-reduce" and "all-reduce-scatter" in name:
                    kind = "reduce-scatter"
                size = amount(kind, found[1], bool(found[3]), group(line, devices), found[2])
                sent[kind] += size * times
                calls[kind] += times
            for called in _CALLED.finditer(line):
                for inner in called[1].split(", "):
                    visit(inner.lstrip("%"), times * (trips(line, computations) if " while(" in line else 1))

    visit(entry, 1)
    return sent, calls


def amount(kind: str, shape: str, started: bool, size: int, operation: str) -> int:
    """Bytes that one device of a group of `size` sends for one collective with this result."""
    total = sum(_BYTES.get(name, 4) * math.prod(int(n) for n in dims.split(",") if n) for name, dims in _SHAPE.findall(shape))
    if kind == "collective-permute":
        return total // 2 if started else total
    if kind == "all-gather" and started:
        # The result holds the part that goes in, too.
        total = total * size // (size + 1)
    if operation == "reduce-scatter":
        total = total * size // (size + 1) if started else total * size
    share = total * (size - 1) // size
    return 2 * share if kind == "all-reduce" else share


def group(line: str, devices: int) -> int:
    """How many devices take part in a collective: listed, as an iota, or as axes (or factors of axes) of a named mesh."""
    if found := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", line):
        sizes = dict(re.findall(r"('\w+')=(\d+)", found[1]))
        parts = re.findall(r"('\w+')(?::\(\d+\)(\d+))?", found[2])
        return math.prod(int(factor or sizes[axis]) for axis, factor in parts)
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        return int(found[2])
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return found[1].count(",") + 1
    return devices


def trips(line: str, computations: dict[str, list[str]]) -> int:
    """How often a loop runs: as the compiler noted it, or the bound that its condition compares with."""
    if found := re.search(r'known_trip_count":\{"n":"(\d+)"', line):
        return int(found[1])
    condition = re.search(r"condition=%?([\w.\-]+)", line)
    bounds = [
        int(n) for text in computations.get(condition[1], ()) for n in re.findall(r"s32\[\][^=]* constant\((\d+)\)", text)
    ]
    return max(bounds, default=1)


def write_tables(document: str, results: list[dict[str, Any]]) -> None:
    """Replaces the tables of the document."""
    with open(document, encoding="utf-8") as handle:
        text = handle.read()
    text = with_tables(text, {"memory": memory_table(results), "time": time_table(results)})
    with new_file(document, "w") as handle:
        handle.write(text)


def memory_table(results: list[dict[str, Any]]) -> str:
    """GiB of a device, a line a plan."""
    lines = [
        "| slice | model | mesh | rows per device | remat | state | step's own | of | fits |",
        "|---|---|---|---:|---|---:|---:|---:|---|",
    ]
    for result in results:
        plan, piece = result["plan"], SLICES[result["plan"]["slice"]]
        mesh = " x ".join(f"{axis} {size}" for axis, size in zip(sharding.AXES, plan["mesh"], strict=True) if size > 1)
        at_once = plan["rows"] / plan["accumulation"] / (plan["mesh"][0] * plan["mesh"][1])
        state = result.get("state_bytes", result["parameter_bytes"] + result["optimizer_bytes"])
        besides = f"{result['temporary_bytes'] / GIB:.2f}" if result["temporary_bytes"] else "too much"
        cells = [plan["slice"], plan["model"], mesh, f"{at_once:g} x {plan['length']}", plan["remat"], f"{state / GIB:.2f}"]
        lines.append("| " + " | ".join([*cells, besides, f"{piece.memory / GIB:g}", "yes" if result["fits"] else "no"]) + " |")
    return "\n".join(lines)


def time_table(results: list[dict[str, Any]]) -> str:
    """Seconds of a step, utilisation, and what a run takes, a line a plan that fits."""
    lines = [
        "| slice | model | mesh, remat, chunk | compute (s) | sent (GB) | links (s) | MFU | ktokens/s | days | $ | $ spot |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        if not result["fits"]:
            continue
        plan = result["plan"]

        def span(name: str, form: str, scale: float = 1.0, result: dict = result) -> str:
            low, high = (f"{scale * value:{form}}" for value in sorted(result[name].values()))
            return low if low == high else f"{low} to {high}"

        mesh = "x".join(map(str, plan["mesh"])) + f", {plan['remat']}, {plan['loss_chunk']}"
        cells = [plan["slice"], plan["model"], mesh, f"{result['compute_seconds']:.2f}"]
        cells += [f"{sum(result['sent_bytes'].values()) / 1e9:.1f}", f"{result['link_seconds']:.3f}"]
        cells += [span("mfu", ".0%"), span("tokens_per_second", ",.0f", 1e-3), span("days", ".2f")]
        lines.append("| " + " | ".join([*cells, span("dollars", ",.0f"), span("spot_dollars", ",.0f")]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    app.run(main)
