"""The baselines, the registry, and redrawn tensors against transformers' own initialisation."""

import inspect

import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS, Side, TransferPlan
from wechsel_jax.initializers.full_rand import ARCHITECTURES, full_rand, redraw, require_architecture
from wechsel_jax.initializers.trans_inner import trans_inner, trans_inner_shuffle
from wechsel_jax.initializers.trans_tokenization import Translations
from wechsel_jax.tokens.overlap import RULES, Overlap, find_overlap


def make_sides(fakes, sources=40, targets=60, roles="roberta_roles", dimension=5):
    generator = np.random.default_rng(0)
    made = []
    for prefix, size in (("s", sources), ("t", targets)):
        tokens = fakes.vocabulary(prefix, size, getattr(fakes, roles))
        made.append(Side(tokens, *generator.standard_normal((2, size, dimension)).astype(np.float32)))
    return made


@pytest.mark.parametrize("name", METHODS)
def test_every_method_makes_a_valid_plan_and_copies_what_is_shared(fakes, name):
    method = METHODS[name]
    assert method.name == name and method.summary and method.paper
    source, target = make_sides(fakes)
    given = {"overlap": shared_tokens(source, target), "pieces": tuple(np.array([7, i % 40]) for i in range(60))}
    given["translations"] = Translations([(7,), (8, 9)], [(12,), (13,)], np.array([20.0, 11.0]))
    plan = method.plan(source, target, **{option: value for option, value in given.items() if option in method.options})
    plan.validate(40)
    assert len(plan) == 60
    # Anker asks the contexts too.
    if not method.redraw_inner and not method.text:
        assert (plan.copy[given["overlap"].shared] == given["overlap"].source[given["overlap"].shared]).all()
    positional = [p.name for p in inspect.signature(method.plan).parameters.values() if p.name not in method.options]
    assert positional == ["source", "target"]


def shared_tokens(source, target) -> Overlap:
    """The special tokens by role, and every third target token with the source token of the same number."""
    found = find_overlap(source.vocabulary, target.vocabulary)
    chosen = np.arange(5, 40, 3)
    found.source[chosen], found.rule[chosen] = chosen, RULES.index("exact")
    return found


def test_what_the_methods_ask_for():
    described = {name: (m.needs, m.vectors, m.helper, m.overlap, m.noise) for name, m in METHODS.items()}
    both, one = ("source_vectors", "target_vectors", "dictionary"), ("target_vectors",)
    assert described == {
        "wechsel": (both, "ngram", False, "special", "source"),
        "wechsel_tfr": (both, "tfr", False, "special", "source"),
        "anker": (("source_text", "target_text"), None, False, "special", "source"),
        "ofa": (both, "ngram", False, "case", "source"),
        "focus": (one, "native", False, "exact", "source_sample"),
        "salt": (one, "ngram", True, "nospace", "source"),
        "sava": ((), None, True, "exact", "source"),
        "omp": ((), None, True, "exact", "source"),
        "clp": ((), None, True, "exact", "source"),
        "clp_nearest": ((), None, True, "exact", "source"),
        "trelm": (one, "native", False, "special", "source"),
        "trans_tokenization": (("parallel",), None, False, "special", "source"),
        "tokalign": (("source_text", "target_text"), None, False, "exact", "source"),
        "fvt": ((), None, False, "exact", "source"),
        "asymmetric": ((), None, False, "exact", "source"),
        "mean": ((), None, False, "exact", "mean"),
        "multivariate": ((), None, False, "exact", "multivariate"),
        "trans_inner": ((), None, False, "special", "initializer_range"),
        "trans_inner_shuffle": ((), None, False, "special", "initializer_range"),
        "full_rand": ((), None, False, "special", "initializer_range"),
    }
    assert [name for name, method in METHODS.items() if method.redraw_inner] == ["full_rand"]
    assert METHODS["trans_inner_shuffle"].options == ("overlap", "seed")


def test_trans_inner_copies_special_tokens_only(fakes):
    plan = trans_inner(*make_sides(fakes))
    assert plan.counts() == {"copied": 5, "mixed": 0, "random": 55}
    assert plan.copy[:5].tolist() == [0, 1, 2, 3, 4]
    assert full_rand(*make_sides(fakes)).counts() == {"copied": 0, "mixed": 0, "random": 60}


@pytest.mark.parametrize("sources,targets", [(60, 60), (80, 60), (40, 150)])
def test_shuffled_rows_are_used_evenly(fakes, sources, targets):
    plan = trans_inner_shuffle(*make_sides(fakes, sources, targets), seed=3)
    assert plan.counts()["copied"] == targets
    uses = np.bincount(plan.copy[5:], minlength=sources)
    assert not uses[:5].any() and uses[5:].max() - uses[5:].min() <= 1
    again, other = (trans_inner_shuffle(*make_sides(fakes, sources, targets), seed=seed) for seed in (3, 4))
    np.testing.assert_array_equal(plan.copy, again.copy)
    assert (plan.copy != other.copy).mean() > 0.8
    assert (plan.copy[5:] == np.arange(5, targets)).mean() < 0.2


