"""Text of others in a model card stays text: in its Markdown, its Python and its front matter."""

import ast
import dataclasses
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS
from wechsel_jax.records import Evaluation, RunRecord, TransferRecord, read_run
from wechsel_jax.report.card import bibtex, completed_card, model_card
from wechsel_jax.report.card_sections import public
from wechsel_jax.report.markdown import code, inline
from wechsel_jax.training.groups import Group
from wechsel_jax.training.schedules import FIELDS
from wechsel_jax.transfers.settings import INPUTS

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
    "rounds": [{"anchors": 5}, {"anchors": 7}],
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
        "optimizer": {"b1": 0.9, "kind": "adamw", "groups": [{"match": "layers/.*kernel$", "kind": "muon", "rate": 2.0}]},
        "phases": [{"name": "all", "trainable": ["a", "b"], "decay": "linear"}],
        "soft_targets": {"share": 0.9, "order": 3, "steps": 160},
    },
    "data": {"train": {"inputs": [{"name": "a.txt", "bytes": 5, "sha256": "ab"}], "tokens": 5, "sha256": "cd"}},
    "versions": {"jax": "0.10"},
    "device_kind": "TPU v3",
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
        # How a row was made is one of three words in a record that can be read.
        return {name: item if name == "how" else filled(item, texts, name in any_name) for name, item in value.items()} | more
    return value


def card_of(record, run, model, repo="me/german") -> str:
    trained = None
    if run is not None:
        start = {"seconds": 0, "devices": 8, "device_kind": run["device_kind"], "versions": run["versions"]}
        trained = RunRecord(
            Path(run["name"]),
            run["name"],
            run["config"],
            evaluations=(Evaluation(5, 30.25, loss=3.4),),
            training=({"kind": "train", "step": 5, "seconds": 3600.0},),
            starts=(start,),
            data=run["data"],
        )
    record = None if record is None else TransferRecord.parse(record)
    return model_card(record, trained, model=model, repo=repo)


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


@pytest.mark.slow
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


def test_data_sets_are_told_without_their_folders(tmp_path):
    there = tmp_path / "acme" / "corpus"
    there.mkdir(parents=True)
    assert public(f"datasets:{there}:train") == public(f"hf://{there}:train") == "corpus:train"
    assert public("hf://user/name@1f3e:train[:1%]#sw") == "hf://user/name@1f3e:train[:1%]#sw" and public("hf://name") == "name"
    data = {"train": {"inputs": [{"name": f"datasets:{there}", "bytes": 5, "sha256": "a" * 64}]}}
    card = model_card(None, RunRecord(tmp_path, "a", config={"steps": 5}, data=data), model=MODEL, repo="me/german")
    assert "| train | `corpus` | 5 |" in card and "acme" not in card


def test_harmless_text_reads_as_it_was_written():
    card = card_of({**RECORD, "alignment": CONTEXTS}, RUN, MODEL)
    for line in (
        "# english with the vocabulary of german",
        "was replaced with one of 600 by anker (method `anker`; Someone, 2024: A paper, section 3).",
        "- Equal similarities are ordered by the lower token id.",
        "- The dictionary words.tsv has 5 pairs.",
        "Made with python 3.11.2, wechsel-jax 0.1.0.",
        "| optimizer | AdamW, where no group below says otherwise: b1 0.9, kind adamw |",
        "| parameters | kind | rate |",
        "| `layers/.*kernel$` | `muon` | 2 |",
        "| soft targets | of an n-gram model (n = 3), 0.9 of each target at first, 0 after step 160 |",
        "| devices | 8 x TPU v3 |",
        "  version = {0.1.0},",
    ):
        assert line in card, line
    data = ModelCard(card).data
    assert data.base_model == "someone/english" and data.tags == ["wechsel-jax", "anker"]
    assert data.eval_results[0].metric_value == 30.25 and data.model_name == "english with the vocabulary of german"


def test_all_that_is_set_of_a_phase_and_of_a_group_is_told():
    """TreLM's phases train some of the layers; a card that leaves a setting out tells of another training."""
    phase = dict.fromkeys(sorted(FIELDS), "a") | {"layers": "6:"}
    group = dict.fromkeys((field.name for field in dataclasses.fields(Group)), "a")
    card = card_of(None, {**RUN, "config": {"steps": 5, "phases": [phase], "optimizer": {"groups": [group]}}}, MODEL)
    rows = [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith(("| phase |", "| parameters |"))]
    assert [{*row} for row in rows] == [{*FIELDS} - {"name"} | {"phase"}, {*group} - {"match"} | {"parameters"}]
    assert "`6:`" in card


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


