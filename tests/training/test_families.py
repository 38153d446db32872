"""A whole run of another family than GPT-2: its perplexity falls, and what is exported is what was trained."""

import math

import pytest
from ml_collections import ConfigDict

from wechsel_jax.data import TokenBlocks, evaluation_batches
from wechsel_jax.training import train
from wechsel_jax.training.metrics import read_metrics
from wechsel_jax.training.schedules import one_phase

GEMMA = {
    "model_type": "gemma3_text",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
    "pad_token_id": None,
}


@pytest.mark.slow
def test_export_of_a_run_has_its_last_perplexity(make_config, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    workdir = tmp_path / "run"
    config = make_config(model__config=ConfigDict(GEMMA), mesh__data=1, phases=one_phase(warmup=0.1))
    result = train(config, workdir)
    first, *_, last = (line for line in read_metrics(workdir / "metrics.jsonl") if line["kind"] == "eval")
    assert last["loss"] < first["loss"] - 0.5
    model = transformers.AutoModelForCausalLM.from_pretrained(workdir / "export", attn_implementation="eager").eval()
    assert type(model).__name__ == "Gemma3ForCausalLM"
    blocks = TokenBlocks.open(workdir / "data" / "validation", config.block_length)
    total = weight = 0.0
    for batch in evaluation_batches(blocks, config.batch_size, True):
        tokens, weights = torch.tensor(batch["tokens"]).long(), torch.tensor(batch["weights"]).float()
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(model(tokens).logits[:, :-1].mT, tokens[:, 1:], reduction="none")
        total += float((losses * weights[:, 1:]).sum())
        weight += float(weights[:, 1:].sum())
    assert result["loss"] == pytest.approx(total / weight, rel=1e-4)
    assert result["perplexity"] == pytest.approx(math.exp(total / weight), rel=1e-3)
