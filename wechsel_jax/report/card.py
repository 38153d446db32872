"""The model card: README.md with the hub's front matter, from what a transfer and a training run recorded.

Text of others goes through `report.markdown` alone, and into the card's Python only where it is a name: else it could be
headings, HTML, links, or lines of the example that readers copy.
"""

import json
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS
from wechsel_jax.records import RunRecord, TransferRecord, best_evaluation
from wechsel_jax.records.run import require_settings
from wechsel_jax.report.card_sections import hub_id, name_of, run_sections, scores, transfer_sections
from wechsel_jax.report.markdown import markdown, one_line
from wechsel_jax.report.section import Block, Code, Listing, Section, Text, joined

PROJECT = "wechsel-jax"
# What the loading example names until the model has a place on the hub; `push` puts the repository there.
PLACEHOLDER = "path/to/this/directory"
_NO_LICENSE = "None is stated here."
_TASKS = (
    *(("MaskedLM", "fill-mask"), ("CausalLM", "text-generation"), ("LMHeadModel", "text-generation")),
    *(("SequenceClassification", "text-classification"), ("TokenClassification", "token-classification")),
    ("QuestionAnswering", "question-answering"),
)
_TREES = "ForDependencyParsing"
# Model types that transformers does not have, those of `models.vanilla` and `models.trilayer`; a card does without the packages
# that these import.
_OURS = re.compile(r"transformer|tri-.+")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")
_SOFTWARE = """@software{wechsel-jax,
  title = {wechsel-jax: Bring a pretrained language model to a new language},
  author = {{the wechsel-jax maintainers}},
  year = {2026},"""


def model_card(
    record: TransferRecord | None,
    run: RunRecord | None = None,
    step: int | None = None,
    *,
    averaged: Sequence[int] = (),
    repo: str = PLACEHOLDER,
    model: Mapping[str, Any] | None = None,
    license: str | None = None,
    language: Sequence[str] = (),
) -> str:
    """Writes a README.md for a model that was transferred, trained, or both.

    Args:
      record: of the transfer; None where the vocabulary was not replaced.
      run: of the training; None where there was none.
      step: of the run, whose weights the model has; None: the one that the run exported, else the last that was recorded.
      averaged: steps whose weights the model has the mean of, `step` the last of them; no score is of such a mean.
      repo: what the loading example names.
      model: the content of the model's config.json; needed without `record`.
      license: as the hub spells it, e.g. "mit" or "apache-2.0".
      language: codes of the model's languages, e.g. ("de",).

    Returns:
      Markdown with the hub's front matter.

    Raises:
      UserError: the licence or a language is not spelled as the hub spells them, or a field of the run's settings has another
        type.
    """
    check_names(license, language)
    model = model or {}
    if run is not None:
        require_settings(run)
        step = next((one for one in (step, run.exported_step, run.last_step) if one is not None), 0)
        run = run.until(step)
    place = (record.source.get("model") or "") if record else run.began_with if run else ""
    # The class that config.json names, where that is a name and no other Python.
    classes = model.get("architectures")
    named = (classes[0] if classes and isinstance(classes, list) else None, record.source.get("class") if record else None)
    loader = next((name for name in named if _is_name(name)), "AutoModel")
    ours = _OURS.fullmatch(str(model.get("model_type")))
    # There is no class for trees: transformers loads what is below their head.
    trees = loader.endswith(_TREES) and not ours
    loader = "AutoModel" if trees else loader
    title = f"{name_of(place)}, trained further" if place else run.name if run else "A language model"
    if record:
        tokenizer = record.target.get("tokenizer", "")
        title = name_of(place) or "A language model"
        title += f" with the vocabulary of {name_of(tokenizer)}" if tokenizer else " with another vocabulary"
    example = (
        f"from transformers import {loader}, AutoTokenizer\n\nmodel = {loader}.from_pretrained({json.dumps(repo)})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(repo)})"
    )
    if ours:
        labelled = ours[0] == "transformer" and not loader.endswith("ForTranslation")
        # A half model of TreLM writes its second language unless it is told otherwise.
        first = " --to=first" if run and (run.config.get("data") or {}).get("rows") == "backward" else ""
        command, flags = ("evaluate", "--labels=FILE") if labelled else ("translate", f"--input=FILE{first}")
        example = f"wechsel-jax {command} {json.dumps(repo)} {flags}"
    terms: list[Text] = [(Code(license), ".") if license else _NO_LICENSE]
    if place:
        made = Code(hub_id(place) or name_of(place))
        terms.append(("The model was made from ", made, ", whose licence applies to it as well."))
    terms.append("Check the terms of the text that it was trained on, too.")
    versions = (record.versions if record else None) or (run.starts[-1].get("versions") if run and run.starts else None) or {}
    body: list[Block] = [
        *_introduction(record, run, model),
        *(scores(run, step, averaged) if run else ()),
        *([("transformers has no class for this model; ", Code(PROJECT), " reads it:")] if ours else []),
        Listing(example, "bash" if ours else "python"),
        *([("This loads the model without its head for dependency trees; ", Code(PROJECT), " reads both.")] if trees else []),
        *(run_sections(run, step) if run else ()),
        *(transfer_sections(record) if record else ()),
        Section("Licence", (joined(terms, " "),)),
        Section("Citation", (Listing(bibtex(record.method if record else None, versions.get(PROJECT)), "bibtex"),)),
    ]
    front = _front_matter(
        record, None if averaged else run, step, title, hub_id(place), "" if ours else loader, license, language
    )
    return f"---\n{front}---\n\n{markdown([Section(title, tuple(body))], level=1)}\n"


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
    from huggingface_hub import CardData
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
        added |= {name: value} if given and name not in stated else {}
    front = f"{CardData(**added).to_yaml()}\n" if added else ""
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


