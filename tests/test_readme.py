"""The README is true: its tables are the committed results, its files exist, its options are options."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from wechsel_jax.initializers import METHODS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(wechsel-jax (?:[a-z]+ ?)+)((?:.|\\\n)*?)(?<!\\)$", README, re.MULTILINE)


def test_tables_are_the_committed_results():
    done = subprocess.run([sys.executable, "-m", "benchmarks.readme", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_linked_and_named_files_exist():
    links = re.findall(r"\]\((?!http)([^)]+)\)", README)
    configs = re.findall(r"configs/[a-z]\w*\.py", README)
    modules = re.findall(r"`((?:wechsel_jax|train|configs|benchmarks)/[\w/.]*)`", README)
    assert len(links) >= 2 and len(configs) >= 2 and len(modules) >= 5
    missing = [name for name in (*links, *configs, *modules) if not (ROOT / name).exists()]
    assert not missing


def test_every_method_is_in_the_table_and_every_one_in_the_table_is_a_method():
    assert set(re.findall(r"^\| `(\w+)` \| .*\|.*\|.*\|$", README, re.MULTILINE)) >= set(METHODS)
    assert set(re.findall(r"--method=(\w+)", README)) <= set(METHODS)


@pytest.mark.parametrize("verb", sorted({words.strip() for words, _ in COMMANDS}))
def test_commands_have_only_options_that_exist(verb):
    shown = subprocess.run(
        [sys.executable, "-m", "wechsel_jax.cli", *verb.split()[1:], "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    used = {flag for words, rest in COMMANDS if words.strip() == verb for flag in re.findall(r"--(\w+)", rest)}
    known = set(re.findall(r"--(?:\[no\])?(\w+)", shown.stdout))
    assert used <= known
