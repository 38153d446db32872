"""Labelled examples as rows of tokens, with tokenizers whose every token is a byte."""

import dataclasses
import itertools

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.tiny_tokenizers import every_kind, wordpiece
from wechsel_jax.data.examples import Example, Task, read_examples
from wechsel_jax.data.padded import fitting_length
from wechsel_jax.data.rows import encode_examples, with_special_tokens
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import load_tokenizer

TEXTS = ["ab", "abcdefgh", "x" * 40, "abcd", "y" * 20]


def classified(tokenizer, length=64, texts=TEXTS):
    examples = [Example(f"line {i}", (text,), "odd" if i % 2 else "even") for i, text in enumerate(texts)]
    return encode_examples(examples, tokenizer, form="classification", labels=("odd", "even"), length=length, pad_id=1)


@pytest.fixture(scope="module")
def roberta(tokenizers):
    return with_special_tokens(load_tokenizer(tokenizers["roberta"]), causal=False)


def test_a_batch_is_a_function_of_seed_and_step_and_padding_is_not_seen(roberta):
    rows = classified(roberta)
    batch = rows.batch(3, 4, seed=7)
    again = rows.batch(3, 4, seed=7, rows=np.asarray([2, 0]))
    for name, value in batch.items():
        np.testing.assert_array_equal(again[name], value[[2, 0]])
    assert not np.array_equal(batch["tokens"], rows.batch(3, 4, seed=8)["tokens"])
    assert batch["tokens"].shape[1] in (24, 48) and rows.positions(3, 4, 7) == batch["tokens"].size
    assert np.all(batch["tokens"][~batch["mask"]] == 1) and np.all(batch["tokens"][batch["mask"]] != 1)
    assert batch["weights"].tolist() == [1.0] * 4


def test_lengths_are_few_and_pad_at_most_a_half():
    lengths = [fitting_length(longest, 1000) for longest in range(1, 1001)]
    assert sorted({*lengths}) == [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1000]
    assert all(longest <= length <= max(16, 1.5 * longest) for longest, length in enumerate(lengths, start=1))
    assert all(fitting_length(length, 1000) == length for length in lengths)


def test_an_epoch_has_every_example_once(roberta):
    rows = classified(roberta)
    seen = np.concatenate([rows.batch(step, 1, seed=0)["mask"].sum(axis=1) for step in range(5)])
    assert sorted(seen) == sorted(len(text) + 2 for text in TEXTS)


def test_batches_of_texts_of_like_length(roberta):
    """Of 16 steps, or a quarter of an epoch: each row as often as without, in random order of lengths, and less padding."""
    texts = ["x" * (1 + 37 * i % 61) for i in range(720)]
    for count, together in ((720, 16), (160, 4)):
        plain = classified(roberta, texts=texts[:count])
        grouped = dataclasses.replace(plain, group_by_length=True)
        _require_groups(plain, grouped, together)
    few = dataclasses.replace(classified(roberta, texts=texts[:70]), group_by_length=True)
    drawn = [few.drawn(step, 10, seed=0) for step in range(14)]
    assert (np.bincount(np.concatenate(drawn)) == 2).all() and all(len({*rows}) == 10 for rows in drawn)


def _require_groups(plain, grouped, together):
    for first in range(0, 3 * together, together):
        steps = range(first, first + together)
        drawn = [grouped.drawn(step, 10, seed=3) for step in steps]
        assert sorted(np.concatenate(drawn)) == sorted(np.concatenate([plain.drawn(step, 10, seed=3) for step in steps]))
        longest = [int(grouped.sizes(rows).max()) for rows in drawn]
        shortest = [int(grouped.sizes(rows).min()) for rows in drawn]
        order = np.argsort(longest)
        assert all(longest[a] <= shortest[b] for a, b in itertools.pairwise(order)) and list(order) != sorted(order)
        assert sum(grouped.positions(step, 10, 3) for step in steps) < 0.8 * sum(plain.positions(step, 10, 3) for step in steps)


def test_an_evaluation_has_every_row_once_and_pads_little(roberta):
    batches = list(classified(roberta).evaluation_batches(2))
    assert [batch["tokens"].shape for batch in batches] == [(2, 16), (2, 24), (2, 48)]
    assert np.concatenate([batch["row"] for batch in batches]).tolist() == [0, 3, 1, 4, 2, -1]
    assert np.concatenate([batch["weights"] for batch in batches]).tolist() == [1, 1, 1, 1, 1, 0]
    limited = list(classified(roberta).evaluation_batches(2, limit=1))
    assert np.concatenate([batch["row"] for batch in limited]).tolist() == [0, 1]


