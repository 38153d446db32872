"""WordPiece for two languages at once, as TreLM trains it, against the tokenizers library's own BERT tokenizer."""

import collections
import json
import re

import pytest
import tokenizers

from wechsel_jax.cli import main
from wechsel_jax.errors import UserError
from wechsel_jax.text.parallel import read_pairs
from wechsel_jax.tokens.training import train_tokenizer

SETTINGS = {"alphabet": 300, "min_frequency": 2, "strip_accents": True}


@pytest.fixture(scope="module")
def text(data_directory, tmp_path_factory):
    pairs = read_pairs([data_directory / "parallel" / "en-zh.tatoeba2021.tsv.xz"], ("en", "zh"))
    path = tmp_path_factory.mktemp("joint") / "both.txt"
    path.write_text("\n".join([*pairs.first[:1500], *pairs.second[:1500], "Café naïve über"]) + "\n")
    return path


def test_the_vocabulary_of_two_languages_is_berts(text, tmp_path):
    ours = train_tokenizer(text, 900, tmp_path / "joint", "wordpiece", **SETTINGS)
    reference = tokenizers.BertWordPieceTokenizer(lowercase=False, strip_accents=True)
    reference.train([str(text)], vocab_size=900, limit_alphabet=300, min_frequency=2, show_progress=False)
    theirs = set(reference.get_vocab())
    # Pairs that are as frequent come in another order, and so do the last that still fit.
    assert len(theirs & set(ours.get_vocab())) > 0.97 * len(theirs)
    letters = {token for token in ours.get_vocab() if len(token) == 1}
    counted = collections.Counter(character for character in text.read_text() if not character.isspace())
    assert len(letters) <= 300 and {letter for letter, _ in counted.most_common(250)} <= letters
    assert ours.tokenize("Café") == ours.tokenize("Cafe")
    plain = train_tokenizer(text, 3000, tmp_path / "plain", "wordpiece")
    assert plain.tokenize("é") != plain.tokenize("e") and len([t for t in plain.get_vocab() if len(t) == 1]) > 1000


def test_nothing_rare_is_joined(text, tmp_path):
    reference = tokenizers.BertWordPieceTokenizer(lowercase=False, strip_accents=False)
    reference.train([str(text)], vocab_size=1100, limit_alphabet=300, min_frequency=20, show_progress=False)
    with pytest.raises(UserError, match=r"too little text, it gives (\d+) tokens; expected 1100") as error:
        train_tokenizer(text, 1100, tmp_path / "often", "wordpiece", alphabet=300, min_frequency=20)
    # The continuing forms of letters that only begin words are ours alone; the library's choice among characters that are
    # equally frequent changes from run to run, and with it what can be joined.
    ours, theirs = int(re.search(r"gives (\d+)", str(error.value))[1]), reference.get_vocab_size()
    assert theirs - 5 <= ours <= theirs + 150


def test_a_limited_alphabet_is_the_same_in_every_run(text, tmp_path):
    for name in "ab":
        assert len(train_tokenizer(text, 1100, tmp_path / name, "wordpiece", alphabet=300)) == 1100
    first, second = ((tmp_path / name / "tokenizer.json").read_bytes() for name in "ab")
    assert first == second
    letters = {token for token in json.loads(first)["model"]["vocab"] if len(token) == 1}
    counts = collections.Counter(character for character in text.read_text() if not character.isspace())
    assert letters == set(sorted(counts, key=lambda character: (-counts[character], character))[:300])


def test_flags_of_other_tokenizers_are_refused(text, tmp_path, capsys):
    for flag in ("--alphabet=9", "--min_frequency=2", "--strip_accents"):
        with pytest.raises(SystemExit) as ended:
            main(["tokenizer", f"--input={text}", "--vocab_size=400", f"--output={tmp_path / 'x'}", flag])
        assert ended.value.code == 2 and "is for --algorithm=wordpiece" in capsys.readouterr().err
    main(
        [
            "tokenizer",
            f"--input={text}",
            "--algorithm=wordpiece",
            "--vocab_size=900",
            "--alphabet=300",
            f"--output={tmp_path / 'x'}",
        ]
    )
    assert "900 tokens" in capsys.readouterr().out
