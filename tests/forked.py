"""Programs that import nothing anew: each runs in a process forked from one that has imported it all and started nothing."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.quick import compile_quickly

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        *("tests.torchless", "__main__", "orbax.checkpoint", "transformers.models.auto.tokenization_auto"),
        *("wechsel_jax.comparison", "wechsel_jax.training"),
    ]
)


def run_module(name: str, *arguments: str) -> subprocess.CompletedProcess:
    """What `python -m NAME ARGUMENTS` prints, and its exit status; of machine code that is soon made."""
    code = f"import runpy\nrunpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    return run_code(code, *arguments, quick=True)


def run_code(code: str, *arguments: str, quick: bool = False, **environment: str) -> subprocess.CompletedProcess:
    """What `python -c CODE ARGUMENTS` prints, and its exit status; `environment` is added to this process's."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, stream) for stream in ("stdout", "stderr")]
        process = _PROCESSES.Process(target=_run, args=(code, arguments, quick, environment, files))
        process.start()
        process.join()
        return subprocess.CompletedProcess([code, *arguments], process.exitcode, *(file.read_text() for file in files))


def _run(code: str, arguments: tuple[str, ...], quick: bool, environment: dict[str, str], files: list[Path]) -> None:
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    compile_quickly(quick)
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    exec(code, {"__name__": "__main__"})
