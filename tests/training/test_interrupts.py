import os
import signal

import pytest

from wechsel_jax.training.interrupts import Interrupted, Interrupts


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
