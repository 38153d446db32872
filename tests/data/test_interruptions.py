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

from wechsel_jax.data import TokenBlocks, manifest, prepare, prepare_split, processes, unfinished
from wechsel_jax.data.encoder import Encoder
from wechsel_jax.data.processes import work_through
from wechsel_jax.data.work import Task, Worker
from wechsel_jax.errors import UserError
from wechsel_jax.text.parts import Part
from wechsel_jax.tokens import load_tokenizer

module = importlib.import_module("wechsel_jax.data.prepare")
SETTINGS = {"validation_fraction": 0.2, "max_bytes": 60_000, "deduplicate": True}
# Small parts, recorded one by one, so that a kill finds something to go on with.
_SMALL = """
import filecmp, importlib, json, os, random, shutil, signal, sys, time
from wechsel_jax.data import prepare, prepare_split, unfinished
module = importlib.import_module("wechsel_jax.data.prepare")
module.PART_BYTES, unfinished._RECORD_SECONDS = 2000, 0.0
text, tokenizer, output = sys.argv[1:4]
settings = json.loads(sys.argv[4])
"""
_RANDOM_KILLS = """
# A fork takes no threads along, so there must be none; and what is imported once is not part of what is measured.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
prepare_split(text, tokenizer, output + "-whole", processes=0, **settings)

def child(seconds):
    pid = os.fork()
    if pid == 0:
        # Nothing handles the alarm: the system ends the process wherever it is. It counts processor time, so that a busy
        # machine does not change how far a child comes.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        prepare_split(text, tokenizer, output, processes=0, **settings)
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


def test_kills_at_random_moments_change_no_byte(tmp_path, tokenizers, text):
    output = tmp_path / "out"
    child = run(_RANDOM_KILLS, text, tokenizers["gpt2"], output, json.dumps(SETTINGS), 0)
    assert child.wait(timeout=400) == 0
    assert contents(output) == contents(tmp_path / "out-whole")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "out-whole", "text.jsonl"]


def test_a_kill_takes_the_workers_along_and_the_next_call_goes_on(tmp_path, tokenizers, text, monkeypatch, small_parts):
    output, settings = tmp_path / "out", {"validation_fraction": 0.2}
    slow = "unfinished.os.fsync = lambda _: time.sleep(0.02)\n"
    code = slow + "prepare_split(text, tokenizer, output, processes=2, **settings)"
    child = run(code, text, tokenizers["gpt2"], output, json.dumps(settings))
    wait_for_parts(output, 10)
    workers = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    child.kill()
    child.wait()
    assert len(workers) == 2 and not output.exists()
    for worker in workers:
        for _ in range(500):
            state = Path(f"/proc/{worker}/stat")
            if not state.exists() or state.read_text().split(") ")[1][0] == "Z":
                break
            time.sleep(0.01)
        else:
            raise AssertionError("a worker outlives the process that started it")
    read = []
    real = module.work_through
    monkeypatch.setattr(module, "work_through", lambda worker, tasks, n: real(worker, (read.append(t) or t for t in tasks), n))
    prepare_split(text, tokenizers["gpt2"], output, processes=1, **settings)
    assert read[0].number >= 10
    prepare_split(text, tokenizers["gpt2"], tmp_path / "whole", processes=0, **settings)
    assert contents(output) == contents(tmp_path / "whole")


def interrupted_after(monkeypatch, parts, error):
    append = unfinished.Stage.append

    def stop(self, number, *rest):
        if number > parts:
            raise error
        append(self, number, *rest)

    monkeypatch.setattr(unfinished.Stage, "append", stop)


def test_an_interruption_keeps_what_is_done(tmp_path, tokenizers, text, monkeypatch, small_parts, capsys):
    with monkeypatch.context() as patch:
        interrupted_after(patch, 20, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt, match="out: the same command goes on from there"):
            prepare(text, tokenizers["gpt2"], tmp_path / "out", processes=2)
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "out").exists()
    read = []
    real = module.work_through
    monkeypatch.setattr(module, "work_through", lambda worker, tasks, n: real(worker, (read.append(t) or t for t in tasks), n))
    made = prepare(text, tokenizers["gpt2"], tmp_path / "out", processes=0)
    assert read[0].number == 20
    assert made == prepare(text, tokenizers["gpt2"], tmp_path / "whole", processes=2)


def test_an_interruption_before_anything_is_done_leaves_nothing(tmp_path, tokenizers, text, monkeypatch):
    interrupted_after(monkeypatch, 0, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert os.listdir(tmp_path) == ["text.jsonl"]


def test_a_full_disk_is_said_and_what_is_done_stays(tmp_path, tokenizers, text, monkeypatch, small_parts):
    with monkeypatch.context() as patch:
        interrupted_after(patch, 20, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(UserError, match=r"out: no room left on the disk .* it goes on where it stopped"):
            prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # What the failed write may have left behind the last good byte is cut off.
    with open(tmp_path / ".out.partial" / "output" / "tokens.bin", "ab") as handle:
        handle.write(b"half")
    made = prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert made == prepare(text, tokenizers["gpt2"], tmp_path / "whole")
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


def test_a_worker_that_is_killed_is_said_and_the_next_call_goes_on(tmp_path, tokenizers, text, monkeypatch, small_parts):
    append = unfinished.Stage.append

    def kill(self, number, *rest):
        if number == 20:
            worker = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()[-1]
            os.kill(int(worker), signal.SIGKILL)
        append(self, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(unfinished.Stage, "append", kill)
        with pytest.raises(UserError, match=r"was ended from outside.*it goes on where it stopped"):
            prepare(text, tokenizers["gpt2"], tmp_path / "out", processes=1)
    assert (tmp_path / ".out.partial").exists()
    made = prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert made == prepare(text, tokenizers["gpt2"], tmp_path / "whole")


def test_text_that_changes_while_it_is_read(tmp_path, tokenizers, text, monkeypatch):
    append = unfinished.Stage.append
    monkeypatch.setattr(unfinished.Stage, "append", lambda *arguments: append(*arguments) or os.utime(text, (1, 1)))
    with pytest.raises(UserError, match="a source has changed while it was read"):
        prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert os.listdir(tmp_path) == ["text.jsonl"]


def test_two_at_once_make_one_result(tmp_path, tokenizers, text):
    slow = "unfinished.os.fsync = lambda _: time.sleep(0.01)\n"
    code = slow + "print(json.dumps(prepare(text, tokenizer, output, processes=0)))"
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
        with pytest.raises(MemoryError, match=r"text\.jsonl: use fewer processes or a smaller max_document_bytes"):
            prepare(text, tokenizers["gpt2"], tmp_path / "out", processes=0)
    assert json.loads((tmp_path / ".out.partial" / "progress.json").read_text())["tokens"]["parts"] == 200


def test_what_a_worker_cannot_do_ends_as_here(tmp_path, tokenizers, text):
    code = """
