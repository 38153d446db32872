"""Heads that give labels or trees: a model with one is a `Family` like any other.

What a model with labels exports loads in Hugging Face's class; that of trees is in `models.trees`.
"""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec

from wechsel_jax.errors import UserError
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.dropout import Dropout
from wechsel_jax.models.family import Family
from wechsel_jax.models.layers import keep_rows, normal
from wechsel_jax.models.registry import FAMILIES, family
from wechsel_jax.models.trees import DROPOUT as TREE_DROPOUT
from wechsel_jax.models.trees import TreeHead, head_flops, head_weights
from wechsel_jax.models.trilayer import PREFIX
from wechsel_jax.models.vanilla import MODEL_TYPE, TRANSLATOR
from wechsel_jax.models.weights import Weight, linear

# What is predicted -> how the name of Hugging Face's class ends: a label for a text or a pair, one for each token, where in the
# text an answer starts and ends, trees, for which there is no class: the name is ours; and a role for each token.
FORMS = {
    "classification": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "answers": "ForQuestionAnswering",
    "parsing": "ForDependencyParsing",
    "roles": "ForTokenClassification",
}
# In config.json, what tells roles from other labels of tokens.
ROLES = "semantic_roles"
# Forms that transformers has no class for, though for those of other families.
_WITHOUT = {
    "gemma": ("answers",),
    "gemma2": ("answers",),
    "gemma3_text": ("tagging", "answers"),
    # A head is for the ordinary encoder that these become.
    **{name: (*FORMS,) for name in FAMILIES if name.startswith(PREFIX)},
    "xglm": ("classification", "tagging", "answers"),
}
# How the name of BERT's class with both heads of its pretraining ends, and what the scores of the second are called there.
PRETRAINING, NEXT_SENTENCE = "ForPreTraining", "cls.seq_relationship"
_STEMS = {"gpt2": "GPT2", "gemma3_text": "Gemma3Text"}
# These name their model otherwise than their language models do.
_PREFIXES = {"LlamaForQuestionAnswering": "transformer.", "Qwen2ForQuestionAnswering": "transformer."}
_OURS = "classifier"
_RULES = (
    (rf"^{_OURS}/\w+/kernel$", PartitionSpec("fsdp", None)),
    # What else there is, is small or has an odd number of rows.
    (rf"^{_OURS}/(\w+/bias|\w+)$", PartitionSpec()),
)
# Of language models, which a model with another head does without.
_LANGUAGE_MODEL = r"|^lm_head\.|^cls\.|^pooler\."


class LabelHead(nn.Module):
    """From the last hidden states to scores, as Hugging Face's class of the form does it."""

    config: ModelConfig
    dtype: Any
    deterministic: bool
    form: str
    causal: bool

    @nn.compact
    def __call__(self, hidden: jax.Array, mask: jax.Array | None) -> jax.Array:
        """hidden (B, L, d), mask bool (B, L) or None -> float32 (B, C), (B, L, C) (tagging) or (B, 2, L) (answers)."""
        config, pooled = self.config, self.form == "classification" and not self.causal
        vanilla = config.model_type == MODEL_TYPE
        settings = {"dtype": self.dtype, "kernel_init": normal(config.initializer_range)}
        dropout = Dropout(config.classifier_dropout, deterministic=self.deterministic)
        x = hidden
        if pooled and vanilla:
            # The mean of a text, of which Kim et al. say nothing.
            real = jnp.ones(x.shape[:2]) if mask is None else mask.astype(jnp.float32)
            x = (jnp.einsum("bld,bl->bd", x, real) / jnp.sum(real, axis=1, keepdims=True)).astype(self.dtype)
        elif pooled:
            # BERT's pooler belongs to the model, so no dropout stands before it.
            x = x[:, 0] if config.model_type == "bert" else dropout(x[:, 0])
            x = jnp.tanh(nn.Dense(config.hidden_size, name="dense", **settings)(keep_rows(x)))
        elif self.form == "classification":
            last = jnp.full(x.shape[:1], x.shape[1] - 1)
            if mask is not None:
                last = jnp.max(jnp.where(mask, jnp.arange(x.shape[1]), 0), axis=1)
            x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        bias = not (self.causal and self.form == "classification")
        scores = nn.Dense(config.labels, use_bias=bias, name="output", **settings)(dropout(x)).astype(jnp.float32)
        if self.form != "answers":
            return scores
        scores = jnp.moveaxis(scores, -1, 1)
        # Hugging Face lets answers start in the padding; then how far a batch is padded would change the loss.
        return scores if mask is None else jnp.where(mask[:, None], scores, -jnp.inf)


