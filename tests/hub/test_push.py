"""Uploads to a hub on this machine that breaks in every way that a real one does."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file

import wechsel_jax.hub
from tests.hub.stub import StubHub
from tests.report.test_card import RECORD
from wechsel_jax import cli
from wechsel_jax.errors import UserError
from wechsel_jax.hub import push
from wechsel_jax.report.card import completed_card

TOKEN = "hf_" + "Zx9" * 11
REPO = "me/german"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model directory of two shards, a card that names no repository yet, a hidden file. Read only."""
    directory = tmp_path_factory.mktemp("model") / "german"
    (directory / "onnx").mkdir(parents=True)
    (directory / "config.json").write_text('{"model_type": "gpt2", "vocab_size": 40}')
    index = {}
    for i, name in enumerate(SHARDS):
        save_file({f"t{i}": np.full((40, 32), i + 1.5, np.float32)}, directory / name)
        index[f"t{i}"] = name
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (directory / "README.md").write_text('---\nlicense: mit\n---\nfrom_pretrained("path/to/this/directory")\n')
    (directory / "onnx" / "note.txt").write_text("below\n")
    (directory / ".cache").mkdir()
    (directory / ".cache" / "secret").write_text("hidden\n")
    (directory / ".wechsel-jax.json").write_text("{}")
    return directory


@pytest.fixture
def hub(monkeypatch):
    """An empty hub; pauses between tries take no time and are in `pauses`."""
    stub = StubHub(TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    stub.pauses = []
    real = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: stub.pauses.append(seconds) if seconds >= 0.5 else real(seconds))
    yield stub
    stub.close()


def upload(hub: StubHub, model: Path, **options) -> list[str]:
    lines: list[str] = []
    push(model, REPO, token=TOKEN, endpoint=hub.endpoint, say=lines.append, **options)
    return lines


def test_everything_arrives_in_one_commit(hub, model):
    lines = upload(hub, model)
    files = hub.files(REPO)
    expected = {path.relative_to(model).as_posix(): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    del expected[".cache/secret"], expected[".wechsel-jax.json"]
    expected["README.md"] = expected["README.md"].replace(b"path/to/this/directory", REPO.encode())
    assert files == expected
    assert hub.repos[REPO]["commits"] == ["Upload from wechsel-jax"] and not hub.repos[REPO]["private"]
    assert any("model-00001-of-00002.safetensors" in line and "5.2 kB" in line for line in lines)


def test_a_card_gets_the_licence_and_the_languages_that_it_lacks(hub, model):
    before = (model / "README.md").read_bytes()
    upload(hub, model, license="mit", language=["sw"])
    expected = b"---\nlanguage:\n- sw\nlicense: mit\n---\n" + before.split(b"---\n")[2].replace(
        b"path/to/this/directory", REPO.encode()
    )
    assert hub.files(REPO)["README.md"] == expected and (model / "README.md").read_bytes() == before
    with pytest.raises(UserError, match=r"README\.md: states license mit, not apache-2\.0; .* leave --license out"):
        upload(hub, model, license="apache-2.0")


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("# A model\n", "---\nlicense: mit\n---\n# A model\n"),
        (
            "---\ntags:\n- a\n---\n## Licence\n\nNone is stated here. It",
            "---\nlicense: mit\ntags:\n- a\n---\n## Licence\n\n`mit`. It",
        ),
        ("---\r\ntags: [a]\r\n---\r\nb", "---\r\nlicense: mit\ntags: [a]\r\n---\r\nb"),
    ],
)
def test_the_rest_of_a_card_stays(tmp_path, card, expected):
    path = tmp_path / "README.md"
    path.write_bytes(card.encode())
    assert completed_card(path, "mit") == expected.encode() and completed_card(path) == card.encode()


@pytest.mark.parametrize(
    ("card", "states"),
    [
        ("# A model\n", False),
        ("---\ntags:\n- a\nlicense: mit\n---\n# A model\n", True),
        ("---\r\nlicense: mit\r\n---\r\n", True),
        ("---\ntags: [a]\n---\nlicense: mit\n", False),
    ],
)
def test_a_card_without_a_licence_is_told(hub, linked, card, states):
    """An earlier push may have named one, whose card this one replaces."""
    (linked / "README.md").write_bytes(card.encode())
    told = [line for line in upload(hub, linked) if "licence" in line]
    assert told == (
        [] if states else ["note: the card states no licence; name it with --license, at every push, or in the card itself"]
    )
    assert states or not any("licence" in line for line in upload(hub, linked, license="mit"))


