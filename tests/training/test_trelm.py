"""TreLM's three phases: what each trains, the model between them, kills in every phase, and mistakes."""

import copy
import json
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.training.runs import last_step, lines_without_timing
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.data.align import align_pairs
from wechsel_jax.data.parallel import Sentences, write_pairs
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_directory
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.training import default_trelm_config, train, train_trelm, trelm
from wechsel_jax.training.trelm import PHASES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS, STEPS = 20, 6


def write_bert(place, names, seed, hidden_size=16):
    """Saves a BERT of two layers that is drawn from the seed, with words as its tokens."""
    backend = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=backend, **roles).save_pretrained(place)
    described = transformers.BertConfig(
        vocab_size=len(names), hidden_size=hidden_size, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(seed)
    transformers.BertForMaskedLM(described).save_pretrained(place)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT of two layers, pairs in which the second language writes the first's words the other way round, and text."""
    folder, generator = tmp_path_factory.mktemp("trelm"), random.Random(0)
    names = [*SPECIAL, *(f"a{i}" for i in range(WORDS)), *(f"b{i}" for i in range(WORDS))]
    write_bert(folder / "bert", names, 0)
    facts = {"vocabulary_size": len(names), "before": [2], "after": [3], "pad_id": 0, "languages": ["a", "b"]}
    for name, count in (("pairs", 60), ("held-out", 12)):
        sizes = [generator.randint(2, 12) for _ in range(count)]
        first = [[5 + generator.randrange(WORDS) for _ in range(size)] for size in sizes]
        second = [[word + WORDS for word in reversed(sentence)] for sentence in first]
        starts = np.cumsum([0, *sizes])
        links = np.concatenate([np.arange(size)[::-1] for size in sizes])
        with new_directory(folder / name, "align") as place:
            write_pairs(place, [Sentences(np.concatenate(one), starts) for one in (first, second)], [links, links], facts)
        lines = [" ".join(f"b{word - 5 - WORDS}" for word in sentence) for sentence in second]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def settings(folder, tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("compiled"))

    def make(**changes):
        config = default_trelm_config()
        config.source = str(folder / "bert")
        trains = ({"trainable": "^(?!layers/)"}, {"layers": "1:"}, {"layers": ":1"}, {})
        for name, trained in zip(PHASES, trains, strict=True):
            phase = config[name]
            phase.objective = "cdlm" if name in ("forward", "backward") else "mlm"
            phase.data.rows = {"commonality": "masked", "language": ""}.get(name, name)
            data = ("pairs.txt", "held-out.txt") if name == "language" else ("pairs", "held-out")
            phase.data.train, phase.data.validation = ((str(folder / place),) for place in data)
            phase.phases = ({"name": name, "fraction": 1.0, **trained},)
            phase.steps, phase.batch_size, phase.block_length = STEPS, 4, 16
            phase.eval_every, phase.checkpoint_every, phase.log_every = 3, 2, 1
            phase.optimizer.peak_learning_rate = 3e-2
            phase.mesh.data = 1
            phase.compilation_cache = cache
        config.update(changes)
        return config

    return make


@pytest.fixture(scope="module")
def whole(runs, settings, tmp_path_factory):
    """The workdir of a training that nobody disturbed."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    runs.finish(settings(), workdir)
    return workdir


def tensors(place):
    checkpoint = Checkpoint.open(place)
    return {name: np.asarray(checkpoint.read(name)) for name in checkpoint.names()}


@pytest.mark.slow
def test_the_model_begins_as_the_source_with_a_copied_layer(whole, folder):
    source, start = tensors(folder / "bert"), tensors(whole / "start")
    config = Checkpoint.open(whole / "start").config
    assert (config["model_type"], config["language_count"], config["architectures"]) == ("tri-bert", 2, ["TriBertForMaskedLM"])
    rows = start.pop("bert.embeddings.language_embeddings.weight")
    np.testing.assert_allclose(rows @ rows.T, np.eye(2), atol=1e-6)
    for name, value in start.items():
        # Of two layers the first is layer N / 2.
        np.testing.assert_array_equal(value, source[name.replace("tri_layer", "layer.0")], err_msg=name)


@pytest.mark.slow
def test_each_phase_trains_what_it_shall(whole):
    start, commonality = tensors(whole / "start"), tensors(whole / "commonality" / "export")
    forward, backward = (tensors(whole / name / "export") for name in ("forward", "backward"))

    def changed(before, after):
        moved = {name for name in before if not np.array_equal(before[name], after[name])}
        parts = {"0": "encoder.layer.0.", "1": "encoder.layer.1.", "tri": "tri_layer", "languages": "language_embeddings"}
        return {part for part, where in parts.items() if any(where in name for name in moved)}

    assert changed(start, commonality) == {"tri", "languages"}
    assert changed(commonality, forward) == {"1", "tri", "languages"}
    assert changed(commonality, backward) == {"0", "tri", "languages"}
    lines = [json.loads(line) for line in (whole / "forward" / "metrics.jsonl").read_text().splitlines()]
    losses = [line for line in lines if line["kind"] == "eval"]
    assert {"cdlm_loss", "mlm_loss"} <= {*losses[-1]} and losses[-1]["cdlm_loss"] < losses[0]["cdlm_loss"]


@pytest.mark.slow
def test_the_combination_is_numpys_of_the_exports(whole):
    forward, backward = (tensors(whole / name / "export") for name in ("forward", "backward"))
    for name, value in tensors(whole / "combined").items():
        expected = (forward[name].astype(np.float64) + backward[name]) / 2
        if "encoder.layer." in name:
            expected = (backward if "encoder.layer.0." in name else forward)[name]
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.slow
def test_what_is_exported_is_an_ordinary_bert_with_a_layer_more(whole):
    results = json.loads((whole / "trelm.json").read_text())
    place = whole / results["model"]
    model, loading = transformers.AutoModelForMaskedLM.from_pretrained(place, output_loading_info=True)
    assert type(model).__name__ == "BertForMaskedLM" and model.config.num_hidden_layers == 3
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not hasattr(model.config, "language_count")
    # What the last phase began with is what was folded.
    first = json.loads((whole / "language" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["step"] == 0 and first["loss"] == results["folding"]["folded"] != results["folding"]["tri_layer"]
    assert results["phases"]["language"]["loss"] < first["loss"]


def assert_same(one, other):
    for name in PHASES:
        assert lines_without_timing(one / name) == lines_without_timing(other / name)
    for place in ("start", "combined", "folded", *(f"{name}/export" for name in PHASES)):
        for file in ("model.safetensors", "config.json"):
            assert (one / place / file).read_bytes() == (other / place / file).read_bytes(), (place, file)
    assert (one / "folding.json").read_bytes() == (other / "folding.json").read_bytes()
    assert sorted(path.name for path in other.glob(".*")) == [".lock"]


@pytest.mark.slow
def test_killed_in_every_phase_and_between_them_it_goes_on_exactly(runs, settings, whole, tmp_path):
    workdir, config = tmp_path / "run", settings()
    made = ("start", "combined", "folded", "folding.json")
    # What is killed, and how much of `made` is there then.
    moments = {"start": 0, "commonality": 1, "forward": 1, "backward": 1, "combined": 1, "folded": 2, "folding.json": 3}
    for name, count in (moments | {"language": 4}).items():
        if name in PHASES:
            run = runs.start(config, workdir)
            while last_step(workdir / name) < 3:
                assert run.alive, run.output
                time.sleep(0.002)
            run.send(signal.SIGKILL)
        else:
            run = runs.start(config, workdir, at=[f"os.rename .{name}.*.partial", 1])
        assert run.wait() == -signal.SIGKILL, run.output
        assert [place for place in made if (workdir / place).exists()] == [*made[:count]]
        if name == "backward":
            # What a phase begins with moves with it.
            workdir = workdir.rename(tmp_path / "moved")
    runs.finish(config, workdir)
    assert_same(whole, workdir)
    assert (workdir / "trelm.json").exists()


@pytest.mark.slow
def test_the_folding_is_measured_on_the_text_that_there_is(settings, whole, tmp_path):
    """The last phase's settings may change until it begins."""
    workdir, config = tmp_path / "run", settings()
    shutil.copytree(whole, workdir, ignore=shutil.ignore_patterns("language"))
    lines = Path(config.language.data.validation[0]).read_text().splitlines(keepends=True)
    (tmp_path / "other.txt").write_text("".join(reversed(lines[len(lines) // 2 :])))
    config.language.data.validation = (str(tmp_path / "other.txt"),)
    before, found = (train_trelm(one, place)["folding"] for one, place in ((settings(), whole), (config, workdir)))
    assert {*before} == {*found} == {"tri_layer", "folded"} and before["folded"] != found["folded"]
    evaluations = [json.loads(line) for line in (workdir / "language" / "metrics.jsonl").read_text().splitlines()]
    assert evaluations[0]["step"] == 0 and evaluations[0]["loss"] == found["folded"]
    (whole / "folding.json").rename(tmp_path / "kept.json")
    (whole / "folding.json").write_text('{"tri_layer": 1.0}')
    with pytest.raises(UserError, match=r"folding\.json: .*folded.*; remove it, and it is measured again"):
        train_trelm(settings(), whole)
    (tmp_path / "kept.json").replace(whole / "folding.json")


@pytest.mark.slow
def test_finished_phases_are_kept_and_settings_that_changed_are_refused(settings, whole):
    other = settings()
    other.forward.steps = STEPS + 1
    with pytest.raises(UserError, match=r"forward/config\.json: the run there has other settings: steps was 6, now 7"):
        train_trelm(other, whole)
    with pytest.raises(UserError, match=r"config\.json: the run there has other settings: fold_first was true, now false"):
        train_trelm(settings(fold_first=False), whole)
    # As if the pairs had been other ones when the first phase was trained.
    known = (whole / "texts.json").read_text()
    other = json.loads(known)
    other["commonality"]["train"][0]["sha256"] = "other"
    (whole / "texts.json").write_text(json.dumps(other))
    with pytest.raises(
        UserError, match=r"commonality\.data\.train: pairs: has changed since this phase was trained; restore it"
    ):
        train_trelm(settings(), whole)
    (whole / "texts.json").write_text(known)


def test_mistakes_are_found_before_anything_is_made(settings, folder, tmp_path, monkeypatch):
    def refused(match, **changes):
        config = settings()
        for name, value in changes.items():
            *parents, field = name.split("__")
            place = config
            for parent in parents:
                place = place[parent]
            place[field] = value
        with pytest.raises(UserError, match=match):
            train_trelm(config, tmp_path / "run")
        assert not (tmp_path / "run" / "start").exists()

    refused("source: is empty", source="")
    refused("language: steps: is 0", language__steps=0)
    refused("language: nowhere.txt: no such file", language__data__train=("nowhere.txt",))
    refused("backward: data.train: .*pairs.txt: holds no aligned", backward__data__train=(str(folder / "pairs.txt"),))
    for name, value in (("max_bytes", 10), ("deduplicate", True), ("documents", "files"), ("text_field", "body")):
        refused(f"forward: data.{name}: is .* it is for text", **{f"forward__data__{name}": value})
    refused(
        "forward: data.train: .* objective=cdlm and data.rows='masked'; .* rows such as forward", forward__data__rows="masked"
    )
    for name, other in (("forward", "backward"), ("backward", "forward_in_turns")):
        refused(f"{name}: data.rows: is '{other}'; expected '{name}'", **{f"{name}__data__rows": other})
    refused("language.distributed: differs from commonality.distributed", language__distributed__processes=2)
    monkeypatch.setitem(sys.modules, "wandb", None)
    refused("backward: wandb: not installed", backward__trackers__wandb="project")
    refused("forward.objective: is cdlm, which needs the TRILayer", tri_layer=False)
    refused('forward.model.checkpoint: is .*; expected ""', forward__model__checkpoint="elsewhere")
    refused("backward.export_dtype: is bfloat16; expected float32", backward__export_dtype="bfloat16")
    refused("language.objective: is mlm_nsp, which is for an ordinary encoder", language__objective="mlm_nsp", fold_first=False)
    refused("language: data.train: .*pairs.txt: each line is a document", language__objective="mlm_nsp")
    described = transformers.GPT2Config(vocab_size=45, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    transformers.GPT2LMHeadModel(described).save_pretrained(tmp_path / "gpt2")
    refused("a model of type gpt2; expected an encoder: roberta, xlm-roberta, bert", source=str(tmp_path / "gpt2"))


def test_what_does_not_fit_the_model_is_found_before_the_first_phase(settings, folder, whole, tmp_path):
    config = settings()
    config.backward.phases = ({"name": "backward", "fraction": 1.0, "layers": ":6"},)
    with pytest.raises(UserError, match=r"backward: phases: trains the layers :6 of 2, of which :1 are .* set depth=2"):
        train_trelm(config, tmp_path / "run")
    config = settings()
    config.forward.phases = ({"name": "forward", "fraction": 1.0, "layers": "0:1"},)
    with pytest.raises(UserError, match=r"forward: phases: trains the layers 0:1 of 2, of which 1: are taken .* set depth=2"):
        train_trelm(config, tmp_path / "run")
    # The last phase trains an ordinary encoder with the TRILayer as a third layer.
    for trained, message in (
        ({"trainable": "^nothing$"}, r"language: phases: trainable '\^nothing\$' matches no parameter"),
        ({"layers": "1:4"}, "language: phases: layers '1:4' of a model with 3 layers"),
        ({"trainable": "tri_layer"}, "language: phases: trainable 'tri_layer' matches no parameter"),
    ):
        config = settings()
        config.language.phases = ({"name": "language", "fraction": 1.0, **trained},)
        with pytest.raises(UserError, match=message):
            train_trelm(config, tmp_path / "run")
    config = settings()
    config.forward.optimizer.groups = ({"match": "embeddings", "kind": "frozen"},)
    config.forward.phases = ({"name": "forward", "fraction": 1.0, "trainable": "embeddings"},)
    with pytest.raises(UserError, match=r"forward: .*trainable 'embeddings' matches only what optimizer.groups freeze"):
        train_trelm(config, tmp_path / "run")
    config = settings()
    config.language.mesh.data, config.language.batch_size = 2, 3
    with pytest.raises(UserError, match=r"language: batch_size: .* devices cannot share"):
        train_trelm(config, tmp_path / "run")
    for name, kind in (("forward", dict), ("language", ConfigDict)):
        config = settings()
        config[name].optimizer.groups = (kind({"match": "^nothing/", "rate": 2.0}),)
        with pytest.raises(UserError, match=rf"{name}: optimizer\.groups\[0\]\.match: '\^nothing/' finds no parameter"):
            train_trelm(config, tmp_path / "run")
    config = settings()
    config.source, config.tri_layer = str(whole / "start"), False
    config.forward.objective = config.backward.objective = "tlm"
    with pytest.raises(UserError, match=r"tri_layer: is False, and .*start has a TRILayer; expected True, or the encoder"):
        train_trelm(config, tmp_path / "other")
    config = settings()
    config.forward.block_length = 17
    with pytest.raises(UserError, match=r"forward: block_length: 17 .* 16 positions; .*: --config\.forward\.block_length=16"):
        train_trelm(config, tmp_path / "run")
    shutil.copytree(folder / "pairs", tmp_path / "pairs")
    facts = json.loads((tmp_path / "pairs" / "pairs.json").read_text())
    for changed, message in (
        (
            {"tokenizer": {"name": "other", "vocabulary": "0" * 64}},
            r"was aligned with the tokens of another tokenizer \(other\)",
        ),
        ({"aligner": {"name": "none"}}, "was made with --aligner=none; expected links"),
    ):
        (tmp_path / "pairs" / "pairs.json").write_text(json.dumps(facts | changed))
        config = settings()
        config.backward.data.validation = (str(tmp_path / "pairs"),)
        with pytest.raises(UserError, match=f"backward: .*pairs: {message}"):
            train_trelm(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_workdir_of_another_program_is_left_as_it_is(settings, tmp_path):
    (tmp_path / "run").mkdir()
    for name, content in (("config.json", {"methods": ["anker"], "training": {}}), ("texts.json", {})):
        (tmp_path / "run" / name).write_text(json.dumps(content))
    (tmp_path / "run" / ".lock").write_text("process 1 on there\n")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(UserError, match=r"run: holds config.json, and nothing that a TreLM training wrote; expected"):
        train_trelm(settings(), tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_until_a_phase_begins_other_settings_and_another_model_take_their_place(settings, folder, tmp_path, monkeypatch):
    def started(**changes):
        monkeypatch.setattr(trelm, "_train", stop)
        with pytest.raises(KeyboardInterrupt):
            train_trelm(settings(source=str(tmp_path / "bert"), **changes), tmp_path / "run")
        return (tmp_path / "run" / "start" / "model.safetensors").read_bytes()

    def stop(*arguments):
        raise KeyboardInterrupt

    shutil.copytree(folder / "bert", tmp_path / "bert")
    first = started()
    assert started() == first
    second = started(seed=1)
    assert second != first and json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 1
    names = list(load_tokenizer(folder / "bert").get_vocab())
    shutil.rmtree(tmp_path / "bert")
    write_bert(tmp_path / "bert", sorted(names, key=load_tokenizer(folder / "bert").convert_tokens_to_ids), 7)
    assert started(seed=1) not in (first, second)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seed", 1 << 32, "seed: is 4294967296; expected a number from 0 to 2147483647"),
        ("forward.seeds", 3, r"forward\.seeds: is 3; expected none: a phase is one run"),
        ("backward.fork", "elsewhere", r"backward\.fork: is 'elsewhere'; expected none"),
        ("forward.mesh.data", 1000, "forward: mesh: data=1000, .* and there are 8; expected at most as many"),
        ("language.data.train", ("short.txt",), "language: .*expected at least one block of"),
        ("language.data.validation", ("utf16.txt",), "language: .*utf16.txt: .*UTF-16"),
    ],
)
def test_a_mistake_in_any_phase_is_found_before_the_first(settings, tmp_path, monkeypatch, field, value, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("a b\n")
    (tmp_path / "utf16.txt").write_text("a b c\n" * 100, encoding="utf-16")
    config = settings()
    config.update_from_flattened_dict({field: value})
    with pytest.raises(UserError, match=message):
        train_trelm(config, tmp_path / "run")
    assert not (tmp_path / "run" / "commonality").exists()


def test_pairs_of_other_languages_or_the_other_way_round_are_refused(settings, folder, tmp_path):
    turned = shutil.copytree(folder / "held-out", tmp_path / "turned")
    facts = json.loads((turned / "pairs.json").read_text())
    (turned / "pairs.json").write_text(json.dumps(facts | {"languages": ["b", "a"]}))
    for name, sides, message in (
        ("commonality", ("validation",), r"commonality: data\.validation: .*turned: is of b and a; expected a and b, in order"),
        ("forward", ("train", "validation"), r"forward: data\.train: .*turned: is of b and a; .*pairs is; .*--languages=a,b"),
    ):
        config = settings()
        config[name].data.update(dict.fromkeys(sides, (str(turned),)))
        with pytest.raises(UserError, match=message):
            train_trelm(config, tmp_path / "run")
    assert not (tmp_path / "run" / "commonality").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("pairs.json", "{", r"pairs\.json: .*expected the record of prepared data"),
        ("pairs.json", "{}", r"pairs\.json: .*sha256.*; prepare it again"),
        ("texts.json", '{"commonality": 3}', r"texts\.json: .*commonality.*put it back from a copy"),
    ],
)
def test_a_damaged_record_is_one_line(settings, folder, tmp_path, file, content, message):
    shutil.copytree(folder / "pairs", tmp_path / "pairs")
    (tmp_path / "run").mkdir()
    (tmp_path / ("pairs" if file == "pairs.json" else "run") / file).write_text(content)
    config = settings()
    config.commonality.data.train = (str(tmp_path / "pairs"),)
    if file == "texts.json":
        # What was made before the first training is made again; here there is some.
        (tmp_path / "run" / ".lock").write_text("process 1\n")
        (tmp_path / "run" / "commonality").mkdir()
        (tmp_path / "run" / "commonality" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=message):
        train_trelm(config, tmp_path / "run")


@pytest.mark.slow
def test_separate_vocabularies_end_as_a_model_of_the_second_language_alone(settings, folder, tmp_path):
    """The paper's CdLM*: rows of both languages one behind the other, no table of languages, CdLM and MLM in turns."""
    lines = [sentence.split() for sentence in (folder / "pairs.txt").read_text().splitlines()]
    first = [*SPECIAL, *(f"a{i}" for i in range(WORDS))]
    write_bert(tmp_path / "first", first, 1)
    write_bert(tmp_path / "second", [*SPECIAL, *(f"b{i}" for i in reversed(range(WORDS)))], 2)
    write_bert(tmp_path / "wide", first, 3, hidden_size=18)
    pairs = [(" ".join(word.replace("b", "a") for word in line[::-1]), " ".join(line)) for line in lines]
    (tmp_path / "en-de.tsv").write_text("".join(f"{one}\t{two}\n" for one, two in pairs))
    apart = {"languages": ("en", "de"), "first_tokenizer": tmp_path / "first"}
    align_pairs([tmp_path / "en-de.tsv"], tmp_path / "second", tmp_path / "pairs", **apart)
    config = settings(source=str(tmp_path / "second"), first=str(tmp_path / "first"))
    for name in PHASES[:3]:
        config[name].data.train = config[name].data.validation = (str(tmp_path / "pairs"),)
        config[name].data.rows += "_in_turns" * (name != "commonality")
    wrong = copy.deepcopy(config)
    for place, message in (("wide", r"first: .*wide: is another model than .*second; expected the one"), ("none", "no such")):
        wrong.first = str(tmp_path / place)
        with pytest.raises(UserError, match=message):
            train_trelm(wrong, tmp_path / "run")
    results = train_trelm(config, tmp_path / "run")
    one, two, start = (tensors(place) for place in (tmp_path / "first", tmp_path / "second", tmp_path / "run" / "start"))
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        np.testing.assert_array_equal(start[name], np.concatenate([two[name], one[name]]))
    assert "bert.embeddings.language_embeddings.weight" not in start
    forward, backward = (tensors(tmp_path / "run" / name / "export") for name in ("forward", "backward"))
    table, name = tensors(tmp_path / "run" / "combined"), "bert.embeddings.word_embeddings.weight"
    size = len(SPECIAL) + WORDS
    np.testing.assert_allclose(table[name], (forward[name][:size].astype(np.float64) + backward[name][:size]) / 2, rtol=1e-6)
    losses = [json.loads(line) for line in (tmp_path / "run" / "forward" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["cdlm_loss"] for line in losses if line["kind"] == "eval"]
    assert losses[-1] < losses[0]
    place = tmp_path / "run" / results["model"]
    model = transformers.AutoModelForMaskedLM.from_pretrained(place)
    assert (type(model).__name__, model.config.num_hidden_layers, model.config.vocab_size) == ("BertForMaskedLM", 3, size)
    assert load_tokenizer(place).get_vocab() == load_tokenizer(tmp_path / "second").get_vocab()


@pytest.mark.slow
def test_text_and_pairs_are_not_taken_for_each_other(settings, folder, tmp_path, whole):
    for changes, match in (
        ({"data__train": (str(folder / "pairs.txt"),)}, "holds no aligned sentences, which data.rows=forward is for"),
        ({"objective": "mlm"}, "aligned sentences with objective=mlm and data.rows='forward'; expected cdlm, tlm or brlm"),
        ({"data__rows": "sideways"}, "'sideways': no such kind; expected one of forward, backward"),
    ):
        config = copy.deepcopy(settings()).forward
        config.model.checkpoint = str(whole / "start")
        for name, value in changes.items():
            place = config.data if name.startswith("data__") else config
            place[name.removeprefix("data__")] = value
        with pytest.raises(UserError, match=match):
            train(config, tmp_path / "run")
