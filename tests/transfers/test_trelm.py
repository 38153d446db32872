"""A transfer by TreLM's start, from files to a model that transformers loads."""

import json

import numpy as np
import pytest
import transformers

from wechsel_jax.errors import UserError
from wechsel_jax.transfers.job import transfer
from wechsel_jax.vectors import save_vectors
from wechsel_jax.vectors.subwords import native_word


def test_a_transfer_by_turned_vectors(world, save_source, tmp_path):
    directory, model = save_source("roberta", padding=3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(world.tokenizer("german", "roberta"))
    table = model.get_input_embeddings().weight.detach().numpy()
    generator = np.random.default_rng(0)
    chosen = generator.permutation(700)[: len(tokenizer)]
    turn = np.linalg.qr(generator.normal(size=(table.shape[1],) * 2))[0]
    strings = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    order = generator.permutation(len(tokenizer))
    vectors = (5 * table[chosen] @ turn).astype(np.float32)[order]
    save_vectors(tmp_path / "joint.npz", [native_word(strings[i]) for i in order], vectors, np.arange(len(order), 0, -1))
    files = {"method": "trelm", "target_vectors": tmp_path / "joint.npz", "log": lambda line: None}
    record = transfer(directory, world.tokenizer("german", "roberta"), tmp_path / "out", **files)
    assert record["counts"] == {"copied": 5, "mixed": len(tokenizer) - 5, "random": 0}
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    rows = again.get_input_embeddings().weight.detach().numpy()
    similar = np.sum(rows * table[chosen], axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(table[chosen], axis=1)
    assert np.median(similar[5:]) > 0.98
    assert again.lm_head.bias.shape == (len(tokenizer),)
    assert "turned by an orthogonal map" in json.dumps(record["behaviour"])
    save_vectors(tmp_path / "short.npz", ["a"], np.ones((1, 4), np.float32), None)
    with pytest.raises(UserError, match=r"short\.npz: no target token has a vector|trelm: the vectors have 4 dimensions"):
        transfer(
            directory,
            world.tokenizer("german", "roberta"),
            tmp_path / "no",
            **files | {"target_vectors": tmp_path / "short.npz"},
        )
    assert not (tmp_path / "no").exists()
