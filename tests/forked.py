"""Programs that import nothing anew: each runs in a process forked from one that has imported it all and started nothing."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["__main__", "orbax.checkpoint", "transformers", "wechsel_jax.comparison", "wechsel_jax.training"]
)


def run_module(name: str, *arguments: str) -> subprocess.CompletedProcess:
    """What `python -m NAME ARGUMENTS` prints, and its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, stream) for stream in ("stdout", "stderr")]
        process = _PROCESSES.Process(target=_run, args=(name, arguments, files))
        process.start()
        process.join()
        return subprocess.CompletedProcess([name, *arguments], process.exitcode, *(file.read_text() for file in files))


def _run(name: str, arguments: tuple[str, ...], files: list[Path]) -> None:
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
