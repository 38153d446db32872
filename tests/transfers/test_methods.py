"""Every method and setting through the whole job; numpy in float64 says what the new rows must be."""

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import fasttext
import numpy as np
import pytest
import torch
import transformers

from tests.tiny_tokenizers import wordpiece
from tests.transfers.conftest import save_helper
from wechsel_jax import cli
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.tensors import read_header
from wechsel_jax.initializers import METHODS, Side, TransferPlan
from wechsel_jax.initializers.transforms import unshuffle
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.overlap import find_overlap
from wechsel_jax.transfers.inputs import _target_space, _token_vectors
from wechsel_jax.transfers.job import transfer
from wechsel_jax.transfers.record import Steps, behaviour
from wechsel_jax.transfers.settings import TransferSettings
from wechsel_jax.vectors import (
    AdversarialSettings,
    PlainVectors,
    Refinement,
    adversarial_align,
    align,
    load_vectors,
    ngram_vectors,
    read_dictionary,
    save_vectors,
    train_vectors,
)
from wechsel_jax.vectors.self_learning import similarity_map

SPECIAL = "<|endoftext|>"


@dataclass(frozen=True)
class Made:
    """What a transfer wrote, and the rows that it started from."""

    directory: Path
    source: np.ndarray
    table: np.ndarray
    plan: TransferPlan
    record: dict
    old: list[str]
    new: list[str]

    @classmethod
    def open(cls, source: Path, directory: Path) -> "Made":
        before, after = Checkpoint.open(source), Checkpoint.open(directory)
        old, new = (load_tokenizer(place) for place in (source, directory))
        return cls(
            directory,
            np.array(before.read(before.table), np.float32),
            np.array(after.read(after.table), np.float32),
            TransferPlan.load(directory / "transfer_plan.npz"),
            json.loads((directory / "transfer.json").read_text(encoding="utf-8")),
            old.convert_ids_to_tokens(range(len(old))),
            new.convert_ids_to_tokens(range(len(new))),
        )

    def check(self, expected: dict[int, np.ndarray], tolerance: float) -> None:
        """Asserts that exactly the rows of `expected` are mixed, and that they are these."""
        assert sorted(expected) == np.flatnonzero(self.plan.is_mixed).tolist() and len(expected) > 50
        rows = np.array(sorted(expected))
        np.testing.assert_allclose(self.table[rows], np.stack([expected[i] for i in rows]), atol=tolerance)


@pytest.fixture
def make(world, source, tmp_path) -> Callable[..., Made]:
    """Returns a function that gives the English GPT-2 the German vocabulary."""

    def made(name: str = "out", *, model: Path = source, style: str = "gpt2", **options) -> Made:
        transfer(model, world.tokenizer("german", style), tmp_path / name, log=lambda line: None, **options)
        return Made.open(model, tmp_path / name)

    return made


@pytest.fixture
def command(world, source, tmp_path) -> Callable[..., Made]:
    """The same by the command line."""

    def made(*flags: str, **values) -> Made:
        given = [f"--{name}={value}" for name, value in values.items()]
        target = f"--target_tokenizer={world.tokenizer('german', 'gpt2')}"
        cli.main(["transfer", f"--source={source}", target, f"--output={tmp_path / 'out'}", *given, *flags])
        return Made.open(source, tmp_path / "out")

    return made


@pytest.fixture(scope="session")
def other_helper(world, tmp_path_factory) -> Path:
    """A German RoBERTa, whose tokenizer has four special tokens more and so lacks a few of the German GPT-2's."""
    return save_helper(world, tmp_path_factory.mktemp("other"), "roberta")


@pytest.fixture(scope="session")
def whole_words(world, tmp_path_factory) -> Path:
    """German word vectors without n-grams: most tokens have none."""
    words = load_vectors(world.vectors("german"))
    path = tmp_path_factory.mktemp("words") / "words.npz"
    save_vectors(path, words.words, words.rows(np.arange(len(words.words))))
    return path


def sparsemax(scores: np.ndarray) -> np.ndarray:
    """Martins and Astudillo (2016), algorithm 1."""
    ordered = np.sort(scores)[::-1]
    total = np.cumsum(ordered) - 1
    count = np.flatnonzero(ordered * np.arange(1, len(scores) + 1) > total)[-1]
    return np.maximum(scores - total[count] / (count + 1), 0)


