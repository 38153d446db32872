"""Writes the tables of README and docs/ from the committed results and the methods' records: `python -m benchmarks.tables`.

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; whatever is between is replaced. `--check` writes nothing and says
which document is not what would be written. `--output=DIR` writes into a folder instead: each table as NAME.csv and NAME.tex
(for booktabs), what stands below it as NAME.txt, each picture of docs/ as NAME.svg and NAME.png, from the results alone. Needs
the extra `test`.
"""

import csv
import functools
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from benchmarks import (
    anker,
    anker_probe,
    arena,
    demo_seeds,
    embeddings,
    footprint,
    forgetting,
    initializers,
    kim,
    papers,
    real_models,
    recipe,
    studies,
    target_and_source,
    trelm,
)
from benchmarks.results import with_tables
from wechsel_jax.cli import VERBS, find_command
from wechsel_jax.comparison import default_config as default_comparison_config
from wechsel_jax.errors import naming
from wechsel_jax.files import new_file
from wechsel_jax.initializers import METHODS
from wechsel_jax.program import program
from wechsel_jax.records.embeddings import EmbeddingsRecord
from wechsel_jax.records.scores import ScoresRecord
from wechsel_jax.report.curves import BITS, PERPLEXITY
from wechsel_jax.report.latex import latex
from wechsel_jax.report.markdown import markdown
from wechsel_jax.report.scores_table import sections
from wechsel_jax.report.section import Table
from wechsel_jax.training import default_config, default_trelm_config
from wechsel_jax.training.config import described

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent


def methods_list() -> str:
    """A line a method, from its record: what it does and what it needs; first those that need text, as the default does."""
    lines = ["| `--method` | what it does | needs |", "|---|---|---|"]
    order = sorted(METHODS.values(), key=lambda method: method.text is None)
    lines += [f"| `{method.name}` | {method.summary} | {_needs(method)} |" for method in order]
    return "\n".join(lines)


def methods_sources() -> str:
    """A line a method: its name in reports, where it is defined, and its own settings with their defaults."""
    lines = ["| `--method` | name | defined in | its own settings |", "|---|---|---|---|"]
    for name, method in METHODS.items():
        own = " ".join(_setting(setting, own.default) for setting, own in method.settings.items())
        lines.append(f"| `{name}` | {method.label} | {method.paper} | {own} |")
    return "\n".join(lines)


def _needs(method) -> str:
    needs = ["a model of the language"] if method.helper else []
    if method.text:
        needs.append("text")
    elif method.needs == ("parallel",):
        needs.append("parallel text")
    elif method.vectors:
        needs.append("vectors" if method.space == "both" else "its vectors")
    return ", ".join(needs) or "nothing"


def _setting(name: str, default: object) -> str:
    # What is on already, a user turns off.
    return f"`--{'no' if default else ''}{name}`" if isinstance(default, bool) else f"`--{name}={default}`"


