"""How long `transfer` takes by anker and by WECHSEL, in turns, each in a process of its own as a user starts it.

    PYTHONPATH=. python -m benchmarks.anker_time data runs/anker de sw zh fr

reads the data and the workdirs of configs/anker.py (LANG-0/tokenizer, and the word vectors of LANG-0/vectors, which WECHSEL is
given ready-made), and writes benchmarks/anker_time.json: seconds and CPU seconds of every round, and what the steps took.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.real_models import machine
from configs.anker import DICTIONARIES
from wechsel_jax import demo
from wechsel_jax.files import new_file
from wechsel_jax.records.names import RECORD_FILE

OUTPUT = Path(__file__).with_name("anker_time.json")
ROUNDS = 3


def contestants(data: Path, workdir: Path, language: str) -> dict[str, list[str]]:
    """Name to arguments."""
    dictionary = f"--dictionary={data / 'wechsel_wiktionary' / DICTIONARIES[language]}.tsv"
    texts = [f"--source_text={data / 'en.train.txt'}", f"--target_text={data / language}.train.txt"]
    vectors = [f"--{side}_vectors={workdir / 'vectors' / side}.bin" for side in ("source", "target")]
    return {
        "anker": ["--method=anker", dictionary, *texts],
        "anker, all text": ["--method=anker", dictionary, *texts, "--text_bytes=0"],
        "wechsel": ["--method=wechsel", dictionary, *vectors],
    }


def measure(arguments: list[str], tokenizer: Path) -> dict:
    """Runs one transfer."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "model"
        given = [f"--source={demo.path('english-gpt2')}", f"--target_tokenizer={tokenizer}", f"--output={output}"]
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "wechsel_jax", "transfer", *given, *arguments], stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        if status:
            raise SystemExit(f"transfer {' '.join(arguments)}: failed")
        record = json.loads((output / RECORD_FILE).read_text(encoding="utf-8"))
    cpu = usage.ru_utime + usage.ru_stime
    peak = usage.ru_maxrss * 1024 // 10**6
    return {"seconds": round(seconds, 2), "cpu": round(cpu, 2), "peak_mb": peak, "steps": record["timings"]}


def main(arguments: Sequence[str]) -> None:
    """Measures the languages and writes what was found."""
    if len(arguments) < 3:
        raise SystemExit(__doc__)
    data, runs, languages = Path(arguments[0]), Path(arguments[1]), arguments[2:]
    result: dict = {"machine": machine(), "rounds": ROUNDS, "languages": {}}
    for language in languages:
        workdir = runs / f"{language}-0"
        names = contestants(data, workdir, language)
        found: dict[str, list[dict]] = {name: [] for name in names}
        for _ in range(ROUNDS):
            for name, options in names.items():
                found[name].append(measure(options, workdir / "tokenizer"))
        result["languages"][language] = found
        for name, rounds in found.items():
            told = ", ".join(f"{one['seconds']:.1f} s ({one['cpu']:.1f} CPU s, {one['peak_mb']:,} MB)" for one in rounds)
            print(f"{language} {name}: {told}", flush=True)
    with new_file(OUTPUT, "w") as handle:
        json.dump(result, handle, indent=1)
        handle.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
