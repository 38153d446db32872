"""Files and directories: whole or not at all, never a stranger's, and nothing left of a process that was killed."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from tests.full_disk import no_file_above
from wechsel_jax import files
from wechsel_jax import program as module
from wechsel_jax.errors import UserError
from wechsel_jax.files import (
    RECORD,
    copy_tree,
    damage,
    new_directory,
    new_file,
    refuse_directory,
    refuse_file,
    refuse_workdir,
    remove_leftovers,
)
from wechsel_jax.program import mistake, program


def write(path: Path, text: str = "mine") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def make(path: Path, writer: str = "transfer", text: str = "one", **options) -> Path:
    with new_directory(path, writer, **options) as directory:
        write(directory / "deep" / "file", text)
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*"))


def test_what_another_process_has_written_meanwhile_stays(tmp_path):
    with pytest.raises(UserError, match="out: exists already"), new_directory(tmp_path / "out", "transfer") as ours:
        (ours / "a").write_text("ours")
        with new_directory(tmp_path / "out", "transfer") as theirs:
            (theirs / "a").write_text("theirs")
    assert (tmp_path / "out" / "a").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_names_what_was_being_written(tmp_path):
    with no_file_above(4096):
        with pytest.raises(OSError) as of_file, new_file(tmp_path / "page.html") as handle:
            handle.write(bytes(8192))
        with pytest.raises(OSError) as of_directory, new_directory(tmp_path / "out", "transfer") as directory:
            with new_file(directory / "weights") as handle:
                handle.write(bytes(8192))
    for error, name in ((of_file, "page.html"), (of_directory, "out")):
        assert mistake(error.value) == f"{tmp_path / name}: File too large; free some space and run the same command again"
    assert not names(tmp_path)


def test_a_tree_that_cannot_be_copied_is_one_line(tmp_path, monkeypatch):
    source = make(tmp_path / "source", text="x" * 8192)
    (source / "link").symlink_to("deep")
    (tmp_path / "copy").mkdir()
    copy_tree(source, tmp_path / "copy")
    assert names(tmp_path / "copy") == [RECORD, "deep", "deep/file", "link", "link/file"]
    assert not (tmp_path / "copy" / "link").is_symlink()
    with no_file_above(4096), pytest.raises(OSError) as raised, new_directory(tmp_path / "out", "transfer") as directory:
        copy_tree(source, directory)
    assert mistake(raised.value) == f"{tmp_path / 'out'}: File too large; free some space and run the same command again"
    # Another run may remove a checkpoint meanwhile.
    monkeypatch.setattr(os, "walk", lambda *_, **__: [(source, [], ["gone"])])
    with pytest.raises(OSError) as raised:
        copy_tree(source, tmp_path / "copy")
    assert mistake(raised.value) == f"{source / 'gone'}: No such file or directory"


def test_what_goes_wrong_names_the_output_and_not_the_temporary_file(tmp_path):
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError) as raised, new_file(tmp_path / "taken") as handle:
        handle.write(b"x")
    assert mistake(raised.value).startswith(f"{tmp_path / 'taken'}: ")
    # What somebody else's file says is left as it is.
    with pytest.raises(OSError) as raised, new_file(tmp_path / "out"):
        (tmp_path / "missing").read_bytes()
    assert mistake(raised.value) == f"{tmp_path / 'missing'}: No such file or directory"
    with pytest.raises(OSError) as raised, new_file(tmp_path / "out"):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset")
    assert mistake(raised.value) == "Connection reset"
    assert names(tmp_path) == ["taken", "taken/inside"]


@pytest.mark.parametrize("output", ["/proc/scores.json", "/proc/missing/scores.json"])
def test_where_nothing_can_be_made_is_refused_before_any_work(output):
    with pytest.raises(UserError, match=f"^{output}: /proc cannot be written to; choose another place"):
        refuse_file(output, never, "evaluate")


def test_a_directory_is_replaced_by_its_own_writer_alone(tmp_path):
    place = make(tmp_path / "out")
    assert names(tmp_path) == ["out", f"out/{RECORD}", "out/deep", "out/deep/file"]
    with pytest.raises(UserError, match="exists already"):
        make(place, text="two")
    with pytest.raises(UserError, match="transfer wrote it; only what tokenizer wrote is replaced"):
        make(place, "tokenizer", overwrite=True)
    make(place, text="two", overwrite=True)
    assert (place / "deep" / "file").read_text() == "two" and names(tmp_path)[:2] == ["out", f"out/{RECORD}"]


@pytest.mark.parametrize("stray", ["notes.txt", "deep/notes.txt", ".hidden", "link"])
def test_what_somebody_added_to_an_output_is_kept(tmp_path, stray):
    place = make(tmp_path / "out")
    if stray == "link":
        (place / stray).symlink_to(tmp_path)
    else:
        write(place / stray)
    with pytest.raises(UserError, match=f"it also holds {stray}; only what transfer wrote is replaced"):
        make(place, overwrite=True)
    assert stray in names(place) and (place / "deep" / "file").read_text() == "one"


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"written_by": "transfer"}', "[" * 100_000, '{"written_by": "transfer", "files": 3}']
)
def test_a_record_that_is_none_protects(tmp_path, record):
    place = write(tmp_path / "out" / "thesis.tex").parent
    write(place / RECORD, record)
    with pytest.raises(UserError, match="it holds no record of that"):
        refuse_directory(place, "transfer", overwrite=True)


def test_a_file_is_replaced_only_where_its_contents_are_those_of_the_writer(tmp_path):
    def own(path: Path) -> bool:
        return json.loads(path.read_text())["kind"] == "ours"

    refuse_file(tmp_path / "new", own, "table", overwrite=True)
    refuse_file(write(tmp_path / "ours", '{"kind": "ours"}'), own, "table", overwrite=True)
    for text in ('{"kind": "other"}', "{}", "no JSON", ""):
        with pytest.raises(UserError, match="its contents are of another kind; only what table wrote is replaced"):
            refuse_file(write(tmp_path / "theirs", text), own, "table", overwrite=True)


@pytest.mark.parametrize(
    ("prefix", "suffix"), [("", ""), ("datasets:", ""), ("datasets:", ":train"), ("hf://", "@main:train#config")]
)
def test_an_input_is_known_by_each_of_its_names(tmp_path, prefix, suffix):
    place = make(tmp_path / "mine")
    for given in (place, tmp_path):
        with pytest.raises(UserError, match=r"would be lost|which is read"):
            refuse_directory(place, "transfer", overwrite=True, inputs=[f"{prefix}{given}{suffix}"])
    refuse_directory(place, "transfer", overwrite=True, inputs=[f"{prefix}{tmp_path / 'other'}{suffix}", None, "gpt2", ""])


def test_a_hard_link_of_an_input_is_the_input(tmp_path):
    source = write(tmp_path / "a.txt")
    os.link(source, tmp_path / "b.txt")
    with pytest.raises(UserError, match=r"a\.txt is the same and would be lost"):
        refuse_file(tmp_path / "b.txt", lambda path: True, "table", overwrite=True, inputs=[source])


def test_an_output_is_replaced_where_the_user_has_no_home(tmp_path, monkeypatch):
    place = make(tmp_path / "out")
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    refuse_directory(place, "transfer", overwrite=True)


@pytest.mark.parametrize("name", [b"bad-\xff", b"deep/bad-\xff/out"])
def test_a_name_that_is_not_utf_8_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="the name is not UTF-8"):
        refuse_directory(tmp_path / os.fsdecode(name), "transfer")


def test_a_directory_without_a_name_of_its_own_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^\.: has no name of its own; expected the name of a directory to make"):
        refuse_directory(".", "transfer")


def test_a_file_appears_whole_and_with_the_rights_of_any_new_file(tmp_path):
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "a", "w") as handle:
        handle.write("half")
        raise ZeroDivisionError
    assert names(tmp_path) == []
    before = os.umask(0o027)
    try:
        with new_file(tmp_path / "a", "w") as handle:
            handle.write("whole")
            assert names(tmp_path) != ["a"]
        make(tmp_path / "b")
    finally:
        os.umask(before)
    assert (tmp_path / "a").read_text() == "whole" and names(tmp_path)[:2] == ["a", "b"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640 and (tmp_path / "b").stat().st_mode & 0o777 == 0o750


def test_leftovers_are_known_by_their_exact_names(tmp_path):
    make(tmp_path / "out")
    theirs = [
        ".out.partial",
        ".out.x.partial",
        ".out.0123456g.partial",
        ".other.01234567.partial",
        ".out.01234567.old.txt",
        ".bashrc.old",
    ]
    for name in theirs:
        write(tmp_path / name / "id" if name.endswith("old") else tmp_path / name)
    write(tmp_path / ".out.01234567.partial" / "model")
    write(tmp_path / ".out.76543210.old" / "model")
    remove_leftovers(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["out", *theirs])


def test_what_was_taken_away_and_not_replaced_comes_back(tmp_path):
    write(tmp_path / ".out.01234567.old" / "model", "old")
    remove_leftovers(tmp_path / "out")
    assert names(tmp_path) == ["out", "out/model"]


def test_damage_is_what_has_changed_since(tmp_path):
    place = make(tmp_path / "out", checksums=True)
    assert damage(place) is None
    write(place / "notes.txt")
    assert damage(place) is None
    write(place / "deep" / "file", "two")
    assert damage(place) == "deep/file has other contents than were written"
    write(place / "deep" / "file", "longer")
    assert damage(place) == "deep/file has 6 bytes instead of 3"
    (place / "deep" / "file").unlink()
    assert damage(place) == "deep/file is missing"


STALL = """
import ctypes, sys, time
from pathlib import Path
from wechsel_jax.files import new_directory, new_file, temporary_directory
from wechsel_jax.program import program

