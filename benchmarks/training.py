"""Measures training steps side by side: this trainer, and `transformers` + torch with its best settings, taking turns.

    PYTHONPATH=. python benchmarks/training.py --output=benchmarks/training.json
    PYTHONPATH=. python benchmarks/training.py --device=gpu --output=benchmarks/training_gpu.json
    PYTHONPATH=. python benchmarks/training.py --muon --models=demo,gpt2 --dropout=0 --output=benchmarks/muon.json

Each contestant lives in a process of its own and waits; the rounds alternate between them, and each figure is the median over
--rounds. A step is forward, backward, clipping and AdamW on a batch that is in memory already. On a CPU: GPT-2 and RoBERTa of
6 layers x 384, 8 x 256 tokens, V = 50,257 and 50,265, float32, with and without dropout; torch with scaled dot-product
attention and fused AdamW (and compiled too with --torch_compile). On a GPU: GPT-2 124M and RoBERTa-base, rows of 512 tokens,
bfloat16, torch compiled. Utilisation counts the same floating-point operations for both (the head at every position for GPT-2;
where the other side of RoBERTa needs fewer, its own too, as "own_mfu"). --muon measures this trainer alone, with AdamW, with
Muon for the kernels of the layers, with SOAP for the embeddings besides, and with soft targets, which are looked up before the
step here, not beside it; the model "demo" is the demonstration's (4 layers x 256, V = 8,192, 16 x 128 tokens).
--smoke runs everything in seconds, with models of no use.
"""

import os

# Halves the speed of OpenBLAS on some machines.
os.environ.pop("OPENBLAS_CORETYPE", None)

import dataclasses
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks.machine import installed, processor
from wechsel_jax.files import new_file

_DEVICE = flags.DEFINE_enum("device", "cpu", ["cpu", "gpu"], "Where to train.")
NAMES = ("gpt2", "roberta", "demo")
_MODELS = flags.DEFINE_list("models", ["gpt2", "roberta"], f"Models to measure: {', '.join(NAMES)}.")
_MUON = flags.DEFINE_bool("muon", False, "Measure this trainer with AdamW, Muon, SOAP and soft targets, and no torch.")
_DROPOUT = flags.DEFINE_list("dropout", None, "Dropout rates; 0.1 and 0 by default.")
_ROWS = flags.DEFINE_integer("rows", None, "Rows of a batch; 8 on a CPU, 32 on a GPU.", lower_bound=1)
_THREADS = flags.DEFINE_integer("threads", None, "Threads of torch on a CPU; as many as there are cores.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Rounds; the contestants take turns in each.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", None, "Steps of a round; 2 on a CPU, 20 on a GPU.", lower_bound=1)
_TORCH_COMPILE = flags.DEFINE_bool("torch_compile", False, "CPU: measure compiled torch too.")
_SMOKE = flags.DEFINE_bool("smoke", False, "Tiny models, to see that everything runs.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file for the result.")
_WORKER = flags.DEFINE_string("worker", None, "Used by the program itself: a contestant, as JSON.")

OURS = "wechsel-jax"
# Behind a contestant that trains with them.
SOFT_TARGETS = ", soft targets"
# Behind a contestant whose models have them.
SETTINGS = {"remat=dots": {"remat": "dots"}, "scan_layers=False": {"scan_layers": False}}


@dataclasses.dataclass(frozen=True)
class Case:
    """What one process trains: a contestant ("wechsel-jax", "torch", "torch compiled", ...) and its problem."""

    contestant: str
    device: str
    hf: dict[str, Any]
    rows: int
    length: int
    dtype: str
    threads: int


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    if _WORKER.value:
        work(Case(**json.loads(_WORKER.value)))
        return
    if unknown := [name for name in _MODELS.value if name not in NAMES] or ([] if _MODELS.value else [""]):
        raise app.UsageError(f"--models={unknown[0]}: unknown; expected some of {', '.join(NAMES)}")
    try:
        rates = [float(rate) for rate in _DROPOUT.value or ("0.1", "0")]
    except ValueError as error:
        raise app.UsageError(f"--dropout: {error}; expected numbers, such as 0.1,0") from None
    if wrong := [rate for rate in rates if not 0 <= rate < 1]:
        raise app.UsageError(f"--dropout={wrong[0]:g}: expected rates from 0 to less than 1")
    if _OUTPUT.value and os.path.isdir(_OUTPUT.value):
        raise app.UsageError(f"--output={_OUTPUT.value}: is a directory; expected the name of a file")
    gpu = _DEVICE.value == "gpu"
    threads = _THREADS.value or len(os.sched_getaffinity(0))
    settings = {"rounds": _ROUNDS.value, "steps_a_round": steps_of_a_round()}
    result = {"machine": machine(threads), **settings, "results": []}
    for model in _MODELS.value:
        for dropout in rates:
            result["results"].append(measure(model, dropout, gpu, threads))
            report(result["results"][-1])
            # After each: an accelerator may be taken away.
            if _OUTPUT.value:
                with new_file(_OUTPUT.value, "w") as handle:
                    handle.write(json.dumps(result, indent=2) + "\n")


