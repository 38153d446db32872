"""Trees of scores against all trees and networkx; attachment scores against the official scorer of Universal Dependencies."""

import itertools
import random
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.tiny_tokenizers import wrap
from wechsel_jax.data.examples import Example, Task, read_examples
from wechsel_jax.data.rows import encode_examples
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import labels, parsing
from wechsel_jax.evaluation.labels import label_scores
from wechsel_jax.evaluation.parsing import best_tree, parsing_scores

networkx = pytest.importorskip("networkx")


def sum_of(scores, heads):
    return sum(scores[word, head] for word, head in enumerate(heads))


def trees(count):
    """All trees of `count` words with one at the root, of which Cayley says there are n to the n - 1."""
    for heads in itertools.product(range(count + 1), repeat=count):
        if heads.count(0) == 1:
            reached = {0}
            for _ in range(count):
                reached |= {word for word, head in enumerate(heads, 1) if head in reached}
            if len(reached) == count + 1:
                yield heads


@pytest.mark.parametrize("count", range(1, 7))
def test_the_best_of_all_trees(count):
    every = np.asarray(list(trees(count)))
    assert len(every) == count ** (count - 1)
    rng = np.random.default_rng(count)
    for number in range(100):
        scores = rng.normal(size=(count, count + 1)) * 10.0 ** rng.integers(-2, 3)
        # Whole numbers tie.
        scores = np.round(scores) if number % 3 == 0 else scores
        # The root is what most words would like best: then the rule of one word at the root decides.
        scores[:, 0] += 50.0 if number % 2 else 0.0
        found = best_tree(scores)
        assert (found == every).all(axis=1).any()
        assert sum_of(scores, found) == pytest.approx(scores[np.arange(count), every].sum(axis=1).max(), abs=1e-9)


def test_longer_sentences_as_networkx_finds_them():
    """The best arborescence with each word at the root in turn, and the best of these."""
    rng = np.random.default_rng(0)
    for count in (9, 14):
        scores = rng.normal(size=(count, count + 1))
        scores[:, 0] += 1.0
        sums = []
        for top in range(1, count + 1):
            graph = networkx.DiGraph()
            graph.add_edge(0, top, weight=scores[top - 1, 0])
            graph.add_weighted_edges_from(
                (head, word, scores[word - 1, head])
                for word in range(1, count + 1)
                for head in range(1, count + 1)
                if head != word
            )
            sums.append(networkx.maximum_spanning_arborescence(graph).size("weight"))
        assert sum_of(scores, best_tree(scores)) == pytest.approx(max(sums))


def test_a_word_is_never_its_own_head_and_without_words_there_is_no_tree():
    scores = np.asarray([[0.0, np.inf, 1.0], [1.0, 9.0, np.nan]])
    np.testing.assert_array_equal(best_tree(scores), [0, 1])
    assert best_tree(np.zeros((0, 1))).shape == (0,)
    with pytest.raises(UserError, match="the score of a word's head is no number; expected weights"):
        best_tree(np.full((2, 3), np.nan))


def columns(number, word, head, relation):
    return "\t".join([number, word, "_", "X", "_", "_", head, relation, "_", "_"])


@pytest.mark.parametrize("name", ["French-Sequoia-test", "Vietnamese-VTB-test"])
def test_attachments_are_counted_as_by_the_official_scorer(data_directory, tmp_path, name):
    """Real trees, and what a parser may find for them, in files."""
    official = pytest.importorskip("udtools.udeval")
    file = data_directory / "labelled" / "ud" / f"{name}.conllu.gz"
    gold = read_examples([file], Task("parsing"))[:150]
    generator, rng, texts, predicted = random.Random(0), np.random.default_rng(0), ([], []), []
    for example in gold:
        count, heads = len(example.texts), np.asarray([head for head, _ in example.target])
        scores = 3.0 * (heads[:, None] == np.arange(count + 1)) + rng.normal(size=(count, count + 1))
        relations = [generator.choice([relation, relation, "obl"]) for _, relation in example.target]
        predicted.append(tuple(zip(best_tree(scores).tolist(), relations, strict=True)))
        for lines, tree in zip(texts, (example.target, predicted[-1]), strict=True):
            # Words that are written as one, one that is not written, and relations that say more.
            lines.append(columns("1-2", "".join(example.texts[:2]), "_", "_") if count > 1 else "# one word")
            for number, (word, (head, relation)) in enumerate(zip(example.texts, tree, strict=True), 1):
                lines.append(columns(str(number), word, str(head), relation + generator.choice(["", ":x", ":y:z"])))
            lines += [columns(f"{count}.1", "nothing", "_", "_"), ""]
    files = [tmp_path / "gold.conllu", tmp_path / "found.conllu"]
    for path, lines in zip(files, texts, strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert [read_examples([path], Task("parsing"))[7].target for path in files] == [gold[7].target, predicted[7]]
    expected = official.evaluate(*map(official.load_conllu_file, files))
    found = parsing_scores([one.target for one in gold], predicted)
    assert 0.3 < found["las"] < found["uas"] < 0.95
    assert found["uas"] == pytest.approx(expected["UAS"].f1) and found["las"] == pytest.approx(expected["LAS"].f1)
    hits, words = map(sum, zip(*found["items"], strict=True))
    assert words == sum(len(one.texts) for one in gold) and hits / words == pytest.approx(found["las"])


class Star(NamedTuple):
    """An objective by which the first word is at the root and all others hang on it."""

    name: str = "parsing"

    def scores(self, params, batch):
        count, length = batch["words"].shape
        arcs = jax.numpy.zeros((count, length, length + 1)).at[:, :, 1].set(1.0).at[:, 0, 0].set(1.0)
        return SimpleNamespace(arcs=arcs, best=jax.numpy.zeros_like(arcs, int))

    def loss(self, scores, batch):
        return batch["weights"].sum(), None


def test_the_arcs_of_a_batch_are_read_before_the_one_after_the_next(monkeypatch):
    """Scores of all arcs of all sentences, 264 kB for each of 256 words, would be gigabytes."""
    examples = [Example(str(number), ("a",) * 9, ((0, "root"), *[(1, "dep")] * 8)) for number in range(16)]
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    rows = encode_examples(examples, wrap(backend), form="parsing", labels=("dep", "root"), length=16, pad_id=0)
    done, seen = [], []
    monkeypatch.setattr(labels, "best_tree", lambda scores: done.append(None) or best_tree(scores))

    def batches():
        for batch in rows.evaluation_batches(4):
            seen.append(len(done))
            yield batch

    assert label_scores(Star(), {}, batches(), rows).metrics["las"] == 1.0
    assert seen == [0, 0, 4, 8] and len(done) == 16


def test_a_tree_with_one_word_at_the_root_is_found_at_once(monkeypatch):
    """As a trained parser finds most."""
    calls, rng = [], np.random.default_rng(0)
    monkeypatch.setattr(parsing, "_cycle", lambda heads, found=parsing._cycle: calls.append(None) or found(heads))
    heads = np.asarray([rng.integers(0, word) for word in range(1, 40)])
    heads[1:] = np.maximum(heads[1:], 1)
    scores = rng.random((39, 40))
    scores[np.arange(39), heads] += 1
    np.testing.assert_array_equal(best_tree(scores), heads)
    assert len(calls) == 1
