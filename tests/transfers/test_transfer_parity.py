"""Parity with PyPI wechsel 0.0.4: the same matrices, up to ties and float error."""

import dataclasses

import fasttext
import numpy as np
import pytest
import scipy.special
import wechsel

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.transfers.job import transfer


def quiet(_line: str) -> None:
    """Progress that no test reads."""


def run(source, tokenizer, output, **options) -> dict:
    return transfer(source, tokenizer, output, log=quiet, **options)


@dataclasses.dataclass(frozen=True)
class Reference:
    """What PyPI wechsel makes of the same inputs, and which rows it leaves to chance."""

    matrix: np.ndarray
    sources: dict
    random: set


def _word(string: str) -> str:
    """What a token is without the space before it."""
    return string.removeprefix("Ġ")


def reference(world, model, tfr: bool) -> Reference:
    english, german = (load_tokenizer(world.tokenizer(language, "roberta")) for language in ("english", "german"))
    vectors = [fasttext.load_model(str(world.vectors(language))) for language in ("english", "german")]
    package = wechsel.WECHSEL(*vectors, bilingual_dictionary=str(world.dictionary))
    matrix, info = package.apply(
        english, german, model.get_input_embeddings().weight.detach().numpy(), use_subword_info=not tfr
    )
    return Reference(matrix, info.sources, set(info.not_found))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["wechsel", "wechsel_tfr"])
def test_parity_reproduces_the_wechsel_package(world, save_source, tmp_path, method):
    directory, model = save_source("roberta")
    expected = reference(world, model, tfr=method == "wechsel_tfr")
    record = run(directory, world.tokenizer("german", "roberta"), tmp_path / "out", method=method, **world.inputs(parity=True))
    made = Checkpoint.open(tmp_path / "out")
    found = made.read(made.table)
    plan = TransferPlan.load(tmp_path / "out" / "transfer_plan.npz")
    table = model.get_input_embeddings().weight.detach().numpy()
    strings = load_tokenizer(tmp_path / "out").convert_ids_to_tokens(range(600))
    source_strings = load_tokenizer(directory).convert_ids_to_tokens(range(700))
    assert {strings[i] for i in np.flatnonzero(plan.random)} == expected.random - {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}
    assert {strings[i] for i in np.flatnonzero(plan.copy >= 0)} == {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}
    differing = set()
    for row, string in enumerate(strings):
        if np.allclose(found[row], expected.matrix[row], atol=2e-4):
            continue
        # Only the choice among equally similar tokens at the last rank may differ: the weights are the same, whoever is in one
        # list only has the similarity of the last rank, and the row is the mixture that the plan says.
        names, weights, similarities = expected.sources[string]
        np.testing.assert_allclose(np.sort(plan.weights[row]), np.sort(weights), atol=2e-4)
        ours = {source_strings[i] for i in plan.neighbors[row]}
        extra = [similarity for name, similarity in zip(names, similarities, strict=True) if name not in ours]
        assert extra and max(extra) - min(similarities) < 1e-4, string
        np.testing.assert_allclose(found[row], plan.weights[row] @ table[plan.neighbors[row]], atol=2e-4)
        # A token has the same vector with and without a space, and all 160 bytes without a text of their own have one: what
        # counts is how many mixtures differ, not in how many rows. The vectors are made anew in every run, by racing threads.
        if sorted(map(_word, ours)) != sorted(map(_word, names)):
            differing.add(frozenset(names))
    assert len(differing) < 0.1 * len({frozenset(names) for names, *_ in expected.sources.values()}), differing
    assert any("(parity)" in rule for rule in record["behaviour"])


def test_parity_weights_are_those_of_the_package(world, save_source, tmp_path):
    directory, model = save_source("roberta")
    expected = reference(world, model, tfr=False)
    options = world.inputs(parity=True, neighbors=3, temperature=0.5)
    run(directory, world.tokenizer("german", "roberta"), tmp_path / "out", **options)
    plan = TransferPlan.load(tmp_path / "out" / "transfer_plan.npz")
    strings = load_tokenizer(tmp_path / "out").convert_ids_to_tokens(range(600))
    for row in np.flatnonzero(plan.is_mixed):
        best = np.sort(np.array(expected.sources[strings[row]][2]))[::-1][:3]
        np.testing.assert_allclose(np.sort(plan.weights[row])[::-1], scipy.special.softmax(best / 0.5), atol=1e-4)


def test_the_default_differs_from_parity_where_it_says_so(world, save_source, tmp_path):
    directory, _ = save_source("roberta")
    for name, parity in (("default", False), ("parity", True)):
        run(directory, world.tokenizer("german", "roberta"), tmp_path / name, **world.inputs(parity=parity))
    default, parity = (TransferPlan.load(tmp_path / name / "transfer_plan.npz") for name in ("default", "parity"))
    tokenizer = load_tokenizer(tmp_path / "default")
    partial = tokenizer.convert_tokens_to_ids("Ã")  # the first byte of "ä" and others: no text of its own
    assert default.random[partial] and not np.array_equal(default.weights, parity.weights)
    random = default.random & parity.random
    drawn = [Checkpoint.open(tmp_path / name).read("lm_head.bias")[random] for name in ("default", "parity")]
    assert random.any() and not np.array_equal(*drawn)
