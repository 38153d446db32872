"""Makes the bundled text, vectors and dictionary from the full ELTeC text: `python -m wechsel_jax.demo.make --help`.

The last twentieth of each language's lines is kept out of everything that is trained (vectors, tokenizers, the English
model): the validation texts come from there alone, mostly from novels that nothing has seen.
"""

import lzma
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from absl import app, flags

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file, require_file
from wechsel_jax.program import program

TEI = "{http://www.tei-c.org/ns/1.0}"
CHUNK_LINES = 160
SEEN_SHARE = 0.95

_VERB = flags.DEFINE_enum("verb", None, ["text", "split", "excerpt", "vectors", "dictionary"], "What to make.", required=True)
_INPUT = flags.DEFINE_list("input", [], "Input files; for --verb=text the XML files of one ELTeC language.")
_OUTPUT = flags.DEFINE_string("output", None, "Output file; for --verb=split a prefix.", required=True)
_MEGABYTES = flags.DEFINE_float("megabytes", 4.0, "--verb=excerpt: how much text, in 10^6 bytes of UTF-8.")
_WORDS = flags.DEFINE_integer("words", 20_000, "--verb=vectors: how many of the most frequent words to keep.")


def eltec_lines(file: str | Path) -> Iterable[str]:
    """Yields the text of the paragraphs, verse lines and headings of one ELTeC level-1 XML file, a line each."""
    try:
        tree = ElementTree.parse(require_file(file, "an ELTeC XML file"))
    except ElementTree.ParseError as error:
        raise UserError(f"{file}: {error}; expected an ELTeC level-1 XML file") from error
    body = tree.find(f"{TEI}text")
    for element in () if body is None else body.iter():
        if element.tag in (TEI + "p", TEI + "l", TEI + "head"):
            line = " ".join("".join(element.itertext()).split())
            if line:
                yield line


def split_seen(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Splits into the first 95 % of lines, which may be trained on, and the rest, which is held out."""
    border = int(len(lines) * SEEN_SHARE)
    return lines[:border], lines[border:]


def excerpt(lines: Sequence[str], size: float) -> list[str]:
    """Takes runs of 160 lines at equal distances, about `size` bytes of UTF-8 in all, so that every novel has a part."""
    runs = [lines[start : start + CHUNK_LINES] for start in range(0, len(lines), CHUNK_LINES)]
    total = sum(len(line.encode()) + 1 for line in lines)
    wanted = max(1, min(len(runs), round(len(runs) * size / total)))
    return [line for i in np.linspace(0, len(runs) - 1, wanted).round().astype(int) for line in runs[i]]


def _read_lines(files: Sequence[str]) -> list[str]:
    return [line for name in files for line in require_file(name, "UTF-8 text").read_text(encoding="utf-8").splitlines()]


def _write_lines(output: str, lines: Iterable[str]) -> None:
    content = "".join(line + "\n" for line in lines).encode()
    with new_file(output) as handle:
        handle.write(lzma.compress(content, preset=9) if output.endswith(".xz") else content)


def _make_vectors(output: str, files: Sequence[str], words: int) -> None:
    from wechsel_jax.vectors import load_vectors, save_vectors

    model = load_vectors(files[0])
    kept = [i for i, word in enumerate(model.words) if word != "</s>"][:words]
    save_vectors(
        output,
        [model.words[i] for i in kept],
        model.rows(np.asarray(kept)).astype(np.float16),
        np.asarray(model.counts)[kept],
    )


def main(argv: Sequence[str]) -> None:
    del argv
    with program("python -m wechsel_jax.demo.make"):
        if not _INPUT.value:
            raise UserError("--input: no file given; expected one or more files separated by commas")
        match _VERB.value:
            case "text":
                _write_lines(_OUTPUT.value, (line for name in _INPUT.value for line in eltec_lines(name)))
            case "split":
                seen, unseen = split_seen(_read_lines(_INPUT.value))
                _write_lines(_OUTPUT.value + ".seen.txt", seen)
                _write_lines(_OUTPUT.value + ".unseen.txt", unseen)
            case "excerpt":
                _write_lines(_OUTPUT.value, excerpt(_read_lines(_INPUT.value), _MEGABYTES.value * 1e6))
            case "vectors":
                _make_vectors(_OUTPUT.value, _INPUT.value, _WORDS.value)
            case "dictionary":
                _write_lines(_OUTPUT.value, _read_lines(_INPUT.value))


if __name__ == "__main__":
    app.run(main)
