"""The tokenizers of the tests of prepared data."""

from tests.data.conftest import tokenizers  # noqa: F401
