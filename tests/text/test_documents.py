import gzip
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.text.parts import read_documents, read_parts
from wechsel_jax.text.sources import find_sources

# Characters that Python's str.splitlines would break lines at, or str.strip would remove.
TEXT = "  Käse\u2028und\x85Brot\x0b\x0c \t"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("lines", ["  a ", "b\r c", "d", "\u3000e"]),
        ("paragraphs", ["  a \nb\r c", "d\r\n\u3000e"]),
        ("files", ["\n  a \nb\r c\n \t\n\n\nd\r\n\u3000e"]),
    ],
)
def test_documents_end_where_they_should(tmp_path, kind, expected):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeff\n  a \nb\r c\n \t\n\n\nd\r\n\u3000e\n".encode())
    assert list(read_documents(path, kind)) == expected


# Text with many zero bytes is refused, as UTF-16 has them.
@settings(deadline=None)
@given(lines=st.lists(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])), min_size=1))
def test_no_character_is_lost_or_changed(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    # A first line that begins with a byte order mark would lose it, and one before a newline its carriage return.
    lines = ["." + line + "." for line in lines]
    path.write_bytes("\n".join(lines).encode())
    assert list(read_documents(path, "lines")) == lines
    assert list(read_documents(path, "paragraphs")) == ["\n".join(lines)] == list(read_documents(path, "files"))


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bytes])
def test_the_compression_is_told_by_the_content(tmp_path, compress):
    path = tmp_path / "text.txt"
    path.write_bytes(compress(f"{TEXT}\n{TEXT}".encode()))
    assert list(read_documents(path, "lines")) == [TEXT, TEXT]
    assert sum(part.progress for part in read_parts(*find_sources([path]), "lines")) == path.stat().st_size


@pytest.mark.parametrize("kind", ["lines", "paragraphs", "files"])
def test_another_encoding_names_the_line(tmp_path, kind):
    path = tmp_path / "latin.txt"
    path.write_bytes("gut\n\nKäse\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin\.txt: line 3: not UTF-8"):
        list(read_documents(path, kind))


def test_a_file_cut_short_is_not_taken_for_its_beginning(tmp_path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"some text\n" * 1000)[:-12])
    with pytest.raises(UserError, match=r"text\.txt\.gz: .*damaged or cut short"):
        list(read_documents(path, "lines"))


def test_an_unknown_kind(tmp_path):
    with pytest.raises(UserError, match="expected lines, paragraphs or files"):
        read_documents(tmp_path / "none.txt", "sentences")