def test_long_texts_are_cut_and_counted(roberta):
    rows = classified(roberta, length=16)
    assert rows.cut == 2 and np.diff(rows.starts).max() == 16
    assert rows.tokens[rows.starts[2] : rows.starts[3]][-1] == roberta.eos_token_id


@pytest.mark.parametrize(("form", "target"), [("tagging", ("A",)), ("parsing", ((0, "A"),)), ("classification", "A")])
def test_a_row_that_special_tokens_fill_is_refused(roberta, form, target):
    examples = [Example("line 1", ("abc",), target)]
    with pytest.raises(UserError, match="block_length: is 2; expected more than the 2 special tokens around a text"):
        encode_examples(examples, roberta, form=form, labels=("A", "B"), length=2, pad_id=1)


def test_text_without_a_token_is_refused():
    # BERT's tokenizers take characters out that nobody sees.
    examples = [Example(f"a.txt: line {line}", ("\u200b",), ("A",)) for line in (1, 3)]
    with pytest.raises(UserError, match=r"a\.txt: line 1: no word from here on has a token"):
        encode_examples(examples, wordpiece(), form="tagging", labels=("A", "B"), length=8, pad_id=0)


def test_a_label_that_the_model_has_not_is_named(roberta):
    example = [Example("a.tsv: line 9", ("x",), "maybe")]
    with pytest.raises(UserError, match=r"a\.tsv: line 9: label 'maybe' is none of the model's; expected one of 'yes', 'no'"):
        encode_examples(example, roberta, form="classification", labels=("yes", "no"), length=9, pad_id=1)


@pytest.mark.parametrize("kind", every_kind())
def test_every_word_is_labelled_at_its_first_token(kind):
    """Against the offsets of the words in the text, for every kind of tokenizer; long sentences have several rows."""
    tokenizer = every_kind()[kind]
    words = ("Der", "schnelle", "braune", "Fuchs", ",", "lazy", "dog", "лиса", "日本語", "über", "much", ")", ".")
    example = Example("line 1", words, tuple(f"L{i}" for i in range(len(words))))
    for length in (128, 12):
        rows = encode_examples([example], tokenizer, form="tagging", labels=example.target, length=length, pad_id=0)
        assert rows.marks[rows.marks >= 0].tolist() == list(range(len(words)))
        np.testing.assert_array_equal(rows.targets, rows.marks)
        assert (len(rows) > 1) == (length == 12) and np.diff(rows.starts).max() <= length
        if length == 128:
            own = tokenizer(" ".join(words), add_special_tokens=False)["input_ids"]
            assert [token for token in rows.tokens if token not in tokenizer.all_special_ids or token in own] == own
    starts = np.flatnonzero(rows.marks >= 0)
    for word, start, end in zip(words, starts, [*starts[1:], rows.tokens.size], strict=True):
        if kind.startswith("byte"):
            assert tokenizer.decode(rows.tokens[start:end]).replace("<|end|>", "").strip() == word


TREE = (("Der", 2, "det"), ("Fuchs", 3, "nsubj"), ("springt", 0, "root"), ("über", 5, "case"), ("Hund", 3, "obl"))


