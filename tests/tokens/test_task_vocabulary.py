"""Vocabularies of a task: its words, and the tokens of a pretrained tokenizer that it needs."""

import json
from collections import Counter

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tests.tiny_tokenizers import LINES as OTHERS
from wechsel_jax import cli
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.task_vocabulary import task_tokenizer
from wechsel_jax.tokens.training import train_tokenizer

LINES = ["A man's T-shirt, blue.", "A man in a blue T-shirt!", "Two men , two dogs .", "Ein Mädchen rennt."]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_words_that_are_frequent_enough_are_tokens_and_others_unknown(text, tmp_path):
    task_tokenizer([text], tmp_path / "words", min_count=2)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "words")
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
        *(".", ",", "A", "T-shirt", "blue"),
    ]
    found = tokenizer.tokenize("A red T-shirt, blueish.", add_special_tokens=True)
    assert found == ["[CLS]", "A", "[UNK]", "T-shirt", ",", "[UNK]", ".", "[SEP]"]
    assert tokenizer.decode(tokenizer("A T-shirt, blue.")["input_ids"], skip_special_tokens=True) == "A T-shirt, blue."


def test_words_are_the_keys_of_vectors(text, tmp_path):
    made = task_tokenizer([text], tmp_path / "words", min_count=1, lowercase=True)
    words = Vocabulary.from_tokenizer(made).words()
    assert words[:4] == (None,) * 4 and {"man's", "t-shirt", "mädchen", "!"} <= {*words}
    assert made.tokenize("TWO Dogs") == ["two", "dogs"]


@pytest.mark.parametrize(("algorithm", "size"), [("wordpiece", 140), ("unigram", 375)])
def test_the_tokens_of_another_tokenizer_keep_their_text_and_what_is_around_it(algorithm, size, tmp_path):
    (tmp_path / "all.txt").write_text("\n".join([*LINES, *OTHERS] * 3) + "\n")
    (tmp_path / "text.txt").write_text("\n".join(LINES * 3) + "\n")
    old = train_tokenizer(
        tmp_path / "all.txt", size, tmp_path / "source", algorithm, **({"style": "roberta"} if algorithm == "unigram" else {})
    )
    made = task_tokenizer([tmp_path / "text.txt"], tmp_path / "made", source=tmp_path / "source", min_count=3)
    counts = Counter(token for line in LINES * 3 for token in old.tokenize(line))
    frequent = {token for token, count in counts.items() if count >= 3}
    assert frequent <= {*made.get_vocab()} and len(made) < len(old)
    for line in LINES:
        assert made.tokenize(line) == old.tokenize(line)
        assert made.convert_ids_to_tokens(made(line)["input_ids"]) == old.convert_ids_to_tokens(old(line)["input_ids"])
    assert made.special_tokens_map == old.special_tokens_map


def test_what_stands_around_a_text_stays_without_a_role(tmp_path):
    (tmp_path / "all.txt").write_text("\n".join([*LINES, *OTHERS] * 3) + "\n")
    train_tokenizer(tmp_path / "all.txt", 140, tmp_path / "source", "wordpiece")
    # As of models whose texts begin with the code of their language.
    settings = json.loads((tmp_path / "source" / "tokenizer_config.json").read_text())
    (tmp_path / "source" / "tokenizer_config.json").write_text(
        json.dumps({name: value for name, value in settings.items() if name not in ("cls_token", "sep_token")})
    )
    made = task_tokenizer([tmp_path / "all.txt"], tmp_path / "made", source=tmp_path / "source", min_count=3)
    assert made.cls_token is None
    assert made.convert_ids_to_tokens(made(LINES[0]).input_ids)[:: len(made(LINES[0]).input_ids) - 1] == ["[CLS]", "[SEP]"]


def test_a_bpe_is_refused(tmp_path, text):
    train_tokenizer(text, 270, tmp_path / "source")
    with pytest.raises(UserError, match="source: a BPE cannot do without some of its tokens"):
        task_tokenizer([text], tmp_path / "made", source=tmp_path / "source")


def test_the_verb_makes_both_and_says_what_does_not_fit(text, tmp_path, capsys):
    cli.main(["tokenizer", f"--input={text}", "--algorithm=words", "--min_count=2", f"--output={tmp_path / 'words'}"])
    assert capsys.readouterr().out == f"{tmp_path / 'words'}: 9 tokens\n"
    assert json.loads((tmp_path / "words" / "tokenizer.json").read_text())["model"]["type"] == "WordPiece"
    for flags, message in (
        (["--algorithm=words", "--vocab_size=9"], "--vocab_size: has no effect on a vocabulary that is counted"),
        (["--min_count=3"], "--min_count: has no effect on a tokenizer that is trained"),
        (["--source=x", "--algorithm=words"], "--algorithm: has no effect with --source"),
        (["--algorithm=words", "--min_count=9"], "nothing occurs 9 times"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["tokenizer", f"--input={text}", f"--output={tmp_path / 'other'}", *flags])
        assert ended.value.code == 2 and message in capsys.readouterr().err


def test_what_is_written_is_a_whole_tokenizer(text, tmp_path):
    task_tokenizer([text], tmp_path / "words")
    assert Tokenizer.from_file(str(tmp_path / "words" / "tokenizer.json")).get_vocab_size() == 9
