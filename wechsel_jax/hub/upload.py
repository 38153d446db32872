"""A model directory on the hub: all of it in one commit, whatever the network does meanwhile."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.files import require_directory
from wechsel_jax.files.json import read_json
from wechsel_jax.hub.card import PLACEHOLDER, PROJECT, check_names, completed_card, model_card
from wechsel_jax.hub.client import Client
from wechsel_jax.hub.markdown import HUB_ID, one_line
from wechsel_jax.hub.records import read_transfer
from wechsel_jax.hub.run_facts import read_facts, read_lines

_CARD = "README.md"
_RECORD = "transfer.json"
_REVISION = re.compile(r"(?!.*(?:\.\.|\.lock(?:/|$)))\w[\w.-]*(?:/\w[\w.-]*)*(?<!\.)", re.ASCII)


def push(
    directory: str | os.PathLike,
    repo: str,
    private: bool = False,
    token: str | None = None,
    *,
    revision: str | None = None,
    dry_run: bool = False,
    license: str | None = None,
    language: Sequence[str] = (),
    endpoint: str | None = None,
    say: Callable[[str], None] | None = None,
) -> str:
    """Uploads a model directory to the hub, with a model card if it has none.

    Everything is uploaded first and becomes visible with one commit at the end. What a broken upload had sent already is not
    sent again by the next one. Busy servers and broken connections are tried again.

    Args:
      directory: what `transfer`, `export` or a training run's export wrote. Hidden files are left out.
      repo: "user/name"; made where it does not exist.
      private: make a new repository private; an existing one that is public is refused.
      token: of the hub; by default the one that the environment or an earlier login holds. It is never shown or stored.
      revision: the branch; made where it does not exist. None: main.
      dry_run: only list what would be uploaded; nothing is sent.
      license: for the card, see `model_card`; one that is there already gets it in what is uploaded, if it states none.
      language: likewise.
      endpoint: of another hub; by default huggingface.co, or what HF_ENDPOINT says.
      say: called with lines of progress; by default they go to stderr.

    Returns:
      The address of the repository.

    Raises:
      UserError: it is no model directory, or has a link that leads out of it; a name is malformed; a record is damaged; the
        card states another licence or other languages; or the hub refuses or cannot be reached.
    """
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    directory = require_directory(directory, "a model directory")
    if not HUB_ID.fullmatch(repo):
        raise UserError(f"{one_line(repo)}: not the name of a repository; expected user/name")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise UserError(
            f"revision: {one_line(revision)!r} is not the name of a branch; expected letters, digits, '.', '_', '-' and '/', "
            "without '..' and not '-' or '/' first; e.g. step-500"
        )
    _refuse_runs(directory)
    model = Checkpoint.open(directory)
    check_names(license, language)
    files = _files(directory)
    card = _card(directory, repo, model.config, license, language)
    sizes = {name: path.stat().st_size for name, path in files.items()} | ({_CARD: len(card)} if card is not None else {})
    for name in sorted(sizes):
        made = " (made now)" if name == _CARD and name not in files else ""
        say(f"  {one_line(name)}  {_size(sizes[name])}{made}")
    total = f"{len(sizes)} files, {_size(sum(sizes.values()))}"
    client = Client(repo, token, endpoint, say)
    address = client.address + (f"/tree/{revision}" if revision else "")
    if dry_run:
        say(f"{total} would go to {address}; nothing was sent")
        return address
    say(f"uploading {total} to {address}")
    contents: dict[str, Any] = {name: str(path) for name, path in files.items()}
    if card is not None:
        contents[_CARD] = card
    client.upload(contents, f"Upload from {PROJECT}", private=private, revision=revision)
    return address


def _refuse_runs(directory: Path) -> None:
    """A run's workdir has a config.json, too, which is not a model's."""
    if (directory / "metrics.jsonl").exists() and "model_type" not in read_json(directory / "config.json", "a config.json"):
        raise UserError(
            f"{directory}: is the workdir of a run; expected a model directory, such as {directory / 'export'}; "
            "`wechsel-jax export` makes one of any checkpoint"
        )


def _files(directory: Path) -> dict[str, Path]:
    """Name in the repository -> file, hidden ones left out; a link has to lead to one of these files."""
    found = {path.relative_to(directory): path for path in sorted(directory.rglob("*"))}
    shown = {name.as_posix(): path for name, path in found.items() if not any(part.startswith(".") for part in name.parts)}
    own = {os.path.realpath(path) for path in shown.values() if path.is_file() and not path.is_symlink()}
    for path in shown.values():
        if path.is_symlink() and os.path.realpath(path) not in own:
            raise UserError(
                f"{one_line(path)}: is a link to {one_line(os.readlink(path))}, which is none of the files to upload; expected "
                f"files; copy what the links lead to with `cp -rL {directory} COPY`, look at the copy and push it"
            )
    return {name: path for name, path in shown.items() if path.is_file()}


def _card(directory: Path, repo: str, model: dict, license: str | None, language: Sequence[str]) -> bytes | None:
    """Returns the directory's card with the repository and what is new in it, or a new one where something was recorded."""
    own = directory / _CARD
    if own.exists():
        return completed_card(own, license, language).replace(f'"{PLACEHOLDER}"'.encode(), f'"{repo}"'.encode())
    facts = read_facts(directory.parent)
    places = [directory / _RECORD, directory.parent / "transfer" / _RECORD]
    place = next((place for place in places if place.exists()), None)
    record = read_transfer(place) if place else facts.transfer if facts else None
    if record is None and facts is None:
        return None
    metrics = directory.parent / "metrics.jsonl"
    lines = read_lines(metrics) if metrics.exists() else []
    evaluations = [line for line in lines if line.get("kind") == "eval"]
    return model_card(record, evaluations, repo, facts=facts, model=model, license=license, language=language).encode()


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.2f} GB"
