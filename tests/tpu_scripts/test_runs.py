"""The scripts against a cloud whose workers are real shells: what is created, launched, copied, stopped and deleted."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.tpu_scripts.sandbox import CONFIG, PLACE, RUN, SCRIPTS, TPU
from tests.tpu_scripts.test_lines import DESCRIBE, GOLDEN, HOSTILE, LAUNCHED, TO, V3, queued

needs_both = pytest.mark.parametrize("sandbox", ["real", "stub"], indirect=True)


def test_create_waits_until_it_is_active_and_asks_once(sandbox):
    out = sandbox("create", *TPU, "--type=v3-8", "--poll=0")
    assert [line.split()[-1] for line in out.stderr.splitlines()] == ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    assert sandbox.calls() == [DESCRIBE, queued("create", "--node-id=tpu", *V3, "--spot"), DESCRIBE, DESCRIBE, DESCRIBE]
    assert "there already (ACTIVE)" in sandbox("create", *TPU, "--type=v3-8").stderr
    assert len(sandbox.calls("queued-resources create")) == 1


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
def test_create_says_what_will_not_become_active(sandbox, state):
    sandbox.cloud(resource=state, number=1, workers=1)
    assert f"is {state} and will not become ACTIVE; delete.sh" in sandbox("create", *TPU, "--type=v3-8", status=1).stderr


def test_create_passes_on_what_gcloud_says(sandbox):
    sandbox.steer("failures", "1 1 queued-resources create\tERROR: quota TPUV3sPreemptible exceeded")
    stderr = sandbox("create", *TPU, "--type=v3-8", status=1).stderr
    assert "quota TPUV3sPreemptible exceeded" in stderr and "was not taken" in stderr


def test_setup_installs_the_checkout_on_every_worker(sandbox):
    sandbox.cloud(resource="ACTIVE", number=1, workers=2)
    (sandbox.checkout / "train" / "__pycache__").mkdir()
    (sandbox.checkout / "train" / "old.py").touch()
    sandbox("setup", *TPU, f"--source={sandbox.checkout}")
    copy = sandbox.calls("tpu-vm scp")[0]
    assert copy[4:] == [copy[4], "tpu:.wechsel-jax.tar.gz", *PLACE, "--worker=all"] and not os.path.exists(copy[4])
    for worker in range(2):
        home = sandbox.home(worker)
        assert (home / "wechsel-jax/setup.py").exists() and (home / "wechsel-jax/train/old.py").exists()
        assert not (home / "wechsel-jax/train/__pycache__").exists()
        assert sandbox.state(worker)[0] == "idle"
    # What was removed from the checkout goes there too; what the run made stays.
    (sandbox.checkout / "train" / "old.py").unlink()
    (sandbox.workdir()).mkdir(parents=True)
    sandbox("setup", *TPU, f"--source={sandbox.checkout}")
    assert not (sandbox.home() / "wechsel-jax/train/old.py").exists() and sandbox.workdir().exists()


def test_setup_from_git_takes_the_commit_that_is_asked_for(sandbox):
    sandbox.cloud(resource="ACTIVE", number=1, workers=1)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "1"], ["tag", "v1"]):
        subprocess.run([*git, *command], cwd=sandbox.checkout, check=True)
    (sandbox.checkout / "configs/new.py").touch()
    for command in (["add", "."], ["commit", "--quiet", "-m", "2"]):
        subprocess.run([*git, *command], cwd=sandbox.checkout, check=True)
    # Git reads the address https://example.org/x as the local checkout.
    rewrite = {"GIT_CONFIG_COUNT": "2", "GIT_CONFIG_KEY_0": f"url.{sandbox.checkout}.insteadOf",
               "GIT_CONFIG_VALUE_0": "https://example.org/x", "GIT_CONFIG_KEY_1": "safe.directory",
               "GIT_CONFIG_VALUE_1": "*"}  # fmt: skip
    new = sandbox.home() / "wechsel-jax/configs/new.py"
    sandbox("setup", *TPU, "--source=https://example.org/x", "--ref=v1", "--no-check", env=rewrite)
    assert not new.exists() and sandbox.state()[0] == "idle"
    sandbox("setup", *TPU, "--source=https://example.org/x", "--no-check", env=rewrite)
    assert new.exists()
    # Also over a tarball, and from it again; what the run made stays.
    sandbox.workdir().mkdir(parents=True)
    (sandbox.checkout / "train/old.py").touch()
    sandbox("setup", *TPU, f"--source={sandbox.checkout}", "--no-check")
    shutil.rmtree(sandbox.home() / "wechsel-jax/.git")
    first = subprocess.run([*git, "rev-parse", "--short", "v1"], cwd=sandbox.checkout, capture_output=True, text=True).stdout
    for ref, there in ((first.strip(), False), ("main", True), ("v1", False)):
        sandbox("setup", *TPU, "--source=https://example.org/x", f"--ref={ref}", "--no-check", env=rewrite)
        assert new.exists() == there and not (sandbox.home() / "wechsel-jax/train/old.py").exists()
        assert sandbox.workdir().exists() and sandbox.state()[0] == "idle"
    for ref in ("0badc0de", "v2"):
        stderr = sandbox(
            "setup", *TPU, "--source=https://example.org/x", f"--ref={ref}", "--no-check", env=rewrite, status=2
        ).stderr
        assert f"--ref: {ref}: https://example.org/x has none of this name; expected a branch, tag or commit" in stderr
        assert sandbox.state()[0] == "idle"


def test_setup_brings_the_inputs_to_every_worker(sandbox):
    sandbox.cloud(resource="ACTIVE", number=1, workers=2)
    (sandbox.path / "bucket/abc/in/model").mkdir(parents=True)
    (sandbox.path / "bucket/abc/in/model/config.json").write_text("{}")
    flags = [*TPU, f"--source={sandbox.checkout}", "--no-check", "--inputs=gs://abc/in"]
    sandbox.steer("failures", "1 1 storage rsync\tERROR: 403")
    sandbox("setup", *flags, status=1)
    assert sandbox.state(0)[0] == "unprepared" and sandbox.state(1)[0] == "idle"
    sandbox("setup", *flags)
    for worker in range(2):
        assert (sandbox.home(worker) / "wechsel-jax/inputs/model/config.json").read_text() == "{}"


def test_a_failed_installation_is_not_taken_for_done(sandbox):
    sandbox.ready()
    pip = sandbox.home() / ".wechsel-jax/venv/bin/python"
    pip.unlink()
    pip.write_text('#!/bin/sh\ncase "$*" in *pip*) echo "no network" >&2; exit 1;; esac\n')
    pip.chmod(0o755)
    assert "no network" in sandbox("setup", *TPU, f"--source={sandbox.checkout}", status=1).stderr
    assert sandbox.state()[0] == "unprepared"


@pytest.mark.slow
@needs_both
def test_a_run_from_launch_to_its_end(sandbox):
    sandbox.ready()
    sandbox.plan("finish")
    sandbox("launch", *RUN, "--env=A=b", *CONFIG)
    assert sandbox.calls("command=bash.*(state|restore|launch|sync start)") == LAUNCHED
    sandbox.until(lambda: sandbox.state()[0] == "exited")
    assert sandbox.state()[:4] == ["exited", "0", "100", "100"]
    argv = (sandbox.path / "argv").read_text().split("\0")[:-1]
    assert argv == ["-m", "train.pretrain", "--workdir=runs/german", CONFIG[1], "--config.distributed.coordinator=auto"]
    environment = (sandbox.path / "environment").read_text().split("\0")
    assert {"A=b", "JAX_PLATFORMS=tpu,cpu", "PYTHONUNBUFFERED=1"} <= {*environment}
    assert (sandbox.path / "cwd").read_text().strip() == str(sandbox.home() / "wechsel-jax")
    log = sandbox("logs", *TPU, "--lines=10").stdout
    assert "going on from step 0" in log and "ended with status 0" in log
    assert sandbox("logs", *TPU, "--worker=all", "--lines=1").stdout.startswith("w-0: == ")
    status = sandbox("status", *RUN, "--type=v3-8").stdout
    assert "tpu: ACTIVE" in status and "exited, exit status 0, step 100, newest checkpoint 100" in status and "$2.04" in status


def test_launch_refuses_while_a_run_is_running(sandbox):
    sandbox.ready(workers=2)
    sandbox.plan("hold", "hold")
    words = [*TPU, "--workdir=/" + str(sandbox.path / "share"), *CONFIG]
    sandbox("launch", *words)
    refused = sandbox("launch", *words, status=3)
    assert "a run is running already" in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert len(sandbox.calls("remote.sh launch")) == 1
    assert sandbox.remote("launch", "w", "train.pretrain", "0", worker=1).returncode == 3
    assert "a run is running here" in sandbox("setup", *TPU, f"--source={sandbox.checkout}", status=3).stderr
    sandbox("stop", *TPU)


def test_launch_refuses_what_cannot_work(sandbox):
    assert "cannot be reached" in sandbox("launch", *RUN, *CONFIG, status=1).stderr
    sandbox.cloud(resource="ACTIVE", number=1, workers=2)
    assert "not set up; setup.sh first" in sandbox("launch", *RUN, *CONFIG, status=1).stderr
    sandbox.ready(workers=2)
    assert "shared/... and --share" in sandbox("launch", *RUN, *CONFIG, status=2).stderr
    alone = sandbox("launch", *RUN, "--program=train.compare", *CONFIG, status=2).stderr
    assert "train.compare runs on one worker and this TPU has 2" in alone
    assert sandbox.calls("remote.sh launch") == []


@pytest.mark.slow
@needs_both
def test_stop_lets_the_run_save_before_anything_else(sandbox):
    sandbox.ready()
    sandbox.plan("hold")
    sandbox("launch", *RUN, "--every=1000", *CONFIG)
    sandbox.until(lambda: sandbox.state()[:2] == ["running", "-"] and sandbox.state()[3] == "100")
    out = sandbox("stop", *TPU).stdout
    assert "SIGTERM sent" in out and "stopped with status 143" in out and "killed" not in out
    assert sandbox.state()[:4] == ["stopped", "143", "100", "107"]
    # The checkpoint of the last moment is in the bucket before stop.sh returns.
    assert sandbox.bucket("complete/107").exists() and sandbox.bucket("checkpoints/107/weights").exists()
    assert "nothing is running" in sandbox("stop", *TPU).stdout


def test_stop_kills_what_does_not_end(sandbox):
    sandbox.ready()
    sandbox.plan("deaf")
    sandbox("launch", *RUN[:-1], *CONFIG)
    sandbox.until(lambda: sandbox.state()[3] == "100")
    begin = time.monotonic()
    out = sandbox("stop", *TPU, "--grace=1").stdout
    assert "killed after 1 s" in out and "stopped with status 137" in out and time.monotonic() - begin >= 1


def test_a_run_that_was_killed_with_its_shell_has_died(sandbox):
    sandbox.ready()
    sandbox.plan("hold")
    sandbox("launch", *RUN[:-1], *CONFIG)
    sandbox.until(lambda: (sandbox.home() / ".wechsel-jax/pid").exists())
    child = int((sandbox.home() / ".wechsel-jax/pid").read_text())
    shell = int(Path(f"/proc/{child}/stat").read_text().rsplit(")")[-1].split()[1])
    os.kill(shell, 9)
    os.kill(child, 9)
    sandbox.until(lambda: sandbox.state()[0] == "died")


def test_the_copy_leaves_out_what_is_half_written(sandbox):
    sandbox.ready()
    sandbox.plan("hold")
    sandbox("launch", *RUN, *CONFIG)
    sandbox.until(lambda: sandbox.state()[3] == "100")
    (sandbox.workdir() / "data").mkdir()
    (sandbox.workdir() / "data/tokens.bin").write_text("tokens")
    (sandbox.workdir() / "data/.tokens.bin.x1.partial").write_text("half")
    (sandbox.workdir() / "checkpoints/100/item.orbax-checkpoint-tmp-9").mkdir()
    (sandbox.workdir() / "checkpoints/100/item.orbax-checkpoint-tmp-9/x").write_text("half")
    sandbox("sync", "push", *RUN)
    copied = sorted(str(path.relative_to(sandbox.bucket())) for path in sandbox.bucket().rglob("*") if path.is_file())
    expected = ["checkpoints/100/weights", "complete/100", "complete/files", "data/tokens.bin", "logs/w-0.log", "metrics.jsonl"]
    assert copied == expected
    plan = sandbox("sync", "push", *RUN, "--dry-run").stdout.splitlines()
    printed = [line.removeprefix("#   gcloud ") for line in plan if line.startswith("#   ")]
    ran = {" ".join(call).replace("/100", "/STEP") for call in sandbox.calls("^storage rsync")}
    assert {
        subprocess.run(["bash", "-c", f"echo {line}"], capture_output=True, text=True).stdout.strip() for line in printed
    } == ran
    assert sandbox.calls("delete-unmatched|storage rm") == []


def test_a_checkpoint_counts_only_once_it_and_its_metrics_are_whole(sandbox):
    sandbox.ready()
    sandbox.plan("finish")
    sandbox("launch", *RUN[:-1], *CONFIG)
    sandbox.until(lambda: sandbox.state()[0] == "exited")
    sandbox.steer("failures", "1 1 storage cp .*metrics\tnetwork")
    sandbox("sync", "push", *RUN, status=1)
    assert sandbox.bucket("checkpoints/100/weights").exists() and not sandbox.bucket("complete/100").exists()
    order = [call[1:3] for call in sandbox.calls("^storage")]
    sandbox("sync", "push", *RUN)
    assert sandbox.bucket("complete/100").exists()
    calls = [" ".join(call) for call in sandbox.calls("^storage")][len(order) :]
    positions = [
        next(i for i, call in enumerate(calls) if word in call)
        for word in ("checkpoints/100 ", "metrics.jsonl gs", "complete/100")
    ]
    assert positions == sorted(positions)


def fill_bucket(sandbox, steps, complete):
    for step in steps:
        sandbox.bucket(f"checkpoints/{step}").mkdir(parents=True)
        sandbox.bucket(f"checkpoints/{step}/weights").write_text(f"weights {step}")
    for step in complete:
        sandbox.bucket("complete").mkdir(exist_ok=True)
        sandbox.bucket(f"complete/{step}").write_text(str(step))
    sandbox.bucket("metrics.jsonl").write_text('{"kind": "train", "step": 900}\n')


def test_restore_brings_the_newest_whole_checkpoints_and_never_overwrites(sandbox):
    sandbox.ready()
    fill_bucket(sandbox, [90, 100, 200, 300, 1000], complete=[90, 100, 200, 300])
    assert "restored step 300" in sandbox("sync", "restore", *RUN, "--newest=2").stdout
    assert sorted(path.name for path in (sandbox.workdir() / "checkpoints").iterdir()) == ["200", "300"]
    assert (sandbox.workdir() / "metrics.jsonl").read_text() == sandbox.bucket("metrics.jsonl").read_text()
    assert not (sandbox.workdir() / "complete").exists()
    (sandbox.workdir() / "checkpoints/300/weights").write_text("mine")
    assert "nothing restored" in sandbox("sync", "restore", *RUN).stdout
    assert (sandbox.workdir() / "checkpoints/300/weights").read_text() == "mine"


def test_an_interrupted_restore_starts_again(sandbox):
    sandbox.ready()
    fill_bucket(sandbox, [100, 200], complete=[100, 200])
    sandbox.steer("failures", "1 1 rsync .*checkpoints/100\tnetwork")
    sandbox("sync", "restore", *RUN, status=1)
    assert [*sandbox.workdir().iterdir()] == [sandbox.workdir() / ".restored.partial"]
    # Also where fewer are asked for than the attempt before had fetched.
    assert "restored step 200" in sandbox("sync", "restore", *RUN, "--newest=1").stdout
    assert not (sandbox.workdir() / ".restored.partial").exists()


def write_runs(workdir, **steps):
    """A comparison's workdir: runs with their checkpoints, what their start was and their metrics."""
    for run, saved in steps.items():
        for step in saved:
            (workdir / run / f"checkpoints/{step}").mkdir(parents=True, exist_ok=True)
            (workdir / run / f"checkpoints/{step}/weights").write_text(f"{run} {step}")
        (workdir / run / "transfer").mkdir(parents=True, exist_ok=True)
        (workdir / run / "transfer/transfer.json").write_text(run)
        (workdir / run / "metrics.jsonl").write_text(f'{{"step": {max(saved, default=1) + 5}}}\n')
    (workdir / "wechsel/checkpoints/.7.partial").mkdir(parents=True, exist_ok=True)
    (workdir / ".lock").touch()
    (workdir / "seconds.json").write_text("{}")


