"""Text of others in a model card stays text: in its Markdown, its Python and its front matter."""

import ast
import itertools
import json
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from wechsel_jax.errors import UserError
from wechsel_jax.hub import RunFacts, model_card, read_facts
from wechsel_jax.hub.card import completed_card
from wechsel_jax.hub.citations import bibtex
from wechsel_jax.hub.markdown import code, inline, public
from wechsel_jax.hub.records import read_transfer
from wechsel_jax.hub.run_facts import Compute
from wechsel_jax.initializers import METHODS

COUNTS = {"tokens": 3, "copied": 1, "mixed": 1, "noise": 1}
RECORD = {
    "method": "anker",
    "parity": False,
    "settings": {"dictionary": "/home/me/words.tsv", "source_text": ["/home/me/a.txt"], "seed": 0, "overlap": "exact"},
    "source": {"model": "someone/english", "architecture": "gpt2", "class": "GPT2LMHeadModel", "vocabulary_size": 700},
    "target": {"tokenizer": "german/tokenizer.json", "vocabulary_size": 600},
    "counts": {"copied": 1, "mixed": 1, "random": 1},
    "coverage": {"rows": [{"rule": "bytes", **COUNTS, "examples": [["a", "b"]]}, {"rule": "none", **COUNTS, "examples": []}]},
    "alignment": {"pairs": 5, "residual": 0.5, "precision_at_1": 0.25, "method": "procrustes"},
    "similarity": {"mean_top1": 0.5},
    "examples": [{"target": "a", "how": "mixed", "sources": [["b", 0.5]]}, {"target": "c", "how": "random", "sources": []}],
    "behaviour": ["Equal similarities are ordered by the lower token id."],
    "notes": ["The dictionary /home/me/words.tsv has 5 pairs."],
    "versions": {"python": "3.11.2", "wechsel-jax": "0.1.0"},
    "paper": "Someone, 2024: A paper, section 3",
}
CONTEXTS = {
    "anchors": {"equal": 5, "learned": 2},
    "rounds": [{}, {}],
    "source_text": {"tokens": 9},
    "target_text": {"tokens": 9},
}
RUN = {
    "name": "german",
    "config": {
        "objective": "clm",
        "dtype": "float32",
        "model": {"checkpoint": "someone/english"},
        "data": {"train": ["/home/me/a.txt"], "validation": ["/home/me/b.txt"]},
        "optimizer": {"b1": 0.9, "kind": "adamw"},
        "phases": [{"name": "all", "trainable": ["a", "b"], "decay": "linear"}],
    },
    "data": {"train": {"inputs": [{"name": "a.txt", "bytes": 5, "sha256": "ab"}], "tokens": 5, "sha256": "cd"}},
    "versions": {"jax": "0.10"},
    "devices": ["8 x TPU v3"],
}
MODEL = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 600}
FRONT = {"library_name", "base_model", "license", "language", "pipeline_tag", "tags", "model-index"}
MARKUP = r"""# ## - + 1. 1) > === --- *** ``` ~~~ ` `` | \ \| <b> <!-- --> <script> &lt; & [ ](x) ![a](b) [a]:b * _ __ ~~ $ $$
:-: https://x.y/z www.x.y a@b.c @me " ' : {} !!python/object:x --- ä a"""
PIECES = (
    *MARKUP.split(),
    *("\n", "\n\n", "\r", "\t", " ", "    ", "\u2028", "\x85", "\x00", "\x1b", "\u202e", "\ud800"),
    *("# ", "\n---\n", "\n```\n", ": ", '")\nimport os; os.system("id")  #'),
)
HOSTILE = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=8).map("".join).filter(str.strip)


def filled(value, texts, names=()):
    """The same value with other text in place of every text, and other names in the objects that have any names."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, list):
        return [filled(item, texts) for item in value]
    if isinstance(value, dict):
        more = {next(texts) + str(i): next(texts) for i in range(2 if names else 0)}
        any_name = ("settings", "versions", "optimizer")
        return {name: filled(item, texts, name in any_name) for name, item in value.items()} | more
    return value


def card_of(record, run, model, repo="me/german") -> str:
    facts = None
    if run is not None:
        line = {"kind": "eval", "step": 5, "perplexity": 30.25}
        compute = Compute(3600.0, 3600.0, tuple(run["devices"]))
        facts = RunFacts(run["name"], 5, run["config"], [line], run["data"], compute, run["versions"], record)
    return model_card(record, facts=facts, model=model, repo=repo)


def structure(card: str) -> tuple[list, list[str], dict]:
    """Blocks, fenced code and front matter of a card, as a reader's program sees them."""
    front, body = card.removeprefix("---\n").split("\n---\n", 1)
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(body)
    for token in tokens:
        for child in token.children or []:
            assert child.type in ("text", "code_inline", "softbreak"), (child.type, token.content)
        inside = sum(child.content.count("<") for child in token.children or [] if child.type == "code_inline")
        assert token.type == "fence" or token.content.count("<") == inside, token.content
        outside = "".join(child.content for child in token.children or [] if child.type == "text")
        assert not re.search(r"://|www\.|@", outside, re.IGNORECASE), outside
    blocks = [(token.type, token.tag, token.level, token.info, token.content.count("\n")) for token in tokens]
    blocks = [block if block[0] != "fence" else block[:-1] for block in blocks]
    return blocks, [token.content for token in tokens if token.type == "fence"], yaml.safe_load(front)


