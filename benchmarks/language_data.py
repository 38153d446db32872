"""Makes the data of `configs/compare_initializers.py` and `configs/anker.py`: text of each language, and dictionaries.

    pip install jieba pythainlp   # cut Chinese and Thai into words, which word vectors need
    python -m benchmarks.language_data --data=corpora --output=data

`corpora/text/NAME.txt.xz`, one line a paragraph or sentence, are the files of CORPORA. They are not part of this repository,
since some have licences that do not allow it; each comes from a public place:

    *.eltec                  github COST-ELTeC/ELTeC-{eng,deu,fra}, level1: `python -m wechsel_jax.demo.make --verb=text`
    *.wikipedia_mlqa_xquad   contexts of MLQA and XQuAD;  *.wikipedia_tydiqa: contexts of TyDiQA-GoldP
    sw.globalvoices_lafand   github masakhane-io/lafand-mt;  sw.masakhanews: masakhane-io/masakhane-news
    sw.voa                   github masakhane-io/masakhane-ner;  sw.masakhaner_text: the same
    sw.bible_suv             github freddy777-01/swahili_bible;  mg.bible_1865: npm mg-bibles
    zh.clue_text             github CLUEbenchmark/{FewCLUE,OCNLI}
    zh.bible_cuv_t2s         github scrollmapper/bible_databases, through OpenCC's t2s
    su.nusa_writes_nusax     github IndoNLP/{nusa-writes,nusax}
    th.thaigov_news          github PyThaiNLP/thaigov-v2-corpus;  th.wisesight_social: PyThaiNLP/wisesight-sentiment
    hi.stories_*             github midas-research/{hindi-nli-data,hindi-discourse};  hi.pratham_books: global-asp/pb-source
    ug.quran_saleh           npm @kmaslesa/quran_translation-uyghur_saleh;  ug.ud_udt: Universal Dependencies UD_Uyghur-UDT

`corpora/dict/wechsel_wiktionary/LANGUAGE.tsv` are the English dictionaries `dicts/data/LANGUAGE.txt` of github CPJKU/wechsel.

The last 5 % of the lines of every file are held out, so no novel is torn but one; lines that occur twice are kept once, and
never on both sides. Chinese and Thai are also written as words (`zh.words.txt`). `zh_inference` is `zh` without the sentences
of OCNLI's development set (`corpora/labelled/ocnli`, of github CLUEbenchmark/OCNLI), for who scores on them. The dictionaries
come to `data/wechsel_wiktionary/`.
"""

import importlib
import json
import sys
from collections.abc import Iterator, Set
from pathlib import Path

from absl import app, flags

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.program import program
from wechsel_jax.text.files import read_lines

_CHINESE = ("zh.wikipedia_mlqa_xquad", "zh.clue_text")
CORPORA = {
    "en": ("en.eltec",),
    "de": ("de.eltec",),
    "fr": ("fr.eltec",),
    "sw": ("sw.globalvoices_lafand", "sw.masakhanews", "sw.voa", "sw.wikipedia_tydiqa", "sw.masakhaner_text"),
    "zh": _CHINESE,
    "vi": ("vi.wikipedia_mlqa_xquad",),
    "th": ("th.thaigov_news", "th.wisesight_social"),
    "hi": ("hi.stories_bhaav", "hi.stories_discourse", "hi.pratham_books", "hi.wikipedia_mlqa_xquad"),
    "mg": ("mg.bible_1865",),
    "su": ("su.nusa_writes_nusax",),
    "ug": ("ug.quran_saleh", "ug.ud_udt"),
    "ar": ("ar.wikipedia_mlqa_xquad", "ar.wikipedia_tydiqa"),
    # Text of other domains, to count contexts in.
    "en_other": ("en.wikipedia_mlqa_xquad", "en.wikipedia_tydiqa"),
    "de_other": ("de.wikipedia_mlqa_xquad",),
    "sw_other": ("sw.bible_suv",),
    "zh_other": ("zh.bible_cuv_t2s",),
    "zh_inference": _CHINESE,
}
# Sentences of these are no text to train on: of a file below `labelled`, which fields.
LEFT_OUT = {"zh_inference": ("ocnli/dev.json.gz", ("sentence1", "sentence2"))}
# Of languages that write no spaces: the package, and its function that gives the words of a line.
_JIEBA = ("jieba", "jieba", "cut")
CUTTERS = {"zh": _JIEBA, "zh_inference": _JIEBA, "th": ("pythainlp", "pythainlp.tokenize", "word_tokenize")}
HELD_OUT = 0.05
VALIDATION_BYTES = 300_000


