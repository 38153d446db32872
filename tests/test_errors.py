"""What a user reads where a package is missing, and what is no missing package."""

import pytest

from wechsel_jax.errors import UserError, from_extra

ADVICE = "expected it to draw; run `pip install 'wechsel-jax[report]'` or draw by hand"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'a.b'", name="a.b"), f"a: not installed; {ADVICE}"),
        (ImportError("no c in\na", name="a"), f"a: cannot be imported (no c in a); {ADVICE}"),
    ],
)
def test_a_missing_package_is_one_line_that_names_its_extra(error, said):
    with pytest.raises(UserError) as raised, from_extra("report", "to draw", "or draw by hand"):
        raise error
    assert str(raised.value) == said


@pytest.mark.parametrize("name", [None, "wechsel_jax.no_such_module"])
def test_what_is_no_missing_package_passes(name):
    with pytest.raises(ImportError, match=r"^itself$"), from_extra("report", "to draw"):
        raise ImportError("itself", name=name)