def check_python(text: str, repo: str) -> None:
    loader = ast.parse(text).body[0].names[0].name
    assert text == (
        f'from transformers import {loader}, AutoTokenizer\n\nmodel = {loader}.from_pretrained("{repo}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{repo}")\n'
    )


@pytest.mark.parametrize(("record", "run"), [(RECORD, None), ({**RECORD, "alignment": CONTEXTS}, RUN), (None, RUN)])
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(HOSTILE, min_size=1, max_size=7))
def test_hostile_text_leaves_a_card_as_it_is(record, run, texts):
    texts, harmless = itertools.cycle(texts), itertools.cycle(["text"])
    expected, _, _ = structure(card_of(filled(record, harmless), filled(run, harmless), MODEL))
    card = card_of(filled(record, texts), filled(run, texts), filled(MODEL, texts))
    blocks, (python, citation), front = structure(card)
    assert blocks == expected
    check_python(python, "me/german")
    version = r"  version = \{[A-Za-z0-9_.!+-]+\},\n"
    assert re.sub(version, "", citation).strip() in [bibtex(method) for method in (None, *METHODS)]
    assert front.keys() <= FRONT and front["library_name"] == "transformers" and front["tags"][0] == "wechsel-jax"
    card.encode()


def test_a_place_without_a_name_is_itself():
    assert [public(place) for place in ("/", ".", "a/ ", "/home/me/a.txt", "a/b")] == ["/", ".", "a/ ", "a.txt", "a/b"]


def test_harmless_text_reads_as_it_was_written():
    card = card_of({**RECORD, "alignment": CONTEXTS}, RUN, MODEL)
    for line in (
        "# english with the vocabulary of german",
        "one of 600, with the method `anker` (Someone, 2024: A paper, section 3).",
        "- Equal similarities are ordered by the lower token id.",
        "- The dictionary words.tsv has 5 pairs.",
        "Made with python 3.11.2, wechsel-jax 0.1.0.",
        "| optimizer | AdamW: b1 0.9, kind adamw |",
        "| devices | 8 x TPU v3 |",
        "  version = {0.1.0},",
    ):
        assert line in card, line
    data = ModelCard(card).data
    assert data.base_model == "someone/english" and data.tags == ["wechsel-jax", "anker"]
    assert data.eval_results[0].metric_value == 30.25 and data.model_name == "english with the vocabulary of german"


@pytest.mark.parametrize(
    ("text", "told", "as_code"),
    [
        ("snake_case a_b", "snake_case a_b", "`snake_case a_b`"),
        ("_a_ *b* C#", r"\_a\_ \*b\* C\#", "`_a_ *b* C#`"),
        ("- a\n# b", r"\- a \# b", r"`- a\n# b`"),
        ("12. a", r"12\. a", "`12. a`"),
        ("3.5 a", "3.5 a", "`3.5 a`"),
        ("<b>&", "&lt;b&gt;&amp;", "`<b>&`"),
        ("see https://x.y_z!", "see `https://x.y_z!`", "`see https://x.y_z!`"),
        ("a|b", r"a\|b", r"`a\|b`"),
        (r"a\|b", r"a\\\|b", r"`a\\\|b`"),
        ("a``b`", r"a\`\`b\`", "``` a``b` ```"),
        ("\x1b\u202e", r"\\x1b\\u202e", r"`\x1b\u202e`"),
        ("", "", ""),
        ("x" * 2000, "x" * 999 + "…", "`" + "x" * 999 + "…`"),
    ],
)
def test_text_and_code(text, told, as_code):
    assert (inline(text), code(text)) == (told, as_code)


@pytest.mark.parametrize(
    "architectures",
    [['AutoModel\nimport os; os.system("id")  #CausalLM'], ["a.b"], ["class"], [""], ["Ｇ"], [3], [None], "GPT2", {"a": 1}, 3],
)
def test_what_is_no_name_of_a_class_is_no_python(architectures):
    model = {"architectures": architectures, "model_type": "gpt2"}
    _, (python, _), front = structure(card_of(None, RUN, model))
    check_python(python, "me/german")
    assert python.startswith("from transformers import AutoModel, AutoTokenizer\n") and "pipeline_tag" not in front


