"""A sandbox for the scripts: a stub gcloud that runs remote commands here, in a home directory for each worker."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "tpu_scripts"
STUB = Path(__file__).parent / "stub"
PLACE = ["--zone=us-central1-a", "--project=my-project", "--quiet"]
TPU = ["--name=tpu", "--zone=us-central1-a", "--project=my-project"]
RUN = [*TPU, "--workdir=runs/german", "--bucket=gs://my-bucket/dir"]
CONFIG = ["--", "--config=configs/wechsel_gpt2.py:model=gpt2"]


class Sandbox:
    """Runs scripts against the stub; `path` holds the stub's state, the workers' homes and the bucket."""

    def __init__(self, path: Path, tmux: str):
        self.path = path
        self.tools = path / "bin"
        self.tools.mkdir()
        for tool in STUB.iterdir():
            if tool.name != "tmux" or tmux == "stub":
                text = tool.read_text().replace("#!/usr/bin/env python3", f"#!{sys.executable} -SE")
                (self.tools / tool.name).write_text(text)
                (self.tools / tool.name).chmod(0o755)
        self.environment = {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "HOME": str(path / "laptop"),
            "SANDBOX": str(path),
            "TMPDIR": str(path),
            "LC_ALL": "C.UTF-8",
        }
        (path / "laptop").mkdir()
        (path / "plan").touch()
        self.checkout = path / "checkout"  # little, so that packing it takes no time
        for name in ("wechsel_jax", "train", "configs"):
            (self.checkout / name).mkdir(parents=True)
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            (self.checkout / name).touch()
        shutil.copytree(SCRIPTS, self.checkout / "tpu_scripts")

    def __call__(self, script: str, *words: str, status: int | None = 0, **more) -> subprocess.CompletedProcess:
        """Runs a script to its end and checks its exit status."""
        result = subprocess.run(
            ["bash", SCRIPTS / f"{script}.sh", *words],
            env=self.environment | more.pop("env", {}), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if status is not None:
            assert result.returncode == status, (result.stdout, result.stderr)
        return result

    def start(self, script: str, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", SCRIPTS / f"{script}.sh", *words],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def ready(self, workers: int = 1) -> None:
        """A TPU that is ACTIVE and set up."""
        self.cloud(resource="ACTIVE", number=1, workers=workers)
        self("setup", *TPU, f"--source={self.checkout}", "--no-check")

    def cloud(self, **state) -> None:
        (self.path / "cloud.json").write_text(json.dumps(state))

    def plan(self, *lines: str) -> None:
        (self.path / "plan").write_text("".join(line + "\n" for line in lines))

    def steer(self, file: str, *lines: str) -> None:
        (self.path / file).write_text("".join(line + "\n" for line in lines))

    def calls(self, pattern: str = "") -> list[list[str]]:
        """Returns the argument vectors of gcloud's calls that match."""
        file = self.path / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [call for call in map(json.loads, lines) if re.search(pattern, " ".join(call))]

    def home(self, worker: int = 0, number: int = 1) -> Path:
        return self.path / f"vm{number}.{worker}"

    def workdir(self, **which) -> Path:
        return self.home(**which) / "wechsel-jax/runs/german"

    def bucket(self, path: str = "") -> Path:
        return self.path / "bucket/my-bucket/dir/runs/german" / path

    def until(self, condition, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "waited too long"
            time.sleep(0.1)

    def remote(self, *words: str, worker: int = 0, **more) -> subprocess.CompletedProcess:
        """Runs remote.sh as a worker would."""
        home = self.home(worker)
        environment = self.environment | {"HOME": str(home), "TMUX_TMPDIR": str(home), "WORKER": str(worker)}
        command = ["bash", "wechsel-jax/tpu_scripts/remote.sh", *words]
        return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=60, **more)

    def state(self, worker: int = 0) -> list[str]:
        if not (self.home(worker) / "wechsel-jax/tpu_scripts").exists():
            return ["unprepared"]
        return self.remote("state", "runs/german", worker=worker).stdout.rstrip("\n").split("\t")[2:]

    def close(self) -> None:
        """Ends what still runs here, by its environment; nothing may write while the directory is removed."""
        mark = f"SANDBOX={self.path}".encode()
        while ours := [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has(entry, mark)]:
            for process in ours:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.01)


def _has(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def lines_of(output: str) -> list[list[str]]:
    """Returns the gcloud lines of a --dry-run as argument vectors, as a shell would read them."""
    script = "\n".join(line for line in output.splitlines() if line.startswith("gcloud "))
    printed = "gcloud() { printf '%s\\0' \"$@\"; printf '\\1'; }\n" + script
    out = subprocess.run(["bash", "-c", printed], capture_output=True, text=True, check=True).stdout
    return [call.split("\0")[:-1] for call in out.split("\1")[:-1]]


def remote_words(call: list[str]) -> list[str]:
    """Returns the words that a worker's shell makes of a call's --command."""
    command = next(word.removeprefix("--command=") for word in call if word.startswith("--command="))
    out = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True)
    return out.stdout.split("\0")[:-1]
