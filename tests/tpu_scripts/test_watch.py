"""watch.sh against a cloud that takes machines away: what it does again, what it counts, and when it stops."""

import re
import signal

import pytest

from tests.tpu_scripts.sandbox import CONFIG, RUN


def words(sandbox, *flags: str) -> list[str]:
    """The command line of a watch that never sleeps."""
    return [*RUN, "--type=v3-8", f"--source={sandbox.checkout}", "--poll=0", "--every=1", *flags, *CONFIG]


def verbs(sandbox) -> list[str]:
    """What the cloud was asked for, without looks and copies."""
    names = []
    for call in sandbox.calls("compute"):
        found = re.search(
            r"queued-resources (create|delete)|remote.sh (setup|launch|restore|stop|push)|tpu-vm (scp)", " ".join(call)
        )
        if found:
            names.append(next(filter(None, found.groups())))
    return names


NEW = ["create", "scp", "setup", "restore", "launch"]


@pytest.mark.slow
def test_preempted_twice_then_finished(sandbox):
    sandbox.plan("hold", "hold", "finish")
    where = "bucket/my-bucket/dir/runs/german/complete"
    sandbox.steer("preempt", f"{where}/100", f"{where}/200")
    out = sandbox("watch", *words(sandbox, "--delete")).stdout
    assert verbs(sandbox) == [*NEW, "delete", *NEW, "delete", *NEW, "push", "delete"]
    # Every machine went on from where the last one's copy ended.
    assert sandbox.bucket("checkpoints/300/weights").read_text() == "weights 300\n"
    assert [int(step) for step in re.findall(r'"step": (\d+)', sandbox.bucket("metrics.jsonl").read_text())] == [
        100,
        200,
        300,
        300,
    ]
    assert sandbox.bucket("export/model.safetensors").exists()
    assert out.count("the TPU is SUSPENDED") == 2 and "finished: " in out and "2 preemptions" in out
    assert not [*(sandbox.path / "laptop").rglob("*.watch")]


@pytest.mark.slow
def test_a_setup_and_a_request_that_fail_are_made_again(sandbox):
    sandbox.cloud(resource="FAILED", number=0, workers=1)
    sandbox.plan("finish")
    sandbox.steer(
        "failures",
        "1 1 queued-resources create\tERROR: no quota now",
        "1 1 tpu-vm scp\tERROR: lost connection",
        "1 1 remote.sh launch\tERROR: lost connection",
    )
    result = sandbox("watch", *words(sandbox))
    create, scp, setup, restore, launch = NEW
    assert verbs(sandbox) == ["delete", create, create, scp, scp, setup, restore, launch, restore, launch, "push"]
    assert "no quota now" in result.stderr and "attempt 4 of 10" in result.stdout
    assert "the TPU costs on until delete.sh" in result.stdout


@pytest.mark.slow
def test_a_crash_is_launched_again_and_progress_clears_the_count(sandbox):
    sandbox.ready()
    # A worker that misses the others is no mistake of the user's, though the program ends with status 2.
    sandbox.plan("exit 1 oops", "hold", "exit 2 distributed.coordinator: auto: cannot join the run", "finish")
    # The run that holds is taken away once it has a checkpoint; without that the second crash would end the watch.
    sandbox.steer("preempt", "bucket/my-bucket/dir/runs/german/complete/100")
    out = sandbox("watch", *words(sandbox, "--max-retries=1")).stdout
    assert "status 1: oops; attempt 1 of 1" in out and "cannot join the run; attempt 1 of 1" in out and "finished" in out


def test_it_gives_up_after_enough_failures_without_progress(sandbox):
    sandbox.ready()
    sandbox.plan(*["exit 1 oops"] * 9)
    result = sandbox("watch", *words(sandbox, "--max-retries=1"), status=1)
    assert verbs(sandbox).count("launch") == 2
    assert "status 1: oops; 2 times in a row without a newer checkpoint: given up" in result.stderr


@pytest.mark.slow
def test_preemption_without_progress_ends_too(sandbox):
    # Taken away as soon as it is set up, before any checkpoint.
    sandbox.steer("preempt", *(f"vm{number}.0/.wechsel-jax/ready" for number in (1, 2, 3)))
    result = sandbox("watch", *words(sandbox, "--max-retries=1"), status=1)
    assert verbs(sandbox) == ["create", "scp", "setup", "delete"] * 2
    assert "preempted; 2 times in a row without a newer checkpoint: given up" in result.stderr


