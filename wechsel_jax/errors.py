"""The one way a user's mistake leaves this package: one line on stderr and exit status 2."""

import contextlib
import errno
import sys
from collections.abc import Iterator


class UserError(Exception):
    """Something the user can mend: the message names the file, what was expected and what to do, in one line."""


@contextlib.contextmanager
def exit_on_user_error(program: str) -> Iterator[None]:
    """Turns `UserError`, a lack of memory and operating-system errors into one line on stderr and exit status 2.

    Args:
      program: the name the line starts with, e.g. "wechsel-jax transfer".

    Raises:
      SystemExit: with status 2, where the block raised `UserError`, `MemoryError` or `OSError`.
    """
    try:
        yield
    except UserError as error:
        _leave(program, " ".join(str(error).split()))
    except MemoryError as error:
        _leave(
            program, f"{' '.join(str(error).split()) or 'not enough memory'}; ask for less, or use a machine with more memory"
        )
    except OSError as error:
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        advice = "; free some space and run the same command again" if error.errno == errno.ENOSPC else ""
        _leave(program, f"{where}{error.strerror}{advice}")


def _leave(program: str, message: str) -> None:
    print(f"{program}: error: {message}", file=sys.stderr)
    raise SystemExit(2)
