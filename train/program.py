"""What every program here shares: `--config`, `--workdir`, and one clear line for a mistake in them."""

import importlib
import re
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from wechsel_jax.errors import UserError, one_line, refuse_undecodable
from wechsel_jax.files import require_file
from wechsel_jax.program import without_torch


class _OrNone(flags.ArgumentParser):
    """A number, or "none" for a setting that may be without one; the settings' own check refuses it elsewhere."""

    def __init__(self, number: flags.ArgumentParser):
        super().__init__()
        self._number = number

    def parse(self, argument: str) -> float | None:
        return None if str(argument).lower() == "none" else self._number.parse(argument)


config_flags.register_flag_parser_for_type(int, _OrNone(flags.IntegerParser()))
config_flags.register_flag_parser_for_type(float, _OrNone(flags.FloatParser()))
_CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, with :name=value behind it for its arguments.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run; the same command again goes on where it stopped.")

_LIST = {"--helpfull", "-helpfull"}
# Where the settings of a training run lie among others, and those of a transfer.
_RUNS = re.compile(r"(helper\.)?training|overrides\.[^.]+|evaluation\.fine_tuning\.[^.]+|commonality|forward|backward|language")
# What only the settings of a program have.
_PROGRAMS = {"methods": "train.compare", "commonality": "train.trelm", "steps": "train.pretrain or train.finetune"}
_TRANSFERS = re.compile(r"transfer|variants\.[^.]+")
_SETTINGS = (
    "Any setting of the file may be given by itself: --config.training.steps=800. The file says what its arguments are;\n"
    "--config=FILE.py --helpfull lists its settings and what they are."
)


def run(module: str, function: str, defaults: str = "default_config") -> None:
    """Imports a function, which takes long, and calls it with (config, workdir) of the command line's flags.

    `defaults` is the function of the same module whose comments say what its settings are.

    Raises:
      UserError: a flag is wrong, or the configuration's file is.
    """
    without_torch()
    name = f"python -m train.{Path(sys.argv[0]).stem}"
    listed = False

    def parse(argv: Sequence[str]) -> list[str]:
        nonlocal listed
        refuse_undecodable(argv)
        # absl's own would end the program before the file is read.
        listed = bool(_LIST & {*argv})
        argv = [argument for argument in argv if argument not in _LIST]
        file_named = any(re.match("--?config(=|$)", argument) for argument in argv)
        if {"--help", "-help", "-h"} & {*argv} or (listed and not file_named):
            print(sys.modules["__main__"].__doc__, flags.FLAGS.module_help(sys.modules[__name__]), _SETTINGS, sep="\n\n")
            raise SystemExit(0)
        file = None
        for argument, value in zip(argv, [*argv[1:], ""], strict=True):
            option, equals, given = argument.partition("=")
            if option in ("--config", "-config"):
                file = (given if equals else value).split(":")[0]
                require_file(file, "a Python file with get_config()")
                if not file.endswith(".py"):
                    raise UserError(f"{file}: is no .py file; expected a Python file with get_config()")
        try:
            rest = flags.FLAGS(argv)
            # What the system told the file (OSError) is raised once its settings are looked at.
            getattr(_CONFIG.value, "items", None)
            return rest
        # What the configuration's file does is the user's: it may raise anything, and exit.
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and file is None:
                raise
            raise UserError(_said(error, file)) from error

    def main(argv: Sequence[str]) -> None:
        logging.set_verbosity(logging.WARNING)
        if len(argv) > 1:
            raise UserError(f"unexpected argument {argv[1]!r}; flags start with --")
        if flags.FLAGS["config"].present and not _CONFIG.value:
            raise UserError("--config: get_config() returns no settings; expected those of default_config(), changed or not")
        settings = getattr(importlib.import_module(module), defaults)
        if listed:
            from wechsel_jax.training.config import described

            print(*_lines(_CONFIG.value, described(settings)), sep="\n")
            return
        for flag in ("config", "workdir"):
            if not flags.FLAGS[flag].value:
                what = "is required" if flags.FLAGS[flag].value is None else "is empty (an unset variable of the shell?)"
                raise UserError(f"--{flag} {what}; see {name} --help")
        if missing := [field for field in settings() if field not in _CONFIG.value]:
            whose = next((what for field, what in _PROGRAMS.items() if field in _CONFIG.value), "none of the programs here")
            raise UserError(f"--config: holds settings of {whose}, without {missing[0]}; expected those of {name}")
        getattr(importlib.import_module(module), function)(_CONFIG.value, _WORKDIR.value)

    # What the flags warn of is a mistake here, and one line.
    logging.set_verbosity(logging.ERROR)
    app.run(main, flags_parser=parse)


def _lines(settings: ConfigDict, said: dict[str, str], prefix: str = "", within: str = "") -> Iterator[str]:
    """`name = value` of every setting, those within others with dots, and below it what it is.

    Args:
      settings: some or all of a program's.
      said: what each is, by its name from the settings on that are described together: a program's, a run's or a transfer's.
      prefix: where these settings lie, with a dot.
      within: that place as far as `said` names it.
    """
    from wechsel_jax.training.config import default_config, described
    from wechsel_jax.transfers.settings import described_settings

    for name, value in settings.items():
        place = f"{prefix}{name}"
        if not isinstance(value, ConfigDict) or not value:
            yield f"{place} = {dict(value) if isinstance(value, ConfigDict) else value!r}"
            if what := said.get(f"{within}{name}"):
                yield textwrap.fill(what, 120, initial_indent="    ", subsequent_indent="    ")
        elif _RUNS.fullmatch(place):
            yield from _lines(value, described(default_config), f"{place}.")
        elif _TRANSFERS.fullmatch(place):
            help_texts = {name: f"{one.setting.help}." for name, one in described_settings().items()}
            yield from _lines(value, help_texts, f"{place}.")
        else:
            yield from _lines(value, said, f"{place}.", f"{within}{name}.")


_NO_QUOTES = str.maketrans("", "", "\\'\"")


def _said(error: BaseException, file: str | None) -> str:
    """One line of an error in the flags: with its place, where it is one of the configuration's file."""
    chain = [error]
    # What the file found wrong and said itself is said, not what led to it.
    while not isinstance(chain[-1], UserError) and (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    for inner in reversed(chain):
        lines = [frame.lineno for frame in traceback.extract_tb(inner.__traceback__) if _same(frame.filename, file)]
        if lines and not isinstance(inner, UserError):
            return f"{file}: line {lines[-1]}: {type(inner).__name__}: {one_line(inner)}; expected a get_config() that returns"
    if isinstance(error, AttributeError | KeyError):
        # ml_collections says the name, and what it resembles: quoted twice, on another line.
        return "--config has no such field: " + re.sub(r"(\\n|\n)", "; ", str(error.args[0])).translate(_NO_QUOTES)
    if isinstance(error, IndexError):
        return "--config: a flag names an item ([N]) that its list lacks; expected one of those that --helpfull shows"
    message = str(error).strip()
    before, trace, _ = message.partition("Traceback")
    return f"{before.split(': ')[0]}: {message.splitlines()[-1].strip()}" if trace else message


def _same(found: str, file: str | None) -> bool:
    return file is not None and Path(found).resolve() == Path(file).resolve()