@lru_cache
def _module(backbone: type[nn.Module], form: str, causal: bool) -> type[nn.Module]:
    class WithHead(backbone):
        """A backbone with a head for labels; what of the backbone is not used, such as its own head, has no parameters."""

        def setup(self):
            super().setup()
            self.classifier = LabelHead(self.config, self.dtype, self.deterministic, form, causal)

        def __call__(self, tokens: jax.Array, mask: jax.Array | None = None, *types: jax.Array) -> jax.Array:
            read = mask
            if self.config.label_padding_id is not None:
                other = tokens != self.config.label_padding_id
                read = other if mask is None else mask & other
            return self.classifier(self.hidden(tokens, mask, *types), read)

        @staticmethod
        def head_flops(config: ModelConfig) -> float:
            """FLOPs of the head for one token, forward; of a whole text's head too little to count."""
            return 0.0 if form == "classification" else 2.0 * config.hidden_size * config.labels

    return WithHead


@lru_cache
def _parsing_module(backbone: type[nn.Module]) -> type[nn.Module]:
    class WithTrees(backbone):
        """A backbone with a head for trees."""

        def setup(self):
            super().setup()
            self.classifier = TreeHead(self.config, self.dtype, self.deterministic)

        def __call__(self, tokens: jax.Array, mask: jax.Array | None = None, *types: jax.Array, **words: jax.Array) -> Any:
            return self.classifier(self.hidden(tokens, mask, *types), **words)

        head_flops = staticmethod(head_flops)

    return WithTrees


@lru_cache
def with_head(backbone: Family, form: str, labels: int) -> Family:
    """Returns a family whose models have a head for labels or trees in place of the one for tokens.

    Args:
      backbone: a family of language models.
      form: one of `FORMS`.
      labels: C, how many there are; of answers 2, start and end; of trees relations.

    Raises:
      UserError: transformers has no such class of this family.
    """
    if form in _WITHOUT.get(backbone.name, ()):
        possible = [other for other in FORMS if other not in _WITHOUT[backbone.name] and other != "roles"]
        hint = f"expected {' or '.join(possible)}" if possible else "take another model"
        raise UserError(f"objective: transformers has no class for {form} with a {backbone.name}; {hint}")
    if form == "roles" and backbone.causal:
        raise UserError(
            f"objective: roles does not fit a {backbone.name}, whose words do not see the predicate behind the sentence; "
            "expected a model that reads both ways, as bert or roberta"
        )
    stem = _STEMS.get(backbone.name, backbone.architecture.split("For")[0])
    biased = not (backbone.causal and form == "classification")
    if form == "answers":
        output = "qa_outputs"
    elif not backbone.causal:
        plain = form != "classification" or backbone.name in ("bert", MODEL_TYPE)
        output = "classifier" if plain else "classifier.out_proj"
    else:
        output = "classifier" if form == "tagging" and backbone.name == "gpt2" else "score"
    names = {"output": output}
    if form == "classification" and not backbone.causal and backbone.name != MODEL_TYPE:
        names["dense"] = "pooler.dense" if backbone.name == "bert" else "classifier.dense"
    linears = [weight for ours, theirs in names.items() for weight in linear(f"{_OURS}/{ours}", theirs, biased=biased)]
    head = head_weights(_OURS) if form == "parsing" else linears

    def weights(config: ModelConfig) -> tuple[Weight, ...]:
        return (*(weight for weight in backbone.tensors.weights(config) if not weight.path.startswith("head/")), *head)

    def read_config(hf: Mapping[str, Any]) -> ModelConfig:
        config = backbone.read_config(hf)
        default = 0.1 if backbone.causal else config.residual_dropout
        stated = Fields(hf, {"classifier_dropout": None}).optional("classifier_dropout", float)
        if form == "parsing":
            default = TREE_DROPOUT
        # The other heads have none.
        drops = form in ("tagging", "parsing", "roles") or (form == "classification" and not backbone.causal)
        rate = (default if stated is None else stated) if drops else 0.0
        padding = config.pad_token_id
        if padding is None:
            padding = Fields(hf, {"pad_token_id": None}).optional("pad_token_id")
        at_the_end = backbone.causal and form == "classification"
        return dataclasses.replace(
            config, labels=labels, classifier_dropout=rate, label_padding_id=padding if at_the_end else None
        )

    tensors, architecture = backbone.tensors, stem + FORMS[form]
    return dataclasses.replace(
        backbone,
        architecture=architecture,
        module=_parsing_module(backbone.module) if form == "parsing" else _module(backbone.module, form, backbone.causal),
        read_config=read_config,
        tensors=dataclasses.replace(
            tensors,
            prefix=_PREFIXES.get(architecture, tensors.prefix),
            other_prefixes=(tensors.prefix,),
            ignored=tensors.ignored + _LANGUAGE_MODEL,
            weights=weights,
        ),
        sharding_rules=(*backbone.sharding_rules, *_RULES),
    )