@pytest.mark.parametrize("card", ["---\n- a\n---\n", "---\na: [\n---\n", "\udcff"])
def test_a_card_that_cannot_be_read_is_named(tmp_path, card):
    (tmp_path / "README.md").write_bytes(card.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"README\.md: its front matter cannot be read"):
        completed_card(tmp_path / "README.md", "mit")


def test_a_second_upload_sends_nothing_and_makes_no_commit(hub, model):
    upload(hub, model)
    before = hub.sent("PUT", "/storage/")
    upload(hub, model)
    assert hub.sent("PUT", "/storage/") == before == 2
    assert hub.repos[REPO]["commits"] == ["Upload from wechsel-jax"]


def test_weights_of_an_earlier_upload_are_not_read_in_place_of_the_new_ones(hub, model, linked):
    """transformers takes model.safetensors where there are shards, too, and a chat template that the model has no more."""
    old = {"model.safetensors": b"old", "chat_template.jinja": b"old", "vocab.json": b"old"}
    own = {"notes.md": b"mine", "onnx/model.safetensors": b"mine", ".gitattributes": b"mine"}
    hub.make(REPO)
    hub.files(REPO).update(old | own)
    lines = upload(hub, model)
    files = hub.files(REPO)
    assert files.keys() >= {*own, *SHARDS} and not files.keys() & old.keys()
    assert hub.repos[REPO]["commits"] == ["Upload from wechsel-jax"]
    assert sorted(line.split()[0] for line in lines if "of an earlier upload" in line) == sorted(old)
    assert upload(hub, model)[1:] and hub.repos[REPO]["commits"] == ["Upload from wechsel-jax"]
    # And the other way round, on a branch of its own.
    single = linked
    for name in (*SHARDS, "model.safetensors.index.json"):
        (single / name).unlink()
    save_file({"t0": np.ones((40, 32), np.float32)}, single / "model.safetensors")
    upload(hub, single, revision="single")
    branch = hub.files(REPO, "single")
    assert "model.safetensors" in branch and not branch.keys() & {*SHARDS, "model.safetensors.index.json"}
    assert hub.files(REPO).keys() >= {*SHARDS}


def test_a_dry_run_sends_nothing(hub, model, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    lines = []
    push(model, REPO, dry_run=True, endpoint=hub.endpoint, say=lines.append)
    assert hub.requests == []
    assert [line.split()[0] for line in lines[:-1]] == sorted(
        ["README.md", "config.json", "model.safetensors.index.json", "onnx/note.txt", *SHARDS]
    )
    assert "6 files" in lines[-1] and "nothing was sent" in lines[-1]


def test_the_verb_names_the_address_of_what_was_sent(hub, model, monkeypatch, capsys):
    monkeypatch.setattr(wechsel_jax.hub, "push", lambda *_, **__: "https://hub/me/model")
    for options, printed in (((), "https://hub/me/model\n"), (("--dry_run",), "")):
        cli.main(["push", str(model), f"--repo={REPO}", *options])
        assert capsys.readouterr().out == printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/repos/create"),
        ("POST", "/preupload/"),
        ("POST", "/objects/batch"),
        ("PUT", "/storage/"),
        ("POST", "/commit/"),
    ],
)
@pytest.mark.parametrize("status", [500, 429, 0])
def test_passing_failures_are_tried_again(hub, model, method, path, status):
    hub.fail(method, path, status, times=2, headers={"Retry-After": "7"} if status == 429 else {})
    lines = upload(hub, model)
    assert len(hub.files(REPO)) == 6 and len(hub.repos[REPO]["commits"]) == 1
    # One pause follows each failure; the hub's own wish counts, and the library adds up to a second to it.
    assert len(hub.pauses) == 2 and any("again in" in line or "Retrying in" in line or "Waiting" in line for line in lines)
    assert (
        all(7 <= pause <= 8 for pause in hub.pauses) if status == 429 else hub.pauses[0] < hub.pauses[1] or path == "/storage/"
    )
    assert not any("s3cr3t" in line for line in lines)


def test_a_commit_whose_answer_was_lost_is_not_made_twice(hub, model):
    hub.fail("POST", "/commit/", 0, after=True)
    upload(hub, model)
    assert hub.repos[REPO]["commits"] == ["Upload from wechsel-jax"] and len(hub.files(REPO)) == 6


