"""The small world of the transfer tests, for scores of real transfers."""

import pytest

from tests.transfers.conftest import save_source, source, world  # noqa: F401
from wechsel_jax import transfer


@pytest.fixture(scope="session")
def transferred(world, source, tmp_path_factory):  # noqa: F811
    """A German GPT-2 by WECHSEL. Read only."""
    output = tmp_path_factory.mktemp("inspection") / "german"
    transfer(source, world.tokenizer("german", "gpt2"), output, **world.inputs(), log=lambda line: None)
    return output