def test_ids_without_a_token_are_no_source(fakes):
    source, target = make_sides(fakes, roles="gpt2_roles")
    strings = list(source.vocabulary.strings)
    strings[30:] = [""] * 10
    holes = type(source.vocabulary)(
        tuple(strings), source.vocabulary.bytes, source.vocabulary.word_start, source.vocabulary.roles, "byte_bpe"
    )
    plan = trans_inner_shuffle(Side(holes), target)
    assert plan.copy[1:].max() == 29 and plan.copy[1:].min() == 1


SIZES = {
    "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "head_dim": 24, "max_position_embeddings": 66, "vocab_size": 50, "initializer_range": 0.05, "pad_token_id": 1,
}  # fmt: skip
OWN_SIZES = {
    "gpt2": {"n_layer": 3, "n_embd": 96, "n_head": 4, "n_positions": 64, "vocab_size": 50, "initializer_range": 0.05},
    "roberta": SIZES | {"type_vocab_size": 1},
    "xglm": {
        "num_layers": 2, "d_model": 96, "attention_heads": 4, "ffn_dim": 128, "max_position_embeddings": 66, "vocab_size": 50,
        "init_std": 0.05,
    },
}  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_redrawn_tensors_have_the_statistics_of_a_new_model(architecture):
    torch = pytest.importorskip("torch")
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(architecture, **OWN_SIZES.get(architecture, SIZES))
    masked = architecture in ("roberta", "bert")
    model = (transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM).from_config(config)
    settings = {"seed": 1, "initializer_range": 0.05, "layers": 3, "architecture": architecture, "padding_row": 1}
    # The tables with a vocabulary axis are the plan's, whose noise knows of padding rows what it has to.
    tensors = {
        name: tensor
        for name, tensor in model.named_parameters()
        if architecture in ("gpt2", "roberta") or config.vocab_size not in tensor.shape
    }
    assert len(tensors) > 15
    for name, parameter in tensors.items():
        theirs, mine = parameter.detach().numpy(), redraw(name, tuple(parameter.shape), np.float32, **settings)
        np.testing.assert_array_equal((mine == 0).all(axis=-1), (theirs == 0).all(axis=-1), err_msg=name)
        if not theirs.std():
            np.testing.assert_array_equal(mine, theirs, err_msg=name)
            continue
        assert mine.std() == pytest.approx(theirs.std(), rel=6 / np.sqrt(theirs.size)), name
        assert abs(mine.mean()) < 5 * theirs.std() / np.sqrt(theirs.size), name
    for name, _ in model.named_buffers():
        assert redraw(name, (2, 2), np.float32, **settings) is None, name


def test_a_redrawn_tensor_depends_on_seed_and_name_only():
    settings = {"initializer_range": 0.02, "layers": 2, "architecture": "gpt2"}
    first = redraw("h.0.mlp.c_fc.weight", (8, 16), np.float32, seed=1, **settings)
    redraw("h.1.mlp.c_fc.weight", (8, 16), np.float32, seed=1, **settings)
    np.testing.assert_array_equal(first, redraw("h.0.mlp.c_fc.weight", (8, 16), np.float32, seed=1, **settings))
    for name, seed in (("h.1.mlp.c_fc.weight", 1), ("h.0.mlp.c_fc.weight", 2)):
        assert not np.isin(redraw(name, (8, 16), np.float32, seed=seed, **settings), first).any()


def test_buffers_stay_and_strangers_are_refused():
    settings = {"seed": 0, "initializer_range": 0.02, "layers": 2}
    for name in ("transformer.h.0.attn.bias", "h.0.attn.masked_bias", "roberta.embeddings.position_ids"):
        assert redraw(name, (1, 1, 4, 4), np.float32, architecture="gpt2", **settings) is None
    assert redraw("h.0.attn.c_attn.bias", (4,), np.float16, architecture="gpt2", **settings).dtype == np.float16
    for name, value in (("bert.embeddings.LayerNorm.gamma", 1), ("bert.embeddings.LayerNorm.beta", 0)):
        assert (redraw(name, (4,), np.float32, architecture="bert", **settings) == value).all()
    with pytest.raises(UserError, match="cannot initialise a t5 model; expected one of gpt2, roberta, bert, llama"):
        redraw("shared.weight", (4, 4), np.float32, architecture="t5", **settings)
    require_architecture("mistral")
    with pytest.raises(UserError, match="cannot initialise a bloom model"):
        require_architecture("bloom")
    with pytest.raises(UserError, match=r"the tensor h\.0\.gate is no parameter"):
        redraw("h.0.gate", (4,), np.float32, architecture="gpt2", **settings)


def test_a_plan_without_neighbors_applies():
    matrix = np.arange(12, dtype=np.float32).reshape(4, 3)
    plan = TransferPlan.copied(np.array([2, -1, 0]))
    noise = np.full((3, 3), 7, np.float32)
    assert plan.apply(matrix, noise).tolist() == [[6, 7, 8], [7, 7, 7], [0, 1, 2]]
