"""Writes the README's tables from the committed results: `python -m benchmarks.readme` (and `--check` in the tests).

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; whatever is between is replaced.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

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


TABLES: dict[str, tuple[str, Callable[[dict], str]]] = {
    "demo": ("demo.json", demo_table),
    "initialization": ("initialization.json", initialization_table),
}


def render(text: str) -> str:
    """Returns the README's text with every table made anew from its JSON file."""
    for name, (file, table) in TABLES.items():
        content = table(json.loads((FOLDER / file).read_text(encoding="utf-8")))
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
