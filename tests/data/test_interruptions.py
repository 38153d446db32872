import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.full_disk import no_file_above
from wechsel_jax.data import TokenBlocks, manifest, prepare, prepare_split, unfinished
from wechsel_jax.errors import UserError
from wechsel_jax.text.parts import Part

module = importlib.import_module("wechsel_jax.data.prepare")
SETTINGS = {"validation_fraction": 0.2, "max_bytes": 60_000, "deduplicate": True}
# Small parts, recorded one by one, so that a kill finds something to go on with.
_SMALL = """
import filecmp, importlib, json, os, random, shutil, signal, sys, threading, time
import tqdm
from wechsel_jax.data import prepare, prepare_split, unfinished
module = importlib.import_module("wechsel_jax.data.prepare")
module.PART_BYTES, unfinished._RECORD_SECONDS = 2000, 0.0
text, tokenizer, output = sys.argv[1:4]
settings = json.loads(sys.argv[4])
"""
_RANDOM_KILLS = """
# A fork takes no threads along, so there must be none; and what is imported once is not part of what is measured.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
tqdm.tqdm.monitor_interval = 0
# Its own lock is one of all forks together, and a child that is killed while it holds that never gives it back.
tqdm.tqdm.set_lock(threading.RLock())
prepare_split(text, tokenizer, output + "-whole", **settings)

def child(seconds):
    pid = os.fork()
    if pid == 0:
        # Nothing handles the alarm: the system ends the process wherever it is. It counts processor time, so that a busy
        # machine does not change how far a child comes.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        prepare_split(text, tokenizer, output, **settings)
        os._exit(0)
    _, status, used = os.wait4(pid, 0)
    return status, used.ru_utime + used.ru_stime

draw = random.Random(int(sys.argv[5]))
status, whole = child(0)
assert status == 0
shutil.rmtree(output)
record = f"{os.path.dirname(output)}/.{os.path.basename(output)}.partial/progress.json"
files = [f"{side}/{name}" for side in ("train", "validation") for name in ("tokens.bin", "manifest.json")]
kills, resumed = 0, 0
while kills < 8 or resumed < 4:
    status, _ = child(draw.uniform(0.02, 0.4) * whole)
    # What can be seen under the final name is whole, and as it would have been.
    if status == 0 or os.path.exists(output):
        assert filecmp.cmpfiles(output, output + "-whole", files, shallow=False) == (files, [], [])
        shutil.rmtree(output)
    if status:
        assert os.WTERMSIG(status) == signal.SIGPROF
        kills, resumed = kills + 1, resumed + os.path.exists(record)
assert child(0)[0] == 0
"""


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": f"Satz {i % 2500} von vielen, in Köln"}) + "\n" for i in range(3000)))
    return path


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", 2000)
    monkeypatch.setattr(unfinished, "_RECORD_SECONDS", 0.0)


def run(code, *arguments, **popen):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([sys.executable, "-c", _SMALL + code, *map(str, arguments)], env=environment, **popen)


def contents(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def wait_for_parts(output, parts, stage="tokens"):
    record = unfinished.scratch_directory(output) / "progress.json"
    for _ in range(6000):
        reached = json.loads(record.read_text()) if record.exists() else {}
        if reached.get(stage, {}).get("parts", 0) >= parts:
            return
        time.sleep(0.01)
    raise AssertionError(f"no {parts} parts")


@pytest.mark.slow
def test_kills_at_random_moments_change_no_byte(tmp_path, tokenizers, text):
    output = tmp_path / "out"
    child = run(_RANDOM_KILLS, text, tokenizers["gpt2"], output, json.dumps(SETTINGS), 0)
    assert child.wait(timeout=400) == 0
    assert contents(output) == contents(tmp_path / "out-whole")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "out-whole", "text.jsonl"]


@pytest.fixture
def parts_read(monkeypatch):
    """Gets the place of each part whose documents are read."""
    read, documents = [], Part.documents
    monkeypatch.setattr(Part, "documents", lambda part: read.append(part.start) or documents(part))
    return read


