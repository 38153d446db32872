"""The house has floors: a package imports only from those below it, by module, by type and inside of functions alike."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "wechsel_jax"
# From the ground up. What stands on one line does not know its neighbors either.
FLOORS = (
    ("errors",),
    ("files",),
    ("program", "records"),
    ("text",),
    ("tokens",),
    ("search",),
    ("vectors", "aligner"),
    ("initializers",),
    ("checkpoint",),
    ("models",),
    ("objectives",),
    ("data",),
    ("evaluation",),
    ("inspection",),
    ("report",),
    ("hub",),
    ("transfers", "training"),
    ("comparison",),
    ("demo",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}


@functools.cache
def modules() -> list[tuple[Path, ast.Module]]:
    return [(path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(ROOT.rglob("*.py"))]


def imported(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "wechsel_jax" and len(parts) > 1 and parts[1] in FLOOR else None


def test_every_module_has_a_floor():
    there = {path.parts[0].removesuffix(".py") for path, _ in modules()} - {"__init__"}
    assert there == set(FLOOR)


@pytest.mark.parametrize("name", sorted(FLOOR))
def test_a_package_imports_from_below(name):
    wrong = [
        f"{path} imports {what}"
        for path, tree in modules()
        if path.parts[0].removesuffix(".py") == name
        for what in imported(tree)
        if (other := package(what)) not in (None, name) and FLOOR[other] >= FLOOR[name]
    ]
    assert not wrong


def test_the_readme_tells_the_same_order():
    rows = re.findall(r"^\| (`wechsel_jax/.*?) \|", (ROOT.parent / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = [re.sub(r"^wechsel_jax/|/$|\.py$", "", name) for row in rows for name in re.findall(r"`(.*?)`", row)]
    # The last, which only calls the one below it, has no line.
    floors = {name: floor for name, floor in FLOOR.items() if name != "__main__"}
    assert sorted(named) == sorted(floors) and [floors[name] for name in named] == sorted(floors.values())


def test_flax_stays_where_models_are_and_torch_outside():
    wrong = [
        f"{path} imports {what}"
        for path, tree in modules()
        for what in imported(tree)
        if what.split(".")[0] == "torch" or (what.split(".")[0] == "flax" and path.parts[0] != "models")
    ]
    assert not wrong


def test_the_root_holds_six_modules():
    assert sorted(path.name for path in ROOT.glob("*.py")) == [
        "__init__.py",
        "__main__.py",
        "cli.py",
        "errors.py",
        "hub.py",
        "program.py",
    ]
