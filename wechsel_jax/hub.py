"""The model card from what was recorded, and the upload to the hub."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.files import require_directory

_PROJECT = "wechsel-jax"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_EXAMPLE_SOURCES = 5
# Settings that name files, or a model that may be a directory.
_PLACES = ("source_vectors", "target_vectors", "dictionary", "helper")


def model_card(record: Mapping, evaluations: Sequence[Mapping] = (), repo: str = "path/to/this/directory") -> str:
    """Writes a README.md for a transferred model.

    Args:
      record: the content of transfer.json.
      evaluations: lines of metrics.jsonl of kind "eval" ({"step", "perplexity", ...}), for a model that was trained afterwards.
      repo: what the loading example names.

    Returns:
      Markdown with the hub's front matter.
    """
    source, target, counts = record["source"], record["target"], record["counts"]
    base = source["model"] if _HUB_ID.fullmatch(source["model"]) and not Path(source["model"]).exists() else None
    loader = source.get("class") or "AutoModel"
    lines = [
        "---",
        "library_name: transformers",
        *([f"base_model: {base}"] if base else []),
        f"tags:\n- {_PROJECT}\n- {record['method'].replace('_', '-')}",
        "---",
        "",
        f"# {_name(source['model'])} with the vocabulary of {_name(target['tokenizer'])}",
        "",
        f"A {source['architecture']} model whose vocabulary of {source['vocabulary_size']:,} tokens was replaced by one of "
        f"{target['vocabulary_size']:,}, with the method `{record['method']}` ({record['paper']}).",
        *_training_lines(evaluations),
        "",
        "```python",
        f"from transformers import {loader}, AutoTokenizer",
        "",
        f'model = {loader}.from_pretrained("{repo}")',
        f'tokenizer = AutoTokenizer.from_pretrained("{repo}")',
        "```",
        "",
        "## Where the tokens came from",
        "",
        "| | tokens |",
        "|---|---:|",
        *(f"| {how} | {counts[how]:,} |" for how in ("copied", "mixed", "random")),
        "",
        *_coverage_lines(record.get("coverage")),
        *_alignment_lines(record),
        "| target token | how | source tokens (weight) |",
        "|---|---|---|",
        *(_example_line(example) for example in record["examples"]),
        "",
        "## How it was made",
        "",
        *(f"- {_without_folders(sentence, record)}" for sentence in [*record["behaviour"], *record["notes"]]),
        "",
        "| setting | value |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in _settings(record).items()),
        "",
        "Made with " + ", ".join(f"{name} {version}" for name, version in record["versions"].items()) + ".",
        "",
    ]
    return "\n".join(lines)


def push(directory: str | os.PathLike, repo: str, private: bool = False, token: str | None = None) -> str:
    """Uploads a model directory to the hub, with a model card if it has none.

    The card is made of transfer.json in the directory, or in `../transfer` beside a training run's export, and of the run's
    evaluations in `../metrics.jsonl`.

    Args:
      directory: what `transfer` or a training run's export wrote.
      repo: "user/name"; made where it does not exist.
      private: whether a new repository is private.
      token: of the hub; by default the one that the environment or an earlier login holds.

    Returns:
      The address of the repository.

    Raises:
      UserError: it is no model directory, the name is malformed, or the hub refuses or cannot be reached.
    """
    directory = require_directory(directory, "a model directory")
    Checkpoint.open(directory)
    if not _HUB_ID.fullmatch(repo):
        raise UserError(f"{repo}: not the name of a repository; expected user/name")
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        card = _card(directory, repo)
        if card is not None:
            api.upload_file(
                path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=repo, commit_message="Add the model card"
            )
        api.upload_folder(repo_id=repo, folder_path=directory, commit_message=f"Upload from {_PROJECT}", ignore_patterns=[".*"])
    except Exception as error:  # huggingface_hub lets through its own errors, its HTTP client's and the system's
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(
            f"{repo}: the hub did not take the upload ({reason}); log in with `hf auth login` or check the network"
        ) from None
    return f"{api.endpoint}/{repo}"


def _card(directory: Path, repo: str) -> str | None:
    """Returns a card where the directory has none and something was recorded."""
    if (directory / "README.md").exists():
        return None
    found = [
        place for place in (directory / "transfer.json", directory.parent / "transfer" / "transfer.json") if place.exists()
    ]
    if not found:
        return None
    try:
        return model_card(
            json.loads(found[0].read_text(encoding="utf-8")), _evaluations(directory.parent / "metrics.jsonl"), repo
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{found[0]}: not a record of a transfer; expected what `wechsel-jax transfer` writes") from None


def _evaluations(metrics: Path) -> list[dict]:
    if not metrics.exists():
        return []
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line for line in lines if line.get("kind") == "eval"]


def _training_lines(evaluations: Sequence[Mapping]) -> list[str]:
    if not evaluations:
        return ["", "It has not been trained in the new language yet: continue its training before you use it."]
    rows = [f"| {line['step']:,} | {line['perplexity']:,.1f} |" for line in evaluations]
    return ["", "It was then trained in the new language.", "", "| step | held-out perplexity |", "|---:|---:|", *rows]


def _alignment_lines(record: Mapping) -> list[str]:
    lines = []
    alignment, similarity = record["alignment"], record["similarity"]
    if alignment:
        precision = alignment.get("precision_at_1")
        held_out = "" if precision is None else f", precision at 1 on held-out words {precision:.3f}"
        pairs = f"{alignment['pairs']:,} word pairs"
        how = f"without a dictionary, {pairs} found" if alignment.get("method") == "adversarial" else f"on {pairs}"
        lines.append(f"Word vectors aligned {how}{held_out}, residual {alignment['residual']:.3f}.")
    if similarity:
        lines.append(f"Similarity of a token to its nearest source token: mean {similarity['mean_top1']:.3f}.")
    return [*lines, ""] if lines else []


def _coverage_lines(coverage: Mapping | None) -> list[str]:
    """What became of the tokens that each rule of the overlap matched; none for a record from before there was one."""
    if not coverage:
        return []
    return [
        "| shared by rule | tokens | copied | mixed | random | e.g. |",
        "|---|---:|---:|---:|---:|---|",
        *(_rule_line(row) for row in coverage["rows"] if row["tokens"]),
        "",
    ]


def _rule_line(row: Mapping) -> str:
    target, source = next(iter(row["examples"]), (None, None))
    shown = "" if target is None else _cell(target) + ("" if source is None else f" from {_cell(source)}")
    numbers = " | ".join(f"{row[name]:,}" for name in ("tokens", "copied", "mixed", "noise"))
    return f"| {row['rule']} | {numbers} | {shown} |"


def _example_line(example: Mapping) -> str:
    shown = ", ".join(f"{_cell(token)} ({weight:.2f})" for token, weight in example["sources"][:_EXAMPLE_SOURCES])
    return f"| {_cell(example['target'])} | {example['how']} | {shown} |"


def _settings(record: Mapping) -> dict:
    """The settings with files by name only: a card is public, and the folders of whoever made the model are not."""
    settings = {"parity": record["parity"], **record["settings"]}
    return {name: _public(value) if name in _PLACES and value else value for name, value in settings.items()}


def _without_folders(sentence: str, record: Mapping) -> str:
    """A sentence with files by name only."""
    for place in (record["settings"].get(name) for name in _PLACES):
        if place:
            sentence = sentence.replace(place, _public(place))
    return sentence


def _public(place: str) -> str:
    return place if _HUB_ID.fullmatch(place) and not Path(place).exists() else Path(place).name


def _cell(value: object) -> str:
    """A value in a table of Markdown, as code, whatever it holds."""
    text = str(value).replace("|", "\\|").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _name(place: str) -> str:
    path = Path(place)
    return path.parent.name if path.name == "tokenizer.json" and path.parent.name else path.name or place
