"""A model directory on the hub: all of it in one commit, whatever the network does meanwhile.

What passes between this machine and the hub is tried again where that helps, and told without the token where it does not.
"""

import contextlib
import email.utils
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.directory import EXTRA_TOKENIZER_FILES
from wechsel_jax.errors import UserError
from wechsel_jax.files import require_directory
from wechsel_jax.files.hub import REPOSITORY
from wechsel_jax.records import TransferRecord, read_run
from wechsel_jax.records.names import METRICS_FILE, RECORD_FILE
from wechsel_jax.report.card import PLACEHOLDER, PROJECT, check_names, completed_card, model_card
from wechsel_jax.report.markdown import one_line

_CARD = "README.md"
# In its front matter.
_LICENSED = re.compile(rb"\A(?:\xef\xbb\xbf)?---\r?\n(?:(?!---)[^\n]*\n)*?license:[ \t]*\S")
_REVISION = re.compile(r"(?!.*(?:\.\.|\.lock(?:/|$)))\w[\w.-]*(?:/\w[\w.-]*)*(?<!\.)", re.ASCII)
# What transformers would read of an earlier upload in place of what is new: weights in one file instead of several or the
# reverse, and files of a tokenizer, a chat or a generation that this model has not.
_READ = re.compile(
    r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|generation_config\.json|chat_template\.jinja"
    rf"|(special_tokens_map|added_tokens)\.json|{'|'.join(map(re.escape, EXTRA_TOKENIZER_FILES))}"
)
# The first wait is one second; each is twice the one before. What the hub asks for with Retry-After is waited instead.
TRIES = 6
_LONGEST_WAIT = 300.0
_BUSY = (408, 429, 500, 502, 503, 504)
_XET_STATUS = re.compile(r"HTTP status (?:client|server) error \((\d{3}) ")
_LOGIN = "log in with `hf auth login` or set HF_TOKEN"


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

    Everything is uploaded first and becomes visible with one commit at the end, which removes weights and files of a tokenizer
    that are of an earlier upload alone, and that transformers would read in place of the new ones. What a broken upload had
    sent already is not sent again by the next one. Busy servers and broken connections are tried again.

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
    if not REPOSITORY.fullmatch(repo):
        raise UserError(f"{one_line(repo)}: not the name of a repository; expected user/name")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise UserError(
            f"revision: {one_line(revision)!r} is not the name of a branch; expected letters, digits, '.', '_', '-' and '/', "
            "without '..' and not '-' or '/' first; e.g. step-500"
        )
    model = Checkpoint.open(directory)
    check_names(license, language)
    files = _files(directory)
    card = _card(directory, repo, model.config, license, language)
    sizes = {name: path.stat().st_size for name, path in files.items()} | ({_CARD: len(card)} if card is not None else {})
    for name in sorted(sizes):
        made = " (made now)" if name == _CARD and name not in files else ""
        say(f"  {one_line(name)}  {_size(sizes[name])}{made}")
    if card is not None and not _LICENSED.search(card):
        # One that an earlier push named is gone with the card that it was in.
        say("note: the card states no licence; name it with --license, at every push, or in the card itself")
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


def _files(directory: Path) -> dict[str, Path]:
    """Name in the repository -> file, hidden ones left out; a link has to lead to one of these files."""
    found = {path.relative_to(directory): path for path in sorted(directory.rglob("*"))}
    shown = {name.as_posix(): path for name, path in found.items() if not any(part.startswith(".") for part in name.parts)}
    own = {os.path.realpath(path) for path in shown.values() if path.is_file() and not path.is_symlink()}
    for path in shown.values():
        if path.is_symlink() and os.path.realpath(path) not in own:
            copy = f"cp -rL {shlex.quote(os.fspath(directory))} COPY"
            raise UserError(
                f"{one_line(path)}: is a link to {one_line(os.readlink(path))}, which is none of the files to upload; expected "
                f"files; copy what the links lead to with `{copy}`, look at the copy and push it"
            )
    return {name: path for name, path in shown.items() if path.is_file()}


