"""No verb and no program changes a file that was there, whatever its output has to do with its inputs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wechsel_jax import cli
from wechsel_jax.training import default_config, record_config

ROOT = Path(__file__).parents[2]
# The inputs of a verb, what it writes, and its further arguments; {name} is a path.
VERBS = {
    "transfer": (("source", "tokenizer", "text"), "output", ["--method=anker"]),
    "tokenizer": (("text",), "output", ["--vocab_size=300"]),
    "vectors train": (("text", "tokenizer"), "output", []),
    "vectors align": (("vectors", "dictionary"), "source_output", []),
    "prepare": (("text", "tokenizer"), "output", []),
    "table": (("vectors", "tokenizer"), "output", []),
    "export": (("run",), "output", []),
    "report": (("run",), "output", []),
}
NAMED = {
    "transfer": {"source": "--source", "tokenizer": "--target_tokenizer", "text": "--target_text"},
    "tokenizer": {"text": "--input"},
    "vectors train": {"text": "--input", "tokenizer": "--tokenizer"},
    "vectors align": {"vectors": "--source", "dictionary": "--dictionary"},
    "prepare": {"text": "--input", "tokenizer": "--tokenizer"},
    "table": {"vectors": "--vectors", "tokenizer": "--tokenizer"},
    "export": {"run": ""},
    "report": {"run": ""},
}


@pytest.fixture(scope="module")
def inputs(world, source, tmp_path_factory) -> dict[str, Path]:
    """Each input in a directory of its own that holds another file as well."""
    root = tmp_path_factory.mktemp("mine")
    found = {
        "source": shutil.copytree(source, root / "a" / "model"),
        "tokenizer": shutil.copytree(world.tokenizer("german", "gpt2"), root / "b" / "tokenizer"),
        "text": _copy(world.root / "german.txt", root / "c" / "german.txt"),
        "vectors": _copy(world.vectors("german"), root / "d" / "german.bin"),
        "dictionary": _copy(world.dictionary, root / "e" / "pairs.tsv"),
        "run": root / "f" / "run",
    }
    config = default_config()
    found["run"].mkdir(parents=True)
    record_config(config, found["run"])
    (found["run"] / "metrics.jsonl").write_text('{"kind": "eval", "step": 0, "loss": 1.0, "perplexity": 2.7, "tokens": 9}\n')
    (found["run"] / "checkpoints" / "9").mkdir(parents=True)
    (found["run"] / "checkpoints" / "9" / "manifest.json").write_text("{}")
    for path in found.values():
        (path.parent / "thesis.tex").write_text("mine")
    return found


def _copy(file: Path, to: Path) -> Path:
    to.parent.mkdir(parents=True)
    return Path(shutil.copyfile(file, to))


def _relations(path: Path, links: Path) -> dict[str, Path]:
    """Names for outputs that touch an input: itself, something in it, what holds it, and links to all of these."""
    inside = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else []
    places = {"equal": path, "around": path.parent, **{f"inside {file.name}": file for file in inside}}
    places["beside"] = path.parent / "thesis.tex"
    if path.is_dir():
        places |= {f"directory {folder.name}": folder for folder in path.rglob("*") if folder.is_dir()}
    links.mkdir()
    for number, (name, place) in enumerate(list(places.items())):
        (links / f"soft{number}").symlink_to(place)
        places[f"link to {name}"] = links / f"soft{number}"
        if place.is_file():
            os.link(place, links / f"hard{number}")
            places[f"hard link to {name}"] = links / f"hard{number}"
        (links / f"parent{number}").symlink_to(place.parent)
        places[f"{name} through a link"] = links / f"parent{number}" / place.name
    (links / "nowhere").symlink_to(links / "not there")
    (links / "loop").symlink_to(links / "loop")
    return places | {"dangling link": links / "nowhere", "loop": links / "loop", "below a loop": links / "loop" / "out"}


def _snapshot(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        # The time of the last change tells a file from another one with the same bytes.
        contents = (
            os.readlink(path) if path.is_symlink() else (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else ""
        )
        found[str(path)] = contents
    return found


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_an_output_never_takes_an_inputs_place(verb, inputs, tmp_path, capsys):
    needed, output, further = VERBS[verb]
    command = [*verb.split(), *further, *([] if verb == "prepare" else ["--overwrite"])]
    command += [f"{NAMED[verb][name]}={inputs[name]}" if NAMED[verb][name] else str(inputs[name]) for name in needed]
    if verb == "transfer":
        command.append(f"--source_text={inputs['text']}")
    if verb == "vectors align":
        command.append(f"--target={inputs['vectors']}")
    root, tried = inputs["source"].parents[1], 0
    for name in needed:
        for relation, place in _relations(inputs[name], tmp_path / name).items():
            before = _snapshot(root) | _snapshot(tmp_path)
            with pytest.raises(SystemExit) as stopped:
                cli.main([*command, f"--{output}={place}"])
            err = capsys.readouterr().err
            lines = [line for line in err.splitlines() if "error: " in line]
            assert stopped.value.code == 2 and len(lines) == 1 and "Traceback" not in err, (name, relation, err)
            assert _snapshot(root) | _snapshot(tmp_path) == before, (name, relation)
            tried += 1
    assert tried >= 14


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pretrain", "compare"])
def test_a_program_leaves_a_directory_of_others_alone(program, inputs, tmp_path, capsys):
    places = [inputs["source"], inputs["tokenizer"].parent, inputs["text"], inputs["text"] / "below", tmp_path / "home"]
    for name in (".ssh.old/id", ".bashrc.old", ".notes.partial", "export/mine.txt", "data/mine.txt", "checkpoints/mine"):
        (tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / name).write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "home")
    (tmp_path / "nowhere").symlink_to(tmp_path / "not there")
    places += [tmp_path / "link", tmp_path / "nowhere", tmp_path / "nowhere" / "run", "", "~/run"]
    root = inputs["source"].parents[1]
    before = _snapshot(root) | _snapshot(tmp_path)
    code = (
        "import sys\n"
        "from wechsel_jax.program import program\n"
        "from wechsel_jax.training import default_config, train\n"
        "from wechsel_jax import comparison\n"
        "config = default_config() if sys.argv[1] == 'pretrain' else comparison.default_config()\n"
        "function = train if sys.argv[1] == 'pretrain' else comparison.compare\n"
        "if sys.argv[1] == 'pretrain':\n"
        "    config.model.checkpoint, config.data.train, config.data.validation = sys.argv[2], (sys.argv[3],), (sys.argv[3],)\n"
        "for place in sys.argv[4:]:\n"
        "    try:\n"
        "        with program('train'):\n"
        "            function(config, place)\n"
        "    except SystemExit as stopped:\n"
        "        assert stopped.code == 2\n"
    )
    arguments = [program, str(inputs["source"]), str(inputs["text"]), *map(str, places)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0 and done.stderr.count("train: error: ") == len(places), done.stderr
    assert len(done.stderr.splitlines()) == len(places), done.stderr
    assert _snapshot(root) | _snapshot(tmp_path) == before


@pytest.mark.slow
def test_an_empty_workdir_is_refused_by_the_command_line(tmp_path):
    for flag in ("--workdir=", "--workdir"):
        command = [sys.executable, "-m", "train.pretrain", f"--config={ROOT / 'configs' / 'demo_english.py'}", flag]
        done = subprocess.run(
            [*command, ""] if flag == "--workdir" else command,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 2 and "--workdir is empty" in done.stderr and not any(tmp_path.iterdir()), done.stderr