def steps_of_a_round() -> int:
    return _STEPS.value or (20 if _DEVICE.value == "gpu" and not _SMOKE.value else 2)


def measure(model: str, dropout: float, gpu: bool, threads: int) -> dict[str, Any]:
    """Runs the contestants of one problem in turns."""
    case = make_case(model, dropout, gpu, threads)
    workers = {name: Worker(dataclasses.replace(case, contestant=name)) for name in contestants(gpu, dropout)}
    try:
        facts = {name: worker.ready() for name, worker in workers.items()}
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
        for _ in range(_ROUNDS.value):
            for name, worker in workers.items():
                samples[name].append(worker.round(steps_of_a_round()))
        last = {name: worker.finish() for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.close()
    lines = {name: summary(facts[name] | last[name], samples[name], case.rows * case.length) for name in workers}
    ours, others = lines[OURS], [name for name in lines if name != OURS]
    ratios = {f"{OURS} / {name}": round(ours["tokens_per_second"] / lines[name]["tokens_per_second"], 3) for name in others}
    cpu = {f"{OURS} / {name}": round(lines[name]["cpu_seconds"] / ours["cpu_seconds"], 3) for name in others}
    problem = {"model": case.hf, "rows": case.rows, "length": case.length, "dropout": dropout, "dtype": case.dtype}
    return {"problem": problem, "contestants": lines, "speed": ratios, "speed_by_cpu_time": cpu}


def make_case(model: str, dropout: float, gpu: bool, threads: int) -> Case:
    """The problem, without its contestant."""
    demo = model == "demo"
    rows = _ROWS.value or (2 if _SMOKE.value else 16 if demo else 32 if gpu else 8)
    length = 16 if _SMOKE.value else 128 if demo else 512 if gpu else 256
    return Case("", _DEVICE.value, model_fields(model, dropout, gpu), rows, length, "bfloat16" if gpu else "float32", threads)


def contestants(gpu: bool, dropout: float) -> list[str]:
    """Names of those that take turns; behind ours stand settings of its models."""
    if _MUON.value:
        return [OURS, f"{OURS}, muon", f"{OURS}, muon_soap", f"{OURS}, muon_soap{SOFT_TARGETS}"]
    if gpu:
        return [OURS, f"{OURS}, {'remat=dots' if dropout else 'scan_layers=False'}", "torch compiled"]
    return [OURS, "torch", "torch, memory kept", *["torch compiled, memory kept"] * _TORCH_COMPILE.value]


def summary(facts: dict[str, Any], samples: list[dict[str, float]], tokens: int) -> dict[str, Any]:
    """Medians of a contestant's rounds, a step."""
    wall, cpu = (statistics.median(sample[kind] for sample in samples) for kind in ("wall", "cpu"))
    line = {"tokens_per_second": round(tokens / wall, 1), "wall_seconds": round(wall, 4), "cpu_seconds": round(cpu, 4)}
    if facts.get("peak_flops"):
        line["mfu"] = round(facts["flops_per_token"] * tokens / wall / facts["peak_flops"], 4)
        line["own_mfu"] = round(facts["own_flops_per_token"] * tokens / wall / facts["peak_flops"], 4)
    return line | {name: value for name, value in facts.items() if name != "kind"} | {"samples": samples}


def report(result: dict[str, Any]) -> None:
    problem = result["problem"]
    print(f"\n{problem['model']['model_type']}, dropout {problem['dropout']}, {problem['rows']} x {problem['length']}:")
    for name, line in result["contestants"].items():
        mfu = f", MFU {100 * line['mfu']:.1f} %" if "mfu" in line else ""
        print(
            f"  {name}: {line['tokens_per_second']:,.0f} tokens/s{mfu}, {line['wall_seconds']:.3f} s and "
            f"{line['cpu_seconds']:.3f} CPU s a step, peak {line['peak_bytes'] / 2**20:,.0f} MiB, losses "
            f"{line['first_loss']:.3f} to {line['last_loss']:.3f}"
        )
    for name, ratio in result["speed"].items():
        print(f"  {name}: {ratio:.2f} x the tokens/s ({result['speed_by_cpu_time'][name]:.2f} by CPU time)", flush=True)


def model_fields(model: str, dropout: float, gpu: bool) -> dict[str, Any]:
    """Fields of `config.json`."""
    layers, width, heads, vocabulary = (12, 768, 12, 50_257) if gpu else (6, 384, 6, 50_257)
    positions = 512
    if model == "demo":
        model, layers, width, heads, vocabulary, positions = "gpt2", 4, 256, 4, 8_192, 128
    if _SMOKE.value:
        layers, width, heads, vocabulary, positions = 2, 32, 2, 211, 32
    if model == "gpt2":
        rates = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), dropout)
        sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions}
        return {"model_type": "gpt2", "vocab_size": vocabulary, **sizes, **rates, "bos_token_id": 0, "eos_token_id": 0}
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * width}
    positional = {"max_position_embeddings": positions + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return {"model_type": "roberta", "vocab_size": vocabulary + 8, **sizes, **positional, **rates}


class Worker:
    """A contestant in a process of its own, which answers each line with a line of JSON."""

    def __init__(self, case: Case):
        passed = ["--smoke"] if _SMOKE.value else []
        command = [sys.executable, __file__, f"--worker={json.dumps(dataclasses.asdict(case))}", *passed]
        environment = dict(os.environ)
        if case.device == "cpu":
            environment |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": str(case.threads)}
        # Both contestants live on one GPU, so neither may take all of its memory first.
        environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, bufsize=1, **pipes)

    def ready(self) -> dict[str, Any]:
        return self._answer()

    def round(self, steps: int) -> dict[str, float]:
        return self._ask(str(steps))

    def finish(self) -> dict[str, Any]:
        return self._ask("end")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _ask(self, line: str) -> dict[str, Any]:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a contestant ended; its message stands above")
        return json.loads(line)