def _card(directory: Path, repo: str, model: dict, license: str | None, language: Sequence[str]) -> bytes | None:
    """Returns the directory's card with the repository and what is new in it, or a new one where something was recorded."""
    own, around = directory / _CARD, directory.resolve().parent
    if own.exists():
        return completed_card(own, license, language).replace(f'"{PLACEHOLDER}"'.encode(), f'"{repo}"'.encode())
    run = read_run(around) if (around / METRICS_FILE).exists() else None
    if run and run.began_with and os.path.realpath(run.began_with) == os.path.realpath(directory):
        run = None  # what the run began with has not been trained by it
    record = TransferRecord.read(directory) if (directory / RECORD_FILE).exists() else run.transfer if run else None
    if record is None and run is None:
        return None
    return model_card(record, run, repo=repo, model=model, license=license, language=language).encode()


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.2f} GB"


class Client:
    """One repository of the hub.

    Args:
      repo: "user/name".
      token: of the hub; None: of the environment or an earlier login.
      endpoint: of another hub than huggingface.co.
      say: called with lines of progress.
    """

    def __init__(self, repo: str, token: str | None, endpoint: str | None, say: Callable[[str], None]):
        import huggingface_hub

        self.repo = repo
        self._token = token or huggingface_hub.get_token()
        self._say = lambda line: say(self._without_token(line))
        self._api = huggingface_hub.HfApi(endpoint=endpoint, token=self._token)
        self.address = _without_secrets(f"{self._api.endpoint}/{repo}")

    def upload(self, contents: Mapping[str, str | bytes], message: str, *, private: bool, revision: str | None) -> None:
        """Adds files with one commit, and removes what transformers would read in their place.

        Args:
          contents: name in the repository -> path of a file, or its contents.
          message: of the commit.
          private: make a new repository private; refuse an existing one that is public.
          revision: a branch; None: main.

        Raises:
          UserError: the hub refuses or cannot be reached.
        """
        if not self._token:
            raise UserError(f"{self.repo}: there is no token for the hub; {_LOGIN}")
        with _as_progress(self._say), _clean_logs(self._without_token):
            self._retried("making the repository", self._api.create_repo, self.repo, private=private, exist_ok=True)
            if private and not self._retried("looking at the repository", self._api.repo_info, self.repo).private:
                raise UserError(
                    f"{self.repo}: exists already and is public; expected a private repository; change that on the hub first"
                )
            if revision:
                self._retried("making the branch", self._api.create_branch, self.repo, branch=revision, exist_ok=True)
            self._retried("the upload", self._commit, contents, message, revision)

    def _commit(self, contents: Mapping[str, str | bytes], message: str, revision: str | None) -> None:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        there = self._api.list_repo_files(self.repo, revision=revision)
        former = sorted(name for name in there if _READ.fullmatch(name) and name not in contents)
        for name in former:
            self._say(f"  {one_line(name)}  removed: of an earlier upload (the repository's history keeps it)")
        # New operations each time: so the hub is asked again what it has, and only the rest is sent.
        additions = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=what) for name, what in sorted(contents.items())]
        operations = [*additions, *map(CommitOperationDelete, former)]
        self._api.create_commit(self.repo, operations=operations, commit_message=message, revision=revision)

    def _retried(self, what: str, function: Callable, *arguments: Any, **options: Any) -> Any:
        """Calls a function of the hub's library, again after a pause where the hub was busy or the connection broke."""
        for attempt in range(1, TRIES + 1):
            try:
                return function(*arguments, **options)
            except Exception as error:  # the library lets through its own errors, its HTTP client's and the system's
                failure = error
            if attempt == TRIES or not _temporary(failure):
                break
            wait = min(_retry_after(failure) or 2.0 ** (attempt - 1), _LONGEST_WAIT)
            self._say(f"{what}: {self._reason(failure)}; again in {wait:,.0f} s (try {attempt + 1} of {TRIES})")
            time.sleep(wait)
        # Raised here, where no exception is being handled: its own text may hold the token, and a traceback would show it.
        raise UserError(self._refusal(what, failure))

    def _refusal(self, what: str, error: BaseException) -> str:
        status, user = _status(error), self.repo.split("/")[0]
        if status == 401:
            return f"{self.repo}: the hub does not accept the token (401 at {what}); {_LOGIN} with one that may write"
        if status == 403:
            return f"{self.repo}: the token may not write there (403 at {what}: {self._reason(error)}); use one that may"
        if status == 404:
            return f"{self.repo}: the hub knows no such place (404 at {what}); check that {user} exists and is yours"
        advice = "run the same command again; what has arrived is not sent again" if _temporary(error) else "see what it says"
        return f"{self.repo}: the hub did not take the upload ({self._reason(error)} at {what}); {advice}"

    def _reason(self, error: BaseException) -> str:
        """What went wrong, in a line."""
        root = _chain(error)[-1]
        text = " ".join(str(root).split())
        status = _status(error)
        return self._without_token(_without_secrets(text))[:300] or (str(status) if status else type(root).__name__)

    def _without_token(self, text: str) -> str:
        return text.replace(self._token, "<token>") if self._token else text