def test_languages_and_licences_are_what_was_given(tmp_path):
    card = tmp_path / "README.md"
    card.write_text("---\nlicense: 3\n---\n")
    with pytest.raises(UserError, match=r"README\.md: states license 3, not mit; expected one"):
        completed_card(card, "mit")
    assert ModelCard(completed_card(card, language=["no", "de"]).decode()).data.language == ["no", "de"]
    assert yaml.safe_load(model_card(RECORD, language=["no"]).split("---")[1])["language"] == ["no"]
    card.write_text("---\na: " + "[" * 3000 + "\n---\n")
    with pytest.raises(UserError, match=r"README\.md: its front matter cannot be read"):
        completed_card(card, "mit")


def changed(path: str, value) -> dict:
    """The record with one field changed, or without it for `...`."""
    record = json.loads(json.dumps(RECORD))
    *parents, last = path.split(".")
    place = record
    for name in parents:
        place = place[int(name) if isinstance(place, list) else name]
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return record


DAMAGED = [
    ("method", 3, "method is 3; expected text"),
    ("method", ..., "method is missing; expected text"),
    ("source", [], r"source is \[\]; expected an object"),
    ("source.vocabulary_size", "x", "source.vocabulary_size is 'x'; expected a whole number"),
    ("counts.copied", True, "counts.copied is True; expected a whole number"),
    ("counts.random", ..., "counts.random is missing"),
    ("settings", [], r"settings is \[\]; expected an object"),
    ("behaviour", "x", "behaviour is 'x'; expected a list"),
    ("notes.0", 3, r"notes\.0 is 3; expected text"),
    ("examples.0.sources.0", ["a"], r"examples\.0\.sources\.0 is .* expected a list of 2"),
    ("examples.0.sources.0.1", "a", r"examples\.0\.sources\.0\.1 is 'a'; expected a number"),
    ("coverage.rows.0.rule", None, r"coverage\.rows\.0\.rule is missing"),
    ("alignment", {"anchors": {"equal": "5"}, "rounds": []}, "alignment.anchors.equal is '5'"),
    ("alignment.residual", 10**400, "alignment.residual is 1000*; expected a number"),
    ("similarity", {}, "similarity.mean_top1 is missing"),
    ("versions", {"a\n#": 3}, r"versions\.a\\n# is 3; expected text"),
]


@pytest.mark.parametrize(("path", "value", "told"), DAMAGED)
def test_a_damaged_record_is_named_with_its_field(tmp_path, path, value, told):
    file = tmp_path / "transfer.json"
    file.write_text(json.dumps(changed(path, value)))
    with pytest.raises(UserError, match=rf"transfer\.json: field {told}") as caught:
        read_transfer(file)
    assert "\n" not in str(caught.value)


def test_a_record_may_lack_what_older_ones_lack(tmp_path):
    file = tmp_path / "transfer.json"
    for name in ("coverage", "alignment", "similarity", "parity"):
        file.write_text(json.dumps(changed(name, ...)))
        assert name not in read_transfer(file)
        model_card(read_transfer(file))


def workdir(directory: Path, config: object, **files: object) -> Path:
    (directory / "model").mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "metrics.jsonl").write_text("")
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model": 3}, "model is 3; expected an object"),
        ({"data": {"train": "a.txt"}}, "data.train is 'a.txt'; expected a list"),
        ({"optimizer": []}, "optimizer is .* expected an object"),
        ({"phases": [3]}, r"phases\.0 is 3; expected an object"),
    ],
)
def test_damaged_settings_of_a_run_are_named(tmp_path, config, told):
    with pytest.raises(UserError, match=rf"config\.json: field {told} of a run's settings"):
        read_facts(workdir(tmp_path, config))


def test_a_run_with_a_damaged_record_names_it(tmp_path):
    run = workdir(tmp_path, {"steps": 5})
    (run / "model" / "transfer.json").write_text('{"method": []}')
    with pytest.raises(UserError, match=r"model/transfer\.json: field method is \[\]; expected text"):
        read_facts(run)


def test_odd_numbers_and_objects_of_a_run_are_left_out(tmp_path):
    starts = [{"seconds": 0, "devices": 10**400, "versions": 3}]
    run = workdir(tmp_path, {"model": None, "data": None, "optimizer": None, "batch_size": 10**400}, machine={"starts": starts})
    (run / "data" / "train").mkdir(parents=True)
    (run / "data" / "train" / "manifest.json").write_text('{"inputs": 3, "tokens": "x"}')
    lines = [{"kind": "eval", "step": 1, "perplexity": 10**400}, {"kind": "train", "step": 1, "seconds": 36}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "[" * 3000 + "\n")
    card = model_card(None, facts=read_facts(run), model=MODEL)
    assert "| 1 | not finite |  |" in card and "| devices | not recorded |" in card and "batch" not in card