@pytest.mark.parametrize("kind", every_kind())
def test_a_tree_stands_at_the_first_tokens_of_its_words(kind):
    tokenizer = every_kind()[kind]
    words, heads, relations = zip(*TREE, strict=True)
    example = Example("line 1", words, tuple(zip(heads, relations, strict=True)))
    labels = ("case", "det", "nsubj", "root")
    rows = encode_examples([example], tokenizer, form="parsing", labels=labels, length=64, pad_id=0)
    tagged = encode_examples(
        [example._replace(target=relations)], tokenizer, form="tagging", labels=relations, length=64, pad_id=0
    )
    batch = rows.batch(0, 2, seed=0)
    # A head looks at a token of the word itself, not at a space before it, which a label stands at.
    positions = np.flatnonzero(tagged.marks >= 0)
    positions[1:] += np.array(tokenizer.convert_ids_to_tokens(tagged.tokens[positions[1:]])) == "▁"
    np.testing.assert_array_equal(batch["words"][:, :6], [[*positions, -1]] * 2)
    assert batch["heads"][0].tolist()[:6] == [2, 3, 0, 5, 3, 0] and batch["weights"][0].tolist()[:6] == [1, 1, 1, 1, 1, 0]
    # "obl" is none of the labels.
    assert batch["labels"][0].tolist()[:6] == [1, 2, 3, 0, -1, -1]
    shape = (2, fitting_length(tagged.tokens.size, 64))
    assert {batch[name].shape for name in ("words", "heads", "labels", "weights", "tokens")} == {shape} and not rows.cut
    for length in range(positions[1] + 2, tagged.tokens.size):
        # Words at the end are left out, and what hangs on them has no head in the row.
        short = encode_examples([example], tokenizer, form="parsing", labels=labels, length=length, pad_id=0)
        cut, there = short.batch(0, 1, seed=0), int((short.marks >= 0).sum())
        assert short.cut == 1 and short.tokens.size == length and 1 <= there <= 5
        assert cut["words"][0].tolist() == [*positions[:there], *[-1] * (length - there)]
        held = [head <= there for head in heads[:there]]
        assert cut["weights"][0].tolist() == [*held, *[0] * (length - there)]
        assert cut["heads"][0, :there].tolist() == [head * hold for head, hold in zip(heads, held, strict=False)]


@pytest.mark.parametrize("kind", ["unigram", "byte-prefix", "llama", "wordpiece"])
def test_labels_stand_where_transformers_looks_for_them(kind):
    """At the first of a word's tokens by `word_ids()`, whatever it is: an export is read so."""
    tokenizer = every_kind()[kind]
    words = ("Der", "中国", "Fuchs", "лиса", "ü", "日本語", "dog")
    example = Example("line 1", words, tuple(f"L{i}" for i in range(len(words))))
    rows = encode_examples([example], tokenizer, form="tagging", labels=example.target, length=128, pad_id=0)
    found = tokenizer(list(words), is_split_into_words=True, add_special_tokens=False)
    ids = found.word_ids()
    before = rows.tokens.tolist().index(found["input_ids"][0])
    assert rows.tokens[before : before + len(ids)].tolist() == found["input_ids"]
    np.testing.assert_array_equal(np.flatnonzero(rows.marks >= 0) - before, [ids.index(word) for word in range(len(words))])


def test_words_without_a_token_are_no_heads():
    """BERT's normalizer takes a joiner away: the words behind it move up, and what hangs on it has no head in the row."""
    words, heads = ("der", "\u200d", "hund", "fuchs"), (2, 3, 0, 3)
    example = Example("line 1", words, tuple((head, "dep") for head in heads))
    rows = encode_examples([example], every_kind()["wordpiece"], form="parsing", labels=("dep",), length=64, pad_id=0)
    assert rows.marks[rows.marks >= 0].tolist() == [0, 2, 3]
    (batch,) = rows.evaluation_batches(1)
    assert batch["heads"][0].tolist()[:4] == [0, 0, 2, 0] and batch["weights"][0].tolist()[:4] == [0, 1, 1, 0]
    assert (batch["words"][0] >= 0).sum() == 3


def test_answers_stand_in_the_windows_that_hold_them(roberta):
    text = "Es war einmal ein König, der hatte drei Töchter und ein Schloss am Meer."
    example = Example("q1", ("Wie viele?", text), (("drei", text.index("drei")),))
    rows = encode_examples([example], roberta, form="answers", labels=(), length=40, pad_id=1, stride=8, segments=True)
    assert len(rows) > 2 and rows.types.size == rows.tokens.size
    found = 0
    for row in range(len(rows)):
        marks, (first, last) = rows.marks[rows.starts[row] : rows.starts[row + 1]], rows.targets[row]
        covered = {character for begin, end in marks if begin >= 0 for character in range(begin, end)}
        whole = set(range(text.index("drei"), text.index("drei") + 4)) <= covered
        assert bool(last) == whole
        found += whole
        if whole:
            assert text[marks[first, 0] : marks[last, 1]] == "drei"
    assert found >= 1
    assert rows.batch(0, 2, 0)["weights"].tolist() == [[0.5, 0.5]] * 2
    with pytest.raises(UserError, match=r"q1: its question has 10 tokens; expected at most"):
        encode_examples([example], roberta, form="answers", labels=(), length=20, pad_id=1, stride=8)