with program("tool"):
    place = Path(sys.argv[1])
    with new_directory(place / "a", "transfer", overwrite=True) as a, new_file(place / "b"), temporary_directory(place / "c"):
        (a / "model").write_bytes(b"x" * 1000)
        # Inside a library no handler of Python runs: a mutex that is taken twice.
        library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        while True:
            try:
                print("ready", flush=True)
                if sys.argv[2] == "library":
                    library.pthread_mutex_lock(mutex)
                time.sleep(60)
            except KeyboardInterrupt:
                if sys.argv[2] != "swallowed":
                    raise
                raise ImportError("numpy failed to import") from None
"""


def stalled(place: Path, how: str = "python", code: str = STALL) -> subprocess.Popen:
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(place), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell runs in the background ignores interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("how", ["python", "library", "swallowed"])
@pytest.mark.parametrize(("number", "said"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")])
def test_a_signal_ends_a_program_with_one_line_and_leaves_nothing(tmp_path, number, said, how):
    make(tmp_path / "a", text="old")
    child = stalled(tmp_path, how)
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (128 + number, "", f"tool: {said}\n")
    assert names(tmp_path) == ["a", f"a/{RECORD}", "a/deep", "a/deep/file"]


def test_the_next_call_removes_what_a_killed_one_left_and_nothing_of_one_at_work(tmp_path):
    killed, alive = stalled(tmp_path), stalled(tmp_path)
    try:
        killed.kill()
        killed.wait()
        assert len(list(tmp_path.iterdir())) == 6
        make(tmp_path / "a")
        left = sorted(path.name for path in tmp_path.iterdir())
        # The output, what the living makes, and of the dead what only a call for the same path removes.
        assert len(left) == 6 and len([name for name in left if name.startswith(".a.")]) == 1
        for name in ("b", "c"):
            remove_leftovers(tmp_path / name)
        assert len(list(tmp_path.iterdir())) == 4
    finally:
        alive.kill()
        alive.wait()


def test_after_a_signal_nothing_runs_behind_the_line(tmp_path):
    """What Python clears up at its end may need what other threads still use."""
    code = 'import atexit\natexit.register(print, "cleared up")\n' + STALL.replace('"tool"', '"tool", last=True')
    child = stalled(tmp_path, code=code)
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=60) == ("", "tool: stopped by SIGTERM\n") and child.returncode == 143
    assert names(tmp_path) == []


@pytest.mark.parametrize(("status", "cleared"), [(143, ""), (3, "cleared up\n")])
def test_after_a_signal_that_the_block_handled_nothing_runs_behind_it(status, cleared):
    code = (
        'import atexit\natexit.register(print, "cleared up")\nfrom wechsel_jax.program import program\n'
        f'with program("tool", last=True):\n    raise SystemExit({status})\n'
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr, ended.returncode) == (cleared, "", status)


def test_a_second_signal_does_not_wait_for_cleaning(tmp_path):
    slow = STALL.replace('raise ImportError("numpy failed to import") from None', "time.sleep(60)")
    child = stalled(tmp_path, "swallowed", slow)
    child.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[1] == "tool: interrupted\n" and child.returncode == 130
    assert names(tmp_path) == []


def test_a_line_is_printable_and_of_bounded_length(capsys):
    with pytest.raises(SystemExit) as stopped, program("tool"):
        raise UserError("\x1b[2Jfile" * 10_000 + ":\nwrong; mend it")
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2 and len(line) < 2100 and line.startswith("tool: error: \ufffd[2Jfile")
    assert line.endswith(": wrong; mend it") and line.isprintable()


def never(path: Path) -> bool:
    return False


def test_a_workdir_is_a_runs_or_empty(tmp_path):
    refuse_workdir(tmp_path / "new", never, "a training run")
    refuse_workdir(tmp_path, never, "a training run")
    make(tmp_path / "transfer")
    refuse_workdir(tmp_path, never, "a training run", outputs=True)
    with pytest.raises(UserError, match="holds transfer, and nothing that a comparison wrote"):
        refuse_workdir(tmp_path, never, "a comparison")
    (tmp_path / ".ssh.old").mkdir()
    with pytest.raises(UserError, match=r"holds \.ssh\.old, and nothing that a training run wrote; .* such as .*run"):
        refuse_workdir(tmp_path, never, "a training run", outputs=True)
    refuse_workdir(tmp_path, lambda path: True, "a training run")
    with pytest.raises(UserError, match="--workdir: is empty"):
        refuse_workdir("", never, "a training run")
    with pytest.raises(UserError, match="is no directory; expected one for a training run"):
        refuse_workdir(write(tmp_path / "file"), never, "a training run")


def test_the_file_that_a_program_prints_to_may_lie_in_its_workdir(tmp_path):
    code = "import sys; from wechsel_jax.files import refuse_workdir; refuse_workdir(sys.argv[1], lambda path: False, 'a run')"
    with open(tmp_path / "log.txt", "w") as log:
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=log, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    write(tmp_path / "thesis.tex")
    with open(tmp_path / "log.txt", "w") as log:
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=log, stderr=subprocess.PIPE, text=True)
    assert "holds thesis.tex" in done.stderr


def test_where_there_are_no_locks_nothing_is_taken_for_a_leftover(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(files.whole.fcntl, "flock", none)
    write(tmp_path / ".out.01234567.partial")
    make(tmp_path / "out")
    assert (tmp_path / ".out.01234567.partial").exists() and (tmp_path / "out" / "deep" / "file").exists()


def test_a_tokenizer_without_an_unknown_token_is_a_mistake():
    for kind in (models.WordLevel, models.WordPiece, models.Unigram):
        with pytest.raises(Exception) as raised:
            Tokenizer(kind([("a", 0.0)] if kind is models.Unigram else {"a": 0})).encode("b")
        assert "expected one with an unknown token" in mistake(raised.value)
    assert mistake(Exception("another")) is None


def test_what_the_system_says_of_any_path_is_one_line_of_bounded_length():
    with pytest.raises(OSError) as raised:
        Path("a\nb" * 2000).read_bytes()
    line = mistake(raised.value)
    assert line.startswith("a ba b") and line.endswith("b: File name too long") and "\n" not in line and len(line) < 2100


def test_a_missing_accelerator_is_a_mistake_and_other_errors_beside_one_are_not(monkeypatch):
    error = RuntimeError("Unable to initialize backend 'cuda'")
    for asked, found, told in (("cuda", False, True), ("cuda", True, False), ("cpu", False, False), ("", False, False)):
        monkeypatch.setenv("JAX_PLATFORMS", asked)
        monkeypatch.setattr(module, "_devices", lambda found=found: found)
        line = mistake(error)
        assert (line is not None) == told and (
            not told or "no device of JAX_PLATFORMS=cuda; expected one, and the extra" in line
        )
        # An error of the program's own kinds is one, whatever was asked for.
        assert mistake(KeyError("x")) is None


def test_what_a_terminal_cannot_show_is_told_by_its_number():
    code = "from wechsel_jax.program import program\nwith program('x'):\n    print('1.2 \xb1 0.1')\n"
    told = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert (told.returncode, told.stdout, told.stderr) == (0, b"1.2 \\xb1 0.1\n", b"")