def test_large_files_go_in_parts_and_a_part_is_tried_again(hub, model):
    hub.chunk = 2048
    hub.fail("PUT", "/2?", 500)
    upload(hub, model)
    # Three parts a shard, one of them twice; each assembled and checked by its hash.
    assert hub.sent("PUT", "/storage/") == 7 and hub.sent("POST", "/complete") == 2
    assert hub.files(REPO)[SHARDS[1]] == (model / SHARDS[1]).read_bytes()


def test_a_broken_upload_goes_on_where_it_stopped(hub, model):
    hub.fail("PUT", "/storage/", 403, skip=1, body='{"error": "the storage is closed"}')
    with pytest.raises(UserError, match="403"):
        upload(hub, model)
    assert len(hub.blobs) == 1 and hub.repos[REPO]["commits"] == [] and hub.files(REPO) == {}
    before = hub.sent("PUT", "/storage/")
    upload(hub, model)
    assert hub.sent("PUT", "/storage/") == before + 1 and len(hub.files(REPO)) == 6


def test_a_hub_that_stays_broken_is_one_line(hub, model):
    hub.fail("POST", "/commit/", 503, times=99)
    with pytest.raises(UserError, match=r"did not take the upload \(.*503.*\); run the same command again") as caught:
        upload(hub, model)
    assert "\n" not in str(caught.value) and hub.sent("POST", "/commit/") == 6 and hub.files(REPO) == {}
    assert hub.pauses == [1, 2, 4, 8, 16]


def test_a_hub_that_is_not_there_is_one_line(hub, model):
    hub.server.server_close()
    with pytest.raises(UserError, match="did not take the upload"):
        upload(hub, model)
    assert len(hub.pauses) == 5


def test_refusals_are_one_clear_line_at_once(hub, model, monkeypatch):
    for status, told in ((401, "does not accept the token"), (403, "may not write there"), (404, "knows no such place")):
        for path in ("/preupload/", "/objects/batch", "/commit/"):
            hub.fail("POST", path, status, body='{"error": "no"}')
            with pytest.raises(UserError, match=rf"^me/german: .*{told}.*{status}") as caught:
                upload(hub, model)
            assert "\n" not in str(caught.value) and hub.pauses == []
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UserError, match="no token for the hub; log in with"):
        push(model, REPO, endpoint=hub.endpoint, say=lambda line: None)
    with pytest.raises(UserError, match="does not accept the token"):
        push(model, REPO, token="hf_wrong", endpoint=hub.endpoint, say=lambda line: None)


def test_private_means_private(hub, model):
    upload(hub, model, private=True)
    assert hub.repos[REPO]["private"]
    hub.make("me/open")
    with pytest.raises(UserError, match="me/open: exists already and is public; expected a private repository"):
        push(model, "me/open", private=True, token=TOKEN, endpoint=hub.endpoint, say=lambda line: None)
    assert hub.files("me/open") == {}


