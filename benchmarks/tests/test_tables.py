"""What `python -m benchmarks.tables` writes, and when it writes nothing."""

import csv
import doctest

import pytest

from benchmarks import tables


def test_a_check_and_what_is_as_it_should_be_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "TABLES", {"document.md": {"name": lambda: "new"}})
    document = tmp_path / "document.md"
    document.write_text("<!-- name -->\nold\n<!-- /name -->\n")
    before = document.stat()
    with pytest.raises(SystemExit, match=r"document\.md: its tables differ"):
        tables.main(["--check"])
    assert document.stat() == before
    tables.main([])
    assert document.read_text() == "<!-- name -->\nnew\n<!-- /name -->\n"
    before = document.stat()
    for arguments in (["--check"], []):
        tables.main(arguments)
    assert (document.stat().st_ino, document.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with pytest.raises(SystemExit, match="Writes the tables"):
        tables.main(["--chekc"])


def test_one_seed_has_no_deviation():
    bits, perplexity = ({"mean": mean, "standard_deviation": None} for mean in ([3.0, 2.5], [100.0, 40.0]))
    method = {"steps": [0, 10], "bits_per_byte": bits, "perplexity": perplexity}
    result = {"methods": {"full_rand": method}, "seeds": [3], "machine": "a machine"}
    assert tables.demo_table(result).splitlines() == [
        "| initialisation | step 0 | step 10 | perplexity then |",
        "|---|---:|---:|---:|",
        "| `full_rand` | 3.000 | 2.500 | 40 |",
        "",
        "Held-out bits per byte, seed 3; a machine.",
    ]
    bits["standard_deviation"], perplexity["standard_deviation"] = [0.0004, 0.02], [0.4, 2.0]
    assert "| `full_rand` | 3.000 ± 0.000 | 2.500 ± 0.020 | 40 ± 2 |" in tables.demo_table(result | {"seeds": [3, 4]})


def test_the_examples_run():
    result = doctest.testmod(tables)
    assert result.attempted and not result.failed


def test_rows_are_as_long_as_their_heads():
    found = [
        table
        for name in ("papers", "recipe", "results")
        for table in tables.read_tables((tables.ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))
    ]
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