def test_a_users_mistake_is_shown_and_not_tried_again(sandbox):
    sandbox.ready()
    sandbox.plan("exit 2 python -m train.pretrain: steps: is 0; expected at least 1\\nE1121 JAX shuts down")
    result = sandbox("watch", *words(sandbox), status=2)
    assert "refuses to go on: python -m train.pretrain: steps: is 0; expected at least 1" in result.stderr
    assert verbs(sandbox).count("launch") == 1 and "delete" not in verbs(sandbox)


@pytest.mark.slow
def test_it_joins_a_run_that_is_running_and_survives_its_own_end(sandbox):
    sandbox.plan("hold")
    first = sandbox.start("watch", *words(sandbox, "--poll=1"))
    sandbox.until(lambda: sandbox.state()[3:4] == ["100"], 40)
    assert "another watch.sh has it" in sandbox("watch", *words(sandbox), status=2).stderr
    first.send_signal(signal.SIGTERM)
    out, _ = first.communicate(timeout=60)
    assert first.returncode == 130 and "the run goes on" in out
    assert sandbox.state()[0] == "running"
    second = sandbox.start("watch", *words(sandbox, "--poll=1"))
    looks = len(sandbox.calls("remote.sh state"))
    sandbox.until(lambda: len(sandbox.calls("remote.sh state")) > looks + 1)
    assert verbs(sandbox) == NEW
    sandbox("stop", *RUN)
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 3 and "stopped by stop.sh at step 100" in out
    assert verbs(sandbox) == [*NEW, "stop"]


@pytest.mark.slow
def test_at_a_limit_the_run_is_saved_copied_and_the_tpu_deleted(sandbox):
    sandbox.ready()
    sandbox.plan("hold")
    # 2.04 dollars an hour: a tenth of a cent is less than two seconds.
    out = sandbox("watch", *words(sandbox, "--max-cost=0.001"), status=4).stdout
    assert verbs(sandbox)[-3:] == ["stop", "push", "delete"]
    assert sandbox.bucket("complete/107").exists() and "limit reached" in out
    # The state file remembers: with the same limit nothing is created.
    sandbox("watch", *words(sandbox, "--max-cost=0.001"), status=4)
    assert verbs(sandbox)[-3:] == ["stop", "push", "delete"]


@pytest.mark.slow
def test_at_a_limit_nothing_is_deleted_that_is_not_in_the_bucket(sandbox):
    sandbox.ready()
    sandbox.plan("hold")
    sandbox.steer("failures", "99 1 storage rsync\tnetwork")
    result = sandbox("watch", *words(sandbox, "--max-hours=0.0005"), status=4)
    assert "delete" not in verbs(sandbox) and "the TPU is left and costs on" in result.stderr


@pytest.mark.slow
def test_a_worker_that_fails_takes_the_others_with_it(sandbox):
    sandbox.ready(workers=2)
    sandbox.plan("hold", "exit 1 lost the others", "finish", "finish")
    share = f"--workdir={sandbox.path}/share"
    sandbox("watch", *words(sandbox)[:-2], share, *CONFIG)
    assert verbs(sandbox)[2:] == ["restore", "launch", "stop", "restore", "launch", "push"]


def test_a_tpu_that_cannot_be_reached_for_a_while_is_left_alone(sandbox):
    sandbox.ready()
    sandbox.plan("finish")
    sandbox.steer("failures", "2 1 queued-resources describe\tERROR: token expired", "2 255 remote.sh state\tssh: timed out")
    result = sandbox("watch", *words(sandbox))
    assert result.stderr.count("token expired") == 2 and result.stderr.count("ssh: timed out") == 2
    assert result.stdout.count("cannot be reached (node: READY); nothing is done") == 2
    assert verbs(sandbox)[2:] == ["restore", "launch", "push"]


@pytest.mark.slow
def test_a_preempted_node_is_replaced_though_its_request_says_active(sandbox):
    sandbox.ready()
    sandbox.plan("finish")
    sandbox.cloud(resource="ACTIVE", node="PREEMPTED", number=1, workers=1)
    sandbox("watch", *words(sandbox))
    assert verbs(sandbox)[2:] == ["delete", *NEW, "push"]


def test_a_damaged_memory_is_said(sandbox):
    file = sandbox.path / "memory"
    file.write_text("attempts=$(id)\n")
    assert f"{file}: is damaged" in sandbox("watch", *words(sandbox, f"--state={file}"), status=2).stderr