def test_a_branch_of_its_own(hub, model):
    address = push(model, REPO, token=TOKEN, revision="step-500", endpoint=hub.endpoint, say=lambda line: None)
    assert address == f"{hub.endpoint}/{REPO}/tree/step-500"
    assert len(hub.files(REPO, "step-500")) == 6 and hub.files(REPO) == {}
    push(model, REPO, token=TOKEN, revision="step-500", endpoint=hub.endpoint, say=lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize("status", [400, 403, 500, 0])
@pytest.mark.parametrize("path", ["/api/repos/create", "/preupload/", "/objects/batch", "/storage/", "/commit/"])
def test_the_token_is_never_shown(hub, model, path, status, capfd, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    echo = {"X-Error-Message": f"bad token {TOKEN}", "X-Request-Id": TOKEN, "X-Error-Code": "Odd"}
    body = json.dumps({"error": f"Authorization: Bearer {TOKEN}"})
    for method in ("POST", "PUT"):
        hub.fail(method, path, status, times=99, headers=echo, body=body)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("wechsel_jax.hub.TRIES", 2)
    with pytest.raises(UserError) as caught:
        push(model, REPO, endpoint=hub.endpoint)
    shown = capfd.readouterr()
    chain = "".join(traceback.format_exception(caught.value))
    seen = [shown.out, shown.err, caplog.text, str(caught.value), repr(caught.value), chain]
    assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert not any(TOKEN in text for text in seen)
    assert "uploading 6 files" in shown.err


def test_a_password_of_the_endpoint_is_not_shown(hub, model):
    lines = []
    endpoint = hub.endpoint.replace("//", "//user:s3cret@")
    assert push(model, REPO, dry_run=True, endpoint=endpoint, say=lines.append) == f"{hub.endpoint}/{REPO}"
    assert f"would go to {hub.endpoint}/{REPO};" in lines[-1] and not any("s3cret" in line for line in lines)


@pytest.mark.parametrize(("status", "told"), [(401, "does not accept the token"), (403, "may not write there")])
def test_refusals_of_the_newer_storage_are_the_same_line(hub, model, status, told, monkeypatch, capfd):
    pytest.importorskip("hf_xet")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    hub.fail("GET", "xet-write-token", status, times=99, body=json.dumps({"error": TOKEN}), headers={"X-Error-Message": TOKEN})
    with pytest.raises(UserError, match=rf"^me/german: .*{told}.*{status}") as caught:
        push(model, REPO, token=TOKEN, endpoint=hub.endpoint)
    shown = capfd.readouterr()
    assert hub.pauses == [] and TOKEN not in str(caught.value) + shown.out + shown.err


@pytest.fixture
def command(hub, model, tmp_path):
    """Starts the real command, with a home of its own."""

    def start(*flags: str) -> subprocess.Popen:
        home = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "home"),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "wechsel_jax", "push", str(model), f"--repo={REPO}", *flags],
            env={**os.environ, **home}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


@pytest.mark.slow
def test_a_killed_upload_goes_on_where_it_stopped(hub, command, model, tmp_path):
    """The second shard's storage does not answer until the process is dead."""
    import hashlib

    second = hashlib.sha256((model / SHARDS[1]).read_bytes()).hexdigest()
    hub.hold[second] = threading.Event()
    process = command()
    deadline = time.monotonic() + 60
    while (len(hub.blobs) < 1 or not hub.sent("PUT", second)) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(hub.blobs) == 1 and hub.files(REPO) == {}
    # What was in flight when the process died is lost, as it is on a real server.
    hub.hold.pop(second).set()
    threading.Event().wait(0.1)
    hub.blobs.pop(second, None)
    puts = hub.sent("PUT", "/storage/")
    process = command()
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert out == f"{hub.endpoint}/{REPO}\n" and hub.sent("PUT", "/storage/") == puts + 1
    assert len(hub.files(REPO)) == 6 and len(hub.repos[REPO]["commits"]) == 1
    assert TOKEN not in out + error
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert kept == []


@pytest.fixture
def linked(model, tmp_path) -> Path:
    """A copy of the model, to put links into, beside a file and a directory that are none of it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    return shutil.copytree(model, tmp_path / "model")


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("note.txt", "../outside/secret.txt"),
        ("note.txt", "/etc/hostname"),
        ("onnx/note.txt.link", "../../outside/secret.txt"),
        ("more", "../outside"),
        ("again", "onnx"),
        ("note.txt", ".cache/secret"),
        ("note.txt", "nowhere"),
        ("note.txt", "note.txt"),
    ],
)
def test_a_link_out_of_the_model_is_refused(hub, linked, link, target):
    (linked / link).symlink_to(target)
    told = rf"{link}: is a link to {target}, which is none of the files to upload; .*`cp -rL .*model COPY`"
    with pytest.raises(UserError, match=told):
        upload(hub, linked)
    assert hub.requests == []


def test_a_link_within_the_model_and_hidden_links_are_no_harm(hub, linked, tmp_path):
    (linked / "same.json").symlink_to("config.json")
    (linked / ".hidden").symlink_to("../outside")
    (tmp_path / "name").symlink_to(linked)
    upload(hub, tmp_path / "name")
    assert hub.files(REPO)["same.json"] == (linked / "config.json").read_bytes()
    assert len(hub.files(REPO)) == 7 and not any("hidden" in name or "secret" in name for name in hub.files(REPO))


def test_a_snapshot_of_the_hubs_cache_is_told_what_to_do(hub, model, tmp_path):
    """In the cache a model is links to its blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b"
    blobs.mkdir(), snapshot.mkdir(parents=True)
    for i, name in enumerate(["config.json", "model.safetensors.index.json", *SHARDS]):
        shutil.copy(model / name, blobs / str(i))
        (snapshot / name).symlink_to(f"../../blobs/{i}")
    with pytest.raises(UserError, match=r"0a1b/config\.json: is a link to \.\./\.\./blobs/0, .*; copy .*`cp -rL .*0a1b COPY`"):
        upload(hub, snapshot)
    shutil.copytree(snapshot, tmp_path / "copy")
    upload(hub, tmp_path / "copy")
    assert len(hub.files(REPO)) == 4