def tree(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_runs_below_the_workdir_come_back(sandbox):
    sandbox.ready()
    workdir = sandbox.workdir()
    write_runs(workdir, wechsel=[])
    sandbox("sync", "push", *RUN)
    assert len(sandbox.calls("storage rsync")) == 1 and "a new run" in sandbox("sync", "restore", *RUN).stdout
    write_runs(workdir, wechsel=[90, 100], focus=[40], fvt=[])
    assert sandbox.state()[2:4] == [str(105 + 45 + 6), "140"]
    sandbox("sync", "push", *RUN)
    marks = [name for name in tree(sandbox.bucket()) if name.startswith("complete/")]
    assert marks == ["complete/files", "complete/focus/40", "complete/wechsel/100", "complete/wechsel/90"]
    before = {name: (workdir / name).read_text() for name in tree(workdir)}
    shutil.rmtree(workdir)
    assert "restored step 140" in sandbox("sync", "restore", *RUN, "--newest=1").stdout
    gone = {".lock", "wechsel/checkpoints/90/weights"}
    assert {name: (workdir / name).read_text() for name in tree(workdir)} == {
        name: text for name, text in before.items() if name not in gone
    }


def test_what_had_not_arrived_whole_does_not_come_back(sandbox):
    sandbox.ready()
    workdir = sandbox.workdir()
    write_runs(workdir, wechsel=[100])
    sandbox("sync", "push", *RUN)
    # The next run has begun, and the VM is taken away while its start is copied.
    write_runs(workdir, wechsel=[100, 200], focus=[10])
    shutil.copytree(workdir / "focus/transfer", sandbox.bucket("focus/transfer"))
    sandbox.steer("failures", "1 1 rsync .*metrics\tnetwork")
    sandbox("sync", "push", *RUN, status=1)
    shutil.rmtree(workdir)
    sandbox("sync", "restore", *RUN)
    assert not (workdir / "focus/transfer").exists()
    assert (workdir / "focus/checkpoints/10/weights").exists() and (workdir / "wechsel/checkpoints/200/weights").exists()
    assert not (workdir / ".restored.partial").exists()


def test_a_checkpoint_is_copied_once_and_again_where_the_bucket_lost_it(sandbox):
    sandbox.ready()
    write_runs(sandbox.workdir(), wechsel=[100], focus=[10])
    sandbox("sync", "push", *RUN)
    copies = len(sandbox.calls("rsync .*checkpoints/[0-9]"))
    sandbox("sync", "push", *RUN)
    assert copies == 2 == len(sandbox.calls("rsync .*checkpoints/[0-9]"))
    shutil.rmtree(sandbox.bucket())
    sandbox("sync", "push", *RUN)
    assert sandbox.bucket("wechsel/checkpoints/100/weights").exists() and sandbox.bucket("complete/focus/10").exists()


def test_keep_counts_each_runs_checkpoints(sandbox):
    sandbox.ready()
    workdir = sandbox.workdir()
    write_runs(workdir, wechsel=[90, 100, 110], focus=[10, 20])
    sandbox("sync", "push", *RUN)
    for path in ("wechsel/checkpoints/90", "wechsel/checkpoints/100", "focus/checkpoints/10"):
        shutil.rmtree(workdir / path)
    sandbox("sync", "push", *RUN, "--keep=2")
    marks = [name for name in tree(sandbox.bucket("complete")) if name != "files"]
    assert marks == ["focus/10", "focus/20", "wechsel/100", "wechsel/110"]
    assert not sandbox.bucket("wechsel/checkpoints/90").exists()


def test_a_state_that_cannot_be_read_is_no_success(sandbox):
    sandbox.ready()
    sandbox.steer("failures", "1 1 queued-resources describe\tERROR: PERMISSION_DENIED")
    stderr = sandbox("status", *RUN, status=1).stderr
    assert "PERMISSION_DENIED" in stderr and "its state cannot be read; gcloud says why above" in stderr


def test_an_unreadable_bucket_is_not_an_empty_one(sandbox):
    sandbox.ready()
    assert "a new run" in sandbox("sync", "restore", *RUN).stdout
    sandbox.steer("failures", "1 1 storage ls\tERROR: 403 forbidden")
    stderr = sandbox("launch", *RUN, *CONFIG, status=1).stderr
    assert "403 forbidden" in stderr and "cannot be read; nothing restored" in stderr
    assert sandbox.calls("remote.sh launch") == []


def test_keep_removes_only_old_whole_checkpoints_that_are_gone_here(sandbox):
    sandbox.ready()
    fill_bucket(sandbox, [1, 2, 3, 4, 5, 6], complete=[1, 2, 3, 4, 5])
    for step in (2, 5):
        (sandbox.workdir() / f"checkpoints/{step}").mkdir(parents=True)
        (sandbox.workdir() / f"checkpoints/{step}/weights").write_text("w")
    sandbox.steer("failures", "1 1 rsync .*checkpoints/5\tnetwork")
    sandbox("sync", "push", *RUN, "--keep=2", status=1)
    assert len(list(sandbox.bucket("checkpoints").iterdir())) == 6  # nothing is removed after a copy that failed
    sandbox("sync", "push", *RUN, "--keep=2")
    assert sorted(path.name for path in sandbox.bucket("checkpoints").iterdir()) == ["2", "4", "5", "6"]
    assert sorted(path.name for path in sandbox.bucket("complete").iterdir()) == ["2", "4", "5", "files"]


def test_nothing_breaks_out_on_the_worker(sandbox):
    """Through the printed line, ssh's shell, the record, tmux and `env` to the program."""
    sandbox.ready()
    sandbox.plan("exit 5 done")
    workdir = "runs/" + "".join(re.sub(r"[*#\n]", "", text) for text in HOSTILE)
    environment = [f"A{i}={text}" for i, text in enumerate(HOSTILE)]
    fields = [f"--config.x{i}={text}" for i, text in enumerate(HOSTILE)]
    sandbox("launch", *TPU, f"--workdir={workdir}", *(f"--env={pair}" for pair in environment), "--", "--config=c.py", *fields)
    sandbox.until(lambda: sandbox.state()[0] == "exited")
    argv = (sandbox.path / "argv").read_text().split("\0")[:-1]
    assert argv == [
        "-m",
        "train.pretrain",
        f"--workdir={workdir}",
        "--config=c.py",
        "--config.distributed.coordinator=auto",
        *fields,
    ]
    assert {*environment} <= {*(sandbox.path / "environment").read_text().split("\0")}
    assert not [*sandbox.path.rglob("OWNED")]


@needs_both
def test_a_tmux_that_is_just_ending_is_asked_again(sandbox):
    """Its server, whose last session has ended, refuses a new one for a moment."""
    sandbox.ready()
    sandbox.plan("finish")
    tmux = shutil.which("tmux", path=sandbox.environment["PATH"])
    if Path(tmux).parent == sandbox.tools:
        tmux = Path(tmux).rename(sandbox.tools / "tmux.proper")
    wrapper = sandbox.tools / "tmux"
    wrapper.write_text(
        "#!/usr/bin/env bash\n"
        f'if [[ $1 == new-session && ! -e "$SANDBOX/refused.$4" ]]; then touch "$SANDBOX/refused.$4"\n'
        f'  echo "server exited unexpectedly" >&2; exit 1; fi\nexec {tmux} "$@"\n'
    )
    wrapper.chmod(0o755)
    assert "server exited" not in sandbox("launch", *RUN, *CONFIG).stderr
    assert (sandbox.path / "refused.wechsel-run").exists() and (sandbox.path / "refused.wechsel-sync").exists()
    sandbox.until(lambda: sandbox.bucket("complete/100").exists())


def test_what_a_run_left_that_ended_before_copying_began_is_copied_until_it_is_there(sandbox):
    sandbox.ready()
    sandbox.plan("finish")
    sandbox("launch", *RUN[:-1], *CONFIG)
    sandbox.until(lambda: sandbox.state()[0] == "exited")
    sandbox.steer("failures", "3 1 storage rsync\tERROR: lost connection")
    sandbox.remote("sync", "start", "runs/german", "gs://my-bucket/dir/runs/german", "0", "1")
    sandbox.until(lambda: sandbox.bucket("complete/100").exists(), 60)
    assert "tried again in 1 s" in (sandbox.home() / ".wechsel-jax/sync.log").read_text()


@needs_both
def test_a_tmux_that_never_starts_says_why(sandbox):
    sandbox.ready()
    (sandbox.tools / "tmux").write_text(
        '#!/usr/bin/env bash\n[[ $1 == new-session ]] && echo "no space left for a socket" >&2\nexit 1\n'
    )
    (sandbox.tools / "tmux").chmod(0o755)
    stderr = sandbox("launch", *RUN, *CONFIG, status=1).stderr
    assert "wechsel-run: tmux does not start it: no space left for a socket" in stderr


def test_what_the_log_says_cannot_forge_a_state_or_control_the_terminal(sandbox):
    sandbox.ready()
    sandbox.plan("exit 1 bad\x1b]0;title\x07\twechsel-state\tw\trunning")
    sandbox("launch", *RUN[:-1], *CONFIG)
    sandbox.until(lambda: sandbox.state()[0] == "exited")
    line = sandbox.remote("state", "runs/german").stdout
    assert line.count("\n") == 1 and line.count("\t") == 6 and "\x1b" not in line and "\x07" not in line


def test_delete_deletes_with_force(sandbox):
    sandbox.cloud(resource="ACTIVE", number=1, workers=1)
    sandbox("delete", *TPU, "--yes")
    assert sandbox.calls() == GOLDEN[("delete", *TPU, "--yes")]


@pytest.mark.parametrize(("answer", "status"), [("tpu\n", 0), ("no\n", 1), ("\n", 1)])
def test_delete_asks_for_the_name(sandbox, answer, status):
    sandbox.cloud(resource="ACTIVE", number=1, workers=1)
    main, other = os.openpty()
    process = subprocess.Popen(
        ["bash", SCRIPTS / "delete.sh", *TPU], env=sandbox.environment, stdin=other, stderr=subprocess.PIPE
    )
    os.write(main, answer.encode())
    assert process.wait(timeout=60) == status
    assert b"Type its name" in process.stderr.read()
    assert len(sandbox.calls("delete")) == (status == 0)
    os.close(main), os.close(other), process.stderr.close()


def test_destination_is_the_bucket_and_the_workdir(sandbox):
    for workdir, to in (("runs/german/", TO), ("./runs/german", TO), ("/mnt/german", "gs://my-bucket/dir/mnt/german")):
        out = sandbox("sync", "push", "--dry-run", *TPU, "--bucket=gs://my-bucket/dir/", f"--workdir={workdir}").stdout
        assert f"\\ {to}\\ 0" in out
