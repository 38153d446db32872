"""README and docs are true: their tables are the committed results, their files exist, their options are options."""

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from benchmarks import tables
from wechsel_jax import cli
from wechsel_jax.initializers import METHODS

ROOT = Path(__file__).parents[1]
DOCUMENTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md"))}
DOCUMENTS["README.md"] = README = (ROOT / "README.md").read_text(encoding="utf-8")
ALL = "\n".join(DOCUMENTS.values())
COMMANDS = re.findall(r"^(wechsel-jax (?:[a-z]+ ?)+)((?:.|\\\n)*?)(?<!\\)$", ALL, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", tables.TABLES)
def test_tables_are_the_committed_results(name):
    """Where one is not: `python -m benchmarks.tables`."""
    assert tables.render(name, DOCUMENTS[name]) == DOCUMENTS[name]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_linked_and_named_files_exist(name):
    text, folder = DOCUMENTS[name], (ROOT / name).parent
    links = re.findall(r"\]\((?!http)([^)]+)\)", text)
    for link in links:
        file, _, heading = link.partition("#")
        target = folder / file if file else ROOT / name
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE) if heading else []
        assert not heading or heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in headings}, link
    named = re.findall(r"configs/[a-z]\w*\.py", text)
    named += re.findall(r"`((?:wechsel_jax|train|configs|benchmarks|tests|docs)/[\w/.]*)`", text)
    assert not [file for file in named if not (ROOT / file).exists()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_nothing_is_shown_as_code_by_an_indent(name):
    assert not [token.content for token in MarkdownIt().parse(DOCUMENTS[name]) if token.type == "code_block"]


def test_the_readme_is_short():
    lines = README.splitlines()
    assert len(lines) <= 150
    assert not [line for line in lines if len(line) > 110 and not line.startswith("|")]


def test_the_readme_has_the_two_commands():
    commands = [token.content.strip() for token in MarkdownIt().parse(README) if token.type == "fence"]
    assert 'pip install -e ".[train]" && wechsel-jax demo --workdir=runs/demo' in commands
    assert 'pip install -e ".[test]" && pytest' in commands


def test_every_method_is_in_the_table_and_every_one_in_the_table_is_a_method():
    assert set(re.findall(r"^\| `(\w+)` \| .*\|.*\|$", README, re.MULTILINE)) == set(METHODS)
    assert set(re.findall(r"--method=(\w+)", ALL)) <= {*METHODS, "NAME"}


def test_usage_names_every_verb():
    assert not [verb for verb in cli.VERBS if not re.search(rf"(wechsel-jax |`){verb}\b", DOCUMENTS["docs/usage.md"])]


@pytest.mark.parametrize("verb", sorted({words.strip() for words, _ in COMMANDS}))
def test_commands_have_only_options_that_exist(verb, capsys):
    cli.main([*verb.split()[1:], "--help"])
    used = {flag for words, rest in COMMANDS if words.strip() == verb for flag in re.findall(r"--(\w+)", rest)}
    known = set(re.findall(r"--(?:\[no\])?(\w+)", capsys.readouterr().out))
    assert used <= known
