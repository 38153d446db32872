"""What passes between this machine and the hub: tried again where that helps, told without the token where it does not."""

import contextlib
import email.utils
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wechsel_jax.errors import UserError

# The first wait is one second; each is twice the one before. What the hub asks for with Retry-After is waited instead.
TRIES = 6
_LONGEST_WAIT = 300.0
_BUSY = (408, 429, 500, 502, 503, 504)
_XET_STATUS = re.compile(r"HTTP status (?:client|server) error \((\d{3}) ")
_LOGIN = "log in with `hf auth login` or set HF_TOKEN"


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
        """Adds files with one commit.

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
        with _told(self._say), _clean_logs(self._without_token):
            self._call("making the repository", self._api.create_repo, self.repo, private=private, exist_ok=True)
            if private and not self._call("looking at the repository", self._api.repo_info, self.repo).private:
                raise UserError(
                    f"{self.repo}: exists already and is public; expected a private repository; change that on the hub first"
                )
            if revision:
                self._call("making the branch", self._api.create_branch, self.repo, branch=revision, exist_ok=True)
            self._call("the upload", self._commit, contents, message, revision)

    def _commit(self, contents: Mapping[str, str | bytes], message: str, revision: str | None) -> None:
        from huggingface_hub import CommitOperationAdd

        # New operations each time: so the hub is asked again what it has, and only the rest is sent.
        additions = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=what) for name, what in sorted(contents.items())]
        self._api.create_commit(self.repo, operations=additions, commit_message=message, revision=revision)

    def _call(self, what: str, function: Callable, *arguments: Any, **options: Any) -> Any:
        """Calls a function of the hub's library, again after a pause where the hub was busy or the connection broke."""
        for attempt in range(1, TRIES + 1):
            try:
                return function(*arguments, **options)
            except Exception as error:  # the library lets through its own errors, its HTTP client's and the system's
                failure = error
            if attempt == TRIES or not _passing(failure):
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
        advice = "run the same command again; what has arrived is not sent again" if _passing(error) else "see what it says"
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


def _passing(error: BaseException) -> bool:
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
def _told(say: Callable[[str], None]) -> Iterator[None]:
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
