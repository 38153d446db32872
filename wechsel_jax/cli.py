"""The console script `wechsel-jax`: finds the verb, reads its flags, and turns a user's mistake into one line."""

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Iterator, Sequence
from typing import IO

from absl import flags

from wechsel_jax.commands import nearest
from wechsel_jax.errors import UserError, refuse_undecodable
from wechsel_jax.program import program, without_torch

PROGRAM = "wechsel-jax"
VERBS = {
    "transfer": "give a model a new vocabulary, its embeddings made from the old ones",
    "tokenizer": "train a tokenizer for a new language",
    "vectors train": "train word vectors on text",
    "vectors align": "bring the word vectors of two languages into one space",
    "vectors inspect": "show what a file of word vectors holds",
    "probe": "train several starts for some steps, and say which came furthest",
    "prepare": "make text into tokens on disk, once for all runs",
    "align": "link the tokens of parallel text, for training across two languages",
    "table": "make an embedding table for a new model from pretrained vectors",
    "embeddings": "say whether embeddings will train well: distributions, positions, analogies",
    "inspect": "show what a checkpoint or a transfer holds, and score it before any training",
    "generate": "write text with a causal model",
    "translate": "translate with an encoder-decoder, and score it",
    "evaluate": "score models: held-out text, forced choice, reading, labels, probes",
    "report": "write one HTML file about training runs, or tables of scores",
    "export": "write a checkpoint of a training run as a model",
    "push": "upload a model to the hub",
    "demo": "make a small English model German by four methods, offline",
}
_HELP = ("-h", "--help", "-help", "help")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb.

    Args:
      arguments: without the program's name; those of the process where None.

    Raises:
      SystemExit: as `program.program`.
    """
    script = arguments is None
    arguments = list(sys.argv[1:] if script else arguments)
    if script:
        without_torch()
    # transformers says on import that it found no torch; nothing here needs torch.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with program(PROGRAM), _reader_may_leave():
        if not arguments or arguments[0] in _HELP:
            print(_overview())
            return
        verb, rest = _find_verb(arguments)
    with program(f"{PROGRAM} {verb}", last=script), _reader_may_leave():
        refuse_undecodable(rest)
        _run(verb, rest)


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Ends without a word, but not as if the work were done, where whoever read the output has left (`| head`)."""

    def silence(stream: IO) -> None:
        """Python would try, and complain, once more when it closes the stream."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    try:
        try:
            yield
        finally:
            try:
                # None where it was closed before this process began.
                if sys.stdout is not None:
                    sys.stdout.flush()
            except OSError:
                silence(sys.stdout)
                raise
    except BrokenPipeError:
        silence(sys.stderr)
        # What a shell says of a process that SIGPIPE ended.
        raise SystemExit(141) from None


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


def find_command(verb: str) -> tuple[types.ModuleType, flags.FlagValues]:
    """Returns the module of a verb, and its flags with their defaults."""
    command = importlib.import_module(f"wechsel_jax.commands.{verb.replace(' ', '_')}")
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    command.define(values)
    return command, values


def _run(verb: str, arguments: list[str]) -> None:
    command, values = find_command(verb)
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
        instead = "".join(f" or --{name}" for name in getattr(command, "INSTEAD", ()))
        wanted = f"{arguments_allowed}{instead}"
        raise UserError(f"expected {wanted}, and {len(positional) or 'nothing'} was given; see {PROGRAM} {verb} --help")
    command.run(values, positional)


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = [f"  {verb:{width}}  {summary}" for verb, summary in VERBS.items()]
    return "\n".join(
        [f"usage: {PROGRAM} VERB [--flag=value ...]", "", *verbs, "", f"{PROGRAM} VERB --help lists the flags of a verb."]
    )


def _usage(verb: str, command: types.ModuleType, values: flags.FlagValues) -> str:
    required = [name for name in getattr(command, "REQUIRED", ()) if not values[name].value]
    usage = [PROGRAM, verb, getattr(command, "ARGUMENTS", ""), *(f"--{name}=..." for name in required), "[--flag=value ...]"]
    lines = [f"usage: {' '.join(part for part in usage if part)}", "", command.__doc__.strip(), ""]
    for name in sorted(values, key=lambda name: name not in required):
        flag = values[name]
        given = ",".join(map(str, flag.value)) if isinstance(flag.value, list) else flag.value
        default = "" if flag.boolean or given in (None, "") else f" (default: {given})"
        lines.append(f"  --{'[no]' if flag.boolean else ''}{name}: {' '.join(flag.help.split())}{default}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
