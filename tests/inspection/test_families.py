"""A transfer of other families than GPT-2, and the perplexity of what came out against `transformers`."""

import numpy as np
import pytest
import torch
import transformers

from wechsel_jax import Checkpoint, transfer
from wechsel_jax.evaluation.step_zero import perplexity_at_zero

_LLAMA = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
KINDS = {
    "llama": _LLAMA,
    "gemma3_text": _LLAMA | {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
}


@pytest.fixture(scope="module", params=KINDS)
def german(request, world, tmp_path_factory):
    """A random English model of another family with a German vocabulary, by FVT."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(world.tokenizer("english", "gpt2"))
    special = {f"{role}_token_id": 0 for role in ("bos", "eos", "pad")}
    fields = KINDS[request.param] | {"vocab_size": len(tokenizer), **special}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(request.param, **fields))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape))
    directory = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    output = directory / "german"
    transfer(directory, world.tokenizer("german", "gpt2"), output, method="fvt", log=lambda line: None)
    return output


@pytest.mark.slow
def test_perplexity_is_that_of_transformers(german, world):
    text = world.root / "german.txt"
    found = perplexity_at_zero(Checkpoint.open(german), text, tokens_limit=31)
    assert "reason" not in found, found
    tokenizer = transformers.AutoTokenizer.from_pretrained(german)
    model = transformers.AutoModelForCausalLM.from_pretrained(german, attn_implementation="eager").eval()
    assert type(model).__name__ in model.config.architectures
    ids = []
    for line in text.read_text(encoding="utf-8").split("\n"):
        ids += [*tokenizer.encode(line), 0] if line.strip() else []
        if len(ids) > 32:
            break
    window = torch.tensor([ids[:32]])
    with torch.no_grad():
        nats = torch.nn.functional.cross_entropy(model(window).logits[0, :-1], window[0, 1:], reduction="none")
    # Documents end with token 0, which stands for no text.
    spoken = [i for i in ids[1:32] if i != 0]
    size = len("".join(tokenizer.decode(spoken)).encode())
    assert 0 < len(spoken) < 31 and found["bytes"] == size
    in_text = float(nats[torch.tensor([i != 0 for i in ids[1:32]])].sum())
    assert found["bits_per_byte"] == pytest.approx(in_text / np.log(2) / size, rel=1e-5)
    loss = nats.mean()
    assert found["tokens"] == 31 and not found["masked"]
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert np.isfinite(found["perplexity"])
