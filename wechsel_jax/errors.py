"""A user's mistake, and the one place that turns what parsers raise into one."""

import contextlib
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence

_LONGEST = 200


class UserError(Exception):
    """Something the user can mend: the message names the file, what was expected and what to do, in one line."""


# What a parser raises at a file that is not what it should be: its own mistakes (ValueError and its kin; zip and the npy format
# add NotImplementedError, RuntimeError and TokenError), text nested too deep, numbers too large. `OSError` without a number is
# a compressor's.
_PARSERS = (
    *(ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RuntimeError, EOFError, SyntaxError),
    *(struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


@contextlib.contextmanager
def parsing(path: str | os.PathLike, expected: str, *others: type[Exception]) -> Iterator[None]:
    """Turns whatever a parser raises into a `UserError` that names the file.

    Nothing but the parser's call may stand in the block: a mistake of this package would be blamed on the file.

    Args:
      path: what is parsed, for the message.
      expected: what it should be and what to do, e.g. "a tokenizer.json; fetch it again".
      *others: further kinds of exceptions that the parser has.

    Raises:
      UserError: the parser raised. A `UserError`, a lack of memory and what the system says of a file pass as they are.
    """
    try:
        yield
    except (OSError, *_PARSERS, *others) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, (*_PARSERS, *others)):
            raise
        reason = "nested too deep" if isinstance(error, RecursionError) else one_line(error)
        raise UserError(f"{os.fspath(path)}: cannot be read ({reason}); expected {expected}") from None


@contextlib.contextmanager
def naming(place: str) -> Iterator[None]:
    """Puts where it is before what a `UserError` of the block says: a setting or a file, such as "training: "."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}{error}") from None


@contextlib.contextmanager
def from_extra(extra: str, purpose: str, otherwise: str = "") -> Iterator[None]:
    """Around imports of packages that an extra installs: a missing one becomes one line that names the package and the extra.

    Args:
      extra: the extra in setup.py.
      purpose: what the package is needed for, e.g. "to score entities".
      otherwise: what to do instead, e.g. "or leave out --probe".

    Raises:
      UserError: a package is missing, or cannot be imported. What is wrong with this package itself passes as it is.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        # Without a name it is no package that is missing: numpy tells of an interrupt so.
        if package in ("", "wechsel_jax"):
            raise
        how = "not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({one_line(error)})"
        advice = f"run `pip install 'wechsel-jax[{extra}]'` {otherwise}".rstrip()
        raise UserError(f"{package}: {how}; expected it {purpose}; {advice}") from None


def one_line(error: BaseException) -> str:
    """What an exception says, in one line of bounded length and printable characters."""
    text = printable(str(error)) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def printable(text: str) -> str:
    """Returns a text in one line; what a terminal might take for a command becomes a replacement character."""
    return "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))


def refuse_undecodable(arguments: Sequence[str]) -> None:
    """Raises `UserError` where an argument of the command line is not UTF-8: the libraries that open files take no other."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(argument).decode(errors="replace")
            raise UserError(f"{shown}: not UTF-8; expected arguments in UTF-8; rename the file or change the locale") from None