from wechsel_jax.data import processes
from wechsel_jax.data.encoder import Encoder
from wechsel_jax.text.parts import Part
from wechsel_jax.data.work import Task, Worker
from wechsel_jax.tokens import load_tokenizer
worker = Worker(Encoder.of(load_tokenizer(tokenizer), tokenizer))
parts = [Part(text, "lines", 1, path=text, size=7), Part(text + ".gone", "lines", 1, path=text + ".gone", size=7)]
try:
    for task, _ in processes.work_through(worker, [Task(i, part, 1) for i, part in enumerate(parts)], 1):
        print(task.number)
except processes.UserError as error:
    print(error)
"""
    child = run(
        code, text, tokenizers["gpt2"], tmp_path / "out", "{}", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    printed, errors = child.communicate(timeout=100)
    assert (printed.splitlines(), errors) == (["0", f"{text}.gone: No such file or directory"], "")


def test_long_documents_are_tokenised_one_at_a_time(tokenizers, monkeypatch):
    monkeypatch.setattr(processes, "_LONG", 100)
    running, most = [], []
    send, receive = processes.send, processes.receive

    def sent(connection, pieces):
        send(connection, pieces)
        if len(pieces) > 2:
            running.append((connection, len(pieces[2])))
            most.append(sum(size > 100 for _, size in running))

    def received(connection):
        running[:] = [item for item in running if item[0] is not connection]
        return receive(connection)

    monkeypatch.setattr(processes, "send", sent)
    monkeypatch.setattr(processes, "receive", received)
    worker = Worker(Encoder.of(load_tokenizer(tokenizers["gpt2"]), "gpt2"))
    sizes = [10, 500, 500, 10, 500, 10, 10, 500, 500]
    tasks = [Task(i, Part("text", "lines", 1, raw=b"x" * size), 1) for i, size in enumerate(sizes)]
    found = [(task.number, result.counts["train_text_bytes"]) for task, result in work_through(worker, iter(tasks), 3)]
    assert found == list(enumerate(sizes)) and max(most) == 1 and len(most) == len(sizes)


@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGTERM, 143, "stopped by SIGTERM"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_ends_the_command_with_one_line_and_its_workers(tmp_path, tokenizers, text, number, status, said):
    output = tmp_path / "out"
    slow = "unfinished.os.fsync = lambda _: time.sleep(0.02)\n"
    code = (
        slow
        + """
from wechsel_jax import cli
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.main(["prepare", f"--input={text}", f"--tokenizer={tokenizer}", f"--output={output}", "--processes=2"])
"""
    )
    child = run(code, text, tokenizers["gpt2"], output, "{}", stderr=subprocess.PIPE, text=True)
    wait_for_parts(output, 10)
    workers = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    child.send_signal(number)
    _, errors = child.communicate(timeout=100)
    assert child.returncode == status
    assert errors == f"wechsel-jax prepare: {said}; {output}: the same command goes on from there\n"
    assert len(workers) == 2 and not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert sorted(os.listdir(tmp_path)) == [".out.partial", "text.jsonl"]
