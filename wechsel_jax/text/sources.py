"""What a name of text stands for: files, patterns of files, saved data sets, data sets of the hub."""

import concurrent.futures
import dataclasses
import glob
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wechsel_jax.errors import UserError, from_extra, one_line, parsing
from wechsel_jax.files import file_hash, require_file
from wechsel_jax.files.refusals import HUB, SAVED
from wechsel_jax.text.files import LONGEST_DOCUMENT, PARQUET

if TYPE_CHECKING:
    import datasets

SOURCE_FILE = "a text file in UTF-8 (plain, .gz, .xz, .bz2 or .zst), JSON lines (.jsonl) or Parquet (.parquet)"
_COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst", ".zstd")
_JSON_NAMES = (".jsonl", ".ndjson", ".json")
# What Arrow and the processes' sockets take at once.
_LARGEST_LIMIT = (1 << 31) - 1
_HUB_NAME = re.compile(r"(?P<name>[^@:#]+)(@(?P<revision>[^:@#]+))?(:(?P<split>[^#]+))?(#(?P<config>[^#]+))?")


@dataclasses.dataclass(frozen=True)
class Source:
    """One file or data set.

    Attributes:
      kind: "text", "json", "parquet", "saved" (a directory of `datasets`) or "hub".
      place: path of the file or directory, or repository of the hub.
      field: which holds the text, where there are fields.
      split: of a data set; "" where there is none to choose.
      config: of a data set of the hub that has several; "" for the only one.
      revision: of a data set of the hub: the commit, once `identify` has asked for it.
      longest: bytes of the longest line, row or document that is read.
    """

    kind: str
    place: str
    field: str = "text"
    split: str = ""
    config: str = ""
    revision: str = ""
    longest: int = LONGEST_DOCUMENT

    @property
    def name(self) -> str:
        """As messages call it."""
        split, config = self.split and f":{self.split}", self.config and f"#{self.config}"
        prefix = {"saved": SAVED, "hub": HUB}.get(self.kind, "")
        return f"{prefix}{self.place}{split}{config}"

    @property
    def size(self) -> int:
        """Bytes on disk; 0 where nothing is known before it is read."""
        return sum(Path(file).stat().st_size for file in self.files())

    def files(self) -> list[str]:
        """The files that hold the text; none of a data set of the hub."""
        if self.kind == "saved":
            return [file["filename"] for file in self.open_saved().cache_files]
        if self.kind == "hub":
            return [] if self.on_hub else sorted(str(path) for path in Path(self.place).rglob("*") if path.is_file())
        return [self.place]

    @property
    def on_hub(self) -> bool:
        """Whether it is fetched from the hub: "hf://DIR" of a local directory is not."""
        return self.kind == "hub" and not Path(self.place).is_dir()

    def open_saved(self) -> "datasets.Dataset":
        """The data set of a directory that `datasets` saved."""
        datasets = import_datasets(self.name)
        with parsing(self.name, "what save_to_disk wrote"):
            loaded = datasets.load_from_disk(self.place)
        if isinstance(loaded, datasets.DatasetDict):
            if self.split not in loaded:
                known = ", ".join(f"{SAVED}{self.place}:{split}" for split in loaded)
                raise UserError(f"{self.name}: holds several splits; expected one of {known}")
            return loaded[self.split]
        if self.split:
            raise UserError(f"{self.name}: holds one data set without splits; expected {SAVED}{self.place}")
        return loaded

    def open_hub(self) -> "datasets.IterableDataset":
        """The data set of the hub, streamed; code that a repository brings is never run."""
        datasets = import_datasets(self.name)
        try:
            return datasets.load_dataset(
                self.place, self.config or None, split=self.split or "train", streaming=True, revision=self.revision or None
            )
        except Exception as error:
            # Every part of the network has exceptions of its own.
            raise self._unreadable(error) from error

    def streamed(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yields what `open_hub` streams, row by row or batch by batch; the network may fail, and a file be damaged, late."""
        reading = iter(rows)
        while True:
            try:
                row = next(reading)
            except StopIteration:
                return
            except MemoryError:
                raise
            except Exception as error:
                raise self._unreadable(error) from error
            yield row

    def _unreadable(self, error: Exception) -> UserError:
        return UserError(f"{self.name}: cannot be read from the hub ({one_line(error)}); see hf://NAME:SPLIT#CONFIG")


def find_sources(
    texts: Sequence[str | os.PathLike], field: str = "text", longest: int = LONGEST_DOCUMENT, what: str = SOURCE_FILE
) -> list[Source]:
    """Finds what is meant by names of text.

    Args:
      texts: paths of text files or JSON lines, plain or compressed, or Parquet; patterns of them ("corpus/*.jsonl.zst",
        "**" for any depth; in the order of their names); "datasets:DIR" or "datasets:DIR:SPLIT", a directory that
        `datasets` saved with save_to_disk; "hf://NAME", "hf://NAME@REVISION:SPLIT#CONFIG", a data set of the hub, streamed
        (SPLIT is "train" unless it is given; NAME may be a local directory of data files).
      field: which holds the text of JSON lines and of tables.
      longest: bytes of the longest line, row or document that is read; what reads the source refuses a longer one.
      what: what a file is expected to be, for messages.

    Raises:
      UserError: a file is missing or empty, or a pattern matches none.
    """
    if not 1 <= longest <= _LARGEST_LIMIT:
        raise UserError(f"max_document_bytes {longest}: expected a number of bytes from 1 to {_LARGEST_LIMIT:,}")
    found = (source for text in texts for source in _find(os.fspath(text), field, what))
    return [dataclasses.replace(source, longest=longest) for source in found]


def _find(text: str, field: str, what: str) -> Iterable[Source]:
    if not text:
        raise UserError(f"a name of text is empty (a comma too many?); expected {what}")
    if text.startswith(HUB):
        match = _HUB_NAME.fullmatch(text.removeprefix(HUB))
        if not match:
            raise UserError(
                f"{text}: is no name of a data set; expected {HUB}NAME@REVISION:SPLIT#CONFIG, all but NAME optional"
            )
        parts = {name: value or "" for name, value in match.groupdict().items()}
        return [Source("hub", parts["name"], field, parts["split"], parts["config"], parts["revision"])]
    if text.startswith(SAVED):
        place, split = text.removeprefix(SAVED), ""
        if not Path(place).is_dir():
            place, _, split = place.rpartition(":")
        if not place or not Path(place).is_dir():
            raise UserError(f"{text}: no such directory; expected {SAVED}DIR or {SAVED}DIR:SPLIT")
        return [Source("saved", place, field, split)]
    if glob.has_magic(text) and not Path(text).exists():
        paths = sorted(path for path in glob.glob(text, recursive=True) if Path(path).is_file())
        if not paths:
            raise UserError(f"{text}: no file has such a name; expected {what}")
        return [_file(path, field, what) for path in paths]
    if (Path(text) / "state.json").is_file() or (Path(text) / "dataset_dict.json").is_file():
        raise UserError(f"{text}: is a directory that `datasets` saved; name it {SAVED}{text}")
    return [_file(text, field, what)]


def _file(path: str, field: str, what: str) -> Source:
    require_file(path, what)
    with open(path, "rb") as handle:
        if handle.read(len(PARQUET)) == PARQUET:
            return Source("parquet", path, field)
    name = Path(path).name.lower()
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    return Source("json" if name.endswith(_JSON_NAMES) else "text", path, field)


def identify(sources: Sequence[Source], processes: int) -> tuple[list[Source], list[dict[str, Any]]]:
    """Says which text it is, so that another one of the same name is told apart.

    Args:
      sources: of `find_sources`.
      processes: how many files to read at once.

    Returns:
      The sources, those of the hub with their commit, and {"name", "bytes", "sha256"} of each: of a file, of the list of a data
      set's files, or of the name and "revision" of one that lies on the hub.
    """
    sources = [dataclasses.replace(source, revision=_commit(source)) if source.on_hub else source for source in sources]
    # Every file once, in the order of the text.
    files = list(dict.fromkeys(file for source in sources for file in source.files()))
    with concurrent.futures.ThreadPoolExecutor(max(1, processes)) as pool:
        hashes = dict(zip(files, pool.map(file_hash, files), strict=True))
    return sources, [_entry(source, [hashes[file] for file in source.files()]) for source in sources]


def _entry(source: Source, digests: list[str]) -> dict[str, Any]:
    if source.on_hub:
        named = hashlib.sha256(f"{source.name}@{source.revision}".encode()).hexdigest()
        return {"name": source.name, "bytes": 0, "sha256": named, "revision": source.revision}
    if source.kind in ("saved", "hub"):
        together = hashlib.sha256("\n".join(digests).encode()).hexdigest()
        return {"name": source.name, "bytes": source.size, "sha256": together}
    return {"name": Path(source.place).name, "bytes": source.size, "sha256": digests[0]}


def import_datasets(name: str) -> Any:
    """The package `datasets`, or a message that names it."""
    with from_extra("train", f"to read {name}"):
        import datasets
    return datasets


def _commit(source: Source) -> str:
    """The commit that a name of the hub stands for now."""
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(source.place, revision=source.revision or None).sha
    except Exception as error:
        # As many kinds of exceptions as ways to fail on a network.
        raise UserError(f"{source.name}: cannot be found on the hub ({one_line(error)}); see hf://NAME:SPLIT#CONFIG") from error