def parts_of(language: str, folder: Path) -> list[tuple[list[str], list[str]]]:
    """Returns the lines of each file of a language, to train on and held out, but for those that LEFT_OUT names."""
    file, fields = LEFT_OUT.get(language, ("", ()))
    labelled = [json.loads(line) for _, line in read_lines(folder / "labelled" / file, "examples")] if file else []
    without = {item[field].strip() for item in labelled for field in fields}
    return [split(folder / "text" / f"{name}.txt.xz", without) for name in CORPORA[language]]


def split(path: Path, without: Set[str] = frozenset()) -> tuple[list[str], list[str]]:
    """Returns the distinct lines of a file but for those left out: the first 95 %, and those of the rest not among them."""
    lines = [line for _, given in read_lines(path, "a corpus") if (line := given.strip()) not in without]
    cut = round(len(lines) * (1 - HELD_OUT))
    train = dict.fromkeys(line for line in lines[:cut] if line)
    held_out = dict.fromkeys(line for line in lines[cut:] if line and line not in train)
    return list(train), list(held_out)


def main(argv: list[str]) -> None:
    del argv
    data, output = Path(flags.FLAGS.data), Path(flags.FLAGS.output)
    with program("language_data"):
        dictionaries = data / "dict" / "wechsel_wiktionary"
        if not (files := sorted(dictionaries.glob("*.tsv"))):
            raise UserError(f"{dictionaries}: no dictionaries there; expected LANGUAGE.tsv; see benchmarks/language_data.py")
        for file in files:
            _write(output / "wechsel_wiktionary" / file.name, (line for _, line in read_lines(file, "a dictionary")))
        for language in CORPORA:
            parts = parts_of(language, data)
            known = {line for train, _ in parts for line in train}
            # Each file gives its share of the held-out text.
            most = VALIDATION_BYTES // len(parts)
            held_out = [line for _, lines in parts for line in _first(lines, known, most)]
            lines = [line for train, _ in parts for line in train]
            _write(output / f"{language}.train.txt", lines)
            _write(output / f"{language}.validation.txt", held_out)
            print(f"{language}: {len(lines)} lines to train on, {len(held_out)} held out", file=sys.stderr)
            if language in CUTTERS:
                _write(output / f"{language}.words.txt", _words(lines, *CUTTERS[language]))


def _first(lines: list[str], known: set[str], most: int) -> Iterator[str]:
    size = 0
    for line in lines:
        if line not in known and size < most:
            size += len(line.encode()) + 1
            yield line


def _words(lines: list[str], package: str, module: str, function: str) -> Iterator[str]:
    try:
        cut = getattr(importlib.import_module(module), function)
    except ImportError:
        raise UserError(f"{package}: not installed; expected it to cut lines into words: pip install {package}") from None

    for line in lines:
        yield " ".join(word for word in cut(line) if word.strip())


def _write(path: Path, lines: list[str] | Iterator[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, "w") as handle:
        handle.writelines(line + "\n" for line in lines)


if __name__ == "__main__":
    flags.DEFINE_string("data", None, "Folder with text/, dict/wechsel_wiktionary/ and labelled/ocnli/.", required=True)
    flags.DEFINE_string("output", None, "Folder for LANGUAGE.train.txt and LANGUAGE.validation.txt.", required=True)
    app.run(main)
