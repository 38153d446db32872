"""Measures how fast text becomes tokens on disk, beside `tokenizers` alone on the same text with as many threads.

    PYTHONPATH=. python benchmarks/preparation.py --text=german.txt.xz --tokenizer=gpt2/ --output=benchmarks/preparation.json

The floor is `Tokenizer.encode_batch` on the documents of the text in memory, which reads nothing and writes nothing. Rounds
of both follow each other, so that a busy machine is busy for both; processor seconds say more there than seconds on the clock.
`prepare` is a command of its own: its figures count its start, and hashing. Last, the peak memory of preparing
--memory_megabytes of that text, made by repeating it, and its processor seconds a byte over those of `tokenizers`: there the
start no longer counts.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import app, flags

from benchmarks.machine import processor
from benchmarks.results import write_results
from wechsel_jax.records.names import MANIFEST
from wechsel_jax.text.parts import read_documents

_TEXT = flags.DEFINE_string("text", None, "A text file, a document a line.", required=True)
_TOKENIZER = flags.DEFINE_string("tokenizer", None, "A directory with a tokenizer.json.", required=True)
_MEGABYTES = flags.DEFINE_integer("megabytes", 20, "How much of the text is used.", lower_bound=1)
_MEMORY_MEGABYTES = flags.DEFINE_integer("memory_megabytes", 300, "Size of the text for the peak memory.", lower_bound=1)
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of both.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds of both.", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", None, "JSON file for the result.")

_FLOOR = """
import sys, time
from pathlib import Path
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[2])
documents = [line for line in Path(sys.argv[1]).read_text("utf-8").split("\\n") if line and not line.isspace()]
seconds, processor = time.perf_counter(), time.process_time()
tokens = sum(map(len, tokenizer.encode_batch(documents)))
print(time.perf_counter() - seconds, time.process_time() - processor, tokens)
"""


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    with tempfile.TemporaryDirectory(prefix="wechsel-preparation-") as place:
        text = Path(place) / "text.txt"
        size = write_text(text, _MEGABYTES.value * 10**6)
        rounds = [{"tokenizers": floor(text), "prepare": prepare(text, Path(place) / f"{i}")} for i in range(_ROUNDS.value)]
        excerpt = text.read_bytes()
        with open(text, "wb") as handle:
            for _ in range(-(-_MEMORY_MEGABYTES.value * 10**6 // len(excerpt))):
                handle.write(excerpt)
        memory = prepare(text, Path(place) / "memory") | {"text_bytes": text.stat().st_size}
    floor_per_byte = statistics.median(per_byte(one["tokenizers"], size) for one in rounds)
    result = {
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "python": platform.python_version(),
        },
        "text": {"name": Path(_TEXT.value).name, "bytes": size, "tokenizer": Path(_TOKENIZER.value).name},
        "threads": _THREADS.value,
        "rounds": rounds,
        "prepare_over_tokenizers": {
            unit: statistics.median(one["prepare"][unit] / one["tokenizers"][unit] for one in rounds)
            for unit in ("seconds", "processor_seconds")
        },
        "large_text_over_tokenizers": {"processor_seconds": per_byte(memory, memory["text_bytes"]) / floor_per_byte},
        "memory": memory,
    }
    print(json.dumps(result, indent=1))
    if _OUTPUT.value:
        write_results(_OUTPUT.value, result)


def per_byte(measured: dict[str, float], size: int) -> float:
    """Processor seconds a byte of text."""
    return measured["processor_seconds"] / size


def write_text(path: Path, size: int) -> int:
    """Writes the beginning of the text; returns its bytes."""
    with open(path, "w", encoding="utf-8", newline="") as handle:
        for document in read_documents(_TEXT.value, "lines"):
            handle.write(document + "\n")
            if handle.tell() >= size:
                break
    return path.stat().st_size


def floor(text: Path) -> dict[str, float]:
    environment = {**os.environ, "RAYON_NUM_THREADS": str(_THREADS.value), "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, "-c", _FLOOR, str(text), str(Path(_TOKENIZER.value) / "tokenizer.json")]
    seconds, processor_seconds, tokens = subprocess.check_output(command, env=environment, text=True).split()
    return {"seconds": float(seconds), "processor_seconds": float(processor_seconds), "tokens": int(tokens)}


def prepare(text: Path, output: Path) -> dict[str, float]:
    arguments = [f"--input={text}", f"--tokenizer={_TOKENIZER.value}", f"--output={output}", f"--processes={_THREADS.value}"]
    started = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "wechsel_jax", "prepare", *arguments], stdout=subprocess.DEVNULL)
    peak = 0
    # The system's own record of the peak counts what the process that started it had, too.
    while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
        peak = max(peak, resident(child.pid))
        time.sleep(0.05)
    _, status, used = ended
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"prepare ended with status {status}")
    tokens = json.loads((output / MANIFEST).read_text())["tokens"]
    processor_seconds = used.ru_utime + used.ru_stime
    return {"seconds": seconds, "processor_seconds": processor_seconds, "tokens": tokens, "peak_resident_bytes": peak}


def resident(pid: int) -> int:
    """Resident memory of a process in bytes; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


if __name__ == "__main__":
    app.run(main)
