"""A program that starts runs: each is a process of its own, forked from one that has imported everything and started nothing.

Reads one JSON object a line from stdin and answers each with one:
  {"start": {"config", "workdir", "devices", "log", "at", "do"}} -> {"pid"}; what the run prints goes to the file `log`.
  {"wait": pid} -> {"status"}: exit status, or minus the signal that ended it.

With `at` = [kind, n], something happens just before the n-th operation of that kind, counted from 1, on files of the workdir.
A kind is the name of Python's audit event and the file's name with what varies left out, as `kind_of` makes it; "any" is every
kind. `do` says what: "kill" (SIGKILL), "term" (SIGTERM), "full" (this and all later operations that need space fail with
ENOSPC) or "full once". `events` is a file that gets the kinds of all operations. No file can become larger than `file_limit`
bytes; 0 is no limit.
"""

import errno
import json
import os
import re
import resource
import signal
import sys
import threading

WATCHED = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


def kind_of(event: str, path: str, workdir: str) -> str:
    """Names an operation without step numbers, random names and checksums."""
    name = os.path.relpath(path, workdir)
    name = re.sub(r"[0-9a-f]{32}", "*", name)
    name = re.sub(r"(?<=\.)[a-z0-9_]{8}(?=\.(partial|old)\b)", "*", name)
    return f"{event} {re.sub('[0-9]+', 'N', name)}"


def watch(workdir: str, at: list | None, do: str, events: str | None) -> None:
    """Installs the hook that makes something happen at one operation."""
    place, lock, count = os.path.abspath(workdir), threading.Lock(), 0
    log = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if events else None

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count
        if event not in WATCHED or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        path = os.fsdecode(arguments[0])
        writes = event != "open" or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not writes or not os.path.abspath(path).startswith(place):
            return
        kind = kind_of(event, os.path.abspath(path), place)
        if log:
            os.write(log, kind.encode() + b"\n")
        if at and at[0] in (kind, "any"):
            with lock:
                count += 1
                now = count
            if do == "kill" and now == at[1]:
                os.kill(os.getpid(), signal.SIGKILL)
            if do == "term" and now == at[1]:
                os.kill(os.getpid(), signal.SIGTERM)
            needs_space = event in ("open", "os.mkdir", "os.rename")
            if needs_space and ((do == "full" and now >= at[1]) or (do == "full once" and now == at[1])):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    sys.addaudithook(hook)


def run(
    config: dict,
    workdir: str,
    devices: int,
    at: list | None = None,
    do: str = "kill",
    events: str | None = None,
    file_limit: int = 0,
) -> None:
    """Trains."""
    import jax

    from tests.quick import compile_quickly

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    # As in the process of the tests, whose compiled programs serve here too.
    compile_quickly(True)
    from wechsel_jax.program import program
    from wechsel_jax.training import default_config, default_trelm_config, train, train_trelm

    phases = "commonality" in config
    settings = default_trelm_config() if phases else default_config()
    with settings.ignore_type(), program("train"):
        settings.update(config)
        if at or events:
            watch(workdir, at, do, events)
        if file_limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        (train_trelm if phases else train)(settings, workdir)


def start(log: str, **options) -> int:
    """Forks a run and returns its process number."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDWR)
        for old, new in ((nothing, 0), (nothing, 1), (output, 2)):
            os.dup2(old, new)
        run(**options)
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    import orbax.checkpoint
    import transformers

    import wechsel_jax.training

    assert orbax.checkpoint and transformers and wechsel_jax.training
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            answer = {"pid": start(**request["start"])}
        else:
            status = os.waitpid(request["wait"], 0)[1]
            answer = {"status": os.waitstatus_to_exitcode(status)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
