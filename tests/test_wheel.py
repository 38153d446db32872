"""The wheel holds all of the package, and the demonstration works from it without the repository."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "wechsel_jax"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built in a copy, because setuptools leaves a build/ where it works."""
    root = tmp_path_factory.mktemp("wheel")
    shutil.copytree(PACKAGE, root / "source" / "wechsel_jax", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root / "source")
    build = "from setuptools import build_meta; build_meta.build_wheel('..')"
    done = subprocess.run([sys.executable, "-c", build], cwd=root / "source", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = root.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A wheel without compiled parts is installed by unpacking it."""
    root = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(root)
    return root


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(installed), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=installed.parent, env=environment, capture_output=True, text=True, timeout=300
    )


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_else(wheel):
    there = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == there


def test_the_extra_of_the_demonstration_needs_no_compiler(installed):
    (metadata,) = installed.glob("*.dist-info/METADATA")
    required = [line for line in metadata.read_text(encoding="utf-8").splitlines() if line.startswith("Requires-Dist: ")]
    (fasttext,) = {line.partition("extra ==")[2].strip(' "') for line in required if "fasttext" in line} - {"test"}
    assert fasttext == "vectors" and any('extra == "train"' in line for line in required)


@pytest.mark.slow
def test_the_demonstration_runs_without_the_repository(installed, tmp_path):
    """One method of the four, on small batches, and by AdamW: `tests/test_programs.py` has the demonstration's optimizer."""
    small = f"""
from wechsel_jax import __file__ as file, cli
from wechsel_jax.demo import settings

assert file.startswith({str(installed)!r}), file
whole = settings.get_config

def get_config():
    config = whole()
    config.methods, config.tokenizer.vocabulary_size, config.training.optimizer.groups = ("anker",), 512, ()
    config.training.batch_size, config.training.block_length, config.training.eval_batches = 4, 32, 1
    return config

settings.get_config = get_config
cli.main(["demo", "--steps=6", "--seed=3", "--workdir={tmp_path / "run"}"])
"""
    done = run(installed, "-c", small)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "comparison.json").read_text(encoding="utf-8"))
    assert result["seed"] == 3 and [step for step, _ in result["methods"]["anker"]["evaluations"]] == [0, 1, 2, 3, 4, 5, 6]
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "run" / "anker" / "export" / "model.safetensors").exists()


def test_what_the_demonstration_lacks_is_one_line(installed, tmp_path):
    without = (
        f"import sys; sys.modules['optax'] = None; from wechsel_jax import cli; cli.main(['demo', '--workdir={tmp_path}'])"
    )
    done = run(installed, "-c", without)
    assert done.returncode == 2 and "pip install 'wechsel-jax[train]'" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_config_of_the_repository_is_the_same():
    spec = importlib.util.spec_from_file_location("configs_demo", ROOT / "configs" / "demo.py")
    config = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(config)
    from wechsel_jax.demo import settings

    assert config.get_config is settings.get_config
