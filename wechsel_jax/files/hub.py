"""Repositories of the Hugging Face hub as directories on this machine."""

import re
from collections.abc import Sequence
from pathlib import Path

from wechsel_jax.errors import UserError, one_line

# What may be read from the hub, where old models have no owner; and what may be written there.
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
REPOSITORY = re.compile(
    r"(?!.*(?:--|\.\.))[a-z0-9][\w.-]{0,95}/[a-z0-9][\w.-]{0,95}(?<!\.git)(?<![.-])", re.ASCII | re.IGNORECASE
)


def download(name: str, patterns: Sequence[str], expected: str) -> Path:
    """Fetches the files of a model's repository that the patterns name, or takes them from the cache.

    Args:
      name: the id, "org/name", which `HUB_ID` matches.
      patterns: of file names, as `huggingface_hub` knows them ("*.json"); "*" stands for folders, too, but weights in a folder
        of the repository, which are there in another format, are never fetched.
      expected: what the user may name instead, for the message.

    Returns:
      The directory that holds them.

    Raises:
      UserError: there is no such repository, or no way to it.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns), ignore_patterns=["*/*.safetensors"]))
    except Exception as error:  # huggingface_hub lets through its own errors, its HTTP client's and the system's
        reason = one_line(error)
        raise UserError(f"{name}: no such directory, and not to be had from the hub ({reason}); expected {expected}") from error
