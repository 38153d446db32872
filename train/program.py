"""What every program here shares: `--config`, `--workdir`, and one clear line with exit status 2 for a user's mistake."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from wechsel_jax.errors import UserError, exit_on_user_error
from wechsel_jax.files import require_file

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, with :name=value behind it for its arguments.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run; the same command again goes on where it stopped.")


def run(function: Callable[[ConfigDict, str], object]) -> None:
    """Calls `function(config, workdir)` from the command line's flags; mistakes leave one line and exit status 2."""
    name = f"python -m train.{Path(sys.argv[0]).stem}"

    def parse(argv: Sequence[str]) -> list[str]:
        with exit_on_user_error(name):
            for argument in argv:
                if argument.startswith("--config="):
                    require_file(argument.removeprefix("--config=").split(":")[0], "a Python file with get_config()")
            try:
                return flags.FLAGS(argv)
            except (AttributeError, KeyError) as error:
                raise UserError(f"--config has no such field: {error.args[0]}") from error
            except (flags.Error, TypeError, ValueError, SyntaxError) as error:
                raise UserError(_said(error)) from error

    def main(argv: Sequence[str]) -> None:
        with exit_on_user_error(name):
            if len(argv) > 1:
                raise UserError(f"unexpected argument {argv[1]!r}; flags start with --")
            for flag in ("config", "workdir"):
                if flags.FLAGS[flag].value is None:
                    raise UserError(f"--{flag} is required; see {name} --help")
            function(_CONFIG.value, _WORKDIR.value)

    logging.set_verbosity(logging.WARNING)
    app.run(main, flags_parser=parse)


def _said(error: Exception) -> str:
    """An error's message; where it holds a traceback of a configuration file, its last line, and which flag it was."""
    message = str(error).strip()
    before, traceback, _ = message.partition("Traceback")
    return f"{before.split(': ')[0]}: {message.splitlines()[-1].strip()}" if traceback else message