def bibtex(method: str | None, version: str | None = None) -> str:
    """Returns BibTeX of the paper that a method comes from, and of this software.

    Args:
      method: of the transfer, a name in `initializers.METHODS`; None, or one that is not known: the software alone.
      version: of wechsel-jax; left out where it is spelled like none.
    """
    known = version and re.fullmatch(r"[\w.!+-]{1,40}", version, re.ASCII)
    software = f"{_SOFTWARE}\n  version = {{{version}}},\n}}" if known else f"{_SOFTWARE}\n}}"
    paper = METHODS[method].citation if method in METHODS else ""
    return "\n\n".join(filter(None, (paper.strip(), software)))


def _front_matter(
    record: TransferRecord | None,
    run: RunRecord | None,
    step: int | None,
    title: str,
    base: str | None,
    loader: str,
    license: str | None,
    language: Sequence[str],
) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    task = next((task for end, task in _TASKS if loader.endswith(end)), None)
    scored: dict[str, Any] = {}
    # The scores of these weights, or the best ones where these were not evaluated, for programs that read cards.
    at = {one.step: one for one in run.evaluations if one.score is not None or math.isfinite(one.perplexity)} if run else {}
    found = at.get(step) or (best_evaluation(at.values()) if run else None)
    if task and found:
        scores = [("bits_per_byte", found.bits_per_byte), ("perplexity", found.perplexity)]
        results = [
            EvalResult(
                task_type=task,
                dataset_type="text",
                dataset_name="held-out text" if found.score is None else "held-out examples",
                metric_type=kind,
                metric_value=round(value, 4),
                metric_name=f"{kind.replace('_', ' ')} at step {found.step}",
            )
            for kind, value in ([(found.metric, found.score)] if found.score is not None else scores)
            if value is not None
        ]
        scored = {"model_name": one_line(title), "eval_results": results}
    data = ModelCardData(
        library_name="transformers" if loader else None,
        base_model=base,
        license=license,
        language=[*language] or None,
        pipeline_tag=task,
        tags=[PROJECT, *([one_line(record.method.replace("_", "-"))] if record else [])],
        **scored,
    )
    return f"{data.to_yaml()}\n"


def _introduction(record: TransferRecord | None, run: RunRecord | None, model: Mapping[str, Any]) -> list[Text]:
    """What the model is, and whether it was trained."""
    if record:
        kind = f"{record.source['architecture']} " if record.source.get("architecture") else ""
        old, new = (side.get("vocabulary_size") for side in (record.source, record.target))
        old, new = "" if old is None else f" of {old:,} tokens", "" if new is None else f" with one of {new:,}"
        label = f"{METHODS[record.method].label} " if record.method in METHODS else ""
        what = f"A {kind}model whose vocabulary{old} was replaced{new} by {label}(method "
        replaced: Text = (what, Code(record.method), f"; {record.paper})." if record.paper else ").")
        if run is None:
            return [replaced, "It has not been trained in the new language yet: continue its training before you use it."]
        return [replaced, "It was then trained in the new language."]
    size = model.get("vocab_size")
    tokens = f" with a vocabulary of {size:,} tokens" if isinstance(size, int) else ""
    began = "trained from new parameters" if run and not run.began_with else "trained further"
    return [f"A {one_line(model.get('model_type', 'language'))} model{tokens}, {began}."] if run else []


def _is_name(value: object) -> bool:
    """Whether a value can stand in Python as the name of a class and as nothing else."""
    return isinstance(value, str) and value.isascii() and value.isidentifier() and not keyword.iskeyword(value)