def test_after_a_kill_the_next_call_goes_on(tmp_path, tokenizers, text, small_parts, parts_read):
    output, settings = tmp_path / "out", {"validation_fraction": 0.2}
    slow = "unfinished.os.fsync = lambda _: time.sleep(0.02)\n"
    code = slow + "prepare_split(text, tokenizer, output, **settings)"
    child = run(code, text, tokenizers["gpt2"], output, json.dumps(settings))
    wait_for_parts(output, 10)
    child.kill()
    child.wait()
    assert not output.exists()
    done = json.loads((tmp_path / ".out.partial" / "progress.json").read_text())["tokens"]["parts"]
    prepare_split(text, tokenizers["gpt2"], output, **settings)
    rest = parts_read.copy()
    parts_read.clear()
    prepare_split(text, tokenizers["gpt2"], tmp_path / "whole", **settings)
    assert done >= 10 and rest == parts_read[done:]
    assert contents(output) == contents(tmp_path / "whole")


def test_one_part_is_read_ahead(tmp_path, tokenizers, text, monkeypatch, small_parts, parts_read):
    append, ahead = unfinished.Stage.append, []

    def slow(self, number, *rest):
        time.sleep(0.01)
        ahead.append(len(parts_read) - number)
        append(self, number, *rest)

    monkeypatch.setattr(unfinished.Stage, "append", slow)
    prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert max(ahead) == 1 and len(ahead) == len(parts_read)


def test_a_file_that_goes_away_is_named_and_what_was_read_before_is_done(tmp_path, tokenizers, text, monkeypatch, small_parts):
    append, moved = unfinished.Stage.append, tmp_path / "moved.jsonl"

    def move(self, number, *rest):
        append(self, number, *rest)
        if number == 20:
            text.rename(moved)

    with monkeypatch.context() as patch:
        patch.setattr(unfinished.Stage, "append", move)
        with pytest.raises(FileNotFoundError, match=r"text\.jsonl"):
            prepare(text, tokenizers["gpt2"], tmp_path / "out")
    # Part 21 may have been read ahead; part 22 was not.
    assert json.loads((tmp_path / ".out.partial" / "progress.json").read_text())["tokens"]["parts"] in (20, 21)
    moved.rename(text)
    made = prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert made == prepare(text, tokenizers["gpt2"], tmp_path / "whole")


def interrupted_after(monkeypatch, parts, error):
    append = unfinished.Stage.append

    def stop(self, number, *rest):
        if number > parts:
            raise error
        append(self, number, *rest)

    monkeypatch.setattr(unfinished.Stage, "append", stop)


def test_an_interruption_keeps_what_is_done(tmp_path, tokenizers, text, monkeypatch, small_parts, capsys, parts_read):
    with monkeypatch.context() as patch:
        interrupted_after(patch, 20, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt, match="out: the same command goes on from there"):
            prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "out").exists()
    parts_read.clear()
    made = prepare(text, tokenizers["gpt2"], tmp_path / "out")
    rest = parts_read.copy()
    parts_read.clear()
    assert made == prepare(text, tokenizers["gpt2"], tmp_path / "whole")
    assert rest == parts_read[20:]


