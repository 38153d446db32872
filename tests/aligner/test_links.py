"""Links from files, joined and scored, against nltk, SIL's thot and the rules in words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.aligner import SYMMETRIES, alignment_error_rate, last_links, read_links, symmetrize
from wechsel_jax.aligner.links import Links
from wechsel_jax.errors import UserError


def links_of(*pairs: list[tuple[int, int]]) -> Links:
    places = np.asarray([place for pair in pairs for place in pair], np.int32).reshape(-1, 2)
    return Links(places, np.cumsum([0, *map(len, pairs)]))


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        (tmp_path / "a.links").write_text(text)
        return tmp_path / "a.links"

    return write


def test_links_are_read_as_they_stand(written):
    links = read_links(written("0-1 1-0\n\n2-2 0-0:0.5 ||| -3.2\n"), np.asarray([2, 1, 3]), np.asarray([2, 2, 3]))
    assert [links.of(pair) for pair in range(3)] == [[(0, 1), (1, 0)], [], [(2, 2), (0, 0)]]
    # Of a text of which the second line was left out.
    some = read_links(written("0-1\n9-9\n2-2\n"), np.asarray([1, 3]), np.asarray([2, 3]), lines=[0, 2], read=3)
    assert [some.of(0), some.of(1)] == [[(0, 1)], [(2, 2)]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n0-0\n", r"a\.links: has 2 lines; expected 3, one for each line"),
        ("0-0\n0-0\n0-0\n0-0\n", r"a\.links: has 4 lines; expected 3"),
        ("0-0\n0=0\n0-0\n", r"a\.links: line 2: '0=0' is no link; expected the links of a pair"),
        # More digits than Python reads as a number.
        (f"0-0\n0-{5000 * '1'}\n0-0\n", r"a\.links: line 2: '0-1{18}' is no link; expected the links of a pair"),
        ("0-0\n0-0\n0-0 0-7\n", r"a\.links: line 3: link 0-7 is out of range of sentences of 3 and 7 tokens"),
        ("0-0\n4-1\n0-0\n", r"a\.links: line 2: link 4-1 is out of range .*; the other way round it would fit"),
        ("0-0\n0-0 0-1 0-3 1-3\n0-0\n", None),
    ],
)
def test_a_mistake_is_one_line(written, text, message):
    sizes = np.asarray([2, 2, 3]), np.asarray([2, 5, 7])
    if message is None:
        read_links(written(text), *sizes)
        return
    with pytest.raises(UserError, match=message) as error:
        read_links(written(text), *sizes)
    assert "\n" not in str(error.value)


def test_the_other_directions_file_is_refused(written):
    """A model of the second given the first sentence links each of the second's tokens at most once."""
    sizes = np.asarray([3, 3]), np.asarray([3, 3])
    path = written("0-0 0-1 1-2\n0-0\n")
    assert len(read_links(path, *sizes, to=1).places) == 4
    with pytest.raises(UserError, match=r"links each token of the second sentences at most once, and some of the first more"):
        read_links(path, *sizes, to=0)
    # One that both could have written says nothing, and neither does one of joined directions.
    read_links(written("0-0\n1-1\n"), *sizes, to=0)
    read_links(written("0-0 0-1 1-1\n1-1\n"), *sizes, to=0)


def test_the_last_link_of_a_token_counts():
    links = links_of([(0, 1), (2, 1), (1, 0)], [], [(0, 0), (1, 0), (0, 0)])
    assert last_links(links, np.asarray([0, 3, 4, 5]), to=1).tolist() == [1, 2, -1, -1, 0]
    assert last_links(links, np.asarray([0, 3, 5, 7]), to=0).tolist() == [1, 0, 1, -1, -1, 0, 0]