def work(case: Case) -> None:
    """One contestant: warms up, says so, then runs as many steps as each line of input asks for."""
    answers, sys.stdout = sys.stdout, sys.stderr
    start = time.perf_counter()
    step, facts, peak = (make_ours if case.contestant.startswith(OURS) else make_torch)(case)
    first = step()
    compiled = time.perf_counter() - start
    for _ in range(2):
        step()

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer(facts | {"first_loss": first, "seconds_to_first_step": round(compiled, 2)})
    loss = first
    for line in sys.stdin:
        if line.strip() == "end":
            answer({"last_loss": loss, "peak_bytes": peak()})
            return
        steps = int(line)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps - 1):
            step(wait=False)
        loss = step()
        answer({"wall": (time.perf_counter() - wall) / steps, "cpu": (time.process_time() - cpu) / steps})


def batches(case: Case) -> Iterator[np.ndarray]:
    """Endless batches int32 (rows, length) of tokens that are no special ones, Zipf-distributed as words are."""
    generator = np.random.default_rng(0)
    rank = np.arange(1, case.hf["vocab_size"] - 9)
    cumulative = np.cumsum(1.0 / rank) / np.sum(1.0 / rank)
    while True:
        yield (5 + np.searchsorted(cumulative, generator.random((case.rows, case.length)))).astype(np.int32)


def make_ours(case: Case) -> tuple[Callable, dict[str, Any], Callable[[], int]]:
    """Returns (step, facts, peak bytes) of this trainer."""
    import jax

    from wechsel_jax.data.ngrams import NgramModel
    from wechsel_jax.models import family
    from wechsel_jax.models.weights import unflatten
    from wechsel_jax.objectives import make_objective
    from wechsel_jax.training import default_config, devices, sharding
    from wechsel_jax.training.groups import RECIPES, assign, read_groups
    from wechsel_jax.training.optimizer import make_optimizer
    from wechsel_jax.training.step import make_train_step, start_phase, state_shardings, train_key

    if case.device == "cpu":
        devices.keep_freed_memory()
    model_family = family(case.hf["model_type"])
    named = case.contestant.removeprefix(f"{OURS}, ")
    config = model_family.config(case.hf, **SETTINGS.get(named, {}))
    mask = {} if model_family.causal else {"mask_token_id": case.hf["vocab_size"] - 1, "special_ids": range(5)}
    objective = make_objective("clm" if model_family.causal else "mlm", model_family, config, dtype=case.dtype, **mask)
    mesh = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1})
    shapes = model_family.shapes(config)
    places, _ = sharding.parameter_shardings(mesh, model_family.sharding_rules, shapes)
    structs = unflatten({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()})
    grouping, rates = None, np.float32(1e-4)
    recipe = named.removesuffix(SOFT_TARGETS)
    if recipe in RECIPES:
        # Coordinates come from a checkpoint, which is not part of this; what they cost is in docs/recipe.md.
        alone = [{name: value for name, value in group.items() if name != "coordinates"} for group in RECIPES[recipe]]
        grouping = assign(read_groups(alone), model_family, config, shapes)
        rates = np.full(len(grouping.groups), 1e-4, np.float32)
    optimizer = make_optimizer(default_config().optimizer, grouping, places)
    where = state_shardings(mesh, places, optimizer, frozenset(shapes), structs)
    params = jax.jit(lambda key: model_family.init(config, key), out_shardings=places)(jax.random.key(0))
    state = start_phase(params, 0, optimizer, frozenset(shapes), where)
    source, key, soft = batches(case), train_key(0), default_config().soft_targets
    ngrams = None
    if named != recipe:
        text = np.concatenate([next(source).ravel() for _ in range(200)])
        ngrams = NgramModel.of(text, case.hf["vocab_size"], soft.order)

    def batch() -> Any:
        made = {"tokens": next(source)}
        if ngrams is not None:
            made["soft_tokens"], made["soft_weights"] = ngrams.expected(made["tokens"], soft.continuations)
        made = {name: value[None] for name, value in made.items()}
        return sharding.put(made, sharding.batch_sharding(mesh, accumulated=True))

    with jax.set_mesh(mesh):
        train_step = make_train_step(objective, optimizer, frozenset(shapes), where, grouping=grouping)
        compiled = train_step.lower(state, batch(), rates, key).compile()

    def step(wait: bool = True) -> float | None:
        nonlocal state
        state, metrics = compiled(state, batch(), rates, key)
        return float(metrics["loss"]) if wait else None

    facts = {
        "flops_per_token": model_family.flops_per_token(config, case.length),
        "own_flops_per_token": model_family.flops_per_token(config, case.length, objective.head_fraction),
        "peak_flops": devices.peak_flops(jax.devices()[0].device_kind),
        "device": jax.devices()[0].device_kind,
        "optimizer_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(state.opt_state)),
    }

    def peak() -> int:
        statistics_ = jax.devices()[0].memory_stats()
        return statistics_["peak_bytes_in_use"] if statistics_ else peak_of_process()

    return step, facts, peak


