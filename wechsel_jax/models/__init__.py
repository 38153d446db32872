"""Models as pure functions of nested dictionaries of parameters; `family(model_type)` is the way in.

GPT-2 has a module of its own; BERT, RoBERTa and XLM-R share `encoder.py`; Llama (2, 3, SmolLM2), Mistral, Qwen2, Gemma 1 to 3
(the text model) and XGLM share `decoder.py`. A family's own file reads its `config.json` and names its tensors.
"""

from wechsel_jax.models.config import ModelConfig
from wechsel_jax.models.family import Family
from wechsel_jax.models.registry import family

__all__ = ["Family", "ModelConfig", "family"]