def test_a_parser_is_loaded_without_its_head():
    card = card_of(None, RUN, {"architectures": ["BertForDependencyParsing"], "model_type": "bert"})
    assert "model = AutoModel.from_pretrained(" in card and "BertForDependencyParsing.from" not in card
    assert "without its head for dependency trees; `wechsel-jax` reads both." in card


@pytest.mark.parametrize(
    ("model_type", "architecture", "rows", "command"),
    [
        ("transformer", "TransformerForTranslation", "", 'wechsel-jax translate "me/german" --input=FILE'),
        ("transformer", "TransformerForSequenceClassification", "", 'wechsel-jax evaluate "me/german" --labels=FILE'),
        ("transformer", "TransformerForDependencyParsing", "", 'wechsel-jax evaluate "me/german" --labels=FILE'),
        ("tri-bert", "TriBertForMaskedLM", "forward", 'wechsel-jax translate "me/german" --input=FILE'),
        ("tri-bert", "TriBertForMaskedLM", "backward", 'wechsel-jax translate "me/german" --input=FILE --to=first'),
    ],
)
def test_a_model_that_transformers_has_no_class_for_is_read_by_this_package(model_type, architecture, rows, command):
    run = {**RUN, "config": {**RUN["config"], "data": {"rows": rows}}}
    card = card_of(None, run, {"architectures": [architecture], "model_type": model_type})
    _, (example, _), front = structure(card)
    assert example == f"{command}\n" and "transformers import" not in card and "AutoModel" not in card
    assert "transformers has no class for this model; `wechsel-jax` reads it:" in card
    assert not {"library_name", "pipeline_tag", "model-index"} & {*front} and front["tags"] == ["wechsel-jax"]


def test_the_model_types_that_transformers_does_not_have_are_known():
    from wechsel_jax.models.registry import FAMILIES
    from wechsel_jax.models.vanilla import MODEL_TYPE

    for name in (*FAMILIES, MODEL_TYPE):
        card = card_of(None, RUN, {"model_type": name})
        assert ("library_name: transformers" in card) == (name in CONFIG_MAPPING_NAMES), name


def test_no_folder_of_a_transfer_is_told():
    places = ["/home/me/en.txt::/home/me/de.txt", "/home/me/en-de.tsv"]
    record = {
        **RECORD,
        "settings": {name: places if name == "parallel" else f"/home/me/{name}" for name in INPUTS},
        "notes": [f"{place} has 5 pairs." for place in (*places, "/home/me/de.txt")],
    }
    card = card_of(record, None, MODEL)
    assert "/home/me" not in card and "| parallel | `en.txt::de.txt, en-de.tsv` |" in card
    for told in ("en.txt::de.txt has 5 pairs.", "- en-de.tsv has 5 pairs.", "- de.txt has 5 pairs."):
        assert told in card, told


def test_rows_of_examples_are_shorter_than_the_longest():
    scores = (Evaluation(5, math.inf, loss=0.5, score=0.25, metric="f1"),)
    settings = {"batch_size": 32, "block_length": 128}
    for objective, told in (("clm", "32 x 128 = 4,096 tokens"), ("tagging", "32 x at most 128 tokens")):
        run = RunRecord(Path("run"), "run", {"objective": objective, **settings}, evaluations=scores)
        card = model_card(None, run, 10, model=MODEL)
        assert f"| batch | {told} |" in card and "those of step 10, which was not evaluated." in card


def test_languages_and_licences_are_what_was_given(tmp_path):
    card = tmp_path / "README.md"
    card.write_text("---\nlicense: 3\n---\n")
    with pytest.raises(UserError, match=r"README\.md: states license 3, not mit; expected one"):
        completed_card(card, "mit")
    assert ModelCard(completed_card(card, language=["no", "de"]).decode()).data.language == ["no", "de"]
    assert yaml.safe_load(model_card(TransferRecord.parse(RECORD), language=["no"]).split("---")[1])["language"] == ["no"]
    card.write_text("---\na: " + "[" * 3000 + "\n---\n")
    with pytest.raises(UserError, match=r"README\.md: its front matter cannot be read"):
        completed_card(card, "mit")


EARLIER = Path(__file__).parents[1] / "records" / "earlier"