def make_torch(case: Case) -> tuple[Callable, dict[str, Any], Callable[[], int]]:
    """Returns (step, facts, peak bytes) of `transformers` with torch."""
    import torch
    import transformers

    from wechsel_jax.models import family
    from wechsel_jax.training import devices

    if "memory kept" in case.contestant:
        devices.keep_freed_memory()
    torch.manual_seed(0)
    torch.set_num_threads(case.threads)
    device = "cuda" if case.device == "gpu" else "cpu"
    causal = case.hf["model_type"] == "gpt2"
    names = ("GPT2Config", "GPT2LMHeadModel") if causal else ("RobertaConfig", "RobertaForMaskedLM")
    config_class, model_class = (getattr(transformers, name) for name in names)
    hf = {name: value for name, value in case.hf.items() if name != "model_type"}
    model = model_class._from_config(config_class(**hf), attn_implementation="sdpa").to(device).train()
    if causal:
        model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=True)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")

    def loss_of(tokens: Any, labels: Any) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=case.dtype == "bfloat16"):
            return model(input_ids=tokens, labels=labels).loss

    forward = torch.compile(loss_of) if "compiled" in case.contestant else loss_of
    source, generator = batches(case), np.random.default_rng(1)

    def batch() -> tuple[Any, Any]:
        tokens = next(source)
        labels = tokens
        if not causal:
            tokens, labels = masked(tokens, generator, case.hf["vocab_size"] - 1)
        return tuple(torch.from_numpy(x.astype(np.int64)).to(device, non_blocking=True) for x in (tokens, labels))

    def step(wait: bool = True) -> float | None:
        loss = forward(*batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach()) if wait else None

    model_family = family(case.hf["model_type"])
    flops = model_family.flops_per_token(model_family.config(case.hf), case.length)
    kind = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    facts = {"flops_per_token": flops, "own_flops_per_token": flops, "peak_flops": devices.peak_flops(kind), "device": kind}
    return step, facts, torch.cuda.max_memory_allocated if device == "cuda" else peak_of_process


def masked(tokens: np.ndarray, generator: np.random.Generator, mask_id: int) -> tuple[np.ndarray, np.ndarray]:
    """15 % of the tokens of each row become the mask (80 %), another token (10 %) or stay; the others get label -100."""
    chosen = generator.random(tokens.shape).argsort(axis=1) < round(0.15 * tokens.shape[1])
    kind = generator.random(tokens.shape)
    drawn = generator.integers(5, mask_id, tokens.shape)
    seen = np.where(kind < 0.8, mask_id, np.where(kind < 0.9, drawn, tokens))
    return np.where(chosen, seen, tokens), np.where(chosen, tokens, -100)


def peak_of_process() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def machine(threads: int) -> dict[str, Any]:
    versions = installed("jax", "jaxlib", "flax", "optax", "torch", "transformers", "numpy")
    about = {"processor": processor(), "threads": threads, "python": platform.python_version()}
    return {**about, "versions": versions, "load": os.getloadavg()[0]}


if __name__ == "__main__":
    app.run(main)
