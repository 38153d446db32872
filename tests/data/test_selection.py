import importlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from wechsel_jax.data import prepare, prepare_split, selection
from wechsel_jax.data.sample import write_sample
from wechsel_jax.data.selection import DROPPED, TRAIN, VALIDATION, facts
from wechsel_jax.errors import UserError

module = importlib.import_module("wechsel_jax.data.prepare")
corpora = st.lists(st.sampled_from([f"{i} " + "x" * (i % 7) for i in range(40)]), min_size=1, max_size=80)


def chosen(documents, deduplicate=False, validation_fraction=0.0, max_bytes=0):
    choice = np.full(len(documents), 7, np.uint8)
    settings = {"deduplicate": deduplicate, "validation_fraction": validation_fraction, "max_bytes": max_bytes}
    return choice, selection.choose(facts(documents), choice, **settings)


def texts_of(directory, tokenizer):
    """The documents in a prepared directory, read back from its tokens."""
    tokens = np.fromfile(directory / "tokens.bin", "<u2")
    loaded = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer / "tokenizer.json"))
    return [loaded.decode(ids[:-1]) for ids in np.split(tokens, np.flatnonzero(tokens == 0) + 1)[:-1]]


@settings(deadline=None)
@given(documents=corpora)
def test_of_the_same_text_the_first_stays(documents):
    choice, dropped = chosen(documents, deduplicate=True)
    assert [text for text, side in zip(documents, choice, strict=True) if side == TRAIN] == list(dict.fromkeys(documents))
    again = [text for text, side in zip(documents, choice, strict=True) if side == DROPPED]
    assert dropped["duplicates"] == {"documents": len(again), "text_bytes": sum(map(len, again))}


@settings(deadline=None)
@given(documents=corpora, more=corpora, fraction=st.floats(0.05, 0.95))
def test_sides_depend_on_the_text_alone(documents, more, fraction):
    choice, _ = chosen(documents, validation_fraction=fraction)
    sides = dict(zip(documents, choice.tolist(), strict=True))
    assert all(sides[text] == side for text, side in zip(documents, choice, strict=True))
    later, _ = chosen(more + documents[::-1], validation_fraction=fraction)
    assert later[len(more) :].tolist() == choice[::-1].tolist()


@settings(deadline=None)
@given(documents=corpora, more=corpora, sizes=st.tuples(st.integers(1, 200), st.integers(1, 200)))
def test_samples_keep_to_their_size_and_lie_in_each_other(documents, more, sizes):
    small, large = (chosen(documents, max_bytes=size)[0] for size in sorted(sizes))
    lengths = np.asarray([len(text) for text in documents])
    assert lengths[small == TRAIN].sum() <= min(sizes) and lengths[large == TRAIN].sum() <= max(sizes)
    assert not np.any((small == TRAIN) & (large != TRAIN))
    # With more text behind it, a sample gains none of the old documents.
    longer, _ = chosen(documents + more, max_bytes=max(sizes))
    assert not np.any((longer[: len(documents)] == TRAIN) & (large != TRAIN))


@pytest.mark.parametrize("fraction", [0.01, 0.3])
def test_shares_are_what_was_asked_for(fraction):
    documents = [f"Dokument {i}" for i in range(50_000)]
    choice, dropped = chosen(documents, validation_fraction=fraction, max_bytes=100_000)
    held_out = np.mean(choice == VALIDATION)
    # Four standard deviations of as many coin tosses.
    assert abs(held_out - fraction) < 4 * np.sqrt(fraction * (1 - fraction) / len(documents))
    kept = np.flatnonzero(choice == TRAIN)
    assert 99_900 < sum(len(documents[i]) for i in kept) <= 100_000
    assert dropped["subsample"]["documents"] == len(documents) - len(kept) - int(np.sum(choice == VALIDATION))
    # Uniform: a tenth of the documents holds about a tenth of the sample.
    shares = np.histogram(kept, 10, (0, len(documents)))[0] / len(kept)
    assert np.all(np.abs(shares - 0.1) < 4 * np.sqrt(0.1 * 0.9 / len(kept)))


def test_what_is_held_out_does_not_depend_on_the_sample():
    documents = [f"Dokument {i}" for i in range(2000)]
    (small, _), (large, _) = (chosen(documents, validation_fraction=0.1, max_bytes=size) for size in (100, 10_000))
    assert np.array_equal(small == VALIDATION, large == VALIDATION)