@lru_cache
def _guessing_module(backbone: type[nn.Module]) -> type[nn.Module]:
    class WithGuess(backbone):
        """A backbone that keeps its head for tokens and has BERT's pooler, with two scores, beside it."""

        def setup(self):
            super().setup()
            # Between pooler and scores BERT has no dropout here.
            config = dataclasses.replace(self.config, labels=2, classifier_dropout=0.0)
            self.classifier = LabelHead(config, self.dtype, self.deterministic, "classification", False)

        def __call__(self, tokens: jax.Array, mask: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
            hidden = self.hidden(tokens, mask)
            return self.logits(hidden), self.guess(hidden)

        def guess(self, hidden: jax.Array) -> jax.Array:
            return self.classifier(hidden, None)

    return WithGuess


@lru_cache
def with_next_sentence(backbone: Family) -> Family:
    """Returns BERT's family as it is pretrained: with a head for tokens, and pooler and scores for next sentence prediction.

    What it exports loads in Hugging Face's `BertForPreTraining`.

    Raises:
      UserError: the family has no such class, or a model of it tells no segments apart.
    """
    if backbone.name.removeprefix(PREFIX) != "bert":
        raise UserError(
            f"objective: mlm_nsp does not fit a {backbone.name}, which has neither token types nor a pooler for it; expected a "
            "bert, or mlm"
        )

    def read_config(hf: Mapping[str, Any]) -> ModelConfig:
        config = backbone.read_config(hf)
        if config.type_vocabulary_size < 2:
            raise UserError("config.json: type_vocab_size is 1; expected 2 for mlm_nsp, whose rows have two segments")
        return config

    def weights(config: ModelConfig) -> tuple[Weight, ...]:
        head = linear(f"{_OURS}/dense", "pooler.dense"), linear(f"{_OURS}/output", NEXT_SENTENCE)
        return (*backbone.tensors.weights(config), *head[0], *head[1])

    return dataclasses.replace(
        backbone,
        architecture=backbone.architecture.split("For")[0] + PRETRAINING,
        module=_guessing_module(backbone.module),
        read_config=read_config,
        tensors=dataclasses.replace(backbone.tensors, weights=weights),
        sharding_rules=(*backbone.sharding_rules, *_RULES),
    )


def stated_head(hf: Mapping[str, Any]) -> tuple[str, tuple[str, ...]] | None:
    """Returns (form, labels in their order) where a `config.json` names a class with a head for labels, else None.

    Raises:
      UserError: the labels are not numbered from 0.
    """
    named = hf.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    form = next((form for form, ending in FORMS.items() if name.endswith(ending)), None)
    if form is None:
        return None
    if form == "answers":
        return form, ("start", "end")
    form = "roles" if form == "tagging" and hf.get(ROLES) else form
    stated = hf.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    try:
        numbered = {int(number): str(label) for number, label in stated.items()}
    except (AttributeError, ValueError, TypeError):
        numbered = {}
    if sorted(numbered) != list(range(len(numbered))) or not numbered:
        raise UserError(f"config.json: id2label is {stated!r}; expected numbers from 0 and their labels")
    return form, tuple(numbered[number] for number in range(len(numbered)))


def stated_family(hf: Mapping[str, Any]) -> Family:
    """Returns the family of a `config.json`: with the head that it names, or a language model.

    Raises:
      UserError: there is no such family here.
    """
    if is_translator(hf):
        return TRANSLATOR
    backbone, head = family(hf.get("model_type")), stated_head(hf)
    return backbone if head is None else with_head(backbone, head[0], len(head[1]))


def is_translator(hf: Mapping[str, Any]) -> bool:
    """Whether a `config.json` describes an encoder-decoder, see `vanilla`."""
    return hf.get("model_type") == MODEL_TYPE and "decoder_vocab_size" in hf


def fill_head(
    tensors: Mapping[str, Any], of_model: Family, config: ModelConfig, key: jax.Array, *, same_labels: bool
) -> dict[str, Any]:
    """Adds a new head to the tensors of a checkpoint.

    Args:
      tensors: name -> array.
      of_model: a family with a head.
      config: of the model.
      key: draws the head, with Hugging Face's initialisation.
      same_labels: whether the checkpoint's labels are the model's, so that its head is kept. Otherwise only its pooler is.

    Returns:
      name -> array: those of the backbone as they are, and a whole head.
    """
    names = of_model.tensors
    present, filled = names.present(tensors), dict(tensors)
    for name, new in names.write({_OURS: jax.device_get(_new_head(of_model, config, key))}, config, under=f"{_OURS}/").items():
        own = present.get(name.removeprefix(names.prefix))
        fits = own is not None and tuple(np.shape(tensors[own])) == new.shape
        if not (fits and (same_labels or "pooler" in name)):
            if own is not None:
                del filled[own]
            filled[name] = new
    return filled


@partial(jax.jit, static_argnums=(0, 1))
def _new_head(of_model: Family, config: ModelConfig, key: jax.Array) -> dict[str, Any]:
    # The backbone, which nobody reads, is never drawn.
    return of_model.init(config, key)[_OURS]
