"""Pairs and their links as rows of batches, against an order worked out link by link."""

import json
from pathlib import Path

import numpy as np
import pytest

from wechsel_jax.data.parallel import ROWS, ParallelRows, Sentences, write_pairs
from wechsel_jax.errors import UserError

CLS, SEP, PAD = 1, 2, 0
FACTS = {"vocabulary_size": 99, "before": [CLS], "after": [SEP], "pad_id": PAD, "languages": ["en", "de"]}
FIRST = [[11, 12, 13], [21], [31, 32, 33, 34, 35, 36]]
SECOND = [[51, 52, 53, 54], [61, 62], [71, 72, 73]]
# The place in the other sentence of the token that each is linked with.
TO_SECOND = [[0, -1, 3], [1], [0, 1, 2, 2, -1, 0]]
TO_FIRST = [[2, -1, -1, 0], [-1, 0], [5, 4, 0]]


def joined(parts: list[list[int]]) -> Sentences:
    return Sentences(np.concatenate(parts).astype(np.int64), np.cumsum([0, *map(len, parts)]))


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("pairs")
    links = [np.concatenate(part) for part in (TO_SECOND, TO_FIRST)]
    write_pairs(place, [joined(FIRST), joined(SECOND)], links, FACTS)
    return place


def test_a_pair_makes_one_row_of_either_kind(directory):
    rows = ParallelRows.open(directory, 12)
    assert len(rows) == 6
    batch = rows.padded(np.asarray([0, 1]), 8)
    assert batch["tokens"].tolist() == [[CLS, 11, 12, 13, SEP, PAD, PAD, PAD], [CLS, 51, 52, 53, 54, SEP, PAD, PAD]]
    assert batch["targets"].tolist() == [[CLS, 51, 52, 53, 54, SEP, PAD, PAD]] * 2
    assert batch["mask"].sum(axis=1).tolist() == [5, 6] and batch["target_mask"].sum(axis=1).tolist() == [6, 6]
    # The placeholder is the padding behind the source's [SEP].
    assert batch["order"].tolist() == [[0, 3, 5, 5, 1, 4, 5, 5], [*range(8)]]
    assert batch["languages"].tolist() == [0, 1] and batch["target_languages"].tolist() == [1, 1]
    assert batch["masked"].tolist() == [False, True]


@pytest.mark.parametrize("length", [16, 6, 5])
@pytest.mark.parametrize("kind", list(ROWS))
def test_rows_of_every_kind_are_their_sentences_in_the_order_of_the_links(directory, kind, length):
    rows = ParallelRows.open(directory, length, kind)
    texts, links = (FIRST, SECOND), (TO_SECOND, TO_FIRST)
    assert len(rows) == 3 * len(ROWS[kind])
    batch = rows.padded(np.arange(len(rows)), length)
    for number in range(len(rows)):
        pair, (source, target) = number // len(ROWS[kind]), ROWS[kind][number % len(ROWS[kind])]
        read = [CLS, *texts[source][pair][: length - 2 - (source != target)], SEP]
        wanted = [CLS, *texts[target][pair][: length - 2], SEP]
        for name, sentence in (("tokens", read), ("targets", wanted)):
            assert batch[name][number].tolist() == sentence + [PAD] * (length - len(sentence))
        assert batch["mask"][number].sum() == len(read) and batch["target_mask"][number].sum() == len(wanted)
        expected = list(range(length))
        if source != target:
            expected = [len(read)] * length
            expected[0], expected[len(wanted) - 1] = 0, len(read) - 1
            for place, link in enumerate(links[target][pair][: length - 2]):
                if 0 <= link < len(read) - 2:
                    expected[1 + place] = 1 + link
            assert not batch["mask"][number, len(read)]
        assert batch["order"][number].tolist() == expected


def test_a_batch_is_a_function_of_seed_and_step(directory):
    rows = ParallelRows.open(directory, 40)
    batch = rows.batch(5, 4, seed=3)
    for name, value in rows.batch(5, 4, seed=3, rows=np.asarray([2, 0])).items():
        np.testing.assert_array_equal(value, batch[name][[2, 0]])
    assert rows.positions(5, 4, seed=3) == batch["tokens"].size == 4 * 16
    epoch = np.concatenate([rows.batch(step, 2, seed=0)["targets"][:, 1] for step in range(3)])
    assert sorted(epoch) == [51, 51, 61, 61, 71, 71]
    assert rows.fingerprint != ParallelRows.open(directory, 40, "backward").fingerprint


def test_in_turns_a_step_has_rows_of_one_kind_and_each_kind_has_every_pair(directory):
    rows, mixed = ParallelRows.open(directory, 40, "backward_in_turns"), ParallelRows.open(directory, 40, "backward")
    assert rows.kinds == mixed.kinds and rows.fingerprint != mixed.fingerprint
    pairs = {11: 0, 51: 0, 21: 1, 61: 1, 31: 2, 71: 2}
    seen = {True: [], False: []}
    for step in range(6):
        batch = rows.batch(step, 1, seed=3)
        assert batch["masked"].tolist() == [step % 2 == 1]
        seen[bool(step % 2)] += [pairs[token] for token in batch["targets"][:, 1].tolist()]
        part = rows.batch(step, 1, seed=3, rows=np.asarray([0]))
        np.testing.assert_array_equal(part["tokens"], batch["tokens"])
        assert rows.positions(step, 1, seed=3) == batch["tokens"].size
    # Each kind reads the same pairs in the same order, in a pass of six steps.
    assert seen[True] == seen[False] and sorted(seen[True]) == [0, 1, 2]


def test_an_evaluation_has_every_row_once(directory):
    batches = list(ParallelRows.open(directory, 40).evaluation_batches(4))
    assert np.concatenate([batch["row"] for batch in batches]).tolist() == [2, 3, 5, 0, 1, 4, -1, -1]
    assert np.concatenate([batch["weights"] for batch in batches]).tolist() == [1] * 6 + [0] * 2


def test_damage_is_named(directory, tmp_path):
    def copy(name: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        for path in directory.iterdir():
            (place / path.name).write_bytes(path.read_bytes())
        return place

    place = copy("changed")
    content = bytearray((place / "links.1.npy").read_bytes())
    content[-4] ^= 1
    (place / "links.1.npy").write_bytes(content)
    ParallelRows.open(place, 12)
    with pytest.raises(UserError, match=r"links\.1\.npy: damaged: its sha256"):
        ParallelRows.open(place, 12, verify=True)
    place = copy("short")
    (place / "tokens.0.npy").write_bytes((place / "tokens.0.npy").read_bytes()[:-4])
    with pytest.raises(UserError, match=r"tokens\.0\.npy: cannot be read"):
        ParallelRows.open(place, 12)
    place = copy("other")
    facts = json.loads((place / "pairs.json").read_text())
    (place / "pairs.json").write_text(json.dumps(facts | {"pairs": 2}))
    with pytest.raises(UserError, match=r"starts\.0\.npy: has shape \(4,\); expected \(3,\) as pairs\.json says"):
        ParallelRows.open(place, 12)
    (place / "pairs.json").write_text(json.dumps(facts | {"after": "x"}))
    with pytest.raises(UserError, match=r"pairs\.json: field pairs\.after is 'x'; expected a list"):
        ParallelRows.open(place, 12)
    with pytest.raises(UserError, match=r"block_length: 3; expected at least 4"):
        ParallelRows.open(directory, 3)
    with pytest.raises(UserError, match=r"rows: 'sideways': no such kind; expected one of forward, backward"):
        ParallelRows.open(directory, 12, "sideways")
