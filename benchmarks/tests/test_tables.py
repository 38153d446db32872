"""What `python -m benchmarks.tables` writes, and when it writes nothing."""

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
    method = {"steps": [0, 10], "mean": [100.0, 40.0], "standard_deviation": None}
    result = {"methods": {"full_rand": method}, "seeds": [3], "machine": "a machine"}
    assert tables.demo_table(result).splitlines()[2:] == [
        "| `full_rand` | 100 | 40 |",
        "",
        "Held-out perplexity, seed 3; a machine.",
    ]
    result["methods"]["full_rand"] = {**method, "standard_deviation": [0.4, 2.0]}
    assert "| `full_rand` | 100 ± 0 | 40 ± 2 |" in tables.demo_table(result | {"seeds": [3, 4]})