def unit(matrix: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(matrix.astype(np.float64), axis=1, keepdims=True)
    return np.divide(matrix, lengths, out=np.zeros(matrix.shape), where=lengths > 0)


def same_strings(made: Made) -> dict[int, int]:
    """Target id -> source id of the same string: in two byte-level vocabularies the same bytes and start of a word."""
    place = {token: i for i, token in enumerate(made.old)}
    return {i: place[token] for i, token in enumerate(made.new) if token in place}


def same_after_space(made: Made) -> dict[int, int]:
    """The same, or else the string with or without the space in front."""
    place = {token: i for i, token in enumerate(made.old)}
    spellings = {i: (t, t.removeprefix("Ġ") if t.startswith("Ġ") else "Ġ" + t) for i, t in enumerate(made.new)}
    found = {i: [place[t] for t in both if t in place] for i, both in spellings.items()}
    return {i: ids[0] for i, ids in found.items() if ids}


def shares(made: Made, shared: dict[int, int], vectors: np.ndarray, weigh: Callable) -> dict[int, np.ndarray]:
    """Every token with a vector that is not shared: the shared ones' rows, weighted by `weigh(cosines)`."""
    known = vectors.any(axis=1)
    anchors = np.array([i for i in shared if known[i] and made.new[i] != SPECIAL])
    cosines = unit(vectors) @ unit(vectors[anchors]).T
    rows = made.source[[shared[i] for i in anchors]].astype(np.float64)
    return {i: weigh(cosines[i]) @ rows for i in range(len(made.new)) if known[i] and i not in shared}


def ngrams(world, made: Made) -> np.ndarray:
    """The target tokens' vectors as fastText itself makes them."""
    words = fasttext.load_model(str(world.vectors("german")))
    vectors = np.zeros((len(made.new), words.get_dimension()))
    for i, raw in enumerate(Vocabulary.from_tokenizer(load_tokenizer(made.directory)).bytes):
        text = raw.decode("utf-8", "replace").strip()
        if text and "�" not in text and made.new[i] != SPECIAL:
            vectors[i] = words.get_word_vector(text)
    return vectors


def helper_table(made: Made, helper: Path) -> np.ndarray:
    """The helper's rows of the target tokens that it has, by string; of the special one by its role."""
    checkpoint, tokenizer = Checkpoint.open(helper), load_tokenizer(helper)
    table, place = checkpoint.read(checkpoint.table), tokenizer.get_vocab()
    place.setdefault(SPECIAL, tokenizer.eos_token_id)
    return np.stack([table[place[t]] if t in place else np.zeros(table.shape[1]) for t in made.new]).astype(np.float64)


@pytest.mark.slow
def test_focus_with_vectors_of_tokens(world, command, tmp_path):
    vectors = tmp_path / "tokens.bin"
    train_vectors(
        world.root / "german.txt", vectors, dim=12, epochs=1, min_count=10, buckets=2000, subsampling=1,
        tokenizer=world.tokenizer("german", "gpt2"),
    )  # fmt: skip
    made = command(method="focus", target_vectors=vectors)
    words = fasttext.load_model(str(vectors))
    known = set(words.words)
    expected = np.stack([words.get_word_vector(t) if t in known else np.zeros(12) for t in made.new])
    shared = same_strings(made)
    made.check(shares(made, shared, expected, sparsemax), 2e-6)
    assert {i: int(s) for i, s in enumerate(made.plan.copy) if s >= 0} == shared
    assert made.record["settings"]["token_vectors"] == "native" and made.record["alignment"] is None


def test_vectors_of_words_in_the_place_of_tokens_are_noted(world, command):
    made = command(method="focus", target_vectors=world.vectors("german"))
    (note,) = (note for note in made.record["notes"] if "has a vector for" in note)
    assert str(world.vectors("german")) in note and "--token_vectors=ngram" in note


def test_word_vectors_of_another_language_are_noted(world, command):
    """By n-grams all tokens have some vector."""
    # The German tokenizer of the tests has too few long tokens to judge by.
    for source, target, said in (("english", "german", 0), ("german", "english", 1)):
        vectors = {"source_vectors": world.vectors(source), "target_vectors": world.vectors(target)}
        made = command(method="wechsel", dictionary="identical", overwrite=True, **vectors)
        assert sum("may be whole words" in note for note in made.record["notes"]) == said


def test_focus_with_vectors_of_words(world, command):
    made = command(method="focus", token_vectors="ngram", target_vectors=world.vectors("german"))
    made.check(shares(made, same_strings(made), ngrams(world, made), sparsemax), 2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("other", [False, True], ids=["same", "other"])
@pytest.mark.parametrize("method", ["salt", "omp", "clp", "clp_nearest", "sava"])
def test_methods_with_a_helper(world, helper, other_helper, make, method, other):
    helper = other_helper if other else helper
    own = {"salt": {"target_vectors": world.vectors("german")}, "omp": {"atoms": 3}, "clp_nearest": {"neighbors": 4}}
    options = own.get(method, {})
    made = make(method=method, helper=helper, **options)
    table = helper_table(made, helper)
    lacking = sum(not row.any() for row, token in zip(table, made.new, strict=True) if token != SPECIAL)
    told = [note for note in made.record["notes"] if note.startswith("The helper")]
    assert (
        told == ([f"The helper {helper} lacks {lacking} of the 600 target tokens."] if other else []) and (lacking > 0) == other
    )
    card = (made.directory / "README.md").read_text(encoding="utf-8")
    assert str(helper.parent) not in card and (not other or f"The helper {helper.name} lacks" in card)
    made.check(_EXPECTED[method](world, made, table), 1e-3 if method == "salt" else 2e-5)


def expected_salt(world, made: Made, table: np.ndarray) -> dict[int, np.ndarray]:
    shared, vectors = same_after_space(made), ngrams(world, made)
    usable = vectors.any(axis=1) & table.any(axis=1)
    anchors = np.array([i for i in shared if usable[i] and made.new[i] != SPECIAL])
    rows, found = made.source[[shared[i] for i in anchors]].astype(np.float64), {}
    for i in np.flatnonzero(usable):
        if i not in shared:
            chosen = sparsemax(unit(vectors[[i]])[0] @ unit(vectors[anchors]).T) > 0
            found[int(i)] = table[i] @ np.linalg.pinv(table[anchors[chosen]], rcond=1e-6) @ rows[chosen]
    return found


def expected_omp(world, made: Made, table: np.ndarray) -> dict[int, np.ndarray]:
    shared, usable = same_strings(made), table.any(axis=1)
    anchors = np.array([i for i in shared if usable[i] and made.new[i] != SPECIAL])
    atoms, rows, found = unit(table[anchors]), made.source[[shared[i] for i in anchors]].astype(np.float64), {}
    for i in np.flatnonzero(usable):
        if i not in shared:
            chosen, rest = [], table[i]
            for _ in range(3):
                chosen.append(int(np.abs(atoms @ rest).argmax()))
                basis = table[anchors[chosen]].T
                weights = np.linalg.lstsq(basis, table[i], rcond=None)[0]
                rest = table[i] - basis @ weights
            found[int(i)] = weights @ rows[chosen]
    return found


def expected_clp(world, made: Made, table: np.ndarray) -> dict[int, np.ndarray]:
    shared = {i: s for i, s in same_strings(made).items() if table[i].any()}
    units, anchors, found = unit(table), list(shared), {}
    for i in np.flatnonzero(table.any(axis=1)):
        if i not in shared:
            cosines = units[anchors] @ units[i]
            found[int(i)] = cosines @ made.source[[shared[a] for a in anchors]].astype(np.float64) / cosines.sum()
    return found


def expected_clp_nearest(world, made: Made, table: np.ndarray) -> dict[int, np.ndarray]:
    def weigh(cosines: np.ndarray) -> np.ndarray:
        kept = np.where(cosines >= np.sort(cosines)[-4], np.maximum(cosines, 0), 0)
        return kept / kept.sum()

    return shares(made, same_strings(made), table, weigh)


def expected_sava(world, made: Made, table: np.ndarray) -> dict[int, np.ndarray]:
    shared = {i: s for i, s in same_strings(made).items() if table[i].any() and made.new[i] != SPECIAL}
    affine = np.column_stack([table, np.ones(len(table))])
    fitted = np.linalg.lstsq(affine[[*shared]], made.source[[*shared.values()]].astype(np.float64), rcond=None)[0]
    return {int(i): affine[i] @ fitted for i in np.flatnonzero(table.any(axis=1)) if i not in same_strings(made)}


_EXPECTED = {"salt": expected_salt, "omp": expected_omp, "clp": expected_clp, "clp_nearest": expected_clp_nearest}
_EXPECTED["sava"] = expected_sava


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["exact", "case", "nospace", "fuzzy"])
def test_the_overlap_decides_what_is_copied(world, command, overlap):
    made = command("--map=Ġand:Ġund", overlap=overlap, **world.inputs())
    rows = {row["rule"]: row for row in made.record["coverage"]["rows"]}
    for how, name in (("copied", "copied"), ("mixed", "mixed"), ("random", "noise")):
        assert sum(row[name] for row in rows.values()) == made.record["counts"][how]
    assert all(rows[rule]["copied"] == rows[rule]["tokens"] for rule in rows if rule != "none")
    assert rows["mapped"]["tokens"] == 1 == rows["special"]["tokens"] and sum(row["tokens"] for row in rows.values()) == 600
    exact = {i for i in same_strings(made) if made.new[i] not in (SPECIAL, "Ġund")}
    assert rows["exact"]["tokens"] == len(exact)
    nospace = {i for i in same_after_space(made) if made.new[i] not in (SPECIAL, "Ġund")} - exact
    assert rows["nospace"]["tokens"] == (len(nospace) if overlap in ("nospace", "fuzzy") else 0) and nospace
    assert (rows["fuzzy"]["tokens"] > 0) == (overlap == "fuzzy") and (rows["case"]["tokens"] > 0) == (overlap == "case")
    und, other = made.new.index("Ġund"), made.old.index("Ġand")
    assert made.plan.copy[und] == other and made.table[und].tobytes() == made.source[other].tobytes()
    assert "Pairs of tokens given by hand come before every other rule: Ġand:Ġund." in made.record["behaviour"]


def test_symbols_are_copied_where_words_are_not(world, command):
    made = command("--symbols", **world.inputs())
    rows = {row["rule"]: row["tokens"] for row in made.record["coverage"]["rows"]}
    assert rows["symbols"] > 20 and rows["exact"] == rows["fuzzy"] == 0
    copied = {made.new[i] for i in np.flatnonzero(made.plan.copy >= 0)}
    assert {",", ".", "Ġ", "1", SPECIAL} <= copied and not any(
        token.lstrip("Ġ").isascii() and token[-1:].isalpha() for token in copied - {SPECIAL, "Ġ"}
    )


def test_keep_source_keeps_every_row_and_appends(world, source, make, tmp_path):
    made = make(keep_source=True, **world.inputs())
    german = load_tokenizer(world.tokenizer("german", "gpt2")).get_vocab()
    assert made.new[:700] == made.old and set(made.new[700:]) == set(german) - set(made.old)
    assert made.table[:700].tobytes() == made.source.tobytes() and len(made.table) == len(made.new) > 900
    model = transformers.AutoModelForCausalLM.from_pretrained(made.directory).eval()
    assert model.config.vocab_size == len(made.new)
    before = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    old, new = (transformers.AutoTokenizer.from_pretrained(place) for place in (source, made.directory))
    tokens = old((world.root / "english.txt").read_text(encoding="utf-8")[:200], return_tensors="pt").input_ids[:, :32]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits[..., :700], before(tokens).logits)
    text = "Die Käuferin ging nicht fort."
    assert new.decode(new(text).input_ids) == text and len(new(text).input_ids) < len(old(text).input_ids)
    assert max(new(text).input_ids) >= 700 and made.plan.is_mixed[700:].sum() > 200
    assert any("keep their ids and rows" in rule for rule in made.record["behaviour"])


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_padding_fills_the_tables_and_never_wins(world, save_source, make, kind):
    directory, _ = save_source(kind)
    made = make(model=directory, style=kind, method="trans_inner_shuffle", pad_to=128)
    loader = transformers.AutoModelForCausalLM if kind == "gpt2" else transformers.AutoModelForMaskedLM
    model, info = loader.from_pretrained(made.directory, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert model.config.vocab_size == 640 == len(made.table) and len(made.new) == 600 == len(made.plan)
    assert all(tensor["shape"][0] == 640 for tensor in made.record["tensors"]) and made.record["settings"]["pad_to"] == 128
    tokens = torch.from_numpy(np.random.default_rng(0).integers(5, 600, (8, 30)))
    with torch.no_grad():
        assert (model.eval()(tokens).logits.argmax(-1) < 600).all()


@pytest.mark.slow
def test_tran_2020(world, command, monkeypatch):
    kept = []

    def watched(*arguments, **options):
        kept.append(align(*arguments, **options))
        return kept[-1]

    monkeypatch.setattr("wechsel_jax.transfers.inputs.align", watched)
    files = world.inputs() | {"dictionary": "identical"}
    made = command(weights="sparsemax", refine=1, temperature=0.5, **files)
    (aligned,) = kept
    assert made.record["alignment"] == aligned.report and aligned.report["refine"] == 1 and aligned.report["pairs"] > 50
    words = [load_vectors(files[name]) for name in ("source_vectors", "target_vectors")]
    old, new = (Vocabulary.from_tokenizer(load_tokenizer(world.tokenizer(name, "gpt2"))) for name in ("english", "german"))
    vectors = aligned.map_source(ngram_vectors(old.words(), words[0])), aligned.map_target(ngram_vectors(new.words(), words[1]))
    known = np.flatnonzero(vectors[0].any(axis=1))
    cosines = unit(vectors[1]) @ unit(vectors[0][known]).T
    rows = made.source[known].astype(np.float64)
    mixed = {i for i in range(600) if vectors[1][i].any() and made.new[i] != SPECIAL}
    made.check({i: sparsemax(cosines[i] / 0.5) @ rows for i in mixed}, 1e-5)
    told = " ".join(made.record["behaviour"])
    assert "spell the same stand in for a dictionary" in told and "refined in 1 round " in told and "sparsemax" in told


@pytest.mark.slow
def test_an_alignment_without_a_dictionary(world, command, tmp_path, monkeypatch, capsys):
    small = functools.partial(AdversarialSettings, epochs=1, iterations=40, hidden=8, most_frequent=300)
    monkeypatch.setattr("wechsel_jax.transfers.inputs.AdversarialSettings", small)
    monkeypatch.setattr(Refinement, "rounds", 1)
    files = {name: value for name, value in world.inputs().items() if name != "dictionary"}
    made = command(alignment="adversarial", **files)
    report = made.record["alignment"]
    assert report["method"] == "adversarial" and report["refine"] == 1 and "pairs_given" not in report
    told = " ".join(made.record["behaviour"])
    assert "aligned adversarially, without a dictionary. The alignment was refined in 1 round on mutual CSLS" in told
    card = (made.directory / "README.md").read_text(encoding="utf-8")
    assert f"| Pairs of words | {report['pairs']:,} | Translations that the aligned vectors themselves proposed" in card
    capsys.readouterr()
    cli.main(["inspect", str(made.directory)])
    assert f"{report['pairs']:,} pairs" in capsys.readouterr().out
    cli.main(["report", str(made.directory), f"--output={tmp_path / 'report.html'}"])
    assert f"{report['pairs']:,}" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_alignment_by_similarities_alone(world, command, monkeypatch):
    small = functools.partial(similarity_map, words=200, keep=0.5)
    monkeypatch.setattr("wechsel_jax.vectors.adversarial.similarity_map", small)
    files = {name: value for name, value in world.inputs().items() if name != "dictionary"}
    made = command("--normalize", "--center", alignment="similarities", refine=2, **files)
    report = made.record["alignment"]
    assert report["settings"]["start"] == "similarities" and report["settings"]["epochs"] == 0
    assert [entry["epoch"] for entry in report["adversarial"]] == [0] and report["refine"] == 2
    words = [load_vectors(files[name]) for name in ("source_vectors", "target_vectors")]
    chosen = AdversarialSettings(start="similarities", epochs=0, refinement=Refinement(rounds=2))
    aligned = adversarial_align(*words, chosen, normalize=True, center=True, csls=True)
    assert report["criterion"] == aligned.report["criterion"]
    told = " ".join(made.record["behaviour"])
    assert "similarities to its own language, without a dictionary. The alignment was refined in 2 rounds" in told


def test_factors_multiply_to_the_table(world, command):
    made = command("--factorised", method="ofa", latent_dimension=6, **world.inputs())
    factors = read_header(made.directory / "factors-transformer.wte.weight.safetensors")
    coordinates, projection = (np.array(factors[name].read()) for name in ("coordinates", "projection"))
    assert coordinates.shape == (600, 6) and projection.shape == (6, 16)
    np.testing.assert_allclose(coordinates @ projection, made.table, atol=1e-6)
    left, values, right = np.linalg.svd(made.source.astype(np.float64), full_matrices=False)
    flat = (left[:, :6] * values[:6]) @ right[:6]
    copied, mixed = np.flatnonzero(made.plan.copy >= 0), np.flatnonzero(made.plan.is_mixed)
    np.testing.assert_allclose(made.table[copied], flat[made.plan.copy[copied]], atol=1e-5)
    expected = np.einsum("tk,tkd->td", made.plan.weights[mixed], flat[made.plan.neighbors[mixed]])
    np.testing.assert_allclose(made.table[mixed], expected, atol=1e-5)
    assert len(mixed) > 100


def test_a_table_of_full_rank_has_no_factors_and_says_so(world, command):
    made = command("--factorised", method="fvt", latent_dimension=16)
    assert not list(made.directory.glob("factors-*"))
    assert any("no factors" in note for note in made.record["notes"])


def test_transforms_change_the_finished_table(make):
    plain = make("plain", method="trans_inner_shuffle").table.astype(np.float64)
    table = make("scaled", method="trans_inner_shuffle", standardize="pretrained_xavier").table
    expected = (plain - plain.mean()) * np.sqrt(2 / (600 + 16)) / plain.std(ddof=1)
    np.testing.assert_allclose(table, expected, atol=1e-7)
    made = make("both", method="trans_inner_shuffle", standardize="pretrained_xavier", shuffle="rows_columns", seed=0)
    assert made.table.tobytes() != table.tobytes()
    assert unshuffle(made.table, "rows_columns", seed=0).tobytes() == table.tobytes()
    assert sum("section 3.4" in rule for rule in made.record["behaviour"]) == 2


def test_the_noise_can_be_chosen(make):
    made = make("mean", method="trans_inner", noise="mean")
    random = made.plan.random
    np.testing.assert_allclose(made.table[random], np.tile(made.source.mean(axis=0), (599, 1)), atol=1e-6)
    rows = make("xavier", method="trans_inner", noise="xavier").table[random]
    limit = np.sqrt(6 / (600 + 16))
    assert 0.99 * limit < np.abs(rows).max() <= limit and rows.std() == pytest.approx(limit / np.sqrt(3), rel=0.03)


def vocabularies(made: Made, source: Path) -> tuple[Vocabulary, Vocabulary]:
    return tuple(Vocabulary.from_tokenizer(load_tokenizer(place)) for place in (source, made.directory))


def test_parity_of_focus_matches_tokens_as_deepfocus_does(world, source, make):
    options = {"method": "focus", "token_vectors": "ngram", "target_vectors": world.vectors("german")}
    made, ours = make(parity=True, **options), make("ours", **options)
    expected = find_overlap(*vocabularies(made, source), "exact", parity="deepfocus").source
    np.testing.assert_array_equal(made.plan.copy, expected)
    assert (made.plan.copy != ours.plan.copy).any()
    told = " ".join(made.record["behaviour"])
    assert "as in PyPI deepfocus" in told and "special tokens too (parity)" in told and "same role" not in told


def test_parity_of_ofa_draws_its_noise(world, source, whole_words, make):
    made = make(method="ofa", parity=True, **world.inputs(target_vectors=whole_words))
    expected = find_overlap(*vocabularies(made, source), "fuzzy", parity="ofa").source
    np.testing.assert_array_equal(made.plan.copy, expected)
    random = made.plan.random
    drawn = np.random.RandomState(114514).normal(made.source.mean(0), made.source.std(0), made.table.shape)
    assert random.sum() > 50
    np.testing.assert_allclose(made.table[random], drawn[random], atol=1e-6)
    told = " ".join(made.record["behaviour"])
    assert "RandomState(114514) (parity)" in told and "as in cisnlp/ofa (parity)" in told


@pytest.mark.parametrize("method", METHODS)
def test_what_is_said_about_parity_is_said_of_parity_only(method):
    needs = dict.fromkeys(METHODS[method].needs, "none") | ({"helper": "there"} if METHODS[method].helper else {})
    told = {}
    for parity in (False, True):
        # A file that every check accepts: only the wording is looked at.
        files = {name: __file__ if name != "dictionary" and name != "helper" else value for name, value in needs.items()}
        told[parity] = behaviour(*TransferSettings.of(method, parity=parity, **files))
    assert not any("parity" in rule or "{" in rule for rule in told[False] + told[True] if rule in told[False])
    new = [rule for rule in told[True] if rule not in told[False]]
    assert all(rule.endswith("(parity).") for rule in new)
    assert bool(new) == (METHODS[method].noise == "source" or method in ("omp", "clp", "focus"))


def test_one_plan_for_an_untied_head_and_its_bias(world, save_source, make):
    directory, model = save_source("roberta", tied=False)
    options = {"method": "focus", "token_vectors": "ngram", "target_vectors": world.vectors("german")}
    made = make(model=directory, style="roberta", **options)
    mixed, copied = np.flatnonzero(made.plan.is_mixed), np.flatnonzero(made.plan.copy >= 0)
    assert len(mixed) > 100 and len(copied) > 100
    new = transformers.AutoModelForMaskedLM.from_pretrained(made.directory).state_dict()
    for name in ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight", "lm_head.bias"):
        matrix = model.state_dict()[name].numpy().astype(np.float64)
        expected = np.einsum("tk,tk...->t...", made.plan.weights[mixed], matrix[made.plan.neighbors[mixed]])
        np.testing.assert_allclose(new[name].numpy()[mixed], expected, atol=2e-6)
        assert (new[name].numpy()[copied] == matrix[made.plan.copy[copied]]).all()


@pytest.mark.slow
def test_the_regression_with_word_vectors_counts_tokens_in_text(world, source, make):
    texts = {"source_text": world.root / "english.txt", "target_text": world.root / "german.txt"}
    made = make(**world.inputs(method="wechsel", regression=True, **texts))
    assert made.record["settings"]["regression"] is True and not any("frequenc" in note for note in made.record["notes"])
    assert made.record["counts"] == {"copied": 1, "mixed": 599, "random": 0}
    assert any("token's vector, frequency and word start" in rule for rule in made.record["behaviour"])
    words = [load_vectors(world.vectors(language)) for language in ("english", "german")]
    aligned = align(*words, read_dictionary(world.dictionary))
    sides = []
    for place, text, known, into in zip(
        (source, made.directory), texts.values(), words, (aligned.map_source, aligned.map_target), strict=True
    ):
        tokenizer, counts = load_tokenizer(place), np.zeros(len(load_tokenizer(place)), int)
        for line in text.read_text(encoding="utf-8").splitlines():
            np.add.at(counts, tokenizer(line, add_special_tokens=False)["input_ids"], 1)
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        sides.append(Side(vocabulary, into(ngram_vectors(vocabulary.words(), known)), counts=counts))
    # How long its rows are decides about the ridge.
    sides[0] = dataclasses.replace(sides[0], embeddings=made.source)
    expected = METHODS["wechsel"].plan(*sides, regression=True).apply(made.source)
    np.testing.assert_allclose(made.table, expected, atol=1e-4)
    alone = make("alone", **world.inputs(method="wechsel", regression=True, residual=2.0))
    # What is not read is noted, and no rule of the record.
    assert any(
        rule.endswith("added to it is 0.5 times the weighted residual of its neighbors.") for rule in alone.record["behaviour"]
    )
    assert "residual was given, but wechsel does not use it." in alone.record["notes"]
    assert "Without source_text and target_text the regression knows no frequencies." in alone.record["notes"]
    assert any("token's vector and word start" in rule for rule in alone.record["behaviour"])
    assert np.abs(alone.table - made.table).max() > 0.01


@pytest.mark.parametrize("name", ["fvt", "mean", "clp", "tokalign"])
def test_a_regression_on_frequency_makes_rows_of_frequent_and_rare_tokens_differ(world, source, make, helper, name):
    """By the command's job, where tokens have no vectors, a helper's rows, or vectors of the same text."""
    texts = {"source_text": world.root / "english.txt", "target_text": world.root / "german.txt"}
    own = {"clp": {"helper": helper}, "tokalign": {"pivots": 16}}.get(name, {})
    made = make(method=name, regression=True, **texts, **own)
    known = {"clp": "helper row, frequency", "tokalign": "vector, frequency"}.get(name, "frequency")
    (rule,) = [rule for rule in made.record["behaviour"] if "ridge regression" in rule]
    assert f"its token's {known} and word start by" in rule
    assert ("added to it is 1 times" in rule) == (name in ("fvt", "mean"))
    assert made.record["settings"]["regression"] is True and made.record["counts"]["random"] == 0
    mixed = np.flatnonzero(made.plan.is_mixed)
    plain = make("plain", method=name, **(texts if name == "tokalign" else {}), **own)
    np.testing.assert_array_equal(made.plan.copy, plain.plan.copy)
    read = sum(len(line) for text in texts.values() for line in text.read_bytes().splitlines())
    assert made.record["cost"]["text_bytes"] == read * (2 if name == "tokalign" else 1)
    assert made.record["cost"]["flops"] > plain.record["cost"]["flops"] > 0 or name == "mean"
    if name == "fvt":
        # Each weight multiplies a row of 16 numbers.
        assert plain.record["cost"] == {"flops": 2 * 16 * np.count_nonzero(plain.plan.weights), "text_bytes": 0}
    if name == "mean":
        tokenizer, counts = load_tokenizer(made.directory), np.zeros(len(made.new), int)
        for line in texts["target_text"].read_text(encoding="utf-8").splitlines():
            np.add.at(counts, tokenizer(line, add_special_tokens=False)["input_ids"], 1)
        # Of one frequency and word start, one row; of others, others.
        starts = np.array([token.startswith("Ġ") for token in made.new])
        alike = {(counts[i], starts[i]) for i in mixed}
        assert 10 < len(np.unique(made.table[mixed].round(4), axis=0)) <= len(alike)
    assert np.abs(made.table[mixed] - plain.table[mixed]).max() > 0.01


def test_an_untied_head_has_weights_of_its_own(world, save_source, make):
    """The asymmetric start, from files to the tables that transformers loads, token by token."""
    directory, model = save_source("roberta", tied=False)
    made = make(model=directory, style="roberta", method="asymmetric")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    new = transformers.AutoModelForMaskedLM.from_pretrained(made.directory).state_dict()
    names = "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight", "lm_head.bias"
    table, head, bias = (model.state_dict()[name].numpy().astype(np.float64) for name in names)
    ordinary = np.setdiff1d(np.arange(len(table)), tokenizer.all_special_ids)
    norms = [np.linalg.norm(matrix[ordinary], axis=1).mean() for matrix in (table, head)]
    checked = 0
    for i in np.flatnonzero(made.plan.is_mixed):
        pieces = tokenizer(made.new[i].replace("Ġ", " "), add_special_tokens=False)["input_ids"]
        # Only ASCII is spelled as the text is.
        if "".join(made.old[j] for j in pieces) != made.new[i]:
            continue
        lengths = np.array([len(made.old[j]) for j in pieces])
        rows = table[pieces].mean(axis=0), lengths @ head[pieces] / lengths.sum()
        for name, row, norm in zip(names, rows, norms, strict=False):
            np.testing.assert_allclose(new[name].numpy()[i], row * norm / np.linalg.norm(row), atol=1e-5)
        np.testing.assert_allclose(new[names[2]].numpy()[i], lengths @ bias[pieces] / lengths.sum(), atol=1e-6)
        checked += len(pieces) > 1
    assert checked > 50 and made.record["counts"]["copied"] > 100


def test_settings_that_are_not_read_are_mentioned(world, make):
    made = make(method="trans_inner", neighbors=5, weights="sparsemax", refine=2, overlap="exact", seed=1)
    unread = [note.split()[0] for note in made.record["notes"] if note.endswith("was given, but trans_inner does not use it.")]
    assert sorted(unread) == ["neighbors", "refine", "weights"] and made.record["counts"]["copied"] > 200
    for name in ("wechsel", "fvt"):
        notes = make(f"{name} with parity", method=name, parity=True, **(world.inputs() if name == "wechsel" else {})).record[
            "notes"
        ]
        assert any("has no choices that a reference implementation" in note for note in notes) == (name == "fvt")
    made = make("reference", parity=True, overlap="exact", map=["Ġand:Ġund"], **world.inputs())
    unread = [note.split()[0] for note in made.record["notes"] if note.endswith("but wechsel with parity does not use it.")]
    assert unread == ["overlap", "map"] and made.record["counts"]["copied"] == 1
    assert not any("same bytes" in rule for rule in made.record["behaviour"])
    assert "Special tokens are copied from the source token that is spelled the same (parity)." in made.record["behaviour"]


def test_what_a_method_reads_depends_on_its_other_settings():
    def unused(name, **given):
        method = METHODS[name]
        return TransferSettings.filled(method, **given).unused(method)

    vectors = {"source_vectors": "a.vec", "target_vectors": "b.vec"}
    assert unused("anker", **vectors, token_vectors="tfr", max_words=100) == ()
    assert unused("anker", dictionary="identical") == ("dictionary",) and unused("anker", dictionary="a.tsv") == ()
    assert unused("wechsel", **vectors, weighting="legacy", dictionary="identical") == ("weighting",)
    assert unused("wechsel", **vectors, weighting="legacy", alignment="similarities") == ("weighting",)
    assert unused("wechsel", **vectors, weighting="legacy", dictionary="a.tsv") == ()
    # There are no pairs by which what similarities find is judged.
    assert unused("wechsel", **vectors, dictionary="identical", alignment="similarities") == ("dictionary",)
    assert unused("wechsel", **vectors, dictionary="a.tsv", alignment="similarities") == ()
    assert {*unused("trelm", start="shared", direction="source", refinements=9)} == {"direction", "refinements"}
    assert unused("trelm", direction="source", refinements=9) == ()
    assert unused("trelm", parity=True, overlap="exact") == ("overlap",)
    zero = [
        behaviour(METHODS["mean"], TransferSettings.filled(METHODS["mean"], head_bias="zeros", **one))
        for one in ({}, {"tune_coefficients": 5})
    ]
    assert "The head's bias is zero." in zero[0] and "The head's bias is zero before what is told below." in zero[1]
    trelm = METHODS["trelm"]
    assert not any("copied" in rule for rule in behaviour(trelm, TransferSettings.filled(trelm, parity=True)))


def test_a_method_of_text_alone_says_that_it_reads_no_words():
    given = {"dictionary": "pairs.tsv", "source_vectors": "en.bin", "target_vectors": "de.bin", "text_bytes": 5}
    unread = {name: TransferSettings.filled(METHODS[name], **given).unused(METHODS[name]) for name in ("anker", "tokalign")}
    assert unread == {"anker": (), "tokalign": ("source_vectors", "target_vectors", "dictionary")}


def test_trelm_without_adversarial_training_does_not_read_its_settings():
    trelm, given = METHODS["trelm"], {"iterations": 9, "most_frequent": 9}
    unused = {epochs: TransferSettings.filled(trelm, epochs=epochs, **given).unused(trelm) for epochs in (0, 1)}
    assert unused == {0: ("iterations", "most_frequent"), 1: ()}


@pytest.mark.parametrize("parity", [False, True])
def test_a_token_that_stands_for_no_text_has_no_mean_over_words(parity):
    """Words in signs that a tokenizer lacks are all its unknown token."""
    tokenizer = wordpiece()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    words = PlainVectors(["hund", "☃☃"], np.eye(2, 4, dtype=np.float32), np.array([2, 1]))
    job = SimpleNamespace(settings=SimpleNamespace(token_vectors="tfr", parity=parity, max_words=None), notes=[])
    vectors = _token_vectors(job, tokenizer, vocabulary, words, "words.vec")
    assert vectors.any() and vectors[vocabulary.id_with_role("unk")].any() == parity


def test_words_without_counts_are_the_more_frequent_the_earlier_their_line(tmp_path):
    tokenizer = wordpiece()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    chosen = np.flatnonzero(vocabulary.word_start & ~vocabulary.special)[[9, 2, 30]]
    lines = [f"{vocabulary.strings[token]} 1 0" for token in chosen]
    (tmp_path / "words.vec").write_text("\n".join([f"{len(lines)} 2", *lines]) + "\n")
    settings = SimpleNamespace(token_vectors="native", target_vectors=str(tmp_path / "words.vec"))
    job = SimpleNamespace(settings=settings, notes=[], target_tokenizer=tokenizer, target=vocabulary)
    _, counts = _target_space(job, Steps(print))
    assert np.argsort(-counts, kind="stable")[: len(lines)].tolist() == chosen.tolist()
    assert not np.delete(counts, chosen).any()