def test_no_window_holds_an_answer_that_there_is_not(roberta):
    example = Example("q1", ("Wie viele?", "Es war einmal ein König, der hatte drei Töchter und ein Schloss am Meer."), ())
    rows = encode_examples([example], roberta, form="answers", labels=(), length=40, pad_id=1, stride=8, segments=True)
    assert len(rows) > 2 and not rows.targets.any()


def test_what_a_tokenizer_leaves_out_ends_an_answer(tmp_path):
    """The last sign of the name is an accent, which BERT's uncased tokenizers take off: no token reaches the name's end."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "जन": 1, "एलव": 2, "न": 3}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    text = "जन एलवे \u200dन"
    targets = {"जन": (0, 0), "एलवे": (1, 1), " एलवे ": (1, 1), "एलवे \u200dन": (1, 2), "न": (2, 2), "\u200dन": (-1, -1)}
    examples = [Example("q", ("एलव", text), ((answer, text.rindex(answer)),)) for answer in targets]
    rows = encode_examples(examples, tokenizer, form="answers", labels=(), length=16, pad_id=0, stride=2)
    # The question is a token. What begins with a sign that is left out has no first token, and is none.
    assert rows.targets.tolist() == [[first + 1, last + 1] for first, last in targets.values()]


def test_real_answers_of_a_tokenizer_without_accents(data_directory):
    """XQuAD in Hindi and Thai with words whose accents are gone: every answer has its window."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for language in ("hi", "th"):
        examples = read_examples([data_directory / "labelled" / "xquad" / f"xquad.{language}.json.gz"], Task("answers"))[::10]
        texts = {example.texts[1]: None for example in examples}
        trainer = trainers.WordPieceTrainer(vocab_size=2000, special_tokens=["[UNK]"], show_progress=False)
        backend.train_from_iterator(texts, trainer)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
        rows = encode_examples(examples, tokenizer, form="answers", labels=(), length=512, pad_id=0, stride=128)
        assert len({*rows.sources[rows.targets[:, 1] > 0]}) == len(examples), language


@pytest.mark.parametrize(("style", "causal"), [("gpt2", True), ("roberta", False), ("gpt2", False)])
def test_a_tokenizer_that_marks_nothing_marks_texts_and_pairs(tokenizers, tmp_path, style, causal):
    """The exported tokenizer gives transformers the same tokens."""
    plain = load_tokenizer(tokenizers[style])
    ours = with_special_tokens(plain, causal)
    end = plain.eos_token_id
    a, b = (plain.convert_tokens_to_ids(letter) for letter in "ab")
    begin = plain.bos_token_id
    expected = [a, end, b] if causal else [begin, a, end, b, end]
    ours.save_pretrained(tmp_path / "tokenizer")
    for tokenizer in (ours, AutoTokenizer.from_pretrained(tmp_path / "tokenizer")):
        assert tokenizer("a", "b")["input_ids"] == expected
        assert tokenizer("a")["input_ids"] == ([a] if causal else [begin, a, end])
    assert plain("a", "b")["input_ids"] == [a, b]


def test_a_tokenizer_that_marks_pairs_stays(data_directory):
    real = load_tokenizer(data_directory / "tokenizers" / "roberta")
    assert with_special_tokens(real, False) is real
    bert = with_special_tokens(every_kind()["wordpiece"], False)
    assert with_special_tokens(bert, False) is bert
    assert bert.backend_tokenizer.encode("a", "b").type_ids == [0, 0, 0, 1, 1]


def test_real_answers_are_what_their_tokens_say(data_directory):
    """XQuAD in three scripts: the text between an answer's first and last token is the answer, or ends a token later."""
    tokenizer = load_tokenizer(data_directory / "tokenizers" / "roberta")
    for language in ("de", "zh", "vi"):
        examples = read_examples([data_directory / "labelled" / "xquad" / f"xquad.{language}.json.gz"], Task("answers"))[::20]
        rows = encode_examples(examples, tokenizer, form="answers", labels=(), length=384, pad_id=1, stride=64)
        held = np.flatnonzero(rows.targets[:, 1])
        assert {*rows.sources[held]} == {*range(len(examples))}
        for row in held:
            example, (first, last) = examples[rows.sources[row]], rows.targets[row]
            marks = rows.marks[rows.starts[row] : rows.starts[row + 1]]
            told = example.texts[1][marks[first, 0] : marks[last, 1]].strip()
            assert told.startswith(example.target[0][0]) and len(told) <= len(example.target[0][0]) + 3
