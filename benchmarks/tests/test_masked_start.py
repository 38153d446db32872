"""`benchmarks/masked_start.py` writes a RoBERTa that others read, with the rows and positions that it says."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks import masked_start
from wechsel_jax import demo, train_tokenizer
from wechsel_jax.tokens import load_tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, dict[str, int], int]:
    folder = tmp_path_factory.mktemp("masked")
    tokenizer = train_tokenizer(demo.path("english.validation.txt.xz"), 600, folder / "tokenizer", style="roberta")
    shared = masked_start.start(folder / "tokenizer", folder / "start")
    return folder / "start", tokenizer.get_vocab(), shared


def test_transformers_reads_every_tensor(made):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model, report = transformers.RobertaForMaskedLM.from_pretrained(made[0], output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.isfinite(model(torch.tensor([[0, 50, 60, 2]])).logits).all()
    tokens = transformers.AutoTokenizer.from_pretrained(made[0])("a man")["input_ids"]
    assert (tokens[0], tokens[-1]) == (0, 2)


def test_rows_of_shared_tokens_are_the_bundled_models_but_for_their_mean_and_length(made):
    folder, vocabulary, shared = made
    source = Path(demo.path("english-gpt2"))
    table = next(v for k, v in load_file(source / "model.safetensors").items() if k.endswith("wte.weight")).astype(np.float64)
    known = load_tokenizer(str(source)).get_vocab()
    both = [token for token in vocabulary if token in known]
    assert shared == len(both) > 500
    rows = load_file(folder / "model.safetensors")[masked_start.TABLES.format("word")]
    ours, theirs = rows[[vocabulary[t] for t in both]], (table - table.mean(axis=0))[[known[t] for t in both]]
    np.testing.assert_allclose(ours, theirs * (0.04 / (table - table.mean(axis=0)).std()), rtol=1e-3, atol=1e-6)
    other = rows[vocabulary["<mask>"]]
    assert "<mask>" not in known and 0.01 < other.std() < 0.03


def test_positions_are_alike_by_their_distance_alone(made):
    positions = load_file(made[0] / "model.safetensors")[masked_start.TABLES.format("position")].astype(np.float64)
    products = positions @ positions.T
    for distance in (0, 1, 5):
        assert np.ptp(np.diag(products, distance)) < 1e-4 * products[0, 0]
    assert products[0, 0] > products[0, 1] > products[0, 5]