def verb_options() -> str:
    """A section a verb: its options, their defaults, what they are."""
    sections = []
    for verb, summary in VERBS.items():
        command, values = find_command(verb)
        lines = [f"## {verb}", "", f"{summary[0].upper()}{summary[1:]}.", "", "| option | default | what |", "|---|---|---|"]
        required = [name for name in getattr(command, "REQUIRED", ()) if not values[name].value]
        for name in sorted(values, key=lambda name: name not in required):
            flag = values[name]
            value = ",".join(map(str, flag.value)) if isinstance(flag.value, list) else flag.value
            default = "" if value in (None, "") or (flag.boolean and not value) else f"`{value}`"
            default = "needed" if name in required else "on" if flag.value is True else default
            # absl's own words about options that may be given several times.
            help_text = " ".join(flag.help.split()).removesuffix("; repeat this option to specify a list of values")
            help_text = help_text.replace("|", "\\|")
            lines.append(f"| `--{'[no]' if flag.boolean else ''}{name}` | {default} | {help_text} |")
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def settings_tables() -> str:
    """A section a program: its settings, their defaults, what they are."""
    programs = {
        "train.pretrain and train.finetune": default_config,
        "train.compare": default_comparison_config,
        "train.trelm": default_trelm_config,
    }
    sections = []
    for title, defaults in programs.items():
        values = defaults()
        lines = [f"## {title}", "", "| setting | default | what |", "|---|---|---|"]
        for name, what in described(defaults).items():
            default = functools.reduce(lambda found, part: found[part], name.split("."), values)
            shown = "" if isinstance(default, ConfigDict) or default in ("", ()) else f"`{default!r}`"
            lines.append(f"| `{name}` | {shown} | {what} |".replace(" || ", " \\|\\| "))
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def demo_table(result: dict) -> str:
    """Mean bits per byte over the seeds, a line a method, a column an evaluation, and perplexity at the end."""
    steps = next(iter(result["methods"].values()))["steps"]
    heads = [f"step {step}" for step in steps] + ["perplexity then"]
    lines = ["| initialisation | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for name, values in result["methods"].items():
        cells = []
        for measure, digits, places in ((BITS, 3, range(len(steps))), (PERPLEXITY, 0, [-1])):
            mean, spread = values[measure.field]["mean"], values[measure.field]["standard_deviation"]
            # One seed has no spread.
            cells += [f"{mean[at]:,.{digits}f}" + (f" ± {spread[at]:,.{digits}f}" if spread else "") for at in places]
        lines.append(f"| {anker.label(name)} | " + " | ".join(cells) + " |")
    seeds = ", ".join(map(str, result["seeds"]))
    told = f"mean ± standard deviation over seeds {seeds}" if len(result["seeds"]) > 1 else f"seed {seeds}"
    lines.append(f"\nHeld-out bits per byte, {told}; {result['machine']}.")
    return "\n".join(lines)


def initialization_table(result: dict) -> str:
    """Times of the nearest-neighbour kernel beside the bare matrix product and PyPI wechsel."""
    lines = ["| 50k x 50k x 300, k = 10 | CPU seconds | against the matrix product |", "|---|---:|---:|"]
    for row in result["table"]:
        lines.append(f"| {row['name']} | {row['cpu_seconds']:.1f} | {row['ratio']:.2f} x |")
    memory = f"Peak memory of a process with the method alone {result['peak_memory_gb']:.2f} GB"
    lines.append(f"\n{memory}. {result['machine']['description']}.")
    return "\n".join(lines)


def times_table(result: dict) -> str:
    """CPU time of every method beside the bare matrix product of its search."""
    size = "{targets:,} new tokens x {sources:,} x {dimension}".format(**result["settings"])
    lines = [f"| {size} | CPU seconds | against the matrix product |", "|---|---:|---:|"]
    old = "clp_nearest" not in {row["name"] for row in result["table"]}
    for row in result["table"]:
        name = "clp_nearest" if old and row["name"] == "clp" else row["name"]
        lines.append(f"| {name} | {row['cpu_seconds']:.1f} | {row['ratio']:.2f} x |")
    solves = result["solves"]
    squares, pursuit = (solves[f"{what}, CPU s per 1000 tokens"] for what in ("least squares", "pursuit"))
    lines.append(
        f"\nIn addition SALT's least squares take {squares:.2f} CPU s per thousand tokens, and OMP's pursuit of 64 among "
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
    # A method's place is its mean rank, since some were not run in all languages.
    ranks: dict[str, list[float]] = {}
    for name in trained:
        methods = languages[name]["methods"]
        order = sorted(methods, key=lambda method, methods=methods: methods[method]["evaluations"][-1][1])
        for rank, method in enumerate(order):
            ranks.setdefault(method, []).append(rank / len(order))
    for method in sorted(ranks, key=lambda method: statistics.mean(ranks[method])):
        curves = {name: value["methods"].get(method, {}).get("evaluations") for name, value in languages.items()}
        # What is not finite is not recorded.
        cells = [curve and dict(curve).get(0, math.inf) for curve in curves.values()]
        cells += [curves[name] and curves[name][-1][1] for name in trained]
        lines.append(f"| `{method}` | " + " | ".join("–" if cell is None else _rounded(cell) for cell in cells) + " |")
    machine = next(iter(languages.values()))["machine"]
    lines.append(f"\nHeld-out perplexity, one seed, vocabularies of 8,192, word vectors not centred; {machine}.")
    return "\n".join(lines)


def costs_table(result: dict) -> str:
    """What each start took in the language where all were made: what it reads that was made before, and its own transfer."""
    language, found = max(result["languages"].items(), key=lambda item: len(item[1].get("made", {})))
    methods, made, costs = found["methods"], found["made"], found["costs"]
    step = found["step"] / statistics.median(method["tokens_per_second"] for method in methods.values())
    lines = [
        "| start | made before | its text, MB | its TFLOP | its seconds | the transfer's text, MB | its seconds | "
        "all seconds, in training steps |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    rows = {}
    for name, method in methods.items():
        before = sum(made[one] for one in method["made"])
        text, flops = (sum(costs[one][kind] for one in method["made"]) for kind in ("text_bytes", "flops"))
        cells = [f"{text / 1e6:,.0f}", f"{flops / 1e12:.1f}", f"{before:,.0f}"] if method["made"] else ["–"] * 3
        cells += [f"{method['text_bytes'] / 1e6:.0f}" if method["text_bytes"] else "–", f"{method['transfer_seconds']:,.1f}"]
        rows[name] = ((before + method["transfer_seconds"]) / step, cells)
    for name, (steps, cells) in sorted(rows.items(), key=lambda item: item[1][0]):
        lines.append(f"| `{name}` | {', '.join(methods[name]['made']) or '–'} | {' | '.join(cells)} | {steps:,.0f} |")
    lines.append(
        f"\nEnglish to {initializers.NAMES[language]}, a step of {step:.2f} seconds and "
        f"{found['step_flops'] / 1e12:.3f} TFLOP; {found['machine']}."
    )
    return "\n".join(lines)


def drift_table(result: dict) -> str:
    """How far the rows of each start have moved at the end of training, in the order of the first language's ends."""
    languages = {
        name: found for name, found in result["languages"].items() if any(one.get("drift") for one in found["methods"].values())
    }
    heads = [f"{name}, {what}" for name in languages for what in ("cosine", "change", "kept")]
    lines = ["| start | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    ends = [found["methods"] for found in languages.values()]
    for name in sorted(ends[0], key=lambda name: ends[0][name]["evaluations"][-1][1]):
        cells = []
        for methods in ends:
            found = methods.get(name, {}).get("drift")
            cells += [f"{found['cosine']:.2f}", f"{found['change']:.2f}", f"{found['kept']:.0%}"] if found else ["–"] * 3
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _rounded(perplexity: float) -> str:
    return f"{perplexity:,.0f}" if perplexity < 1e9 else f"{perplexity:.0e}" if math.isfinite(perplexity) else "∞"


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


# What anker is compared with; parts and controls are no rivals.
RIVALS = ("wechsel", "wechsel_tfr", "focus", "ofa", "trans_inner", "full_rand")


def rivals_table(result: dict) -> str:
    """anker and the best of the others after the usual steps, each at the best of the rates that it was run with, in seed 0."""
    lines = [
        "| English GPT-2 to | `anker` | the best other method | steps that `anker` needs for that |",
        "|---|---:|---:|---:|",
    ]
    for language in ("de", "sw", "zh"):
        runs: dict[str, dict[float, dict]] = {}
        for setting, seeds in result["languages"].items():
            base, _, rate = setting.partition("-rate")
            for name, run in seeds["0"].items() if base == language else ():
                runs.setdefault(name, {})[float(rate or anker.LEARNING_RATE)] = run
        best = {name: min(rates, key=lambda rate, rates=rates: _end(rates[rate])) for name, rates in runs.items()}
        rival = min(RIVALS, key=lambda name: _end(runs[name][best[name]]))
        cells = [f"{_end(runs[name][best[name]]):,.0f} ({best[name]:g} of {len(runs[name])})" for name in ("anker", rival)]
        ours, theirs = runs["anker"][best["anker"]], runs[rival][best[rival]]
        steps = theirs["evaluations"][-1][0]
        needed = anker.steps_needed(ours["evaluations"], theirs["evaluations"][-1:])[0]
        saved = f"{needed:,.0f} of {steps}, {steps / needed:.1f} times fewer" if needed else "never"
        lines.append(f"| {anker.NAMES[language]} | {cells[0]} | {anker.label(rival, theirs)} {cells[1]} | {saved} |")
    return "\n".join(lines)


def _end(run: dict) -> float:
    return run["evaluations"][-1][1]


# Numpy's forms of SALT's regression, every one of which ends with the new rows.
SALT_RIVALS = {
    "numpy pinv, the paper's map": "numpy, the paper's map",
    "numpy pinv, weights only": "numpy, pseudo-inverse times the token",
    "numpy Gram matrix and solve": "numpy, Gram matrix and solve",
}


def peers_table(focus: dict, salt: dict) -> str:
    """CPU time beside the tools that do the same."""
    seconds, settings = focus["seconds"], focus["settings"]
    per = {row["name"]: row["cpu_seconds"] for row in salt["table"]}
    lines = ["| the same work | CPU seconds | here | |", "|---|---:|---:|---:|"]
    theirs, ours = seconds["PyPI deepfocus"]["cpu"], seconds["wechsel-jax focus"]["cpu"]
    size = f"FOCUS, {settings['targets']:,} new tokens x {settings['sources']:,} x {settings['dimension']}"
    how = ", extrapolated" if focus["reference"]["extrapolated"] else ""
    lines.append(f"| {size}: PyPI deepfocus{how} | {theirs:,.0f} | {ours:.1f} | {theirs / ours:.0f} x less |")
    work = "SALT, 1,000 tokens, 768 to 2,048, 10 to 60 neighbours"
    mine = per["wechsel-jax, weights and rows"]
    for name, rival in SALT_RIVALS.items():
        ratio = per[name] / mine
        times = f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"
        lines.append(f"| {work}: {rival} | {per[name]:.2f} | {mine:.2f} | {times} x less |")
    rows = " and ".join(f"{count:,}" for count in focus["reference"]["rows"])
    lines.append(f"\ndeepfocus was timed on {rows} new tokens; the line through both is followed to the rest.")
    lines[-1] += f" {salt['machine']['description']}."
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


def gpu_training_table(result: dict) -> str:
    """Tokens a second and model FLOPs utilisation of the same training step here and in compiled PyTorch, on a GPU."""
    heads = ["training step, bfloat16, AdamW", "tokens/s", "MFU", "memory", "PyTorch, compiled", "MFU", "memory", ""]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    names = {"gpt2": "GPT-2 124M", "roberta": "RoBERTa-base"}
    for measured in result["results"]:
        problem = measured["problem"]
        cells = [f"{names[problem['model']['model_type']]}, dropout {problem['dropout']:g}"]
        for line in (measured["contestants"][name] for name in ("wechsel-jax", "torch compiled")):
            cells += [f"{line['tokens_per_second']:,.0f}", f"{line['mfu']:.1%}", f"{line['peak_bytes'] / 1e9:.1f} GB"]
        lines.append("| " + " | ".join([*cells, f"{measured['speed']['wechsel-jax / torch compiled']:.2f} x"]) + " |")
    problem, machine = result["results"][0]["problem"], result["machine"]
    device = result["results"][0]["contestants"]["wechsel-jax"]["device"]
    lines.append(
        f"\n{problem['rows']} x {problem['length']} tokens, 50k vocabulary; medians of {result['rounds']} rounds in turns. "
        f"PyTorch with scaled dot-product attention and fused AdamW. {device}, jax {machine['versions']['jax']}, "
        f"torch {machine['versions']['torch']}."
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


def scores_table(name: str) -> str:
    """The scores of a file that `wechsel-jax evaluate` or `train.compare` wrote, with the machine."""
    record = ScoresRecord.read(FOLDER / f"{name}.json")
    machines = {f"{one.machine['devices']} x {one.machine['device_kind']}" for one in record.scores}
    return f"{markdown(sections(record)[0].blocks)}\n\nMeasured on {', '.join(sorted(machines))}."


def _results(*names: str) -> list[dict]:
    return [json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in names]


def _languages() -> list[dict]:
    return [result["languages"] for result in _results("anker")]


def _anker(name: str) -> Callable[[], str]:
    return lambda: anker.TABLES[name](*_results("anker"))


def _embeddings(table: Callable[[EmbeddingsRecord], str]) -> Callable[[], str]:
    return lambda: table(EmbeddingsRecord.read(FOLDER / "embeddings.json"))


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"methods": methods_list},
    "docs/options.md": {"options": verb_options, "settings": settings_tables},
    "docs/methods.md": {
        "sources": methods_sources,
        "initializers": lambda: initializers_table(*_results("initializers")),
        "costs": lambda: costs_table(*_results("initializers")),
        "drift": lambda: drift_table(*_results("initializers")),
    },
    "docs/results.md": {
        "rivals": lambda: rivals_table(*_results("anker")),
        "demo": lambda: demo_table(*_results("demo")),
        "real_models": lambda: real_models.table(*_results("real_models")),
        "trained_model": lambda: trained_model_table(*_results("trained_model")),
        "memory": lambda: memory_table(*_results("memory")),
        "initialization": lambda: initialization_table(*_results("initialization")),
        "times": lambda: times_table(*_results("methods")),
        "training": lambda: training_table(*_results("training")),
        "training_gpu": lambda: gpu_training_table(*_results("training_gpu")),
        "peers": lambda: peers_table(*_results("focus", "salt")),
    },
    "docs/papers.md": {
        "papers": papers.table,
        "target_and_source": lambda: target_and_source.table(*_results("target_and_source")),
        "salt": lambda: studies.steps_table(*_results("studies"), "salt"),
        "salt_german": lambda: studies.steps_table(*_results("studies"), "salt_german"),
        "salt_knowledge": lambda: scores_table("salt_knowledge"),
        "wechsel_grid": lambda: scores_table("wechsel_grid"),
        "downstream": lambda: scores_table("downstream"),
        "downstream_fr": lambda: scores_table("downstream_fr"),
        "downstream_zh": lambda: scores_table("downstream_zh"),
        "arena": lambda: arena.table(*_results("arena")),
        "footprint": lambda: footprint.table(*_results("footprint")),
        **{
            name: lambda name=name: studies.table(*_results("studies"), name)
            for name in ("freezing", "relearning", "size", "low_resource")
        },
    },
    "docs/embeddings.md": {
        "whole": _embeddings(embeddings.whole_table),
        "scales": _embeddings(embeddings.scales_table),
        "ranges": _embeddings(embeddings.paper_table),
        "analogies": _embeddings(embeddings.analogies_table),
    },
    "docs/translation.md": {"kim": lambda: kim.table(*_results("kim"))},
    "docs/trelm.md": {
        # Of other languages than German where there are results.
        name.replace("trelm", "ablation"): lambda name=name: trelm.table(*_results(name))
        for name in sorted(path.stem for path in FOLDER.glob("trelm*.json"))
    },
    "docs/recipe.md": {
        "answer": lambda: recipe.answer_table(*_results("recipe")),
        "recipe": lambda: recipe.table(*_results("recipe")),
        "soft": lambda: recipe.soft_table(*_results("recipe")),
        "forgetting": lambda: forgetting.table(*_results("forgetting")),
        "bound": lambda: studies.steps_table(*_results("studies"), "bound"),
        "averaging": lambda: scores_table("averaging"),
    },
    "docs/anker.md": {name: _anker(name) for name in anker.TABLES}
    | {
        "probe": lambda: anker_probe.probe_table(*_results("anker_probe")),
        "no_spaces": lambda: studies.table(*_results("studies"), "no_spaces"),
    },
}


# As they stand in docs/, but for those that have a command of their own: `wechsel-jax report` (grid), `benchmarks/scaling.py`.
PICTURES: dict[str, Callable[[Path], None]] = {
    "anker": lambda path: anker.draw(list(anker.panels_of(*_languages())), path),
    "anker-more": lambda path: anker.draw(list(anker.more_panels_of(*_languages())), path),
    "arena": lambda path: arena.draw(*_results("arena"), path),
    "demo": lambda path: anker.draw([demo_seeds.panel(*_results("demo"))], path, BITS),
    "initializers": lambda path: initializers.draw(*_results("initializers"), path),
    "kim": lambda path: kim.draw(*_results("kim"), path),
    "recipe": lambda path: recipe.draw(*_results("recipe"), path),
    "studies": lambda path: anker.draw(studies.panels(*_results("studies")), path),
}


def render(document: str, text: str) -> str:
    """Returns a document's text with every table made anew."""
    with naming(f"{document}: "):
        return with_tables(text, {name: table() for name, table in TABLES[document].items()})


def read_tables(text: str) -> list[Table]:
    """Returns the tables of a Markdown text, their cells as a reader sees them.

    >>> [table] = read_tables("of x\\n\\n| run | end |\\n|---|---:|\\n| `a` | **1** |\\n")
    >>> table.head, table.rows, table.text
    (('run', 'end'), (('a', '1'),), (0,))
    """
    tables = []
    for lines in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        cells = [tuple(map(_plain, re.split(r"\s*(?<!\\)\|\s*", line.strip())[1:-1])) for line in lines.splitlines()]
        head, marks, *rows = cells
        tables.append(Table(head, tuple(rows), text=tuple(i for i, mark in enumerate(marks) if not mark.endswith(":"))))
    return tables


def _plain(cell: str) -> str:
    """A cell without its links, emphasis and escapes; its lines, one behind the other."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)|\*\*|`|\\(?=\|)", r"\1", cell.replace("<br>", "; "))


def write_folder(folder: Path) -> None:
    """Writes every table of results as CSV and LaTeX, what is said of it as text, and every picture as SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    for document, tables in TABLES.items():
        if document in ("README.md", "docs/options.md"):
            continue
        for name, table in tables.items():
            text = table()
            if said := "\n".join(line for line in text.splitlines() if not line.startswith("|")).strip():
                with new_file(folder / f"{Path(document).stem}-{name}.txt", "w") as handle:
                    handle.write(said + "\n")
            for number, read in enumerate(read_tables(text), 1):
                place = folder / f"{Path(document).stem}-{name}{f'-{number}' if number > 1 else ''}"
                with new_file(place.with_suffix(".csv"), "w") as handle:
                    csv.writer(handle, lineterminator="\n").writerows([read.head, *read.rows])
                with new_file(place.with_suffix(".tex"), "w") as handle:
                    handle.write(latex(read))
    for name, draw in PICTURES.items():
        for ending in (".svg", ".png"):
            draw(folder / f"{name}{ending}")


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case [option] if option.startswith("--output=") and option != "--output=":
            write_folder(Path(option.removeprefix("--output=")))
        case [] | ["--check"]:
            write_documents(check=bool(arguments))
        case _:
            sys.exit(__doc__)


def write_documents(check: bool) -> None:
    for document in TABLES:
        old = (ROOT / document).read_text(encoding="utf-8")
        new = render(document, old)
        if old == new:
            continue
        if check:
            sys.exit(f"{document}: its tables differ from their sources; run python -m benchmarks.tables")
        with new_file(ROOT / document, "w") as handle:
            handle.write(new)


if __name__ == "__main__":
    with program("benchmarks.tables"):
        main(sys.argv[1:])
