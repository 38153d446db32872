"""The console script `wechsel-jax`: finds the verb, reads its flags, and turns a user's mistake into one line."""

import _thread
import contextlib
import importlib
import os
import sys
import threading
import types
from collections.abc import Iterator, Sequence

from absl import flags

from wechsel_jax.commands import nearest
from wechsel_jax.errors import UserError, exit_on_user_error

PROGRAM = "wechsel-jax"
VERBS = {
    "transfer": "give a model a new vocabulary, its embeddings made from the old ones",
    "tokenizer": "train a tokenizer for a new language",
    "vectors train": "train word vectors on text",
    "vectors align": "bring the word vectors of two languages into one space",
    "vectors inspect": "show what a file of word vectors holds",
    "prepare": "make text into tokens on disk, once for all runs",
    "table": "make an embedding table for a new model from pretrained vectors",
    "inspect": "show what a checkpoint or a transfer holds, and score it before any training",
    "report": "write one HTML file about training runs",
    "export": "write a checkpoint of a training run as a model",
    "push": "upload a model to the hub",
}
_HELP = ("-h", "--help", "-help", "help")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb.

    Args:
      arguments: without the program's name; those of the process where None.

    Raises:
      SystemExit: with status 2 after one line on stderr, where the user made a mistake; 130 after an interrupt.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # transformers says on import that it found no torch; nothing here needs torch.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with exit_on_user_error(PROGRAM):
        if not arguments or arguments[0] in _HELP:
            print(_overview())
            return
        verb, rest = _find_verb(arguments)
    try:
        with exit_on_user_error(f"{PROGRAM} {verb}"), _no_interrupt_lost():
            _run_quietly(verb, rest)
    except KeyboardInterrupt:
        print(f"{PROGRAM} {verb}: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


@contextlib.contextmanager
def _no_interrupt_lost() -> Iterator[None]:
    """Ctrl-C in a callback of the garbage collector, where Python ignores exceptions (JAX has one), comes again."""

    def hook(ignored: "sys.UnraisableHookArgs") -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            threading.Timer(0.05, _thread.interrupt_main).start()
        else:
            before(ignored)

    before, sys.unraisablehook = sys.unraisablehook, hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _run_quietly(verb: str, arguments: list[str]) -> None:
    try:
        _run(verb, arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`| head`); Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _find_verb(arguments: list[str]) -> tuple[str, list[str]]:
    for words in (2, 1):
        verb = " ".join(arguments[:words])
        if verb in VERBS:
            return verb, arguments[words:]
    parts = sorted(verb for verb in VERBS if verb.split()[0] == arguments[0])
    if parts:
        if arguments[1:2] and arguments[1] in _HELP:
            print("\n".join(f"{PROGRAM} {part}: {VERBS[part]}" for part in parts))
            raise SystemExit(0)
        given, known = " ".join(arguments[:2]), parts
    else:
        given, known = arguments[0], sorted(VERBS)
    raise UserError(f"{given}: no such verb{nearest(given, known)}; expected one of {', '.join(known)}")


def _run(verb: str, arguments: list[str]) -> None:
    command = importlib.import_module(f"wechsel_jax.commands.{verb.replace(' ', '_')}")
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    command.define(values)
    if any(argument in _HELP[:3] for argument in arguments):
        print(_usage(verb, command, values))
        return
    try:
        positional = values([PROGRAM, *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        name = error.flagname
        raise UserError(f"--{name}: no such flag{nearest(name, list(values))}; see {PROGRAM} {verb} --help") from None
    except flags.Error as error:
        raise UserError(f"{error}; see {PROGRAM} {verb} --help") from None
    for name in getattr(command, "REQUIRED", ()):
        if not values[name].value:
            raise UserError(f"--{name} is missing; see {PROGRAM} {verb} --help")
    arguments_allowed = getattr(command, "ARGUMENTS", "")
    if positional and not arguments_allowed:
        raise UserError(f"{positional[0]}: unexpected argument; flags start with --; see {PROGRAM} {verb} --help")
    named = positional or any(values[name].value for name in getattr(command, "INSTEAD", ()))
    if arguments_allowed and (not named or (len(positional) > 1 and not arguments_allowed.endswith("..."))):
        raise UserError(f"expected {arguments_allowed} and {len(positional)} were given; see {PROGRAM} {verb} --help")
    command.run(values, positional)


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = [f"  {verb:{width}}  {summary}" for verb, summary in VERBS.items()]
    return "\n".join(
        [f"usage: {PROGRAM} VERB [--flag=value ...]", "", *verbs, "", f"{PROGRAM} VERB --help lists the flags of a verb."]
    )


def _usage(verb: str, command: types.ModuleType, values: flags.FlagValues) -> str:
    required = getattr(command, "REQUIRED", ())
    usage = [PROGRAM, verb, getattr(command, "ARGUMENTS", ""), *(f"--{name}=..." for name in required), "[--flag=value ...]"]
    lines = [f"usage: {' '.join(part for part in usage if part)}", "", command.__doc__.strip(), ""]
    for name in sorted(values, key=lambda name: name not in required):
        flag = values[name]
        default = "" if flag.boolean or flag.value in (None, "", []) else f" (default: {flag.value})"
        lines.append(f"  --{'[no]' if flag.boolean else ''}{name}: {' '.join(flag.help.split())}{default}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
