"""The bundled demonstration data: complete, small, attributed, and made as SOURCES.md says."""

from pathlib import Path

import pytest

from wechsel_jax import demo
from wechsel_jax.demo import make
from wechsel_jax.errors import UserError
from wechsel_jax.text.files import read_lines

FOLDER = Path(demo.__file__).parent
XML = """<?xml version="1.0"?><TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader><p>not text</p></teiHeader><text><body>
<div><head>Erstes  Kapitel</head><p>Es war
einmal <hi>ein</hi> Hund.</p><l>Vers</l><p> </p></div></body></text></TEI>"""


def bundled_files() -> list[Path]:
    return [file for file in FOLDER.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")]


def test_the_bundle_is_under_twenty_megabytes():
    assert sum(file.stat().st_size for file in bundled_files()) < 20e6


def test_every_bundled_file_is_named_with_its_source_and_licence():
    sources = (FOLDER / "SOURCES.md").read_text(encoding="utf-8")
    for file in bundled_files():
        name = file.relative_to(FOLDER).parts[0]
        assert name == "SOURCES.md" or f"`{name}" in sources, name


def test_a_missing_piece_of_the_bundle_is_named():
    with pytest.raises(UserError, match=r"nonesuch\.txt: not in the bundled data"):
        demo.path("nonesuch.txt")


def test_validation_text_is_not_in_the_training_text():
    train = {line for _, line in read_lines(demo.path("german.train.txt.xz"), "text")}
    validation = [line for _, line in read_lines(demo.path("german.validation.txt.xz"), "text")]
    long_lines = [line for line in validation if len(line) > 80]
    assert len(long_lines) > 200
    assert not train.intersection(long_lines)


def test_eltec_lines_take_the_body_text_and_nothing_of_the_header(tmp_path):
    file = tmp_path / "DEU001.xml"
    file.write_text(XML, encoding="utf-8")
    assert list(make.eltec_lines(file)) == ["Erstes Kapitel", "Es war einmal ein Hund.", "Vers"]


def test_a_broken_xml_file_is_named(tmp_path):
    file = tmp_path / "broken.xml"
    file.write_text("<TEI>", encoding="utf-8")
    with pytest.raises(UserError, match=r"broken\.xml: .*expected an ELTeC"):
        list(make.eltec_lines(file))


def test_split_and_excerpt_keep_seen_and_unseen_apart():
    lines = [f"line {i}" for i in range(10_000)]
    seen, unseen = make.split_seen(lines)
    assert len(seen) == 9500 and not set(seen) & set(unseen)
    taken = make.excerpt(seen, size=20_000)
    assert 10_000 < sum(len(line) + 1 for line in taken) < 30_000
    assert taken[0] == "line 0" and taken[-1] == "line 9499"
