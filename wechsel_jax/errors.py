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
