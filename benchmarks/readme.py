"""Writes the README's tables from the committed results: `python -m benchmarks.readme` (and `--check` in the tests).

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; whatever is between is replaced.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import real_models

FOLDER = Path(__file__).parent
README = FOLDER.parent / "README.md"


def demo_table(result: dict) -> str:
    """Mean perplexity over the seeds, a line a method, a column an evaluation."""
    steps = next(iter(result["methods"].values()))["steps"]
    lines = ["| initialisation | " + " | ".join(f"step {s}" for s in steps) + " |", "|---|" + "---:|" * len(steps)]
    for name, values in result["methods"].items():
        spread = values["standard_deviation"] or [0.0] * len(steps)
        cells = [f"{mean:,.0f} ± {sd:,.0f}" for mean, sd in zip(values["mean"], spread, strict=True)]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    seeds = ", ".join(map(str, result["seeds"]))
    lines.append(f"\nHeld-out perplexity, mean ± standard deviation over seeds {seeds}; {result['machine']}.")
    return "\n".join(lines)


def initialization_table(result: dict) -> str:
    """Times of the nearest-neighbour kernel beside the bare matrix product and PyPI wechsel."""
    lines = ["| 50k x 50k x 300, k = 10 | CPU seconds | against the matrix product |", "|---|---:|---:|"]
    for row in result["table"]:
        lines.append(f"| {row['name']} | {row['cpu_seconds']:.1f} | {row['ratio']:.2f} x |")
    memory = f"Peak memory of a process with the method alone {result['peak_memory_gb']:.2f} GB"
    lines.append(f"\n{memory}. {result['machine']['description']}.")
    return "\n".join(lines)


def methods_table(result: dict) -> str:
    """Time of every method beside the bare matrix product of its search."""
    size = "{targets:,} new tokens x {sources:,} x {dimension}".format(**result["settings"])
    lines = [f"| {size} | CPU seconds | against the matrix product |", "|---|---:|---:|"]
    for row in result["table"]:
        lines.append(f"| {row['name']} | {row['cpu_seconds']:.1f} | {row['ratio']:.2f} x |")
    solves = result["solves"]
    squares, pursuit = (solves[f"{what}, CPU s per 1000 tokens"] for what in ("least squares", "pursuit"))
    lines.append(
        f"\nBeside that, SALT's least squares take {squares:.2f} CPU s a thousand tokens, and OMP's pursuit of 64 among "
        f"{solves['atoms']:,} shared tokens {pursuit:.0f}. "
        f"{result['machine']['description']}."
    )
    return "\n".join(lines)


def initializers_table(result: dict) -> str:
    """Held-out perplexity by method: before training in every language, and at the end where there was training."""
    languages = result["languages"]
    trained = [name for name, value in languages.items() if _last(value)[0] > 1]
    heads = [f"{name}, step 0" for name in languages] + [f"{name}, step {_last(languages[name])[0]}" for name in trained]
    lines = ["| English GPT-2 to | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    methods = next(iter(languages.values()))["methods"]
    order = sorted(methods, key=lambda name: languages[trained[0]]["methods"][name]["evaluations"][-1][1])
    for method in order:
        curves = {name: value["methods"][method]["evaluations"] for name, value in languages.items()}
        cells = [curve[0][1] for curve in curves.values()] + [curves[name][-1][1] for name in trained]
        lines.append(f"| `{method}` | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |")
    machine = next(iter(languages.values()))["machine"]
    lines.append(f"\nHeld-out perplexity, one seed, vocabularies of 8,192; {machine}.")
    return "\n".join(lines)


def _last(language: dict) -> list:
    return next(iter(language["methods"].values()))["evaluations"][-1]


def memory_table(result: dict) -> str:
    """Peak memory of a transfer of a large synthetic checkpoint."""
    source, machine = result["source"], result["machine"]
    largest = source["largest_tensor_bytes"] / 1e9
    size = f"{source['bytes'] / 1e9:.1f} GB in {source['shards']} shards, largest tensor {largest:.2f} GB"
    lines = [f"| {size} | peak memory | of that not backed by a file | CPU seconds |", "|---|---:|---:|---:|"]
    for run in result["runs"]:
        peak, anonymous = run["peak_bytes"] / 1e9, run["peak_anonymous_bytes"] / 1e9
        lines.append(f"| `{run['method']}` | {peak:.2f} GB | {anonymous:.2f} GB | {run['cpu_seconds']:.0f} |")
    lines.append(f"\n{machine['system']}, {machine['machine']}, {machine['cores']} cores.")
    return "\n".join(lines)


def peers_table(focus: dict, salt: dict) -> str:
    """CPU time beside the tools that do the same."""
    seconds, settings = focus["seconds"], focus["settings"]
    per = {row["name"]: row["cpu_seconds"] for row in salt["table"]}
    lines = ["| the same work | CPU seconds | here | |", "|---|---:|---:|---:|"]
    theirs, ours = seconds["PyPI deepfocus"]["cpu"], seconds["wechsel-jax focus"]["cpu"]
    size = f"FOCUS, {settings['targets']:,} new tokens x {settings['sources']:,} x {settings['dimension']}: PyPI deepfocus"
    lines.append(f"| {size} | {theirs:,.0f} | {ours:.1f} | {theirs / ours:.0f} x less |")
    for name in ("numpy pinv, the paper's map", "numpy pinv, weights only"):
        mine = "wechsel-jax, weights and rows" if "map" in name else "wechsel-jax, weights"
        lines.append(
            f"| SALT, 1,000 tokens, 768 to 2,048, 10 to 60 neighbours: {name} | {per[name]:.2f} | {per[mine]:.2f} | "
            f"{per[name] / per[mine]:.0f} x less |"
        )
    lines.append(f"\n{salt['machine']['description']}.")
    return "\n".join(lines)


def training_table(result: dict) -> str:
    """Tokens a second of the same training step here and in PyTorch, as it is and with freed memory kept as here."""
    heads = ["training step, float32, AdamW", "tokens/s", "PyTorch", "", "PyTorch, memory kept", ""]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    names = {"gpt2": "GPT-2", "roberta": "RoBERTa"}
    for measured in result["results"]:
        problem, contestants = measured["problem"], measured["contestants"]
        cells = [f"{names[problem['model']['model_type']]}, dropout {problem['dropout']:g}"]
        cells.append(f"{contestants['wechsel-jax']['tokens_per_second']:,.0f}")
        for name in ("torch", "torch, memory kept"):
            cells.append(f"{contestants[name]['tokens_per_second']:,.0f}")
            cells.append(f"{measured['speed'][f'wechsel-jax / {name}']:.2f} x")
        lines.append("| " + " | ".join(cells) + " |")
    problem, machine = result["results"][0]["problem"], result["machine"]
    where = f"{machine['processor']}, {machine['threads']} threads, jax {machine['versions']['jax']}, torch"
    size = f"6 layers x 384, {problem['rows']} x {problem['length']} tokens, 50k vocabulary"
    lines.append(
        f"\n{size}; medians of {result['rounds']} rounds in turns. PyTorch with scaled dot-product attention and fused AdamW. "
        f"{where} {machine['versions']['torch']}."
    )
    return "\n".join(lines)


def trained_model_table(result: dict) -> str:
    """Bits per byte by PyTorch before and after the training of a real model, and perplexity on the way, a line a method."""
    source, settings, methods = result["source"], result["settings"], result["methods"]
    on_the_way = [step for step, _ in next(iter(methods.values()))["held_out"]]
    heads = [f"{source['name']} to German", "bits per byte at step 0", f"at step {settings['steps']}"]
    heads += [f"perplexity at step {step}" if not step else f"{step}" for step in on_the_way]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for name, found in methods.items():
        cells = [" ".join([f"`{name}`", *(f"`{option}`" for option in found["options"][1:])])]
        cells += [f"{score['bits_per_byte']:.2f}" for score in found["torch"].values()]
        lines.append("| " + " | ".join([*cells, *(f"{perplexity:,.0f}" for _, perplexity in found["held_out"])]) + " |")
    lines.append(
        f"\nBits per byte by PyTorch on {settings['scored']:,} characters of held-out text ({source['bits_per_byte']:.2f} for "
        f"the English model with its own tokenizer), perplexity by the trainer. Steps of {settings['rows']} x 128 tokens, "
        f"{settings['vocab_size']:,} German tokens, one seed. {result['machine']['description']}."
    )
    return "\n".join(lines)


TABLES: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "demo": (("demo.json",), demo_table),
    "initializers": (("initializers.json",), initializers_table),
    "real_models": (("real_models.json",), real_models.table),
    "trained_model": (("trained_model.json",), trained_model_table),
    "memory": (("memory.json",), memory_table),
    "initialization": (("initialization.json",), initialization_table),
    "methods": (("methods.json",), methods_table),
    "training": (("training.json",), training_table),
    "peers": (("focus.json", "salt.json"), peers_table),
}


def render(text: str) -> str:
    """Returns the README's text with every table made anew from its JSON files."""
    for name, (files, table) in TABLES.items():
        content = table(*(json.loads((FOLDER / file).read_text(encoding="utf-8")) for file in files))
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"README.md: no place for the table {name!r}")
        text = pattern.sub(lambda match, content=content: match[1] + content + "\n" + match[2], text)
    return text


if __name__ == "__main__":
    old = README.read_text(encoding="utf-8")
    new = render(old)
    if "--check" in sys.argv:
        sys.exit(0 if old == new else "README.md: tables differ from benchmarks/*.json; run python -m benchmarks.readme")
    README.write_text(new, encoding="utf-8")
