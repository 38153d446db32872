"""Makes the text of `configs/compare_initializers.py` and `configs/anker.py`: training and held-out lines of each language.

    python -m benchmarks.language_data --data=corpora --output=data

`corpora/text` holds the files of CORPORA, one line a paragraph or sentence. The last 5 % of the lines of every file are held
out, so no novel is torn but one; lines that occur twice are kept once, and never on both sides. Chinese is also written as
words (`zh.words.txt`), cut by jieba (`pip install jieba`), because word vectors need spaces.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from absl import app, flags

from wechsel_jax.files import new_file
from wechsel_jax.program import program
from wechsel_jax.text.files import read_lines

CORPORA = {
    "en": ("en.eltec",),
    "de": ("de.eltec",),
    "fr": ("fr.eltec",),
    "sw": ("sw.globalvoices_lafand", "sw.masakhanews", "sw.voa", "sw.wikipedia_tydiqa", "sw.masakhaner_text"),
    "zh": ("zh.wikipedia_mlqa_xquad", "zh.clue_text"),
    "vi": ("vi.wikipedia_mlqa_xquad",),
    "mg": ("mg.bible_1865",),
    "su": ("su.nusa_writes_nusax",),
    "ug": ("ug.quran_saleh", "ug.ud_udt"),
    "ar": ("ar.wikipedia_mlqa_xquad", "ar.wikipedia_tydiqa"),
    # Text of other domains, to count contexts in.
    "en_other": ("en.wikipedia_mlqa_xquad", "en.wikipedia_tydiqa"),
    "de_other": ("de.wikipedia_mlqa_xquad",),
    "sw_other": ("sw.bible_suv",),
    "zh_other": ("zh.bible_cuv_t2s",),
}
HELD_OUT = 0.05
VALIDATION_BYTES = 300_000

_DATA = flags.DEFINE_string("data", None, "Folder with text/*.txt.xz.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "Folder for LANGUAGE.train.txt and LANGUAGE.validation.txt.", required=True)


def split(path: Path) -> tuple[list[str], list[str]]:
    """Returns the distinct lines of a file: the first 95 %, and those of the rest that are not among them."""
    lines = [line.strip() for _, line in read_lines(path, "a corpus")]
    cut = round(len(lines) * (1 - HELD_OUT))
    train = dict.fromkeys(line for line in lines[:cut] if line)
    held_out = dict.fromkeys(line for line in lines[cut:] if line and line not in train)
    return list(train), list(held_out)


def main(argv: list[str]) -> None:
    del argv
    output = Path(_OUTPUT.value)
    with program("language_data"):
        for language, names in CORPORA.items():
            parts = [split(Path(_DATA.value, "text", f"{name}.txt.xz")) for name in names]
            known = {line for train, _ in parts for line in train}
            # Each file gives its share of the held-out text.
            most = VALIDATION_BYTES // len(parts)
            held_out = [line for _, lines in parts for line in _first(lines, known, most)]
            lines = [line for train, _ in parts for line in train]
            _write(output / f"{language}.train.txt", lines)
            _write(output / f"{language}.validation.txt", held_out)
            print(f"{language}: {len(lines)} lines to train on, {len(held_out)} held out", file=sys.stderr)
            if language == "zh":
                _write(output / "zh.words.txt", _words(lines))


def _first(lines: list[str], known: set[str], most: int) -> Iterator[str]:
    size = 0
    for line in lines:
        if line not in known and size < most:
            size += len(line.encode()) + 1
            yield line


def _words(lines: list[str]) -> Iterator[str]:
    import jieba

    for line in lines:
        yield " ".join(word for word in jieba.cut(line) if word.strip())


def _write(path: Path, lines: list[str] | Iterator[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, "w") as handle:
        handle.writelines(line + "\n" for line in lines)


if __name__ == "__main__":
    app.run(main)