def test_killed_while_it_is_removed_it_is_known_and_made_again(tmp_path, tokenizers, text, monkeypatch):
    place = unfinished.scratch_directory(tmp_path / "out")
    (place / "output").mkdir(parents=True)
    for name in ("plan.json", "progress.json"):
        (place / name).write_text("{}")
    removed = []
    monkeypatch.setattr(unfinished.shutil, "rmtree", lambda path, **_: removed.append(path) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        unfinished.discard(tmp_path / "out")
    monkeypatch.undo()
    assert removed == [place / "output"] and unfinished.foreign(place) is None
    assert prepare(text, tokenizers["gpt2"], tmp_path / "out")["documents"]
    assert not place.exists()


def test_an_interruption_before_anything_is_done_leaves_nothing(tmp_path, tokenizers, text, monkeypatch):
    interrupted_after(monkeypatch, 0, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert os.listdir(tmp_path) == ["text.jsonl"]


def test_a_disk_that_is_full_at_once_promises_nothing(tmp_path, tokenizers, text, monkeypatch):
    interrupted_after(monkeypatch, 0, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(UserError, match=r"no room left on the disk .* run the same command again$"):
        prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert os.listdir(tmp_path) == ["text.jsonl"]


def test_a_disk_without_room_for_the_plan_leaves_nothing(tmp_path, tokenizers, text):
    with no_file_above(16), pytest.raises(UserError, match=r"no room left on the disk .* run the same command again$"):
        prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert os.listdir(tmp_path) == ["text.jsonl"]


@pytest.mark.parametrize("sentences", [False, True])
def test_a_full_disk_is_said_and_what_is_done_stays(tmp_path, tokenizers, text, monkeypatch, small_parts, sentences):
    with monkeypatch.context() as patch:
        interrupted_after(patch, 20, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(UserError, match=r"out: no room left on the disk .* it goes on where it stopped"):
            prepare(text, tokenizers["gpt2"], tmp_path / "out", sentences=sentences)
    assert not (tmp_path / "out").exists()
    # What the failed write may have left behind the last good byte is cut off.
    with open(tmp_path / ".out.partial" / "output" / "tokens.bin", "ab") as handle:
        handle.write(b"half")
    made = prepare(text, tokenizers["gpt2"], tmp_path / "out", sentences=sentences)
    assert made == prepare(text, tokenizers["gpt2"], tmp_path / "whole", sentences=sentences)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["flipped", "short", "gone", "record"])
def test_unfinished_work_that_was_damaged_begins_again(tmp_path, tokenizers, text, monkeypatch, small_parts, damage):
    with monkeypatch.context() as patch:
        interrupted_after(patch, 20, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            prepare(text, tokenizers["gpt2"], tmp_path / "out")
    tokens = tmp_path / ".out.partial" / "output" / "tokens.bin"
    raw = bytearray(tokens.read_bytes())
    raw[100] ^= 1
    changes = {"flipped": lambda: tokens.write_bytes(raw), "short": lambda: os.truncate(tokens, 50), "gone": tokens.unlink}
    changes["record"] = lambda: (tmp_path / ".out.partial" / "progress.json").write_text("{")
    changes[damage]()
    made = prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert made == prepare(text, tokenizers["gpt2"], tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_other_text_does_not_go_on_with_old_work(tmp_path, tokenizers, text, monkeypatch, small_parts):
    with monkeypatch.context() as patch:
        interrupted_after(patch, 20, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            prepare(text, tokenizers["gpt2"], tmp_path / "out")
    text.write_text('{"text": "neu"}\n')
    assert prepare(text, tokenizers["gpt2"], tmp_path / "out")["documents"] == 1


def test_text_that_changes_while_it_is_read(tmp_path, tokenizers, text, monkeypatch):
    append = unfinished.Stage.append
    monkeypatch.setattr(unfinished.Stage, "append", lambda *arguments: append(*arguments) or os.utime(text, (1, 1)))
    with pytest.raises(UserError, match="a source has changed while it was read"):
        prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert os.listdir(tmp_path) == ["text.jsonl"]


def test_text_that_grows_between_the_two_readings(tmp_path, tokenizers, text, monkeypatch, small_parts):
    def grow(*arguments, **settings):
        with open(text, "a") as handle:
            handle.write('{"text": "mehr"}\n' * 1000)
        return choose(*arguments, **settings)

    choose = module.choose
    monkeypatch.setattr(module, "choose", grow)
    with pytest.raises(UserError, match="a source has changed while it was read"):
        prepare(text, tokenizers["gpt2"], tmp_path / "out", deduplicate=True)
    assert os.listdir(tmp_path) == ["text.jsonl"]


@pytest.mark.slow
def test_two_at_once_make_one_result(tmp_path, tokenizers, text):
    slow = "unfinished.os.fsync = lambda _: time.sleep(0.01)\n"
    code = slow + "print(json.dumps(prepare(text, tokenizer, output)))"
    arguments = text, tokenizers["gpt2"], tmp_path / "out", "{}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [run(code, *arguments, **pipes) for _ in range(2)]
    printed = [child.communicate(timeout=100) for child in children]
    assert [child.returncode for child in children] == [0, 0], printed
    assert printed[0][0] == printed[1][0] and sum("waiting for that" in errors for _, errors in printed) == 1
    assert sorted(os.listdir(tmp_path)) == ["out", "text.jsonl"]
    TokenBlocks.open(tmp_path / "out", 8, verify=True)


def test_a_host_waits_until_another_has_prepared(tmp_path, tokenizers, text, monkeypatch, capsys):
    monkeypatch.setattr(manifest, "_NOTICE_SECONDS", 1)
    waiting = threading.Thread(target=manifest.wait_for, args=(tmp_path / "out",))
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive()
    prepare(text, tokenizers["gpt2"], tmp_path / "out")
    waiting.join(10)
    assert not waiting.is_alive() and "every process must see this directory" in capsys.readouterr().err


def test_a_byte_that_changed_on_disk_is_found_on_request(tmp_path, tokenizers, text):
    prepare(text, tokenizers["gpt2"], tmp_path / "out")
    TokenBlocks.open(tmp_path / "out", 8, verify=True)
    tokens = np.fromfile(tmp_path / "out" / "tokens.bin", "<u2")
    tokens[7] ^= 1
    tokens.tofile(tmp_path / "out" / "tokens.bin")
    assert len(TokenBlocks.open(tmp_path / "out", 8)) == len(tokens) // 8
    with pytest.raises(UserError, match=r"tokens\.bin: damaged: its sha256 is"):
        TokenBlocks.open(tmp_path / "out", 8, verify=True)


def test_a_lack_of_memory_says_what_to_lower_and_the_next_call_goes_on(tmp_path, tokenizers, text, monkeypatch, small_parts):
    encode = module.Encoder.tokens

    def fail(self, documents):
        if documents and documents[0].startswith("Satz 200 "):
            raise MemoryError
        return encode(self, documents)

    with monkeypatch.context() as patch:
        patch.setattr(module.Encoder, "tokens", fail)
        patch.setattr(module, "PART_BYTES", 1)
        with pytest.raises(MemoryError, match=r"text\.jsonl: use a smaller max_document_bytes"):
            prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert json.loads((tmp_path / ".out.partial" / "progress.json").read_text())["tokens"]["parts"] == 200


@pytest.mark.slow
def test_threads_change_no_byte_and_are_as_many_as_asked_for(tmp_path, tokenizers, text):
    code = """
from pathlib import Path
from wechsel_jax import cli
cli.main(["prepare", f"--input={text}", f"--tokenizer={tokenizer}", f"--output={output}", *settings])
# A thread that has been joined may still be listed for a moment.
time.sleep(0.5)
print(len(list(Path("/proc/self/task").iterdir())))
"""
    threads = []
    for count in (1, 6):
        arguments = text, tokenizers["gpt2"], tmp_path / f"{count}", json.dumps([f"--processes={count}"])
        printed, _ = run(code, *arguments, stdout=subprocess.PIPE, text=True).communicate(timeout=100)
        threads.append(int(printed.splitlines()[-1]))
    assert threads[1] - threads[0] == 5
    assert contents(tmp_path / "1") == contents(tmp_path / "6")


@pytest.mark.slow
def test_a_long_line_takes_bounded_memory(tmp_path, tokenizers):
    text = tmp_path / "long.txt"
    text.write_text("Grüße aus Köln, " * 600_000, encoding="utf-8")
    code = """
from pathlib import Path
prepare(text, tokenizer, output)
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""
    child = run(code, text, tokenizers["gpt2"], tmp_path / "out", "{}", stdout=subprocess.PIPE, text=True)
    peak = int(child.communicate(timeout=300)[0]) / 1024
    assert text.stat().st_size > 10e6 and peak < 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGTERM, 143, "stopped by SIGTERM"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_ends_the_command_with_one_line(tmp_path, tokenizers, text, number, status, said):
    output = tmp_path / "out"
    slow = "unfinished.os.fsync = lambda _: time.sleep(0.02)\n"
    code = (
        slow
        + """
from wechsel_jax import cli
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.main(["prepare", f"--input={text}", f"--tokenizer={tokenizer}", f"--output={output}"])
"""
    )
    child = run(code, text, tokenizers["gpt2"], output, "{}", stderr=subprocess.PIPE, text=True)
    wait_for_parts(output, 10)
    child.send_signal(number)
    _, errors = child.communicate(timeout=100)
    assert child.returncode == status
    assert errors == f"wechsel-jax prepare: {said}; {output}: the same command goes on from there\n"
    assert sorted(os.listdir(tmp_path)) == [".out.partial", "text.jsonl"]
