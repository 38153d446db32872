"""The bundled data of the demonstration; `SOURCES.md` beside this file names the source and licence of each."""

from pathlib import Path

from wechsel_jax.errors import UserError


def path(name: str) -> str:
    """Returns the absolute path of a bundled file or directory.

    Raises:
      UserError: there is no such thing in the bundle.
    """
    found = Path(__file__).parent / name
    if not found.exists():
        raise UserError(f"{found}: not in the bundled data; expected it there; install wechsel-jax anew")
    return str(found)
