"""Alignment against scipy's Procrustes, the wechsel package, and spaces whose map is known."""

import fasttext
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax import cli
from wechsel_jax.errors import UserError
from wechsel_jax.vectors import PlainVectors, align, load_vectors, save_vectors
from wechsel_jax.vectors.alignment import frequent_ids
from wechsel_jax.vectors.refinement import Refinement

wechsel = pytest.importorskip("wechsel")


def rotation(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def two_languages(seed=0, words=400, dim=10, noise=0.0, offset=0.0):
    """Target vectors are the source vectors rotated, plus noise and an offset; word i of both means the same."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(words, dim))
    turn = rotation(rng, dim)
    source = PlainVectors([f"s{i}" for i in range(words)], (vectors + offset).astype(np.float32))
    target = PlainVectors(
        [f"t{i}" for i in range(words)], (vectors @ turn + noise * rng.normal(size=(words, dim))).astype(np.float32)
    )
    return source, target, [(f"s{i}", f"t{i}") for i in range(words)], turn


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_the_rotation_is_scipys(normalize, center):
    source, target, pairs, _ = two_languages(noise=0.5, offset=0.7)
    pairs = pairs[:150]
    alignment = align(source, target, pairs, normalize=normalize, center=center)

    def prepared(vectors):
        rows = vectors.rows(np.arange(400)).astype(np.float64)
        if normalize:
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows - rows.mean(axis=0) if center else rows

    a, b = prepared(source), prepared(target)
    expected, _ = scipy.linalg.orthogonal_procrustes(a[:150], b[:150])
    np.testing.assert_allclose(alignment.source_map, expected, atol=1e-5)
    assert alignment.target_map is None
    np.testing.assert_allclose(alignment.map_source(source.rows(np.arange(400))), a @ expected, atol=1e-5)
    np.testing.assert_allclose(alignment.map_target(target.rows(np.arange(400))), b, atol=1e-5)
    residual = np.linalg.norm(a[:150] @ expected - b[:150]) / np.linalg.norm(b[:150])
    assert alignment.report["residual"] == pytest.approx(residual, abs=1e-6)


def test_a_known_rotation_is_found_and_all_held_out_words_with_it():
    source, target, pairs, turn = two_languages()
    alignment = align(source, target, pairs)
    np.testing.assert_allclose(alignment.source_map, turn, atol=1e-5)
    report = alignment.report
    assert report["residual"] < 1e-3
    assert (report["pairs"], report["pairs_given"], report["pairs_found"]) == (400, 400, 400)
    assert (report["held_out_words"], report["precision_at_1"]) == (40, 1.0)
    assert (report["weighting"], report["normalize"], report["center"]) == ("unique", False, False)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), normalize=st.booleans(), center=st.booleans())
def test_maps_keep_lengths_and_rows_of_zeros(seed, normalize, center):
    source, target, pairs, _ = two_languages(seed, words=60, dim=5, noise=0.3, offset=0.5)
    alignment = align(source, target, pairs, normalize=normalize, center=center, seed=seed)
    np.testing.assert_allclose(alignment.source_map @ alignment.source_map.T, np.eye(5), atol=1e-5)
    rows = source.rows(np.array([-1, 3, -1, 7]))
    for mapped in (alignment.map_source(rows), alignment.map_target(rows)):
        assert mapped.dtype == np.float32
        assert not mapped[[0, 2]].any()
        assert mapped[[1, 3]].any(axis=1).all()
    if not center:
        np.testing.assert_allclose(
            np.linalg.norm(alignment.map_source(rows)[[1, 3]], axis=1),
            1 if normalize else np.linalg.norm(rows[[1, 3]], axis=1),
            rtol=1e-5,
        )


@pytest.fixture(scope="module")
def cased(tmp_path_factory):
    """Two fastText models whose words come in lower and title case, opened by fasttext and by us."""
    folder = tmp_path_factory.mktemp("cased")
    opened = []
    rng = np.random.default_rng(0)
    for language, seed in (("en", 0), ("de", 1)):
        rng = np.random.default_rng(seed)
        words = [f"{language}{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(80)]
        lines = [" ".join(word.title() if rng.random() < 0.4 else word for word in rng.choice(words, 10)) for _ in range(300)]
        (folder / language).write_text("\n".join(lines))
        model = fasttext.train_unsupervised(
            str(folder / language), dim=8, minn=3, maxn=4, bucket=500, minCount=1, epoch=2, t=1, thread=11, verbose=0
        )
        model.save_model(str(folder / f"{language}.bin"))
        opened.append((model, load_vectors(folder / f"{language}.bin")))
    return opened


CASED_PAIRS = [(f"en{chr(97 + i // 26)}{chr(97 + i % 26)}", f"de{chr(97 + i // 26)}{chr(97 + i % 26)}") for i in range(60)]
CASED_PAIRS += [(a.title(), b) for a, b in CASED_PAIRS[:20]] + CASED_PAIRS[5:9] + [("unknown", "dead"), ("enaa", "unknown")]


class DoublePrecision(wechsel.WordEmbedding):
    """The package decomposes in the precision of the vectors; in single precision its own result is off by 3e-3 here."""

    def get_word_vector(self, word):
        return super().get_word_vector(word).astype(np.float64)


def test_weighting_wechsel_is_the_packages(cased):
    (source_model, source), (target_model, target) = cased
    expected = wechsel.WECHSEL._compute_align_matrix_from_dictionary(
        None, DoublePrecision(source_model), DoublePrecision(target_model), CASED_PAIRS
    )
    found = align(source, target, CASED_PAIRS, weighting="wechsel").source_map
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.abs(align(source, target, CASED_PAIRS, weighting="unique").source_map - expected).max() > 2e-3
    assert np.abs(align(source, target, CASED_PAIRS, weighting="legacy").source_map - expected).max() > 2e-3


def variants(weighting, pairs):
    if weighting == "wechsel":
        return [(a, b) for s, t in pairs for a in (s, s.lower(), s.title()) for b in (t, t.lower(), t.title())]
    if weighting == "legacy":
        return [(a, b) for s, t in pairs for a in (s.lower(), s.lower().title()) for b in (t.lower(), t.lower().title())]
    return list(dict.fromkeys(variants("wechsel", pairs)))


@pytest.mark.parametrize("weighting", ["unique", "wechsel", "legacy"])
def test_weightings_are_repetitions(cased, weighting):
    (_, source), (_, target) = cased
    known = [(a, b) for a, b in variants(weighting, CASED_PAIRS) if source.ids([a])[0] >= 0 and target.ids([b])[0] >= 0]
    a = source.lookup([word for word, _ in known]).astype(np.float64)
    b = target.lookup([word for _, word in known]).astype(np.float64)
    expected, _ = scipy.linalg.orthogonal_procrustes(a, b)
    alignment = align(source, target, CASED_PAIRS, weighting=weighting)
    np.testing.assert_allclose(alignment.source_map, expected, atol=1e-5)
    assert alignment.report["pairs"] == len(set(known))
    residual = np.linalg.norm(a @ expected - b) / np.linalg.norm(b)
    assert alignment.report["residual"] == pytest.approx(residual, abs=1e-5)
    assert alignment.report["pairs_found"] == len(CASED_PAIRS) - 2


def test_a_lower_case_pair_weighs_4_2_2_1():
    rng = np.random.default_rng(3)
    words = ["haus", "Haus", "house", "House"]
    vectors = PlainVectors(words, rng.normal(size=(4, 3)).astype(np.float32))
    a, b = vectors.lookup(["house", "house", "House", "House"]), vectors.lookup(["haus", "Haus", "haus", "Haus"])
    product = a.T.astype(np.float64) @ (b * np.array([[4], [2], [2], [1]]))
    u, _, vt = np.linalg.svd(product)
    found = align(vectors, vectors, [("house", "haus")], weighting="wechsel", held_out=0).source_map
    np.testing.assert_allclose(found, u @ vt, atol=1e-5)


@pytest.mark.parametrize(("source_dim", "target_dim"), [(24, 16), (16, 24)])
def test_the_larger_side_is_projected(source_dim, target_dim):
    rng = np.random.default_rng(0)
    small = rng.normal(size=(500, 16))
    # The larger side holds the same 16 dimensions, rotated into 24, and a little noise in the rest.
    large = np.concatenate([small, 0.01 * rng.normal(size=(500, 8))], axis=1) @ rotation(rng, 24)
    sides = [large if dim == 24 else small for dim in (source_dim, target_dim)]
    source, target = (PlainVectors([f"w{i}" for i in range(500)], side.astype(np.float32)) for side in sides)
    alignment = align(source, target, "identical")
    assert alignment.source_map.shape == (source_dim, 16)
    assert alignment.target_map is None if target_dim == 16 else alignment.target_map.shape == (24, 16)
    ids = np.arange(500)
    mapped = alignment.map_source(source.rows(ids)), alignment.map_target(target.rows(ids))
    assert mapped[0].shape == mapped[1].shape == (500, 16)
    np.testing.assert_allclose(*mapped, atol=0.1)
    assert alignment.report["precision_at_1"] == 1.0
    assert alignment.report["residual"] < 0.02
    # Nothing of the caller's vectors was changed.
    np.testing.assert_array_equal(source.rows(ids), sides[0].astype(np.float32))


def test_precision_is_measured_on_words_that_the_fit_never_saw():
    """With unrelated vectors a fit that saw the test words would score well above chance."""
    rng = np.random.default_rng(0)
    source = PlainVectors([f"s{i}" for i in range(60)], rng.normal(size=(60, 60)).astype(np.float32))
    target = PlainVectors([f"t{i}" for i in range(60)], rng.normal(size=(60, 60)).astype(np.float32))
    pairs = [(f"s{i}", f"t{i}") for i in range(60)]
    seen = align(source, target, pairs).map_source(source.rows(np.arange(60))) @ target.rows(np.arange(60)).T
    assert (seen.argmax(axis=1) == np.arange(60)).mean() > 0.9
    report = align(source, target, pairs, held_out=0.5).report
    assert report["held_out_words"] == 30
    assert report["precision_at_1"] < 0.2


def test_no_spelling_of_a_held_out_word_leaks():
    rng = np.random.default_rng(1)
    base = rng.normal(size=(40, 60))
    # Both spellings share a vector, so one of them in the fit would give the other away.
    source = PlainVectors([w for i in range(40) for w in (f"wa{i}", f"Wa{i}")], np.repeat(base, 2, axis=0).astype(np.float32))
    target = PlainVectors([f"t{i}" for i in range(40)], rng.normal(size=(40, 60)).astype(np.float32))
    pairs = [(w, f"t{i}") for i in range(40) for w in (f"wa{i}", f"Wa{i}")]
    report = align(source, target, pairs, held_out=0.5).report
    assert report["held_out_words"] == 20
    assert report["precision_at_1"] < 0.2


def test_any_of_the_translations_is_right():
    source, target, pairs, _ = two_languages(words=100)
    # Every word also has a wrong first translation: the right one still counts.
    both = [(f"s{i}", f"t{(i + 1) % 100}") for i in range(0, 100, 10)] + pairs
    assert align(source, target, both, held_out=0.9).report["precision_at_1"] > 0.9


def test_held_out_words_depend_on_the_seed_only():
    source, target, pairs, _ = two_languages(noise=1.2, words=300)
    first, again, other = (align(source, target, pairs, seed=seed).report["precision_at_1"] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    maps = [align(source, target, pairs, seed=seed, held_out=share).source_map for seed, share in ((1, 0.1), (2, 0.5), (0, 0))]
    np.testing.assert_array_equal(maps[0], maps[1])
    np.testing.assert_array_equal(maps[0], maps[2])
    assert align(source, target, pairs, held_out=0).report["precision_at_1"] is None


def test_mistakes_are_named():
    source, target, pairs, _ = two_languages(words=20)
    with pytest.raises(UserError, match="none of the 1 word pairs"):
        align(source, target, [("t0", "s0")])
    # A name that both languages spell alike does not make a swapped dictionary right.
    named = [PlainVectors([*side.words[:19], "Anna"], side.rows(np.arange(20))) for side in (source, target)]
    alike = [*pairs[:10], ("Anna", "Anna")]
    message = "only 1 spellings of the 11 word pairs have vectors on both sides; .*; 11 have them the other way round: exchange"
    with pytest.raises(UserError, match=message):
        align(*named, [pair[::-1] for pair in alike])
    assert align(*named, alike).report["pairs"] == 11
    with pytest.raises(UserError, match="none of the 0 word pairs"):
        align(source, target, "identical")
    with pytest.raises(UserError, match="weighting 'best'"):
        align(source, target, pairs, weighting="best")
    with pytest.raises(UserError, match="held_out is 1"):
        align(source, target, pairs, held_out=1)
    with pytest.raises(UserError, match="'german'"):
        align(source, target, "german")
    zeros = PlainVectors(target.words, np.zeros((20, 10), np.float32))
    with pytest.raises(UserError, match="vectors of zeros"):
        align(source, zeros, pairs)


def test_refinement_improves_a_poor_dictionary_and_is_measured_on_unseen_words():
    rng = np.random.default_rng(5)
    source, target, pairs, turn = two_languages(noise=0.25, words=500, dim=16)
    # Most of the dictionary is wrong.
    wrong = [(f"s{i}", f"t{j}") for i, j in zip(range(120), rng.permutation(500)[:120], strict=True)] + pairs[:60]
    plain, refined = (align(source, target, wrong, refine=rounds, held_out=0) for rounds in (0, 5))
    off = [np.abs(alignment.source_map - turn).max() for alignment in (plain, refined)]
    assert off[1] < off[0] / 2
    assert refined.report["refine"] == 5
    assert len(refined.report["refinement"]) == 6
    kept = refined.report["refinement"][refined.report["refined_round"]]
    assert kept["criterion"] == max(entry["criterion"] for entry in refined.report["refinement"])
    assert "refinement" not in plain.report
    np.testing.assert_allclose(refined.source_map @ refined.source_map.T, np.eye(16), atol=1e-5)
    noisy, other, pairs, _ = two_languages(noise=0.5, words=500, dim=16)
    found = [align(noisy, other, pairs[:150], refine=rounds, csls=True, held_out=0.9) for rounds in (0, 3)]
    measured = [alignment.report for alignment in found]
    for name in ("precision_at_1", "precision_at_1_csls"):
        assert measured[1][name] > measured[0][name] + 0.02
    # Of the map that is returned, which no longer fits the dictionary best.
    a, b = (side.rows(side.ids(words)) for side, words in zip((noisy, other), zip(*pairs[:150], strict=True), strict=True))
    for alignment in found:
        distance = np.linalg.norm(a @ alignment.source_map - b) / np.linalg.norm(b)
        assert alignment.report["residual"] == pytest.approx(distance, abs=1e-5)
    assert measured[1]["residual"] > measured[0]["residual"]


def test_unrelated_vectors_stay_at_chance_with_refinement_and_csls():
    """If refinement or CSLS saw the held-out words' translations, this would score well above chance."""
    rng = np.random.default_rng(0)
    source, target = (
        PlainVectors([f"{side}{i}" for i in range(60)], rng.normal(size=(60, 60)).astype(np.float32)) for side in "st"
    )
    pairs = [(f"s{i}", f"t{i}") for i in range(60)]
    report = align(source, target, pairs, held_out=0.5, refine=Refinement(rounds=2, max_rank=60), csls=True).report
    assert report["precision_at_1"] < 0.2
    assert report["precision_at_1_csls"] < 0.2


def test_csls_precision_is_that_of_the_whole_matrix():
    source, target, pairs, _ = two_languages(noise=0.9, words=300)
    report = align(source, target, pairs, held_out=0.3, csls=True).report
    assert report["precision_at_1"] == align(source, target, pairs, held_out=0.3).report["precision_at_1"]
    tested = np.random.default_rng(0).permutation(300)[:90]
    rest = np.setdiff1d(np.arange(300), tested)
    a, b = (side.rows(np.arange(300)).astype(np.float64) for side in (source, target))
    turn, _ = scipy.linalg.orthogonal_procrustes(a[rest], b[rest])
    mapped = a @ turn
    similarity = mapped @ b.T / np.outer(np.linalg.norm(mapped, axis=1), np.linalg.norm(b, axis=1))
    scaled = 2 * similarity - np.sort(similarity, axis=0)[-10:].mean(axis=0)
    assert report["precision_at_1"] == (similarity[tested].argmax(axis=1) == tested).mean()
    assert report["precision_at_1_csls"] == (scaled[tested].argmax(axis=1) == tested).mean()
    assert report["precision_at_1_csls"] != report["precision_at_1"]


def test_the_order_of_counts_decides_which_words_are_frequent():
    counted = PlainVectors(["a", "b", "c"], np.eye(3, dtype=np.float32), np.array([1, 5, 5]))
    assert frequent_ids(counted, 2).tolist() == [1, 2]
    assert frequent_ids(counted, 0).tolist() == [1, 2, 0]
    assert frequent_ids(counted, 2, by_count=False).tolist() == [0, 1]
    assert frequent_ids(PlainVectors(["a", "b"], np.eye(2, dtype=np.float32)), 9).tolist() == [0, 1]


@pytest.mark.slow
def test_the_verb_aligns_with_and_without_a_dictionary(tmp_path, capsys):
    source, target, pairs, turn = two_languages(words=300, noise=0.05)
    for name, side in (("s", source), ("t", target)):
        save_vectors(tmp_path / f"{name}.npz", side.words, side.rows(np.arange(300)))
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    sides = [f"--source={tmp_path}/s.npz", f"--target={tmp_path}/t.npz"]
    files = [*sides, f"--dictionary={tmp_path}/pairs.tsv"]
    output = tmp_path / "out.npz"
    cli.main(["vectors", "align", *files, "--refine=2", "--csls", f"--source_output={output}"])
    printed = capsys.readouterr().out
    assert "precision_at_1_csls: 1" in printed
    assert printed.count("refinement: round") == 3
    np.testing.assert_allclose(load_vectors(output).rows(np.arange(300)), source.rows(np.arange(300)) @ turn, atol=0.1)
    small = ["--method=adversarial", "--epochs=1", "--iterations=20", "--hidden=8", "--normalize", "--refine=1"]
    cli.main(["vectors", "align", *files, *small])
    printed = capsys.readouterr().out
    assert "adversarial: restart 0, epoch 1" in printed
    assert "precision_at_1: " in printed
    for arguments, message in (
        (sides, "--dictionary: missing"),
        ([*sides, "--method=adversarial", "--dictionary=identical"], "'identical' with --method=adversarial"),
        ([*files, "--epochs=3"], "--epochs: has no effect with --method=procrustes"),
        ([*sides, *small, "--weighting=wechsel"], "--weighting: has no effect with --method=adversarial"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["vectors", "align", *arguments])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err


def test_what_appears_during_the_work_is_not_replaced(tmp_path, monkeypatch, capsys):
    from wechsel_jax.commands import vectors_align

    for name, side in zip("st", two_languages(words=60)[:2], strict=True):
        save_vectors(tmp_path / f"{name}.npz", side.words, side.rows(np.arange(60)))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"s{i}\tt{i}\n" for i in range(60)))
    outputs = [tmp_path / "source.npz", tmp_path / "target.npz"]
    files = [f"--source={tmp_path}/s.npz", f"--target={tmp_path}/t.npz", f"--dictionary={pairs}"]
    files += [f"--source_output={outputs[0]}", f"--target_output={outputs[1]}"]
    align_them = vectors_align._aligned

    def slow(*arguments):
        outputs[1].write_bytes((tmp_path / "s.npz").read_bytes())
        return align_them(*arguments)

    monkeypatch.setattr(vectors_align, "_aligned", slow)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["vectors", "align", *files])
    assert stopped.value.code == 2 and "target.npz: exists" in capsys.readouterr().err
    # Neither is written.
    assert outputs[1].read_bytes() == (tmp_path / "s.npz").read_bytes() and not outputs[0].exists()
    cli.main(["vectors", "align", *files, "--overwrite"])
    assert load_vectors(outputs[1]).words == load_vectors(tmp_path / "t.npz").words
