"""What the scripts print with --dry-run, what they refuse, and that nothing given to them can break out."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tpu_scripts.sandbox import CONFIG, PLACE, RUN, SCRIPTS, STUB, TPU, lines_of, remote_words

NAMES = ("create", "setup", "launch", "watch", "logs", "sync", "status", "stop", "delete")
REMOTE = "wechsel-jax/tpu_scripts/remote.sh"
HOSTILE = [
    "two words",
    "$(touch OWNED)",
    "`touch OWNED`",
    "; touch OWNED #",
    "'\"; touch OWNED; '",
    "a\nb; touch OWNED\n",
    "\\'$HOME && touch OWNED",
    "--flag=*",
    "",
    "ümlaut | tee OWNED",
]


def ssh(worker: str, *words: str) -> list[str]:
    command = " ".join(["bash", REMOTE, *words])
    return ["compute", "tpus", "tpu-vm", "ssh", "tpu", *PLACE, f"--worker={worker}", f"--command={command}"]


def queued(verb: str, *flags: str) -> list[str]:
    return ["compute", "tpus", "queued-resources", verb, "tpu", *PLACE, *flags]


DESCRIBE = queued("describe", "--format=value(state.state)")
TO = "gs://my-bucket/dir/runs/german"
LAUNCHED = [
    ssh("all", "state", "runs/german"),
    ssh("0", "restore", "runs/german", TO, "3"),
    ssh("all", "launch", "runs/german", "train.pretrain", "1", "A=b", CONFIG[1], "--config.distributed.coordinator=auto"),
    ssh("0", "sync", "start", "runs/german", TO, "0", "600"),
]
V3 = ["--accelerator-type=v3-8", "--runtime-version=tpu-ubuntu2204-base"]
GOLDEN = {
    ("create", *TPU, "--type=v3-8"): [queued("create", "--node-id=tpu", *V3, "--spot"), DESCRIBE],
    ("create", *TPU, "--type=v3-8", "--on-demand", "--no-wait", "--network=n", "--valid-until=6h"): [
        queued("create", "--node-id=tpu", *V3, "--network=n", "--valid-until-duration=6h")
    ],
    ("launch", *RUN, "--env=A=b", *CONFIG): LAUNCHED,
    ("launch", *RUN[:-1], "--env=A=b", *CONFIG): [LAUNCHED[0], LAUNCHED[2]],
    # The trainer wants --config before its fields.
    ("launch", *RUN[:-1], "--", "--config.steps=5", CONFIG[1]): [
        LAUNCHED[0],
        ssh(
            "all",
            "launch",
            "runs/german",
            "train.pretrain",
            "0",
            CONFIG[1],
            "--config.distributed.coordinator=auto",
            "--config.steps=5",
        ),
    ],
    # A comparison has no processes to join, and of TreLM's phases the first joins them.
    ("launch", *RUN[:-1], "--program=train.compare", "--type=v3-8", *CONFIG): [
        LAUNCHED[0],
        ssh("all", "launch", "runs/german", "train.compare", "0", CONFIG[1]),
    ],
    ("launch", *RUN[:-1], "--program=train.trelm", *CONFIG): [
        LAUNCHED[0],
        ssh(
            *(
                *("all", "launch", "runs/german", "train.trelm", "0"),
                CONFIG[1],
                "--config.commonality.distributed.coordinator=auto",
            )
        ),
    ],
    ("sync", "push", *RUN, "--keep=5"): [ssh("0", "push", "runs/german", TO, "5")],
    ("sync", "start", *RUN, "--every=60"): [ssh("0", "sync", "start", "runs/german", TO, "0", "60")],
    ("sync", "restore", *RUN): [ssh("0", "restore", "runs/german", TO, "3")],
    ("logs", *TPU): [ssh("0", "logs", "50", "end", "plain")],
    ("logs", *TPU, "--worker=all", "--follow", "--lines", "5"): [ssh("all", "logs", "5", "follow", "prefix")],
    ("status", *RUN): [DESCRIBE, ssh("all", "state", "runs/german")],
    ("stop", *TPU, "--grace=30"): [ssh("all", "stop", "30", "for-good")],
    ("delete", *TPU, "--yes"): [queued("delete", "--force")],
}


@pytest.mark.parametrize("command", GOLDEN, ids=lambda command: f"{command[0]}-{len(command)}")
def test_dry_run_prints_the_lines_and_runs_nothing(sandbox, command):
    script, *words = command
    dry = sandbox(script, "--dry-run", *words)
    assert lines_of(dry.stdout) == GOLDEN[command]
    # What is not a gcloud line is a comment: the output is a script.
    assert all(line.startswith(("gcloud ", "#")) for line in dry.stdout.splitlines())
    assert sandbox.calls() == []


def test_dry_run_of_watch_is_a_whole_cycle(sandbox):
    dry = sandbox("watch", "--dry-run", *RUN, "--type=v3-8", "--env=A=b", f"--source={sandbox.checkout}", "--delete", *CONFIG)
    lines = lines_of(dry.stdout)
    verbs = [
        line[3] if line[2] == "queued-resources" else (*remote_words(line), "", "")[2] for line in lines if "scp" not in line
    ]
    install = ["setup"]
    assert [v for v in verbs if " " not in v and "\n" not in v] == [
        "delete", "create", "describe", *install, "state", "restore", "launch", "sync", "state", "push", "delete",
    ]  # fmt: skip
    assert [line for line in lines if line in LAUNCHED] == [*LAUNCHED, LAUNCHED[0]]
    assert sandbox.calls() == []


def test_setup_lines_for_a_checkout_and_for_git(sandbox):
    flags = ["--share=10.0.0.2:/vol", "--python=/opt/py thon", "--inputs=gs://abc/in/"]
    packed = sandbox("setup", "--dry-run", *TPU, f"--source={sandbox.checkout}", *flags)
    copied, unpacked, installed = lines_of(packed.stdout)
    assert copied[3:6] == ["scp", f"{sandbox.path}/wechsel-jax.tar.gz", "tpu:.wechsel-jax.tar.gz"]
    assert remote_words(unpacked)[0] == "bash" and remote_words(unpacked)[-1] == ".wechsel-jax.tar.gz"
    assert remote_words(installed) == ["bash", REMOTE, "setup", "check", "10.0.0.2:/vol", "/opt/py thon", "gs://abc/in"]
    assert packed.stdout.splitlines()[0].startswith(f"tar -czf {sandbox.path}/wechsel-jax.tar.gz -C {sandbox.checkout} ")
    git = sandbox("setup", "--dry-run", *TPU, "--source=https://example.org/o/wechsel-jax.git", "--ref=v1")
    cloned, installed = lines_of(git.stdout)
    assert remote_words(cloned)[-2:] == ["https://example.org/o/wechsel-jax.git", "v1"]
    assert remote_words(installed)[2:] == ["setup", "check", "", "", ""]


@pytest.mark.parametrize(
    ("kind", "chips", "spot", "on_demand", "runtime"),
    [
        ("v2-8", 4, "1.35", "4.50", "tpu-ubuntu2204-base"),
        ("v2-32", 16, "6.12", "24.00", "tpu-ubuntu2204-base"),
        ("v3-8", 4, "2.04", "8.00", "tpu-ubuntu2204-base"),
        ("v4-128", 64, "58.98", "206.08", "tpu-ubuntu2204-base"),
        ("v5e-8", 8, "1.96", "9.60", "v2-alpha-tpuv5-lite"),
        ("v5p-8", 4, "3.71", "16.80", "v2-alpha-tpuv5"),
        ("v6e-16", 16, "9.17", "43.20", "v2-alpha-tpuv6e"),
    ],
)
def test_create_states_the_price_of_a_type(sandbox, kind, chips, spot, on_demand, runtime):
    out = sandbox("create", "--dry-run", *TPU, f"--type={kind}", "--no-wait").stdout
    name = kind.replace("v5e", "v5litepod")
    assert f"# {name}, {chips} chips, spot: about ${spot} an hour (spot ${spot}, on demand ${on_demand})" in out
    assert "approximate" in out and "may have changed" in out and "https://cloud.google.com/tpu/pricing" in out
    assert f"--runtime-version={runtime}" in out
    assert f"about ${on_demand} an hour" in sandbox("create", "--dry-run", *TPU, f"--type={kind}", "--on-demand").stdout


def test_unknown_types_have_no_price_and_need_a_version(sandbox):
    assert "runtime_version" in sandbox("create", "--dry-run", *TPU, "--type=v9x-8", status=2).stderr
    known = sandbox("create", "--dry-run", *TPU, "--type=v9x-8", "--runtime-version=new").stdout
    assert "not known here" in known and "--runtime-version=new" in known


@pytest.mark.parametrize("name", NAMES)
def test_help_names_every_flag_and_needs_nothing(sandbox, name):
    text = sandbox(name, "--help", env={"PATH": "/usr/bin:/bin"}).stdout
    assert text.startswith(f"usage: {name}.sh ") and "--dry-run" in text and "--settings=FILE" in text
    source = (SCRIPTS / f"{name}.sh").read_text()
    for line in source.splitlines():
        if line.startswith(("options=(", "switches=(")):
            for flag in line.split("[")[1:]:
                if (flag := flag.split("]")[0]) != "for-now":  # between scripts
                    assert f"--{flag}" in text, flag


def test_settings_come_from_a_file_and_flags_win(sandbox):
    file = sandbox.path / "tpu env"
    file.write_text(
        "# mine\nname=tpu\nzone = us-central1-a\nproject=my-project\n\nbucket=gs://my-bucket/dir\nworkdir=runs/german"
    )
    file.write_text(file.read_text().replace("zone = ", "zone="))
    assert lines_of(sandbox("status", f"--settings={file}", "--dry-run").stdout) == GOLDEN[("status", *RUN)]
    other = sandbox("status", "--name=other", "--settings", str(file), "--dry-run").stdout
    assert lines_of(other)[0][4] == "other"


MISTAKES = {
    "name: is not set": ("stop", "--zone=us-central1-a", "--project=my-project"),
    "name: is '-x'": ("stop", *TPU, "--name=-x"),
    "name: is 'a b'": ("stop", *TPU, "--name=a b"),
    "name: is $'a\\nb'": ("stop", *TPU, "--name=a\nb"),
    "zone: is 'here'": ("stop", *TPU, "--zone=here"),
    "project: is not set": ("stop", "--name=tpu", "--zone=us-central1-a"),
    "type: is not set": ("create", *TPU),
    "type: is 'v3'": ("create", *TPU, "--type=v3"),
    "workdir: is not set": ("launch", *TPU, *CONFIG),
    "workdir: is '-rf'": ("launch", *TPU, "--workdir=-rf", *CONFIG),
    "workdir: is 'a*'": ("sync", "push", *TPU, "--workdir=a*", "--bucket=gs://abc"),
    "bucket: is not set": ("sync", "push", *TPU, "--workdir=runs/german"),
    "bucket: is 'my-bucket'": ("sync", "push", *TPU, "--workdir=runs/german", "--bucket=my-bucket"),
    "bucket: is 'gs://abc/*'": ("sync", "push", *TPU, "--workdir=runs/german", "--bucket=gs://abc/*"),
    "expected push, start or restore": ("sync", *RUN),
    "--lines: is 'many'": ("logs", *TPU, "--lines=many"),
    # In bash's arithmetic it would be octal.
    "--grace: is '060'": ("stop", *TPU, "--grace=060"),
    "--worker: is '0;ls'": ("logs", *TPU, "--worker=0;ls"),
    "--nonsense: no such flag": ("logs", *TPU, "--nonsense=1"),
    "--lines: no value": ("logs", *TPU, "--lines"),
    "--follow: takes no value": ("logs", *TPU, "--follow=yes"),
    "unexpected argument 'x'": ("logs", *TPU, "x"),
    "--config: is not set": ("launch", *RUN),
    "--workdir: belongs before": ("launch", *RUN, *CONFIG, "--workdir=x"),
    "'steps=1': expected flags": ("launch", *RUN, *CONFIG, "steps=1"),
    "--env: is '1A=b'": ("launch", *RUN, "--env=1A=b", *CONFIG),
    "--program: is 'os'": ("launch", *RUN, "--program=os", *CONFIG),
    "--program: is 'train.none'; expected train.pretrain": ("launch", *RUN, "--program=train.none", *CONFIG),
    "--program: train.compare runs on one worker and this TPU has 2": (
        *("launch", *RUN, "--type=v3-16", "--program=train.compare", *CONFIG),
    ),
    "--grace: is '-1'": ("stop", *TPU, "--grace=-1"),
    "--settings: nowhere: no such file": ("stop", "--settings=nowhere"),
    "source: 'nowhere': no such directory": ("setup", *TPU, "--source=nowhere"),
    "has no setup.py": ("setup", *TPU, f"--source={SCRIPTS}"),
    "ref: is '--upload-pack=x'": ("setup", *TPU, "--source=https://a/b", "--ref=--upload-pack=x"),
    "inputs: is 'here'": ("setup", *TPU, "--inputs=here"),
    "share: is 'here'": ("setup", *TPU, "--share=here"),
    "--valid-until: is 'soon'": ("create", *TPU, "--type=v3-8", "--valid-until=soon"),
    "--yes: is not set": ("delete", *TPU),
    "--max-hours: is 'long'": ("watch", *RUN, "--type=v3-8", "--max-hours=long", *CONFIG),
    "--max-cost: the price": ("watch", *RUN, "--type=v9-8", "--runtime-version=x", "--max-cost=5", *CONFIG),
    "with 4 workers expected shared": ("watch", *RUN, "--type=v5e-16", *CONFIG),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(sandbox, message):
    script, *words = MISTAKES[message]
    result = sandbox(script, *words, status=2)
    assert message in result.stderr and result.stderr.startswith(f"{script}.sh: ")
    assert len(result.stderr.splitlines()) == 1
    assert sandbox.calls() == []


SECRETS = [
    ("setup", "--source=https://user:PASSWORD@host/x.git"),
    ("setup", "--source", "https://PASSWORD@host/x.git"),
    ("setup", "--source=HTTPS://user:x/PASSWORD@host/x.git"),
    ("setup", "--source=ssh://git:PASSWORD@host/x.git"),
    ("setup", "https://user:PASSWORD\nPASSWORD@host/x.git"),
    ("watch", "--env=HTTPS_PROXY=http://user:PASSWORD@host:3128", *CONFIG),
    ("launch", "--env=WANDB_API_KEY=PASSWORD", *CONFIG),
    ("launch", *CONFIG, "--config.model.checkpoint=https://a:PASSWORD@host/x,https://b:PASSWORD@host/y"),
]


@pytest.mark.parametrize("words", SECRETS, ids=range(len(SECRETS)))
@pytest.mark.parametrize("dry_run", [["--dry-run"], []])
def test_a_password_is_refused_and_not_shown(sandbox, words, dry_run):
    script, *others = words
    result = sandbox(script, *dry_run, *RUN, "--type=v3-8", *others, status=2)
    assert "PASSWORD" not in result.stdout + result.stderr and sandbox.calls() == []
    assert re.search("has a password or token in its URL; .* SSH URL|is a secret by its name.* log in", result.stderr)
    assert len(result.stderr.splitlines()) == 1


def test_a_password_in_the_settings_file_is_refused_and_not_shown(sandbox):
    file = sandbox.path / "tpu.env"
    file.write_text("name=tpu\nsource=https://user:PASSWORD@host/x.git\n")
    stderr = sandbox("setup", f"--settings={file}", "--dry-run", status=2).stderr
    assert "https://***@host/x.git" in stderr and "PASSWORD" not in stderr


@pytest.mark.parametrize("url", ["ssh://git@host:22/o/x.git", "git@host:o/x.git", "https://host:8080/o/x@v1.git"])
def test_git_urls_without_a_password_are_taken(sandbox, url):
    cloned = lines_of(sandbox("setup", "--dry-run", *TPU, f"--source={url}").stdout)[0]
    assert remote_words(cloned)[-2:] == [url, "HEAD"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name", "line 1: no '='"),
        ("\nnmae=x", "line 2: no setting 'nmae'; expected one of: bucket "),
        ("a[$(id)]=1", "no setting"),
    ],
)
def test_a_damaged_settings_file_is_named_with_its_line(sandbox, text, message):
    file = sandbox.path / "tpu.env"
    file.write_text(text + "\n")
    stderr = sandbox("stop", f"--settings={file}", status=2).stderr
    assert f"{file}: " in stderr and message in stderr and len(stderr.splitlines()) == 1


def test_a_missing_gcloud_is_said(sandbox):
    (sandbox.tools / "gcloud").unlink()
    for tool in ("bash", "dirname", "cat", "awk", "sort", "paste"):
        (sandbox.tools / tool).symlink_to(shutil.which(tool))
    result = sandbox("stop", *TPU, status=2, env={"PATH": str(sandbox.tools)})
    assert result.stderr.startswith("stop.sh: gcloud: not found") and "cloud.google.com/sdk" in result.stderr


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_breaks_out_of_the_printed_lines(sandbox, text):
    workdir = "runs/" + re.sub(r"[*#\n]", "", text) + "x"
    words = [*RUN, f"--workdir={workdir}", f"--env=A={text}", "--", "--config=c.py", f"--config.x={text}"]
    lines = lines_of(sandbox("launch", "--dry-run", *words).stdout)
    launched = remote_words(lines[2])
    assert launched[3] == workdir
    assert remote_words(lines[1])[4] == f"gs://my-bucket/dir/{workdir}"
    assert launched[6] == f"A={text}" and launched[-1] == f"--config.x={text}"
    assert not Path("OWNED").exists()


@pytest.mark.slow
def test_the_scripts_are_shellcheck_clean():
    shellcheck = shutil.which("shellcheck") or Path(sys.executable).with_name("shellcheck")
    files = [*sorted(SCRIPTS.glob("*.sh")), STUB / "python3.12"]
    result = subprocess.run([shellcheck, "-x", *files], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert len(files) == len(NAMES) + 3