def test_memory_is_bounded_without_changing_the_choice(monkeypatch):
    documents = [f"Dokument {i % 700}" for i in range(3000)]
    settings = {"deduplicate": True, "validation_fraction": 0.1, "max_bytes": 3000}
    whole, dropped = chosen(documents, **settings)
    monkeypatch.setattr(selection, "_SORTED_DOCUMENTS", 300)
    monkeypatch.setattr(selection, "_CHUNK", 128)
    in_pieces, dropped_too = chosen(documents, **settings)
    assert np.array_equal(whole, in_pieces) and dropped == dropped_too
    assert dropped["duplicates"]["documents"] == 2300


def test_a_prepared_split_holds_what_was_chosen(tmp_path, tokenizers, monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", 500)
    documents = [f"Satz {i % 300} von vielen" for i in range(400)]
    (tmp_path / "a.txt").write_text("\n".join(documents))
    settings = {"validation_fraction": 0.2, "max_bytes": 2000, "deduplicate": True}
    made = prepare_split(tmp_path / "a.txt", tokenizers["gpt2"], tmp_path / "out", **settings)
    choice, dropped = chosen(documents, True, 0.2, 2000)
    for side, number in (("train", TRAIN), ("validation", VALIDATION)):
        expected = [text for text, here in zip(documents, choice, strict=True) if here == number]
        assert texts_of(tmp_path / "out" / side, tokenizers["gpt2"]) == expected
        assert (made[side]["documents"], made[side]["text_bytes"]) == (len(expected), sum(map(len, expected)))
        assert made[side]["dropped"] == {"blank": {"documents": 0}, **dropped}
        assert made[side]["side"] == side
    assert prepare_split(tmp_path / "a.txt", tokenizers["gpt2"], tmp_path / "out", **settings) == made
    with pytest.raises(UserError, match=r"train: was prepared with max_bytes = 2000, not 1000"):
        prepare_split(tmp_path / "a.txt", tokenizers["gpt2"], tmp_path / "out", **(settings | {"max_bytes": 1000}))


def test_a_split_alone_is_made_in_one_reading(tmp_path, tokenizers, monkeypatch):
    monkeypatch.setattr(module, "choose", None)
    documents = [f"Satz {i}" for i in range(200)]
    (tmp_path / "a.txt").write_text("\n".join(documents))
    prepare_split(tmp_path / "a.txt", tokenizers["gpt2"], tmp_path / "out", validation_fraction=0.3)
    choice, _ = chosen(documents, validation_fraction=0.3)
    held_out = [text for text, side in zip(documents, choice, strict=True) if side == VALIDATION]
    assert texts_of(tmp_path / "out" / "validation", tokenizers["gpt2"]) == held_out


def test_impossible_choices(tmp_path, tokenizers):
    (tmp_path / "a.txt").write_text("ein Dokument\n")
    arguments = tmp_path / "a.txt", tokenizers["gpt2"], tmp_path / "out"
    with pytest.raises(UserError, match=r"leaves no document for (train|validation)"):
        prepare_split(*arguments, validation_fraction=0.5)
    with pytest.raises(UserError, match=r"no document fits into the 3 bytes .* \(max_bytes\)"):
        prepare(*arguments, max_bytes=3)
    with pytest.raises(UserError, match="max_bytes=-1"):
        prepare(*arguments, max_bytes=-1)
    with pytest.raises(UserError, match="validation_fraction: is 1"):
        prepare_split(*arguments, validation_fraction=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("fraction", "settings"),
    [
        (0.0, {"max_bytes": 300}),
        (0.3, {"max_bytes": 300}),
        (0.3, {"max_bytes": 0}),
        (0.3, {"max_bytes": 600, "documents": "paragraphs", "text_field": "body", "deduplicate": True}),
    ],
)
def test_a_sample_as_text_has_the_documents_whose_tokens_are_trained_on(tmp_path, tokenizers, fraction, settings):
    """The oracle is the text in the tokens that the training reads."""
    files = []
    for name in ("first", "second"):
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_text("".join(f"{name} Zeile {i} {'ü' * (i % 9)}\n" + "\n" * (i % 2) for i in range(40)))
    if "text_field" in settings:
        files.append(tmp_path / "third.jsonl")
        files[-1].write_text("".join(json.dumps({"body": f"Zeile {i % 9}"}) + "\n" for i in range(40)))
    if fraction:
        prepare_split(files, tokenizers["gpt2"], tmp_path / "out", validation_fraction=fraction, **settings)
    else:
        prepare(files, tokenizers["gpt2"], tmp_path / "out" / "train", **settings)
    count = write_sample(files, tmp_path / "sample.jsonl", validation_fraction=fraction, **settings)
    written = [json.loads(line)["text"] for line in (tmp_path / "sample.jsonl").read_text().splitlines()]
    assert written == texts_of(tmp_path / "out" / "train", tokenizers["gpt2"])
    assert 0 < count == len(written) < 80