def _chain(error: BaseException) -> list[BaseException]:
    """An error and those that it was raised for, down to an answer of the hub."""
    chain = [error]
    while chain[-1].__cause__ is not None and getattr(chain[-1], "response", None) is None:
        chain.append(chain[-1].__cause__)
    return chain


def _status(error: BaseException) -> int | None:
    """The status of the hub's answer; None where there was none."""
    last = _chain(error)[-1]
    # hf_xet's errors are the system's, with the answer in their text.
    told = _XET_STATUS.search(str(last))
    return int(told[1]) if told else getattr(getattr(last, "response", None), "status_code", None)


def _temporary(error: BaseException) -> bool:
    """Whether the same call may succeed a little later."""
    status = _status(error)
    if status is not None:
        return status in _BUSY
    # The HTTP client's errors have another home in each of its versions.
    kinds = {kind.__name__ for link in _chain(error) for kind in type(link).__mro__}
    return bool(kinds & {"TransportError", "ConnectionError", "TimeoutError"}) and "OfflineModeIsEnabled" not in kinds


def _retry_after(error: BaseException) -> float | None:
    """Seconds that the hub asks to wait."""
    value = getattr(getattr(_chain(error)[-1], "response", None), "headers", {}).get("retry-after")
    if not value:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


def _without_secrets(text: str) -> str:
    """Addresses that storage servers give out carry a signature behind the question mark, HF_ENDPOINT perhaps a password."""
    return re.sub(r"(https?://)(?:[^\s/@]*@)?([^\s?]+)(?:\?\S*)?", r"\1\2", text)


@contextlib.contextmanager
def _clean_logs(without_token: Callable[[str], str]) -> Iterator[None]:
    """Keeps the token out of what any library logs meanwhile: a server may send it back, and debugging logs show answers."""
    old = logging.getLogRecordFactory()

    def make(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = old(*arguments, **options)
        message = record.getMessage()
        cleaned = without_token(message)
        if cleaned != message:
            record.msg, record.args = cleaned, ()
        return record

    logging.setLogRecordFactory(make)
    try:
        yield
    finally:
        logging.setLogRecordFactory(old)


@contextlib.contextmanager
def _as_progress(say: Callable[[str], None]) -> Iterator[None]:
    """Passes on what the hub's library logs, as lines of progress; bars are for terminals."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(_without_secrets(" ".join(record.getMessage().split())))

    logger = logging.getLogger("huggingface_hub")
    old, logger.handlers = logger.handlers, [Lines(logging.WARNING)]
    quiet = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if quiet:
        disable_progress_bars()
    try:
        yield
    finally:
        logger.handlers = old
        if quiet:
            enable_progress_bars()
