"""Sentences and their translations as rows of tokens."""

import numpy as np
import pytest

from wechsel_jax.data.examples import Example, Task, read_examples
from wechsel_jax.data.pairs import encode_pairs, ends
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.task_vocabulary import task_tokenizer

PAIRS = [
    ("ein Haus .", "a house ."),
    ("das Haus am See .", "the house at the lake ."),
    ("ein " * 40, "a " * 40),
    ("am See", "at sea"),
]


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """The tokenizers of both languages: words that occur at all."""
    folder = tmp_path_factory.mktemp("sides")
    made = []
    for name, texts in zip(("source", "target"), zip(*PAIRS, strict=True), strict=True):
        (folder / f"{name}.txt").write_text("\n".join(texts) + "\n")
        made.append(task_tokenizer([folder / f"{name}.txt"], folder / name, min_count=1))
    return made


def rows(sides, length=48):
    examples = [Example(f"line {i}", (source,), target) for i, (source, target) in enumerate(PAIRS)]
    return encode_pairs(examples, *sides, length=length)


def test_what_the_decoder_reads_is_one_token_behind_what_it_predicts(sides):
    """By transformers: the special tokens of a text are those around a translation."""
    batch = next(rows(sides).evaluation_batches(4))
    begin, end = ends(sides[1])
    for row, number in enumerate(batch["row"]):
        source, target = (sides[i](PAIRS[number][i].strip())["input_ids"] for i in (0, 1))
        assert batch["tokens"][row][batch["mask"][row]].tolist() == source
        count = int(batch["weights"][row].sum())
        assert target[0] == begin and target[-1] == end and count == len(target) - 1
        assert batch["targets"][row, :count].tolist() == target[:-1] and batch["labels"][row, :count].tolist() == target[1:]
    assert {value.shape for name, value in batch.items() if name != "row"} == {(4, 48)}


def test_a_batch_is_a_function_of_seed_and_step(sides):
    made = rows(sides)
    batch, part = made.batch(3, 4, seed=7), made.batch(3, 4, seed=7, rows=np.asarray([2, 0]))
    for name, value in batch.items():
        np.testing.assert_array_equal(part[name], value[[2, 0]])
    assert made.positions(3, 4, seed=7) == batch["tokens"].size
    seen = np.concatenate([made.batch(step, 1, seed=0)["mask"].sum(1) for step in range(4)])
    assert sorted(seen) == sorted(np.diff(made.starts))
    assert made.fingerprint == rows(sides).fingerprint != rows(sides, length=16).fingerprint


def test_an_evaluation_has_every_pair_once(sides):
    batches = list(rows(sides).evaluation_batches(3))
    assert [batch["tokens"].shape for batch in batches] == [(3, 16), (3, 48)]
    assert np.concatenate([batch["row"] for batch in batches]).tolist() == [3, 0, 1, 2, -1, -1]
    assert batches[1]["weights"][1:].sum() == 0


def test_long_sides_are_cut_and_still_end(sides):
    made = rows(sides, length=16)
    begin, end = ends(sides[1])
    target = made.targets[made.target_starts[2] : made.target_starts[3]]
    assert made.cut == 1 and np.diff(made.starts).max() == 16 and target.size == 17 and (target[0], target[-1]) == (begin, end)
    assert made.batch(0, 4, seed=0)["tokens"].shape == (4, 16)


def test_columns_and_files_side_by_side_are_the_same(tmp_path):
    (tmp_path / "pairs.tsv").write_text("de\ten\nein Haus\ta house\nam See\tat the lake\n")
    (tmp_path / "a.de").write_text("ein Haus\nam See\n")
    (tmp_path / "a.en").write_text("a house\nat the lake\n")
    task = Task("translation", ("de", "en"))
    columns, files = (read_examples([name], task) for name in (tmp_path / "pairs.tsv", f"{tmp_path}/a.de::{tmp_path}/a.en"))
    assert (
        [one[1:3] for one in columns]
        == [one[1:3] for one in files]
        == [(("ein Haus",), "a house"), (("am See",), "at the lake")]
    )
    assert columns[1].place == f"{tmp_path / 'pairs.tsv'}: line 3" and files[1].place.endswith("line 2")
    (tmp_path / "pairs.tsv").write_text("de\ten\nein Haus\t \n")
    with pytest.raises(UserError, match=r"pairs\.tsv: line 2: the target is ' '; expected a sentence"):
        read_examples([tmp_path / "pairs.tsv"], task)


def test_a_tokenizer_without_ends_is_refused(tokenizers):
    with pytest.raises(UserError, match="has no token that a translation begins with and another one that it ends with"):
        ends(load_tokenizer(tokenizers["gpt2"]))