@st.composite
def both_directions(draw):
    n, m = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    to_second = draw(st.lists(st.integers(-1, m - 1), min_size=n, max_size=n))
    return to_second, draw(st.lists(st.integers(-1, n - 1), min_size=m, max_size=m))


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(both_directions(), min_size=1, max_size=3))
def test_joined_directions_are_what_the_papers_say(pairs):
    starts = [np.cumsum([0, *(len(pair[side]) for pair in pairs)]) for side in (0, 1)]
    flat = [np.concatenate([pair[side] for pair in pairs]) for side in (0, 1)]
    joined = {how: symmetrize(flat[0], starts[0], flat[1], starts[1], how) for how in SYMMETRIES[1:]}
    for number, (to_second, to_first) in enumerate(pairs):
        found = {how: set(links.of(number)) for how, links in joined.items()}
        one = {(i, j) for i, j in enumerate(to_second) if j >= 0}
        other = {(i, j) for j, i in enumerate(to_first) if i >= 0}
        assert found["intersection"] == one & other and found["union"] == one | other
        grown = found["grow-diag"]
        assert one & other <= grown <= one | other
        assert all(grown <= found[how] <= one | other for how in ("grow-diag-final", "grow-diag-final-and"))
        rows, columns = ({place[side] for place in grown} for side in (0, 1))
        for i, j in grown - (one & other):
            assert any((i + a, j + b) in grown for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b)
        for i, j in (one | other) - grown:
            near = any((i + a, j + b) in grown for a in (-1, 0, 1) for b in (-1, 0, 1))
            assert not near or (i in rows and j in columns)
        final = found["grow-diag-final"]
        assert {place[0] for place in final} == {i for i, _ in one | other}
        assert {place[1] for place in final} == {j for _, j in one | other}


def test_real_directions_are_joined_as_thot_joins_them(data_directory):
    alignment = pytest.importorskip("thot.alignment")
    from wechsel_jax.text.parallel import read_pairs

    pairs = read_pairs([data_directory / "parallel" / "en-de.tatoeba2021.tsv.xz"], ("en", "de"))
    first, second = ([text.lower().split() for text in side[:1500]] for side in (pairs.first, pairs.second))
    models = []
    for one, other in ((first, second), (second, first)):
        model = alignment.FastAlignModel()
        for pair in zip(one, other, strict=True):
            model.add_sentence_pair(*pair)
        model.start_training()
        model.train()
        model.train()
        model.end_training()
        models.append(model)

    def found(aligner, one, other):
        for _, matrix in aligner.get_best_alignments(one, other):
            yield [(i, j) for i in range(matrix.row_length) for j in range(matrix.column_length) if matrix[i, j]]

    starts = [np.cumsum([0, *map(len, side)]) for side in (first, second)]
    to_first = last_links(links_of(*found(models[0], first, second)), starts[1], to=1)
    backward = links_of(*([(i, j) for j, i in pair] for pair in found(models[1], second, first)))
    to_second = last_links(backward, starts[0], to=0)
    heuristics = alignment.SymmetrizationHeuristic
    both = alignment.SymmetrizedAligner(*models)
    for how, name in (("intersection", "INTERSECTION"), ("union", "UNION"), ("grow-diag-final-and", "GROW_DIAG_FINAL_AND")):
        both.heuristic = getattr(heuristics, name)
        theirs = [set(pair) for pair in found(both, first, second)]
        ours = symmetrize(to_second, starts[0], to_first, starts[1], how)
        same = sum(set(ours.of(pair)) == theirs[pair] for pair in range(len(first)))
        assert same / len(first) > (0.95 if "grow" in how else 0.999), how


def test_the_error_rate_is_nltks():
    from nltk.translate.metrics import alignment_error_rate as nltk_rate

    generator = np.random.default_rng(3)
    for _ in range(5):
        found, sure, extra = ({tuple(map(int, place)) for place in generator.integers(0, 5, (8, 2))} for _ in range(3))
        ours = alignment_error_rate(*(links_of(sorted(one)) for one in (found, sure, sure | extra)))
        assert ours == pytest.approx(nltk_rate(sure, found, sure | extra))
