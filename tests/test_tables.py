"""Tables of the documents as files for a paper."""

import csv
import doctest
from pathlib import Path

from benchmarks import tables

DOCUMENTS = Path(__file__).parents[1] / "docs"


def test_the_examples_run():
    result = doctest.testmod(tables)
    assert result.attempted and not result.failed


def test_rows_are_as_long_as_their_heads():
    found = [table for name in ("evaluation", "recipe", "results") for table in tables.read_tables(read(name))]
    assert len(found) > 20
    assert all(len(row) == len(table.head) for table in found for row in table.rows)


def test_tables_and_pictures_are_written(tmp_path, monkeypatch):
    text = "| | `run` |\n|---|---:|\n| a \\| b | [1](x.md)<br>2 % |\n\nand\n\n| c |\n|---|\n| d |\n"
    monkeypatch.setattr(tables, "TABLES", {"docs/one.md": {"two": lambda: text}})
    monkeypatch.setattr(tables, "PICTURES", {"three": lambda path: path.write_text(path.suffix, encoding="utf-8")})
    tables.main([f"--output={tmp_path / 'made'}"])
    made = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "made").iterdir()}
    files = {f"one-two{end}" for end in (".csv", ".tex", "-2.csv", "-2.tex", ".txt")} | {"three.svg", "three.png"}
    assert set(made) == files and made["one-two.txt"] == "and\n"
    assert [*csv.reader(made["one-two.csv"].splitlines())] == [["", "run"], ["a | b", "1; 2 %"]]
    assert r"a \textbar{} b & 1; 2 \% \\" in made["one-two.tex"] and r"\begin{tabular}{lr}" in made["one-two.tex"]


def read(name: str) -> str:
    return (DOCUMENTS / f"{name}.md").read_text(encoding="utf-8")