@pytest.mark.parametrize(
    "revision",
    [
        *("../../settings", "a/../b", "a\nb", "step-500\n", "-f", "/a", "a/", "a//b", "a b", "", "a.lock", "a.lock/b", "a."),
        *(".a", "a/.b", "ä", "a?b", "a\x00b", "@", "a~1", "a^", "a:b"),
    ],
)
def test_a_revision_is_the_name_of_a_branch(hub, model, revision):
    with pytest.raises(UserError, match=r"^revision: .* is not the name of a branch; expected .* e\.g\. step-500$") as caught:
        upload(hub, model, revision=revision)
    assert hub.requests == [] and "\n" not in str(caught.value)


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/1", "a/b_c-d.e", "0", "_a"])
def test_branches_of_all_kinds_are_taken(hub, model, revision):
    assert f"/tree/{revision};" in upload(hub, model, revision=revision, dry_run=True)[-1]


@pytest.mark.parametrize(
    "repo",
    [
        *("me", "me/../german", "me/german\n", "../me/german", "me/a/b", "-me/a", "me/a.git", "me/a--b", "me/ä", "me/a?b"),
        *("me/a.", "https://x/y"),
    ],
)
def test_a_repository_is_user_and_name(hub, model, repo):
    with pytest.raises(UserError, match=r"not the name of a repository; expected user/name$") as caught:
        push(model, repo, token=TOKEN, endpoint=hub.endpoint, say=lambda line: None)
    assert hub.requests == [] and "\n" not in str(caught.value)


def test_a_damaged_record_is_refused_before_anything_is_sent(hub, linked):
    (linked / "README.md").unlink()
    (linked / "transfer.json").write_text('{"method": "mean", "paper": 3}')
    with pytest.raises(UserError, match=r"model/transfer\.json: field paper is 3; expected text"):
        upload(hub, linked)
    assert hub.requests == []


def test_the_card_of_an_export_is_of_the_step_that_was_exported(hub, linked):
    """It is the best one, and the run went on from there."""
    (linked / "README.md").unlink()
    lines = [{"kind": "eval", "step": step, "loss": loss, "perplexity": 20.0 + step} for step, loss in ((0, 1), (5, 3), (9, 4))]
    lines.append({"kind": "end", "step": 9, "exported_step": 5})
    (linked.parent / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    upload(hub, linked)
    card = hub.files(REPO)["README.md"].decode()
    assert "These weights are those of step 5." in card and "| 5 | 25.0 | the best |" in card and "| 9 |" not in card


def test_what_a_run_began_with_is_not_called_trained(hub, linked):
    (linked / "README.md").unlink()
    (linked / "transfer.json").write_text(json.dumps(RECORD))
    (linked.parent / "metrics.jsonl").write_text('{"kind": "eval", "step": 5, "loss": 3.0, "perplexity": 20.1}\n')
    for began_with, told in ((linked, "has not been trained"), ("elsewhere", "then trained in the new language")):
        (linked.parent / "config.json").write_text(json.dumps({"steps": 5, "model": {"checkpoint": str(began_with)}}))
        upload(hub, linked)
        assert told in hub.files(REPO)["README.md"].decode()


def test_a_hostile_class_does_not_become_python(hub, linked):
    (linked / "README.md").unlink()
    config = {"model_type": "gpt2", "vocab_size": 40, "architectures": ['AutoModel\nimport os; os.system("id")  #CausalLM']}
    (linked / "config.json").write_text(json.dumps(config))
    (linked / "transfer.json").write_text(json.dumps(RECORD))
    upload(hub, linked)
    card = hub.files(REPO)["README.md"].decode()
    assert "from transformers import GPT2LMHeadModel, AutoTokenizer\n" in card and "import os" not in card


def test_a_run_is_not_a_model(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.json").write_text('{"steps": 5}')
    with pytest.raises(UserError, match=r"is the workdir of a run; expected a model directory, such as .*export"):
        push(tmp_path, REPO, token=TOKEN)
