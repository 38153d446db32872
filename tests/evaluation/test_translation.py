"""Greedy and beam translations against `generate` of transformers, and BLEU against sacrebleu's own programme."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers

from wechsel_jax import cli
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.translation import score_translations, search, translate, writes_lowercase
from wechsel_jax.models.vanilla import TRANSLATOR

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HF = {
    "model_type": "transformer",
    "vocab_size": 29,
    "decoder_vocab_size": 13,
    "d_model": 16,
    "nhead": 4,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "dim_feedforward": 24,
    "max_position_embeddings": 16,
}
BEGIN, END, STEPS = 1, 2, 11


class Writer(transformers.PreTrainedModel, transformers.GenerationMixin):
    """What PyTorch writes after one source, as a model of transformers that reads all of it again for every token."""

    config_class = transformers.PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, reference, tokens, mask):
        super().__init__(transformers.PretrainedConfig(eos_token_id=END, pad_token_id=0, vocab_size=HF["decoder_vocab_size"]))
        self.reference, self.tokens, self.mask = reference, tokens, mask
        self.generation_config = transformers.GenerationConfig()

    def prepare_inputs_for_generation(self, input_ids, **_):
        return {"input_ids": input_ids}

    def forward(self, input_ids, **_):
        rows = len(input_ids)
        logits = self.reference(self.tokens.expand(rows, -1), self.mask.expand(rows, -1), input_ids)
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)

    def _supports_default_dynamic_cache(self):
        return False


@pytest.fixture(scope="module")
def model():
    """(config, parameters, the same in PyTorch): new weights, some larger, so that translations differ and some end early."""
    from tests.models.test_vanilla import Reference

    config = TRANSLATOR.config(HF, dropout=0.0)
    params = jax.tree.map(np.array, jax.jit(TRANSLATOR.init, static_argnums=0)(config, jax.random.key(0)))
    params["head"]["embedding"] *= 3
    for part in ("qkv", "output"):
        params["decoder"]["cross"][part]["kernel"] *= 4
    reference = Reference(HF).eval()
    reference.load_state_dict({n: torch.tensor(x) for n, x in TRANSLATOR.to_hugging_face(params, config).items()})
    return config, params, reference


@pytest.fixture(scope="module")
def sources():
    generator = np.random.default_rng(3)
    tokens = generator.integers(0, 29, (8, 8)).astype(np.int32)
    return tokens, np.arange(8) < generator.integers(2, 9, (8, 1))


# Each number of beams is a program to compile.
@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (4, 1.0), (4, 2.5), pytest.param(3, 0.0, marks=pytest.mark.slow)])
def test_translations_are_those_of_transformers(model, sources, beams, penalty):
    config, params, reference = model
    tokens, mask = sources
    given = (params, tokens, mask, np.float32(penalty))
    written, scores = search(TRANSLATOR, config, "float32", beams, STEPS, (BEGIN, END), *given)
    ended = 0
    for row, source, real, score in zip(np.asarray(written), tokens, mask, np.asarray(scores), strict=True):
        writer = Writer(reference, torch.tensor(source[None]), torch.tensor(real[None])).eval()
        options = {"num_beams": beams, "length_penalty": penalty} if beams > 1 else {}
        theirs = writer.generate(
            torch.tensor([[BEGIN]]),
            max_new_tokens=STEPS,
            do_sample=False,
            use_cache=False,
            eos_token_id=END,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )
        expected = theirs.sequences[0, 1:].tolist()
        expected = expected[: expected.index(END) + 1] if END in expected else expected
        ended += END in expected
        assert row[: len(expected)].tolist() == expected
        if beams > 1:
            assert score == pytest.approx(float(theirs.sequences_scores[0]), abs=2e-5)
        else:
            chosen = [torch.log_softmax(one[0], -1).max().item() for one in theirs.scores]
            assert score == pytest.approx(sum(chosen), abs=2e-5)
    assert 0 < ended < len(tokens), "some translations shall end by themselves, and some be cut"


def test_a_batch_and_its_padding_change_no_translation(model, sources):
    config, params, _ = model
    tokens, mask = sources
    wide = [np.pad(tokens, ((0, 4), (0, 3)), constant_values=5), np.pad(mask, ((0, 4), (0, 3)))]
    wide[1][8:, 0] = True
    settings = (TRANSLATOR, config, "float32", 4, STEPS, (BEGIN, END), params)
    for one, other in zip(search(*settings, tokens, mask, 1.0), search(*settings, *wide, 1.0), strict=True):
        np.testing.assert_allclose(other[:8], one, atol=2e-5)


@pytest.mark.parametrize(
    ("normalizer", "lowercase"),
    [
        (None, False),
        (normalizers.NFC(), False),
        (normalizers.BertNormalizer(), True),
        # ALBERT's and T5's kin put a sign before the text.
        (normalizers.Sequence([normalizers.Lowercase(), normalizers.Prepend("▁")]), True),
        (normalizers.Prepend("▁"), False),
    ],
)
def test_a_tokenizer_without_capitals_is_known(normalizer, lowercase):
    backend = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    if normalizer is not None:
        backend.normalizer = normalizer
    assert writes_lowercase(transformers.PreTrainedTokenizerFast(tokenizer_object=backend)) is lowercase


def test_bleu_is_that_of_the_programme(tmp_path):
    hypotheses = ["A man rides a horse .", "Two dogs, running (fast) in the snow.", "nothing like it"]
    references = ["A man is riding a horse.", "Two dogs running fast in the snow.", "A child at the sea."]
    (tmp_path / "hypotheses").write_text("\n".join(hypotheses) + "\n")
    (tmp_path / "references").write_text("\n".join(references) + "\n")
    for lowercase in (False, True):
        ours = score_translations(hypotheses, references, lowercase=lowercase)
        for metric in ("bleu", "chrf"):
            options = [
                "-m",
                metric,
                "-b",
                "-w",
                "6",
                *(["-lc" if metric == "bleu" else "--chrf-lowercase"] if lowercase else []),
            ]
            call = [
                sys.executable,
                "-m",
                "sacrebleu",
                str(tmp_path / "references"),
                "-i",
                str(tmp_path / "hypotheses"),
                *options,
            ]
            printed = subprocess.run(call, capture_output=True, text=True, check=True).stdout
            assert ours[metric] == pytest.approx(float(printed), abs=1e-5)
        assert f"case:{'lc' if lowercase else 'mixed'}" in ours["signature"]
    with pytest.raises(UserError, match="3 translations and 2 references; expected one for each"):
        score_translations(hypotheses, references[:2])


@pytest.mark.parametrize("beams", [1, 2])
def test_scores_that_are_no_numbers_make_no_translation(model, beams, tmp_path):
    config, params, _ = model
    backend = Tokenizer(models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3}, unk_token="<pad>"))
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    params = params | {"head": jax.tree.map(lambda one: one * np.nan, params["head"])}
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    damaged = LoadedModel(tmp_path, TRANSLATOR, config, params, tokenizer, {}, "float32", mesh, tokenizer)
    with pytest.raises(UserError, match="the score of a token is no number; expected weights that give one"):
        translate(damaged, ["a a"], beams=beams, max_tokens=2)


def test_a_penalty_of_beams_is_refused_where_there_are_none(tmp_path, capsys):
    (tmp_path / "in.txt").write_text("a b\n")
    for beams in ((), ("--beams=1",)):
        with pytest.raises(SystemExit):
            cli.main(["translate", str(tmp_path), f"--input={tmp_path}/in.txt", "--length_penalty=2", *beams])
        assert "--length_penalty: has no effect on a greedy translation; leave it out" in capsys.readouterr().err
