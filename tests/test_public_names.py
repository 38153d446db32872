"""The package's front door: every promised name is there, documented, and costs nothing until it is used."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import wechsel_jax


@pytest.mark.parametrize("name", [name for name in wechsel_jax.__all__ if name != "__version__"])
def test_public_names_exist_and_are_documented(name):
    value = getattr(wechsel_jax, name)
    assert isinstance(value, dict) or len(inspect.getdoc(value) or "") > 40


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = wechsel_jax.nonesuch


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, wechsel_jax; print(sorted({'jax', 'flax', 'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


@pytest.mark.slow
def test_the_product_never_imports_torch():
    modules = [
        *("cli", "comparison", "transfers.job", "checkpoint", "hub", "tokens.training", "demo.make"),
        *("data", "evaluation", "initializers", "models", "objectives", "report", "training", "vectors"),
    ]
    imports = "\n".join(f"import wechsel_jax.{module}" for module in modules)
    code = f"import sys\n{imports}\nprint('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"


def test_no_public_name_is_hidden_by_a_module_of_the_same_name():
    assert not {name for name in wechsel_jax._HOME if (Path(wechsel_jax.__file__).parent / f"{name}.py").exists()}
