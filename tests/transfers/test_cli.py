"""The command line: every verb does its job, every mistake is one line and exit status 2, help imports nothing heavy."""

import errno
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import fasttext
import numpy as np
import pytest
from absl import flags

from wechsel_jax import cli, demo
from wechsel_jax.commands.transfer import define
from wechsel_jax.initializers import METHODS, TransferPlan
from wechsel_jax.program import program
from wechsel_jax.transfers.settings import described_settings
from wechsel_jax.vectors import load_vectors

HEAVY = {"jax", "numpy", "transformers", "tokenizers", "flax", "huggingface_hub", "torch", "safetensors", "matplotlib"}


def call(*arguments) -> None:
    cli.main([str(argument) for argument in arguments])


def mistake(capsys, *arguments) -> str:
    """Runs a command that must fail; returns its line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        call(*arguments)
    out, err = capsys.readouterr()
    assert caught.value.code == 2 and out == ""
    lines = [line for line in err.splitlines() if "error:" in line]
    assert len(lines) == 1 and "Traceback" not in err
    return lines[0]


@pytest.fixture(scope="module")
def transferred(world, source, tmp_path_factory):
    """A German GPT-2 made by the command line."""
    output = tmp_path_factory.mktemp("cli") / "out"
    call(
        "transfer",
        f"--source={source}",
        f"--target_tokenizer={world.tokenizer('german', 'gpt2')}",
        f"--output={output}",
        f"--source_vectors={world.vectors('english')}",
        f"--target_vectors={world.vectors('german')}",
        f"--dictionary={world.dictionary}",
        "--neighbors=4",
        "--temperature=0.2",
        "--noparity",
    )
    return output


def test_transfer_passes_its_flags_on(transferred):
    record = json.loads((transferred / "transfer.json").read_text(encoding="utf-8"))
    assert record["settings"]["neighbors"] == 4 and record["settings"]["temperature"] == 0.2
    assert TransferPlan.load(transferred / "transfer_plan.npz").neighbors.shape == (600, 4)


def test_inspect_shows_checkpoint_plan_and_tokens(transferred, capsys):
    call("inspect", transferred, "--tokens=Ġfür,Ġund,Ã")
    out = capsys.readouterr().out
    assert "vocabulary: 600 rows of 16, tied head" in out and "transformer.wte.weight: F32 [600, 16] (input)" in out
    assert "eos: 0 <|endoftext|>" in out and "plan: 600 tokens, " in out
    lines = {line.split(" (")[0]: line for line in out.split("\n")}
    assert ": mixed: " in lines["Ġfür"]
    # What fastText's threads race for is in the plan: the vectors differ from run to run.
    plan = TransferPlan.load(transferred / "transfer_plan.npz")
    for token in ("Ġfür", "Ġund"):
        weights = plan.sources(int(re.search(r"\((\d+)\)", lines[token])[1]))[1]
        assert len(weights) == 4 and weights.sum() == pytest.approx(1, abs=1e-6), (lines[token], weights)
        found = [float(x) for x in re.findall(r" (\d\.?[\de.-]*)(?=,|$)", lines[token])]
        # Four digits that count.
        assert found == pytest.approx(weights.tolist(), rel=5.1e-4), (lines[token], weights)
    # Half a character, asked for by its spelling and shown as its byte; its one piece is what the source has of it.
    assert lines[r"\xc3"].endswith(": random")
    call("inspect", transferred, "--tokens=für")
    assert "für (" in capsys.readouterr().out


def test_inspect_of_a_model_without_a_plan(source, capsys):
    call("inspect", source, "--all")
    out = capsys.readouterr().out
    assert "plan" not in out and "transformer.h.1.mlp.c_fc.weight: F32 [16, 64]" in out


def test_tokens_that_are_none_are_named(transferred, source, capsys):
    with pytest.raises(SystemExit):
        call("inspect", transferred, "--tokens=Donaudampfschiff")
    assert "Donaudampfschiff: no single token" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        call("inspect", source, "--tokens=a")
    assert "has no transfer_plan.npz" in capsys.readouterr().err


def test_vectors_align_and_inspect(world, tmp_path, capsys):
    output = tmp_path / "en.npz"
    call(
        "vectors", "align", f"--source={world.vectors('english')}", f"--target={world.vectors('german')}",
        f"--dictionary={world.dictionary}", f"--source_output={output}", "--normalize",
    )  # fmt: skip
    out = capsys.readouterr().out
    assert "normalize: True" in out and "residual: " in out
    aligned, original = load_vectors(output), load_vectors(world.vectors("english"))
    assert list(aligned.words) == list(original.words)
    norms = np.linalg.norm(aligned.rows(np.arange(50)), axis=1)
    np.testing.assert_allclose(norms, 1, atol=1e-3)
    call("vectors", "inspect", output, "--words=the", "--neighbors=3")
    out = capsys.readouterr().out
    assert f"words: {len(original.words)}" in out and "character n-grams: no" in out and "\nthe: " in out
    assert len(re.findall(r" -?\d\.\d{3}(?:, |$)", out.splitlines()[-1])) == 3
    call("vectors", "inspect", world.vectors("english"), "--words=the,thexthe", "--neighbors=3")
    out = capsys.readouterr().out
    assert "\nthe: " in out and "\nthexthe (not in the file, by its n-grams): " in out


def test_words_that_fasttext_has_cut_within_a_character_are_written_once(tmp_path, capsys):
    text = tmp_path / "text.txt"
    words = (b"haus", b"hund", b"katze", b"sch", b"sch\xc3", b"gr\xc3\xb6")
    drawn = np.random.default_rng(0).integers(len(words), size=(2000, 8))
    text.write_bytes(b"\n".join(b" ".join(words[i] for i in row) for row in drawn) + b"\n")
    # As fastText cuts words that are too long. Its vectors are NaN where it has fewer threads.
    options = {"dim": 4, "minCount": 1, "epoch": 1, "bucket": 20, "thread": 11, "verbose": 0}
    fasttext.train_unsupervised(str(text), **options).save_model(str(tmp_path / "cut.bin"))
    call(
        "vectors", "align", f"--source={tmp_path / 'cut.bin'}", f"--target={tmp_path / 'cut.bin'}", "--dictionary=identical",
        f"--source_output={tmp_path / 'one.npz'}", f"--target_output={tmp_path / 'two.npz'}",
    )  # fmt: skip
    found = load_vectors(tmp_path / "two.npz")
    assert sorted(found.words) == ["</s>", "grö", "haus", "hund", "katze", "sch"]
    assert "two.npz: 6 words" in capsys.readouterr().out
    cut = load_vectors(tmp_path / "cut.bin")
    first = [cut.words.index(word) for word in found.words]
    np.testing.assert_allclose(found.rows(np.arange(6)), cut.rows(np.array(first)), atol=1e-6)


def test_vectors_train_and_tokenizer(world, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text((world.root / "german.txt").read_text(encoding="utf-8")[:60_000], encoding="utf-8")
    call("tokenizer", f"--input={text}", "--vocab_size=300", f"--output={tmp_path / 'tok'}", "--style=roberta")
    assert "tok: 300 tokens" in capsys.readouterr().out
    call(
        "vectors", "train", f"--input={text},{text}", f"--output={tmp_path / 'v.bin'}", "--dim=8", "--epochs=1",
        "--buckets=1000", "--min_count=2",
    )  # fmt: skip
    assert "8 dimensions" in capsys.readouterr().out and load_vectors(tmp_path / "v.bin").dim == 8
    assert "v.bin: exists already" in mistake(capsys, "vectors", "train", f"--input={text}", f"--output={tmp_path / 'v.bin'}")


def test_input_may_be_given_again_and_with_commas(tmp_path, capsys):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"{name * 4} haus\n" * 20)
    given = f"--input={tmp_path}/a.txt,{tmp_path}/b.txt", f"--input={tmp_path}/c.*"
    call("vectors", "train", *given, f"--output={tmp_path}/v.bin", "--dim=10", "--epochs=1", "--buckets=99", "--subsampling=1")
    assert {"aaaa", "bbbb", "cccc", "haus"} < set(load_vectors(tmp_path / "v.bin").words)
    call("tokenizer", *given, "--vocab_size=267", f"--output={tmp_path}/tok")
    tokens = json.loads((tmp_path / "tok" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert {"aaaa", "bbbb", "cccc"} < set(tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transfr"], "transfr: no such verb, did you mean transfer; expected one of"),
        (["vectors"], "vectors: no such verb"),
        (["vectors", "trian"], "vectors trian: no such verb, did you mean vectors train"),
        (["transfer", "--sorce=x"], "--sorce: no such flag, did you mean source"),
        (["transfer", "--method=wexel"], "unknown, did you mean wechsel; expected one of wechsel, wechsel_tfr"),
        (["transfer", "--neighbors=many"], "--neighbors=many"),
        (["transfer"], "--source is missing"),
        (["transfer", "x"], "--source is missing"),
        (["tokenizer", "--input=a", "--output=b", "c"], "c: unexpected argument"),
        (["inspect"], "expected DIR or --plan or --vectors, and nothing was given"),
        (["inspect", "a", "b"], "expected DIR"),
        (["inspect", "a", "--seed=-1"], "--seed=-1"),
        (["inspect", "/nonexistent/model"], "/nonexistent/model: no such directory"),
        (["vectors", "inspect", "/nonexistent.bin"], "/nonexistent.bin: no such file"),
        (["vectors", "inspect", "a.bin", "--max_words=5"], "--max_words: is for the neighbors of --words; expected that"),
        (["tokenizer", "--input=/nonexistent.txt", "--output=/tmp/never"], "/nonexistent.txt: no such file"),
        (["tokenizer", "--input=a", "--output=b", "--vocab_size=99999999999"], "integer in the range [1, 16777216]"),
        (["tokenizer", "--input=a", "--output=b", "--algorithm=wordpiece", "--style=roberta"], "--style: has no effect with"),
        (["tokenizer", "--input=a", "--output=b", "--algorithm=unigram", "--pattern=gpt2"], "--pattern: has no effect with"),
        (["vectors", "train", "--input=a", "--output=b", "--dim=10000000"], "integer in the range [1, 10000]"),
        (["vectors", "align", "--source=a", "--target=b", "--seed=-1"], "--seed=-1"),
        (
            ["vectors", "align", "--source=a", "--target=b", "--source_output=c", "--target_output=./c"],
            "--target_output: ./c is the file of --source_output",
        ),
        (["report", "/nonexistent"], "/nonexistent: no such directory"),
        (["push", "/nonexistent", "--repo=a/b"], "/nonexistent: no such directory"),
        (["push", "/nonexistent"], "--repo is missing"),
    ],
)
def test_a_mistake_is_one_line(capsys, arguments, message):
    assert message in mistake(capsys, *arguments)


def numeric_flags() -> list[tuple[str, str]]:
    """Every (verb, flag) of a number."""
    found = []
    for verb in cli.VERBS:
        values = flags.FlagValues()
        importlib.import_module(f"wechsel_jax.commands.{verb.replace(' ', '_')}").define(values)
        found += [(verb, name) for name in values if isinstance(values[name].parser, flags.IntegerParser | flags.FloatParser)]
    return found


@pytest.mark.parametrize(("verb", "name"), numeric_flags())
def test_every_number_has_bounds(verb, name, capsys):
    command = importlib.import_module(f"wechsel_jax.commands.{verb.replace(' ', '_')}")
    required = [f"--{needed}=/nonexistent" for needed in command.REQUIRED] if hasattr(command, "REQUIRED") else []
    for value in ("-1e308", "-1", str(2**63), str(10**30), "nan", "inf", "1e308", "a"):
        line = mistake(capsys, *verb.split(), *required, f"--{name}={value}")
        assert line.startswith(f"wechsel-jax {verb}: error: flag --{name}={value}: "), line


def test_a_bad_file_reaches_the_user_through_the_command_line(world, source, tmp_path, capsys):
    vectors = tmp_path / "broken.bin"
    vectors.write_bytes(world.vectors("german").read_bytes()[:1000])
    line = mistake(
        capsys, "transfer", f"--source={source}", f"--target_tokenizer={world.tokenizer('german', 'gpt2')}",
        f"--output={tmp_path / 'out'}", f"--source_vectors={world.vectors('english')}", f"--target_vectors={vectors}",
        f"--dictionary={world.dictionary}",
    )  # fmt: skip
    assert line.startswith("wechsel-jax transfer: error: ") and "broken.bin: " in line
    assert [path.name for path in tmp_path.iterdir()] == ["broken.bin"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no source_text and no target_text; expected text in both languages, or another method"),
        (["--target_vectors=de.bin"], "method wechsel: no source_vectors and no dictionary"),
        (["--method=salt"], "method salt: no helper"),
        (["--method=clp", "--helper=/nonexistent/model"], "/nonexistent/model: no such directory"),
        (["--method=salt", f"--target_vectors={__file__}", "--helper=/nonexistent/model"], "/nonexistent/model: no such"),
        (["--method=focus"], "method focus: no target_vectors; expected word vectors of the target language"),
        (["--refine=-1"], "--refine=-1"),
        (["--method=mean", "--factorised"], "factorised: there is nothing to factorise"),
        (
            ["--method=mean", "--factorised", "--latent_dimension=4", "--shuffle=elements"],
            "factorised: the factors are of the table before standardize or shuffle",
        ),
        (["--method=mean", "--map=Ġand:Donaudampf"], "the target tokenizer has no token 'Donaudampf'"),
        (["--method=mean", "--keep_sorce"], "--keep_sorce: no such flag, did you mean keep_source"),
        (["--method=mean", "--standardize=xaver"], "unknown, did you mean xavier"),
    ],
)
def test_a_mistake_in_a_transfer_leaves_nothing(world, source, tmp_path, capsys, given, message):
    where = f"--source={source}", f"--target_tokenizer={world.tokenizer('german', 'gpt2')}", f"--output={tmp_path / 'out'}"
    assert message in mistake(capsys, "transfer", *where, *given)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(world, source, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "out"))

    monkeypatch.setattr("wechsel_jax.checkpoint.surgery.write_checkpoint", full)
    line = mistake(
        capsys, "transfer", f"--source={source}", f"--target_tokenizer={world.tokenizer('german', 'gpt2')}",
        f"--output={tmp_path / 'out'}", "--method=trans_inner",
    )  # fmt: skip
    assert "No space left on device; free some space" in line and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_names_every_flag_and_imports_nothing_heavy(verb):
    program = "import sys; from wechsel_jax import cli; cli.main(sys.argv[1:]); print(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program, *verb.split(), "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(f"usage: wechsel-jax {verb}") and "\n  --" in done.stdout
    # A list as it is given.
    assert "(default: [" not in done.stdout
    # The flags of a transfer stand in the methods' own modules, which read arrays.
    heavy = HEAVY - {"numpy"} if verb == "transfer" else HEAVY
    assert not heavy & set(json.loads(done.stderr.replace("'", '"')))


def test_the_overview_lists_every_verb(capsys):
    call()
    first = capsys.readouterr().out
    call("--help")
    assert capsys.readouterr().out == first and all(f"  {verb} " in first for verb in cli.VERBS)


def test_auto_names_no_method(monkeypatch):
    seen = {}
    monkeypatch.setattr("wechsel_jax.transfers.job.transfer", lambda **settings: seen.update(settings))
    cli.main(["transfer", "--source=model", "--target_tokenizer=new", "--output=out", "--method=auto"])
    assert seen["method"] is None and seen["source"] == "model"


def test_every_setting_is_a_flag_with_its_range():
    values = flags.FlagValues()
    define(values)
    settings = described_settings()
    assert {*settings, "source", "target_tokenizer", "output", "overwrite", "method", "probe_steps"} == {*values}
    assert {*values["method"].parser.enum_values} == {*METHODS, "auto"}
    for name, (kind, default, setting) in settings.items():
        assert values[name].value == (list(default) if kind is tuple else default), name
        assert set(setting.choices) == set(getattr(values[name].parser, "enum_values", ()) or ()), name
        # Flags of sizes, such as 16MiB, are no numbers.
        if setting.least is not None and name != "max_document_bytes":
            assert (values[name].parser.lower_bound, values[name].parser.upper_bound) == (setting.least, setting.most), name


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_methods_agree_on_what_a_setting_of_one_name_is(method):
    for name, own in method.settings.items():
        assert own.setting == described_settings()[name].setting and own.setting.help and own.default is not None
    # Every keyword of a plan is a setting, or something that every transfer has.
    common = {"overlap", "parity", "progress", "notes", "pieces", "translations", "seed", "log"}
    assert {*method.options} <= {*method.settings, *common}


def test_an_interrupt_that_python_ignores_comes_again(monkeypatch, capsys):
    class Collected:
        def __del__(self):
            raise KeyboardInterrupt

    def run(verb: str, arguments: list[str]) -> None:
        Collected()
        time.sleep(30)

    monkeypatch.setattr(cli, "_run", run)
    # A shell starts what runs in the background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as stopped:
            call("transfer")
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.value.code == 130 and capsys.readouterr().err == "wechsel-jax transfer: interrupted\n"


def test_a_lack_of_memory_is_one_line(capsys):
    with pytest.raises(SystemExit) as stopped, program("wechsel-jax transfer"):
        np.empty((1 << 40, 1 << 18), np.float32)
    assert stopped.value.code == 2
    assert re.fullmatch(r"wechsel-jax transfer: error: Unable to allocate .*; ask for less, .*\n", capsys.readouterr().err)


@pytest.mark.parametrize("arguments", [["--help"], ["vectors", "--help"], ["transfer", "--help"]])
def test_a_reader_that_goes_away_ends_it_without_a_word(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "wechsel_jax", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    # As a shell says of a process that SIGPIPE ended: the work may be undone.
    assert done.returncode == 141 and done.stderr == b""


@pytest.mark.parametrize("arguments", [["vectors", "--help"], ["inspect", demo.path("english-gpt2"), "--samples=0"]])
def test_output_that_cannot_be_written_is_one_line(arguments):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    # With its buffer, which is written once more when Python closes it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "wechsel_jax", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, env=environment)
    assert done.returncode == 2 and b"error: No space left on device; free some space" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_output_that_was_closed_is_no_error():
    command = f"exec {sys.executable} -m wechsel_jax transfer --help >&-"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0 and done.stderr == b""