def without(*path: str) -> dict:
    """The record without one field."""
    record = json.loads(json.dumps(RECORD))
    place = record
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    return record


@pytest.mark.parametrize("path", [*([name] for name in RECORD if name not in ("method", "parity")), ["source", "model"]])
def test_what_a_record_lacks_its_card_leaves_out(path):
    card = model_card(TransferRecord.parse(without(*path)))
    structure(card)
    assert "## Licence" in card and "None" not in card.replace("None is stated here", "") and "  " not in card.split("##")[0]
    assert len(card) < len(model_card(TransferRecord.parse(RECORD)))


def test_the_least_record_has_a_card():
    card = model_card(TransferRecord("wechsel"))
    assert (
        "whose vocabulary was replaced by WECHSEL (method `wechsel`)." in card
        and "## Where the tokens came from" not in card
        and "Minixhofer" in card
    )


@pytest.mark.parametrize("method", ["anker", "wechsel_tfr"])
def test_a_run_of_an_earlier_version_has_a_card(method):
    run = read_run(EARLIER / method)
    card = model_card(run.transfer, run, model=MODEL)
    structure(card)
    for line in (
        "These weights are those of step 6. Perplexity is over 6,078 tokens of the validation text.",
        "| batch | 2 x 32 = 64 tokens |",
        "| tokens seen | 384 |",
        "| devices | 1 x cpu |",
        "| train | `train` |  | not recorded |",
        f"(method `{method}`; ",
    ):
        assert line in card, line
    best = {"anker": "| 4 | 205.1 | the best |", "wechsel_tfr": "| 6 | 349.7 | the best |"}[method]
    assert best in card and card.count("the best") == 1


def test_step_0_is_not_called_the_best():
    scores = tuple(Evaluation(step, math.exp(loss), loss=loss) for step, loss in ((0, 1.0), (5, 3.0), (10, 2.0)))
    card = model_card(None, RunRecord(Path("run"), "run", evaluations=scores), 12, model=MODEL)
    assert "| 0 | 2.7 |  |" in card and "| 10 | 7.4 | the best |" in card and "step 12, which was not evaluated." in card
    # Programs read the score of the best weights where these were not evaluated.
    assert ModelCard(card).data.eval_results[0].metric_value == round(math.exp(2.0), 4)


def test_bits_per_byte_are_told_where_they_are_recorded():
    scores = tuple(Evaluation(step, 50.0, loss=4.0, bits_per_byte=bits) for step, bits in ((0, None), (5, 1.25)))
    card = model_card(None, RunRecord(Path("run"), "run", evaluations=scores), 5, model=MODEL)
    assert "| 5 | 1.250 | 50.0 | the best |" in card and "| 0 | – | 50.0 |  |" in card
    results = ModelCard(card).data.eval_results
    assert [(one.metric_type, one.metric_value) for one in results] == [("bits_per_byte", 1.25), ("perplexity", 50.0)]


def test_an_evaluation_without_a_score_has_none_in_the_table():
    scores = tuple(Evaluation(step, math.inf, loss=0.5, score=one, metric="f1") for step, one in ((0, None), (5, 0.25)))
    card = model_card(None, RunRecord(Path("run"), "run", evaluations=scores), 5, model=MODEL)
    assert "| 0 | – | 0.5000 |" in card and "| 5 | 0.2500 | 0.5000 |" in card


def test_many_evaluations_are_thinned_and_the_best_stays():
    scores = tuple(Evaluation(step, 100.0 - step if step != 7 else 1.0, loss=1.0 if step != 7 else 0.5) for step in range(40))
    card = model_card(None, RunRecord(Path("run"), "run", evaluations=scores), model=MODEL)
    assert "12 of 40 evaluations are shown." in card and "| 7 | 1.0 | the best |" in card and "| 39 | 61.0 |  |" in card


def test_a_mistake_in_the_card_is_not_called_the_users(tmp_path, monkeypatch):
    (tmp_path / "transfer.json").write_text(json.dumps(RECORD))

    def broken(record):
        raise KeyError("of ours")

    monkeypatch.setattr("wechsel_jax.report.card.transfer_sections", broken)
    with pytest.raises(KeyError, match="of ours"):
        model_card(TransferRecord.read(tmp_path))


def test_a_card_needs_no_figures():
    """`transfer` writes one where the packages of reports are not installed."""
    code = "import sys, wechsel_jax.report.card, wechsel_jax.hub; print({'matplotlib', 'flax', 'torch'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
