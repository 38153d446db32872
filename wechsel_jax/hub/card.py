"""The model card: README.md with the hub's front matter, from what a transfer and a training run recorded."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.files.json import is_number
from wechsel_jax.hub.citations import bibtex
from wechsel_jax.hub.markdown import code, front_matter, hub_id, inline, is_name, name_of, one_line
from wechsel_jax.hub.run_facts import RunFacts
from wechsel_jax.hub.run_part import run_lines, score_lines
from wechsel_jax.hub.transfer_part import introduction, transfer_lines

PROJECT = "wechsel-jax"
# What the loading example names until the model has a place on the hub; `push` puts the repository there.
PLACEHOLDER = "path/to/this/directory"
_NO_LICENSE = "None is stated here."
_TASKS = (("MaskedLM", "fill-mask"), ("CausalLM", "text-generation"), ("LMHeadModel", "text-generation"))
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")


def model_card(
    record: Mapping | None,
    evaluations: Sequence[Mapping] = (),
    repo: str = PLACEHOLDER,
    *,
    facts: RunFacts | None = None,
    model: Mapping[str, Any] | None = None,
    license: str | None = None,
    language: Sequence[str] = (),
) -> str:
    """Writes a README.md for a model that was transferred, trained, or both.

    Args:
      record: the content of transfer.json, see `records.read_transfer`; None where the vocabulary was not replaced.
      evaluations: lines of metrics.jsonl of kind "eval" ({"step", "perplexity", ...}), for a model that was trained afterwards;
        those of `facts` count where these are given.
      repo: what the loading example names.
      facts: what the training run recorded, see `read_facts`.
      model: the content of the model's config.json; needed without `record`.
      license: as the hub spells it, e.g. "mit" or "apache-2.0".
      language: codes of the model's languages, e.g. ("de",).

    Returns:
      Markdown with the hub's front matter.

    Raises:
      UserError: the licence or a language is not spelled as the hub spells them.
    """
    check_names(license, language)
    evaluations = facts.evaluations if facts is not None else evaluations
    place = record["source"]["model"] if record else facts.began_with if facts else ""
    loader = _loader(record, model)
    title = _title(record, facts, place)
    return "\n".join(
        [
            "---",
            f"{_front_matter(record, facts, title, hub_id(place), loader, license, language)}---",
            "",
            f"# {inline(title)}",
            "",
            *_introduction(record, facts, evaluations, model),
            "",
            *score_lines(evaluations, facts),
            "```python",
            f"from transformers import {loader}, AutoTokenizer",
            "",
            f"model = {loader}.from_pretrained({json.dumps(repo)})",
            f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(repo)})",
            "```",
            "",
            *(run_lines(facts) if facts else []),
            *(transfer_lines(record) if record else []),
            *_licence_lines(license, place),
            *_citation_lines(record, facts),
        ]
    )


def completed_card(path: Path, license: str | None = None, language: Sequence[str] = ()) -> bytes:
    """Returns a card that exists with a licence and languages added to its front matter; the rest keeps its bytes.

    Args:
      path: the card.
      license: as for `model_card`; a card that `model_card` made without one names it in its text, too.
      language: likewise.

    Raises:
      UserError: the card states another licence or other languages, or its front matter cannot be read.
    """
    contents = path.read_bytes()
    if not license and not language:
        return contents
    import yaml
    from huggingface_hub.repocard import REGEX_YAML_BLOCK, metadata_load

    try:
        stated, text = metadata_load(path) or {}, contents.decode("utf-8-sig")
    except (ValueError, RecursionError, yaml.YAMLError):
        raise UserError(f"{path}: its front matter cannot be read; expected YAML between two lines of ---") from None
    added = {}
    for name, value in (("license", license), ("language", [*language])):
        given, there = ([one] if one and not isinstance(one, list) else one or [] for one in (value, stated.get(name)))
        if given and name in stated and given != there:
            states = f"states {name} {', '.join(map(one_line, there)) or 'without a value'}"
            raise UserError(f"{path}: {states}, not {', '.join(given)}; expected one; change the card or leave --{name} out")
        added |= {name: value} if name not in stated else {}
    front = front_matter(added)
    found = REGEX_YAML_BLOCK.search(text)
    text = f"{text[: found.start(2)]}{front}{text[found.start(2) :]}" if found else f"---\n{front}---\n{text}"
    return text.replace(f"## Licence\n\n{_NO_LICENSE}", f"## Licence\n\n`{license}`.").encode() if license else text.encode()


def check_names(license: str | None, language: Sequence[str]) -> None:
    """Raises `UserError` where a licence or a language is not spelled as the hub spells them."""
    if license and not _LICENSE.fullmatch(license):
        raise UserError(
            f"license: {license!r} is not one of the hub's names; expected e.g. mit, apache-2.0, cc-by-sa-4.0, other"
        )
    for one in language:
        if not _LANGUAGE.fullmatch(one):
            raise UserError(f"language: {one!r} is no language code; expected e.g. de, sw or zh")


def _loader(record: Mapping | None, model: Mapping[str, Any] | None) -> str:
    """The class of the loading example: what config.json names where that is a name and no other Python."""
    classes = (model or {}).get("architectures")
    first = classes[0] if classes and isinstance(classes, list) else None
    named = (first, record["source"].get("class") if record else None)
    return next((name for name in named if is_name(name)), "AutoModel")


def _title(record: Mapping | None, facts: RunFacts | None, place: str) -> str:
    if record:
        return f"{name_of(place)} with the vocabulary of {name_of(record['target']['tokenizer'])}"
    return f"{name_of(place)}, trained further" if place else facts.name if facts else "A language model"


def _front_matter(
    record: Mapping | None,
    facts: RunFacts | None,
    title: str,
    base: str | None,
    loader: str,
    license: str | None,
    language: Sequence[str],
) -> str:
    task = next((task for end, task in _TASKS if loader.endswith(end)), None)
    return front_matter(
        {
            "library_name": "transformers",
            "base_model": base,
            "license": license,
            "language": [*language],
            "pipeline_tag": task,
            "tags": [PROJECT, *([one_line(record["method"].replace("_", "-"))] if record else [])],
            "model-index": _model_index(facts, title, task) if facts and task else None,
        }
    )


def _model_index(facts: RunFacts, title: str, task: str) -> list[dict[str, Any]]:
    """The perplexity of these weights, or the best one where these were not evaluated, for programs that read cards."""
    line = facts.last or facts.best
    if line is None or not is_number(line.get("perplexity")):
        return []
    metric = {
        "type": "perplexity",
        "value": round(float(line["perplexity"]), 4),
        "name": f"perplexity at step {line['step']}",
    }
    dataset = {"name": "held-out text", "type": "text"}
    return [{"name": one_line(title), "results": [{"task": {"type": task}, "dataset": dataset, "metrics": [metric]}]}]


def _introduction(
    record: Mapping | None, facts: RunFacts | None, evaluations: Sequence[Mapping], model: Mapping[str, Any] | None
) -> list[str]:
    if record:
        lines = [introduction(record)]
        trained = "It was then trained in the new language."
    else:
        lines = []
        size = (model or {}).get("vocab_size")
        tokens = f" with a vocabulary of {size:,} tokens" if isinstance(size, int) else ""
        began = "trained from new parameters" if facts and not facts.began_with else "trained further"
        trained = f"A {inline((model or {}).get('model_type', 'language'))} model{tokens}, {began}."
    if not evaluations and not facts:
        untrained = "It has not been trained in the new language yet: continue its training before you use it."
        return [*lines, "", untrained] if record else lines
    return [*lines, *([""] if lines else []), trained]


def _licence_lines(license: str | None, place: str) -> list[str]:
    lines = ["## Licence", ""]
    lines.append(f"`{license}`." if license else _NO_LICENSE)
    if place:
        lines[-1] += f" The model was made from {code(hub_id(place) or name_of(place))}, whose licence applies to it as well."
    lines[-1] += " Check the terms of the text that it was trained on, too."
    return [*lines, ""]


def _citation_lines(record: Mapping | None, facts: RunFacts | None) -> list[str]:
    versions = (record or {}).get("versions") or (facts.versions if facts else {})
    return ["## Citation", "", "```bibtex", bibtex((record or {}).get("method"), versions.get(PROJECT)), "```", ""]
