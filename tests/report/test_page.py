import dataclasses
import html.parser
import json
import math
import os
import re
import shutil
import struct
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from tests.full_disk import no_file_above
from tests.records.runs import make_run, metrics, record
from wechsel_jax import cli
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS
from wechsel_jax.initializers.plan import TransferPlan
from wechsel_jax.records import Evaluation, RunRecord
from wechsel_jax.report import comparison_table, write_report
from wechsel_jax.report.palette import INK, MUTED, PAGE, SERIES, SLOTS, hue, is_dashed, marker, slots
from wechsel_jax.report.runs import read_runs

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(html.parser.HTMLParser):
    """Checks that elements nest; remembers tags, attributes, the rows of tables and the text outside of style."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.elements, self.tables, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).replace("\xa0", " ").split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.words.append(data if "svg" not in self.open else f" {data} ")
        if any(tag in self.open for tag in ("td", "th")):
            self.tables[-1][-1][-1] += data

    def table(self, corner: str) -> list[list[str]]:
        return next(table for table in self.tables if table[0][0] == corner)


@pytest.fixture(scope="module")
def page(report) -> Page:
    return Page(report.read_text(encoding="utf-8"))


def page_of(runs, tmp_path, **options) -> Page:
    return Page(write_report(runs, tmp_path / "page.html", plots=False, **options).read_text(encoding="utf-8"))


def test_headline_and_key_figures(page):
    assert "WECHSEL ends at perplexity 296, 15 % lower than TransInner (349) and 49 % lower than FullRand (576)." in page.text
    assert "3.2 ×" in page.text and "94 %" in page.text and "31 %" in page.text
    assert ("h1", {"class": "eyebrow"}) in page.elements and page.text.startswith("english-gpt2 in a new language")


def with_bits(run: Path, place: Path, size: float = 4.0, **manifest) -> Path:
    """A copy of a run whose evaluations recorded bits per byte, with tokens of `size` bytes, and what its text was."""
    shutil.copytree(run, place)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "eval":
            line |= {"bits_per_byte": line["loss"] / math.log(2) / size, "bytes": size * line["tokens"]}
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if manifest:
        (place / "data" / "validation").mkdir(parents=True)
        (place / "data" / "validation" / "manifest.json").write_text(json.dumps(manifest))
    return place


@pytest.mark.slow
def test_bits_per_byte_come_before_perplexity(runs, tmp_path):
    copies = [with_bits(run, tmp_path / run.name) for run in runs]
    page = page_of(copies, tmp_path)
    # log2(296) / 4, and the same of the others.
    ends = "WECHSEL ends at 2.052 bits per byte (perplexity 296), 3 % lower than TransInner (2.112)"
    assert f"{ends} and 10 % lower than FullRand (2.292)." in page.text
    assert "FullRand does not reach 2.052 within its 200 steps." in page.text and "3.2 ×" in page.text
    # The logarithm of a perplexity is linear in bits: as many steps as in perplexity.
    assert "WECHSEL reaches the last value of FullRand (2.292) after 62 steps instead of 200: 3.2 times fewer." in page.text
    assert "WECHSEL has the lowest bits per byte at all 9 evaluations" in page.text
    rows = page.table("Step")
    assert rows[0] == ["Step", "WECHSEL", "TransInner", "FullRand", "FullRand needs"]
    assert rows[1] == ["0", "3.126 (lowest) (5,806)", "3.250 (8,203)", "3.267 (8,587)", "8"]
    assert rows[9] == ["200", "2.052 (lowest) (296)", "2.112 (349)", "2.292 (576)", "> 200"]
    assert "On held-out text of 393,216 bytes" in page.text and "In brackets: perplexity." in page.text
    assert "WECHSEL, after 25 steps: bits per byte 2.532" in page.text and "WECHSEL 2.052" in page.text
    assert "WECHSEL from 3.126 to 2.052" in page.text and "Logarithmic scale, lower is better. WECHSEL" not in page.text
    table = next(table for table in page.tables if "bits per byte" in table[0])
    assert table[0] == ["Run", "after step", "bits per byte", "lowest", "perplexity", "bytes per token", "bytes per second"]
    # The median of 2,925 to 3,100 tokens a second.
    assert table[1] == ["WECHSEL", "200", "2.052", "2.052", "296", "4.00", "12,050"]
    cells = [line.split("  ") for line in comparison_table(copies).splitlines()]
    assert ["200", "2.052", "(296)*", "2.112", "(349)", "2.292", "(576)", ">", "200"] in [
        " ".join(row).split() for row in cells
    ]
    # A version that recorded none cannot be put on their axis.
    assert "WECHSEL ends at perplexity 296" in page_of([copies[0], runs[2]], tmp_path).text
    alone = page_of(copies[:1], tmp_path).text
    assert "WECHSEL goes from 3.126 to 2.052 bits per byte in 200 steps (perplexity 296)." in alone


def test_runs_of_two_tokenizers_are_compared_on_the_same_text(runs, tmp_path):
    """Longer tokens have a higher perplexity each, and here fewer bits for a byte."""

    def copy(run: Path, name: str, size: float, scored: float = 98304.0 * 4, **more) -> Path:
        text = {"inputs": [{"name": "valid.txt", "sha256": "7" * 64}], "documents": 9, "text_bytes": 400000}
        made = with_bits(run, tmp_path / name, size, sha256=name, tokenizer={"sha256": name}, **text | more)
        metrics = (made / "metrics.jsonl").read_text()
        metrics = metrics.replace('"tokens": 98304.0', f'"tokens": {scored / size}')
        (made / "metrics.jsonl").write_text(metrics.replace(f'"bytes": {size * 98304.0}', f'"bytes": {scored}'))
        return made

    short, long = copy(runs[0], "short", 4.0), copy(runs[2], "long", 6.0, 98304.0 * 4 * 0.99)
    text = comparison_table([short, long])
    assert "FullRand ends at 1.528 bits per byte (perplexity 576), 26 % lower than WECHSEL (2.052)." in text
    assert "The runs have different tokenizers: bits per byte compare them, perplexities do not." in text
    assert "cannot be compared" not in text and "1.528 (576)*" in text
    # Where an evaluation reads so many rows, longer tokens are more text.
    further = copy(runs[2], "further", 6.0, 98304.0 * 6)
    told = comparison_table([short, further])
    reason = "The evaluations counted 393,216 and 589,824 bytes of the held-out text; their bits per byte cannot be compared."
    assert reason in told and "lower than" not in told and "*" not in told
    # Another share of the same file.
    other = copy(runs[2], "other", 6.0, documents=8)
    assert "another tokenizer or text; their bits per byte cannot be compared." in comparison_table([short, other])
    # A masked model is asked for tokens of its own tokenizer's.
    for run in (short, long):
        (run / "config.json").write_text((run / "config.json").read_text().replace('"clm"', '"mlm"'))
    assert "another tokenizer or text; their bits per byte cannot be compared." in comparison_table([short, long])


def test_runs_on_different_held_out_text_are_refused(runs, tmp_path, capsys):
    def copy(run: Path, name: str, *files: tuple[str, str]) -> Path:
        return with_bits(
            run, tmp_path / name, sha256=name, inputs=[{"name": file, "sha256": hash * 64} for file, hash in files]
        )

    german = copy(runs[0], "german", ("de.txt", "a"), ("more\n.txt", "b"))
    french = copy(runs[1], "french", ("more.txt", "b"), ("fr.txt", "c"))
    output = tmp_path / "out" / "page.html"
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", str(german), str(french), f"--output={output}"])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and not output.parent.exists()
    assert f"{french}: was scored on other held-out text (fr.txt, sha256 cccccccc; more.txt, sha256 bbbbbbbb)" in line
    assert f"than {german} (de.txt, sha256 aaaaaaaa; more .txt, sha256 bbbbbbbb)" in line and "wechsel-jax evaluate" in line
    with pytest.raises(UserError, match="other held-out text"):
        comparison_table([german, french])
    # Not those that recorded no files, that have no score yet, or whose tokens are the same from other files.
    (french / "metrics.jsonl").write_text("")
    same = copy(runs[1], "same", ("fr.txt", "c"))
    (same / "data" / "validation" / "manifest.json").write_text('{"sha256": "german", "inputs": [{"sha256": "c"}]}')
    assert "WECHSEL ends at perplexity 296" in comparison_table([german, french, same, runs[2]])


def test_what_is_called_lowest_is(tmp_path):
    told = [(0, 50.0, 9.0, 2.5), (10, 20.1, 5.0, 1.525), (20, 21.1, 4.5, 1.5)]
    points = tuple(Evaluation(step, perplexity, loss=loss, bits_per_byte=bits) for step, perplexity, loss, bits in told)
    stopped = ({"kind": "stop", "step": 20},)
    page = page_of([RunRecord(tmp_path / "a", "a", config={"steps": 20}, evaluations=points, others=stopped)], tmp_path)
    assert [row for row in page.table("Step") if "(lowest)" in row[1]] == [["20", "1.500 (lowest) (21.1)"]]
    assert "the lowest after training began, 1.500 at step 20." in page.text
    assert "since it got no better; its lowest was 1.500 bits per byte, at step 20." in page.text
    assert page.table("Run")[1][2:5] == ["1.500", "1.500", "21.1"]
    points = tuple(dataclasses.replace(point, bits_per_byte=None) for point in points)
    page = page_of([RunRecord(tmp_path / "a", "a", config={"steps": 20}, evaluations=points, others=stopped)], tmp_path)
    assert [row for row in page.table("Step") if "(lowest)" in row[1]] == [["10", "20.1 (lowest)"]]
    assert "since it got no better; its lowest was perplexity 20.1, at step 10." in page.text


def test_runs_on_labelled_examples_tell_their_scores(tmp_path):
    def run(name, scores):
        points = tuple(Evaluation(10 * i, math.inf, loss=1.0, score=one, metric="accuracy") for i, one in enumerate(scores))
        return RunRecord(tmp_path / name, name, config={"steps": 20}, evaluations=points)

    page = page_of([run("first", (0.25, 0.75, 0.7)), run("second", (0.25, 0.5, 0.6))], tmp_path)
    assert "first reaches accuracy 0.750 at step 10; second reaches accuracy 0.600 at step 20." in page.text
    (table,) = page.tables[:1]
    assert table[1] == ["first", "accuracy", "0.7500", "10", "0.7000", "20"]
    assert "not finite" not in page.text and "perplexity" not in page.text.lower()


def test_runs_that_translate_tell_their_bleu(tmp_path):
    def run(name, scores):
        lines = (
            {"kind": "eval", "step": 10 * i, "loss": 3.0 - i, "perplexity": math.exp(3 - i)}
            | ({} if bleu is None else {"bleu": bleu})
            for i, bleu in enumerate(scores)
        )
        config = {"steps": 20, "objective": "translation"}
        return RunRecord(tmp_path / name, name, config=config, evaluations=tuple(map(Evaluation.of, lines)))

    page = page_of([run("first", (0.0, 20.25, 18.5))], tmp_path)
    assert page.text.startswith("A model that translates") and "18.5BLEU of first after 20 steps" in page.text
    assert page.tables[0] == [["Run", "best", "at step", "last", "after step"], ["first", "20.25", "10", "18.50", "20"]]
    assert "BLEU" not in page_of([run("first", (None, None, None))], tmp_path).text


def test_perplexities_are_those_of_the_metrics(page):
    rows = page.table("Step")
    assert rows[0] == ["Step", "WECHSEL", "TransInner", "FullRand", "FullRand needs"]
    assert rows[1] == ["0", "5,806 (lowest)", "8,203", "8,587", "8"] and "step 0 is before training" in page.text
    assert "after how many steps FullRand is where WECHSEL is in this row" in page.text
    assert rows[9] == ["200", "296 (lowest)", "349", "576", "> 200"]
    assert len(rows) == 10


def test_origins_are_those_of_the_transfers(page):
    rows = page.table("Run")[1:]
    assert rows[:2] == [["WECHSEL", "3", "91", "6", "100"], ["TransInner", "3", "0", "97", "100"]]
    assert rows[2:] == [["FullRand", "0", "0", "100", "100"]]
    assert "WECHSEL: 3 % copied, 91 % mixed, 6 % random; TransInner: 3 % copied, 97 % random" in page.text
    assert "leans on 2.8 source tokens on average" in page.text


def test_alignment_in_plain_words(page):
    rows = page.table("Measured")
    assert rows[1][:2] == ["Translations found", "31\xa0%"] and rows[1][2].startswith(
        "P@1: share of 912 held-out dictionary words"
    )
    assert rows[2][:2] == ["Nearest source token", "0.61"] and "Mean cosine similarity" in rows[2][2] and "0.63" in rows[2][2]
    assert rows[3][:2] == ["Residual of the rotation", "0.68"] and "about 1.4" in rows[3][2]
    given = "Pairs of spellings that both languages have a vector for, out of 49,211 dictionary entries."
    assert rows[4][:2] == ["Pairs of words", "21,384"] and rows[4][2].startswith(given)
    bars = [
        attributes["style"] for tag, attributes in page.elements if tag == "i" and attributes.get("class") in ("mixed", "loss")
    ]
    assert bars[:3] == ["width:31.5%", "width:61.2%", "width:48.2%"]


def test_anchors_in_plain_words(tmp_path):
    runs = [make_run(tmp_path, "wechsel"), make_run(tmp_path, "wechsel", name="anker")]
    changed = record("wechsel")
    changed["alignment"] = {
        "method": "anker",
        "anchors": {"dictionary": 1317, "equal": 824, "learned": 0},
        "rounds": [{"round": 0, "anchors": 1900, "learned": 0}, {"round": 1, "anchors": 2141, "learned": 0}],
        "held_out_words": 141,
        "precision_at_1": 0.0496,
    }
    (runs[1] / "transfer" / "transfer.json").write_text(json.dumps(changed))
    both, alone = page_of(runs, tmp_path).text, page_of(runs[1:], tmp_path).text
    expected = (
        "2,141Pairs of tokens: 1,317 from the dictionary, 824 of equal bytes. Round by round there were 1,900, 2,141.",
        "share of 141 held-out dictionary words whose nearest token",
        "pairs of tokens that mean the same",
    )
    assert all(part in both and part in alone for part in expected)
    assert "One rotation" in both and "One rotation" not in alone and "rotation" not in alone
    assert "find their translation first among contexts" in alone


def test_examples_show_tokens_and_weights(page):
    rows = page.table("New token")
    assert rows[1][0] == "␣für" and rows[2][0] == "␣haus" and rows[3][0] == "Ã"
    assert rows[1][1] == "␣for 0.50 ␣of 0.30 ␣to 0.20" and rows[2][1] == "␣house copied" and rows[3][1].startswith("random")
    bars = [attributes["style"] for tag, attributes in page.elements if tag == "i" and attributes.get("class") == "mixed"]
    assert bars[-3:] == ["width:50.0%", "width:30.0%", "width:20.0%"]
    assert "TransInner and FullRand draw such tokens at random" in page.text


def test_norms_timings_settings_versions(page):
    assert page.table("Embeddings of")[1] == ["source model", "1.84", "0.310", "–"]
    assert page.table("Embeddings of")[2] == ["WECHSEL", "1.21", "0.240", "0.66\xa0×"]
    assert "source model 1.84 ± 0.310; WECHSEL 1.21 ± 0.240" in page.text
    steps = next(table for table in page.tables if ["making the plan", "1.1 s", "1.1 s", "1.1 s"] in table)
    assert ["training", "2 min 20 s", "2 min 20 s", "2 min 20 s"] in steps
    assert ["tokens trained on", *["409,600"] * 3] in steps  # 16 rows of 128 tokens, 200 steps
    assert "Machine: x86_64, 1 x cpu." in page.text and "tokenizer 2.9 s" in page.text
    differing = next(table for table in page.tables if table[0][0] == "Setting" and len(table[0]) == 4)
    assert [row[0] for row in differing[1:]] == ["transfer.method", "training.phases"]
    assert ["jax", "0.10.2"] in page.table("Package")
    assert sum(tag == "details" for tag, _ in page.elements) == 5


def test_curves_are_drawn_for_both_widths_with_names_and_the_phase_switch(page):
    drawings = [attributes for tag, attributes in page.elements if tag == "svg" and attributes.get("class") != "small"]
    assert [drawing["class"] for drawing in drawings] == ["wide", "narrow"] * 3
    assert all(drawing["role"] == "img" for drawing in drawings)
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert {f"learning-curves-{width}-curve-{i}" for width in ("wide", "narrow") for i in range(3)} <= ids
    assert all(f"{name} {value}" in page.text for name, value in (("WECHSEL", 296), ("TransInner", 349), ("FullRand", 576)))
    assert "WECHSEL, after 25 steps: perplexity 1,120" in page.text and "3.2 × fewer steps" in page.text
    assert "TransInner: all parameters from step 20" in page.text
    assert "TransInner trains all parameters from step 20 on." in page.text


def test_phases_that_begin_at_one_step_are_told_apart(tmp_path):
    runs = [make_run(tmp_path, method) for method in ("trans_inner", "wechsel")]
    settings = json.loads((runs[0] / "config.json").read_text())
    settings["phases"][1]["trainable"] = "embeddings"
    (runs[1] / "config.json").write_text(json.dumps(settings))
    page = page_of(runs, tmp_path)
    assert "TransInner trains all parameters from step 20 on." in page.text
    assert "WECHSEL trains embeddings only from step 20 on." in page.text
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_ids_are_unique_and_references_resolve(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = [name for _, attributes in page.elements for name in attributes.get("aria-labelledby", "").split()]
    values = " ".join(str(value) for _, attributes in page.elements for value in attributes.values())
    filled = re.findall(r"url\(#([^)]+)\)", values)
    used = [attributes["href"].removeprefix("#") for tag, attributes in page.elements if tag == "use"]
    assert named and filled and used and set(named + filled + used) <= set(ids)


def test_nothing_is_loaded_from_elsewhere(report, page):
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text.replace("<!--", ""))
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert not {"src", "xlink:href"} & {name for _, attributes in page.elements for name in attributes}
    assert all(attributes["href"].startswith("#") for _, attributes in page.elements if "href" in attributes)


def test_tables_have_headers_for_rows_and_columns(page):
    headers = [attributes for tag, attributes in page.elements if tag == "th"]
    assert headers and all(attributes.get("scope") in ("col", "row") for attributes in headers)
    assert all(len({len(row) for row in table}) == 1 for table in page.tables)


def test_plots_lie_beside_the_page(report):
    names = sorted(path.name for path in report.parent.iterdir())
    stems = ("embedding-lengths", "learning-curves", "token-origins")
    plots = [f"report-{stem}.{kind}" for stem in stems for kind in ("png", "svg")]
    assert names == sorted([*plots, "report.html"])
    for plot in plots:
        contents = (report.parent / plot).read_bytes()
        assert len(contents) > 5000
        if plot.endswith("png"):
            width, height = struct.unpack(">II", contents[16:24])
            assert contents.startswith(b"\x89PNG") and width == 1600 and height >= 300
        else:
            assert ElementTree.fromstring(contents).tag.endswith("svg")
    curves = (report.parent / "report-learning-curves.svg").read_text()
    assert all(text in curves for text in ("WECHSEL  296", "FullRand  576", "all parameters from step 20", ">500<"))


def test_the_same_runs_give_the_same_bytes(report, runs, tmp_path):
    again = write_report(runs, tmp_path / "report.html")
    for path in report.parent.iterdir():
        assert (again.parent / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.slow
def test_plots_are_outputs_too(runs, tmp_path, capsys):
    plot = tmp_path / "report-token-origins.png"
    plot.write_text("mine")
    with pytest.raises(UserError, match=r"report-token-origins\.png: exists already"):
        write_report(runs, tmp_path / "report.html", overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["report-token-origins.png"]
    with pytest.raises(SystemExit):
        cli.main(["report", str(runs[0]), f"--output={tmp_path / 'report.html'}"])
    assert "report-token-origins.png: exists already" in capsys.readouterr().err
    with pytest.raises(UserError, match="its contents are of another kind; only what report wrote is replaced"):
        write_report(runs, tmp_path / "report.html")
    assert plot.read_text() == "mine" and [*tmp_path.iterdir()] == [plot]
    plot.unlink()
    write_report(runs, tmp_path / "report.html")
    cli.main(["report", str(runs[0]), f"--output={tmp_path / 'report.html'}", "--overwrite"])
    assert (tmp_path / "report.html").exists() and (tmp_path / "report-token-origins.png").stat().st_size > 5000


def test_what_a_run_recorded_is_no_place_for_a_report(tmp_path, capsys):
    run = make_run(tmp_path, "wechsel")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(SystemExit):
        cli.main(["report", str(run), f"--output={run / 'metrics.jsonl'}", "--overwrite"])
    assert "its contents are of another kind" in capsys.readouterr().err and (run / "metrics.jsonl").read_bytes() == before


def test_a_page_has_the_name_of_one(tmp_path, capsys):
    run = make_run(tmp_path, "wechsel")
    with pytest.raises(SystemExit):
        cli.main(["report", str(run), f"--output={tmp_path / 'report.md'}"])
    assert "expected the name of a .html file" in capsys.readouterr().err and not (tmp_path / "report.md").exists()


def test_a_perplexity_near_the_largest_number_is_drawn(tmp_path):
    run = make_run(tmp_path, "wechsel")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if line["kind"] == "eval"]
    evaluated[1] |= {"loss": 690.0, "perplexity": math.exp(690)}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report([run], tmp_path / "report.html")
    assert (tmp_path / "report-learning-curves.png").stat().st_size > 5000
    text = page_of([run], tmp_path).text
    assert "reaches" in text and "above the drawing; it stands at the upper edge there." in text


def test_everything_is_escaped(tmp_path):
    evil = '<script>alert("1")</script>&<b>'
    changed = record("wechsel")
    changed["method"] = changed["source"]["model"] = changed["settings"][evil] = evil
    changed["alignment"]["weighting"] = evil
    changed["notes"], changed["behaviour"] = [evil], [evil]
    changed["versions"], changed["timings"] = {evil: evil}, {evil: 1.0}
    changed["examples"] = [{"target": evil, "how": "mixed", "sources": [[evil, 1.0], ["\x00", 0.1]]}]
    run = make_run(tmp_path, "trans_inner", name="run <i>")
    (run / "transfer" / "transfer.json").write_text(json.dumps(changed))
    settings = json.loads((run / "config.json").read_text())
    settings["phases"][1].update(name=evil, trainable=evil)
    (run / "config.json").write_text(json.dumps({**settings, evil: {evil: evil}}))
    (tmp_path / "comparison.json").write_text(json.dumps({"methods": {evil: {}}, "machine": evil, "seconds": {evil: 1.0}}))
    page = page_of([run], tmp_path, title=evil)
    assert not {"script"} & {tag for tag, _ in page.elements}
    assert page.text.count('<script>alert("1")</script>') > 8


def test_a_run_without_transfer(tmp_path):
    run = make_run(tmp_path, "full_rand")
    shutil.rmtree(run / "transfer")
    page = page_of([run], tmp_path)
    assert "FullRand goes from perplexity 8,587 to 576 in 200 steps." in page.text
    assert "Where the new tokens came from" not in page.text and page.table("Step")[1][1] == "8,587"


def test_a_transfer_without_training(tmp_path, runs):
    page = page_of([runs[0] / "transfer"], tmp_path)
    assert "WECHSEL makes 94 of 100 tokens from tokens of the source model" in page.text
    assert "have not been trained" in page.text and "Learning curves" not in page.text


def test_a_run_that_is_still_going(tmp_path):
    run = make_run(tmp_path, "trans_inner", last=75)
    page = page_of([run], tmp_path)
    # The fixture's steps take 0.7 seconds, and its metrics were written just now.
    assert "TransInner is running: step 75 of 200, about 1 min 28 s left." in page.text
    (row,) = page.table("Run")[1:2]
    assert row[:5] == ["TransInner running", "75", "200", "1 min 28 s", "5.000"] and row[-1].endswith("ago")
    os.utime(run / "metrics.jsonl", (1, 1))
    page = page_of([run], tmp_path)
    assert "TransInner stopped at step 75 of 200; the same command goes on from its newest checkpoint." in page.text
    assert page.table("Run")[1][0] == "TransInner stopped" and page.table("Run")[1][3] == "–"


def test_a_run_that_has_just_begun(tmp_path):
    run = make_run(tmp_path, "wechsel")
    (run / "metrics.jsonl").write_text("")
    assert "No evaluation is recorded yet." in page_of([run], tmp_path).text
    (run / "metrics.jsonl").write_text(metrics("wechsel", 0))
    assert "WECHSEL has perplexity 5,806 after 0 steps." in page_of([run], tmp_path).text


def test_a_record_with_nothing_but_a_method(tmp_path):
    run = make_run(tmp_path, "wechsel")
    (run / "transfer" / "transfer_plan.npz").unlink()
    (run / "transfer" / "transfer.json").write_text('{"method": "wechsel"}')
    assert "296" in page_of([run], tmp_path).text


def test_many_evaluations_are_thinned(tmp_path):
    run = make_run(tmp_path, "wechsel")
    lines = [{"kind": "eval", "step": step, "perplexity": 1000.0 / (1 + step)} for step in range(500)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of([run], tmp_path)
    assert len(page.table("Step")) == 26 and "25 of 500 evaluations are shown" in page.text


def test_a_failure_leaves_nothing_behind(tmp_path, runs, monkeypatch):
    broken = make_run(tmp_path / "runs", "wechsel")
    (broken / "metrics.jsonl").write_text("x\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        write_report([runs[1], broken], tmp_path / "out" / "report.html")
    with pytest.raises(UserError, match="is a directory"):
        write_report(runs, tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=re.escape("pip install 'wechsel-jax[report]'")):
        write_report(runs, tmp_path / "out" / "report.html")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    with no_file_above(1 << 15), pytest.raises(OSError, match=r"File too large: .*out/report"):
        write_report(runs, tmp_path / "out" / "report.html")
    assert not list((tmp_path / "out").iterdir())
    assert write_report(runs, tmp_path / "out" / "report.html", plots=False).exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_has_contrast(mode):
    """WCAG 2.1, 1.4.3: at least 4.5."""
    for colour in (*SERIES[mode], INK[mode], MUTED[mode]):
        bright, dim = sorted((luminance(colour), luminance(PAGE[mode])), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, colour


def test_a_method_keeps_its_colour(runs, tmp_path):
    methods = [run.name for run in runs]
    assert slots(methods) == [0, 1, 2] and slots(methods[::-1]) == [2, 1, 0] and slots(methods[2:]) == [2]
    found = slots([*methods, "wechsel"])
    assert found[:3] == [0, 1, 2] and len(set(found)) == 4
    # Of WECHSEL's two forms each has a place of its own where both are there.
    assert slots(["wechsel_tfr"]) == [0] and slots(["wechsel_tfr", "wechsel"]) == [8, 0]
    page = page_of([*runs, make_run(tmp_path, "wechsel", seed=1)], tmp_path)
    names = [attributes["class"] for tag, attributes in page.elements if "run" in attributes.get("class", "").split()]
    assert {"run s0", "run s1", "run s2"} < {*names}


def test_every_method_has_a_name_and_a_colour_of_its_own():
    labels = {name: method.label for name, method in METHODS.items()}
    assert "anker" in labels and all(labels.values()) and len(set(labels.values())) == len(METHODS)
    colors = [method.color for method in METHODS.values() if method.color is not None]
    assert len(set(colors)) == len(colors) and all(0 <= color < SLOTS for color in colors)
    assert METHODS["anker"].color is not None and METHODS["wechsel"].color == 0
    # So it is in a report of all of them, and none takes another's place in a report of two.
    assert len(set(slots([*METHODS]))) == len(METHODS)
    for name, method in METHODS.items():
        if method.color is not None and name != "wechsel_tfr":
            assert slots(["unknown", name])[1] == method.color == slots([name])[0]


def test_a_method_that_is_not_registered_has_its_own_name_and_a_free_colour(tmp_path, runs):
    run = make_run(tmp_path, "full_rand", name="mine")
    (run / "transfer" / "transfer.json").write_text(json.dumps(record("full_rand") | {"method": "brand_new"}))
    assert "brand_new" in page_of([runs[0], run], tmp_path).text
    assert slots(["brand_new", "wechsel", "trans_inner"]) == [2, 0, 1]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """All methods and an unknown one, with twenty-one evaluations each, the first best at the end."""
    root = tmp_path_factory.mktemp("many")
    names = [*METHODS, "wechsel_csls"]
    found = []
    for i, name in enumerate(names):
        run = make_run(root, "full_rand" if name == "full_rand" else "wechsel", name=name)
        (run / "transfer" / "transfer.json").write_text(json.dumps(record("wechsel") | {"method": name}))
        values = [(step, 300 + 10 * i + 5000 / (1 + step)) for step in range(0, 201, 10)]
        lines = [{"kind": "eval", "step": step, "perplexity": value, "tokens": 98304.0} for step, value in values]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found.append(run)
    return found


@pytest.mark.slow
def test_all_methods_differ_in_hue_and_marker_and_line(many, tmp_path):
    taken = slots([run.method for run in read_runs(many)])
    assert len(many) == len(set(taken)) == len(METHODS) + 1 <= SLOTS
    looks = {(hue(slot), marker(slot)) for slot in range(SLOTS)}
    assert len(looks) == SLOTS == 24 and {is_dashed(slot) for slot in taken} == {False, True}
    page = page_of(many, tmp_path)
    ids = {attributes.get("id") for _, attributes in page.elements}
    # Beside each name of the wide drawing is a sample of its line.
    assert {f"learning-curves-wide-{what}-{i}" for what in ("curve", "sample", "name") for i in range(len(many))} <= ids


def test_many_runs_are_rows_of_the_table_the_best_first(many, tmp_path):
    rows = page_of(many, tmp_path).table("Step")
    assert rows[0] == ["Step", "0", "20", "50", "80", "100", "120", "150", "180", "200"]
    assert len(rows) == len(METHODS) + 2 and rows[1][0] == "WECHSEL" and rows[1][-1].startswith("325")
    text = comparison_table(many).splitlines()
    assert max(map(len, text[4 : 6 + len(many)])) < 110 and text[6].split()[0] == "WECHSEL" and text[6].endswith("325*")


def test_the_verdict_names_what_is_off_and_who_is_fine(tmp_path):
    good, bad = make_run(tmp_path, "wechsel"), make_run(tmp_path, "wechsel", name="bad")
    changed = record("wechsel")
    changed["alignment"].update(precision_at_1=0.031, pairs=712)
    (bad / "transfer" / "transfer.json").write_text(json.dumps(changed))
    for run in (good, bad):
        # Rows of the usual plan repeat themselves.
        weights = np.tile(np.float32([0.5, 0.3, 0.2]), (100, 1))
        fresh = TransferPlan.mixed(np.arange(300).reshape(100, 3), weights)
        fresh = fresh.with_noise(np.arange(100) >= 94).with_copies(np.where(np.arange(100) < 3, np.arange(100), -1))
        fresh.save(run / "transfer" / "transfer_plan.npz")
    text = page_of([good, bad], tmp_path).text
    assert "WECHSEL (bad): 1 thing is wrong and 1 thing needs a look." in text
    assert "Held-out words find their translation first in 3.1 % of cases" in text
    assert "712 pairs of words, fewer than 1,000" in text and "WECHSEL (wechsel): nothing looks off." in text


def test_coverage_is_a_table(tmp_path, runs):
    run = make_run(tmp_path, "wechsel")
    rows = [
        {"rule": "fuzzy", "tokens": 1234, "share": 0.25, "with_vector": 7, "examples": [["Ġder", "<b>"], ["in", "in"]]},
        {"rule": "none", "tokens": 5, "share": 0.001, "with_vector": None, "examples": [["Ġx", None]]},
        {"rule": "exact", "tokens": 0, "share": 0.0, "examples": []},
    ]
    rest = {"noise": {"tokens": 1000, "examples": ["Ġy"]}, "without_vector": None}
    (run / "transfer" / "transfer.json").write_text(json.dumps(record("wechsel") | {"coverage": {"rows": rows, **rest}}))
    page = page_of([run], tmp_path)
    assert "Not shared and random: 1,000 tokens, such as ␣y." in page.text and "without a vector" not in page.text
    table = page.table("Rule")
    assert table[0] == ["Rule", "tokens", "share", "with vector", "examples"]
    assert len(table) == 3 and table[1] == ["fuzzy", "1,234", "25\xa0%", "7", "␣der = <b>, in"]
    assert table[2] == ["none", "5", "under 1\xa0%", "–", "␣x"]
    assert "What the two vocabularies share" not in page_of(runs, tmp_path).text
    (run / "transfer" / "transfer.json").write_text(json.dumps(record("wechsel") | {"coverage": [{"rule": "fuzzy"}]}))
    with pytest.raises(UserError, match=r"field coverage\.rows\.0\.tokens is missing"):
        page_of([run], tmp_path)
