import contextlib
import ctypes
import os
import signal
import threading
import time

import pytest

from wechsel_jax.training import interrupts as interrupts_module
from wechsel_jax.training.interrupts import Interrupted, Interrupts


@pytest.fixture(autouse=True)
def heard():
    """Where the tests run as a background job of a script, Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_before_training_ends_the_program():
    with Interrupts().installed(), pytest.raises(SystemExit) as exit_:
        os.kill(os.getpid(), signal.SIGTERM)
    assert exit_.value.code == 143


def test_a_signal_in_training_asks_for_an_orderly_end(capsys):
    with Interrupts().installed() as interrupts:
        interrupts.graceful = True
        assert not interrupts.requested(3) and list(interrupts.watch([1, 2])) == [1, 2]
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.requested(4)
        with pytest.raises(Interrupted):
            list(interrupts.watch([1, 2]))
        with pytest.raises(SystemExit) as exit_:
            interrupts.leave("saved step 4")
    assert exit_.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1] == "SIGINT: saved step 4"


def test_a_second_ctrl_c_quits_at_once(monkeypatch):
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    with Interrupts().installed() as interrupts:
        interrupts.graceful = True
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert left == []
        os.kill(os.getpid(), signal.SIGINT)
    assert left == [130]


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts().installed():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_is_ignored_on_purpose_stays_ignored():
    """As Ctrl-C is in a background job of a shell's script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts().installed() as interrupts:
        interrupts.graceful = True
        os.kill(os.getpid(), signal.SIGINT)
        assert not interrupts.requested(3)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_where_there_is_nothing_to_save_a_signal_ends_the_program(capsys):
    with Interrupts().installed() as interrupts:
        interrupts.graceful = True
        with pytest.raises(SystemExit) as exit_, interrupts.nothing_to_save("nothing new since step 7"):
            os.kill(os.getpid(), signal.SIGTERM)
        assert exit_.value.code == 143 and interrupts.graceful
    assert capsys.readouterr().err.splitlines() == ["SIGTERM: nothing new since step 7"]


def test_a_signal_ends_a_program_that_is_inside_a_compiler(monkeypatch, capfd):
    """The main thread is in C, where no Python handler runs; another thread gets the signal, as the system chooses."""
    left = []
    monkeypatch.setattr(os, "_exit", lambda status: left.append((status, time.monotonic())))
    monkeypatch.setattr(interrupts_module, "_PATIENCE_SECONDS", 0.1)
    libc = ctypes.CDLL(None)
    with Interrupts().installed() as interrupts:
        interrupts.graceful = True
        with contextlib.suppress(SystemExit), interrupts.nothing_to_save("nothing new since step 7"):
            old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            sender = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
            try:
                sender.start()
                began = time.monotonic()
                libc.usleep(1_800_000)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, old)
    ((status, ended),) = left
    assert status == 143 and ended - began < 1.7
    assert "SIGTERM: nothing new since step 7" in capfd.readouterr().err
