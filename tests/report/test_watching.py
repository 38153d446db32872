"""Runs that are still going: what is known of them at any moment, and the drawings of what was measured."""

import json
import math
import os
import subprocess
import sys

import pytest

from tests.records.runs import make_run, metrics
from tests.report.test_page import Page, page_of
from wechsel_jax.records import FINISHED, RUNNING, STOPPED, read_run, seconds_per_step
from wechsel_jax.report.curves import PERPLEXITY


def long_run(root, last: int, **fields) -> list[dict]:
    """A run of 200 steps with every field that a line can have, and some that no reader knows; returns its lines."""
    run = make_run(root, "trans_inner", name="run")
    lines = []
    for step in range(1, last + 1):
        line = {"kind": "train", "step": step, "phase": "all", "loss": 8.0 / step, "learning_rate": 1e-5 * step}
        line |= {"gradient_norm": 2.0, "tokens_per_second": 1000.0 + step, "seconds": 5.0 + 2.0 * step, "mfu": 0.4}
        line |= {"data_wait": 0.5, "checkpoint_wait": 0.3 if step == 5 else 0.0, "checkpoint_write": 4.0 if step >= 5 else 0.0}
        line |= {"gradient_norm/tokens": 1.5, "gradient_norm/layers": 0.5, "update_norm/tokens": 1e-3, "brand_new": [1]}
        lines.append({**line, **fields})
    lines.insert(3, {"kind": "skipped", "step": 3, "loss": None, "gradient_norm": None})
    lines.insert(4, {"kind": "something else", "step": 3, "what": {"ever": 1}})
    lines.append({"kind": "eval", "step": last, "perplexity": 20.0, "loss": 3.0})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "train", "st')
    return lines


def test_everything_that_was_measured_is_drawn(tmp_path):
    long_run(tmp_path, 40)
    page = page_of([tmp_path / "run"], tmp_path)
    titles = [
        *(
            "Training loss",
            "Learning rate",
            "Gradient norm",
            "Tokens per second",
            "Model FLOPs utilisation",
            "Waiting for text",
        ),
        *("Writing a checkpoint", "Pause for a checkpoint", "Gradient norm of each group", "Update norm of each group"),
    ]
    drawn = [attributes for tag, attributes in page.elements if tag == "svg" and attributes["class"] == "small"]
    assert len(drawn) == len(titles) and all(title in page.text for title in titles)
    assert "TransInner is running: step 40 of 200, about 5 min 20 s left." in page.text
    assert "TransInner left out 1 update (not finite), at step 3." in page.text
    # A quarter of the two seconds of each step.
    text = (tmp_path / "page.html").read_text()
    assert '<desc id="waiting-small-desc">TransInner ends at 25.0</desc>' in text
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_a_run_that_wrote_next_to_nothing(tmp_path):
    """Every stage of a first minute: no line, no speed, one line, missing fields, no settings."""
    run = make_run(tmp_path, "wechsel", name="run")
    for text in (
        "",
        '{"kind"',
        '{"kind": "train", "step": 1}\n',
        '{"kind": "train", "step": 1, "loss": null, "seconds": "x"}\n{"kind": "train", "step": 2, "loss": 3.0, "seconds": 1}\n',
        '{"kind": "eval", "step": 0, "perplexity": null}\n{"kind": "skipped", "step": 1}\n',
    ):
        (run / "metrics.jsonl").write_text(text)
        page_of([run], tmp_path)
    (run / "config.json").unlink()
    page = page_of([run], tmp_path)
    assert "running" not in page.text and "stopped" not in page.text


def test_a_run_that_has_ended_early_is_finished(tmp_path):
    run = make_run(tmp_path, "wechsel", last=150)
    with (run / "metrics.jsonl").open("a") as handle:
        handle.write('{"kind": "stop", "step": 150, "best_step": 150, "best_loss": 5.8}\n')
    found = read_run(run)
    assert found.state.kind == FINISHED and PERPLEXITY.lowest(found) == (150, 331)
    told = "WECHSEL ended early, at step 150 of 200, since it got no better; its lowest was perplexity 331, at step 150."
    assert told in page_of([run], tmp_path).text


def test_the_best_evaluation_of_a_single_run_is_marked(tmp_path):
    run = make_run(tmp_path, "wechsel")
    text = metrics("wechsel").replace(f'{math.log(421)}, "perplexity": 421', f'{math.log(200)}, "perplexity": 200')
    (run / "metrics.jsonl").write_text(text)
    page = page_of([run], tmp_path)
    assert ["100", "200 (lowest)"] in page.table("Step") and ["200", "296"] in page.table("Step")
    assert "the lowest after training began, 200 at step 100." in page.text


@pytest.mark.skipif(sys.platform != "linux", reason="locks are asked for in Linux's way")
def test_a_lock_tells_whether_somebody_is_at_work(tmp_path):
    """A process that holds the lock and says nothing for a day is running; one that was killed just now is not."""
    run = make_run(tmp_path, "wechsel", last=75)
    program = (
        "import sys\nfrom wechsel_jax.training.workdir import only_run\n"
        "with only_run(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    os.utime(run / "metrics.jsonl", (1, 1))
    assert read_run(run).state.kind == RUNNING
    process.kill()
    process.wait()
    os.utime(run / "metrics.jsonl")
    assert read_run(run).state.kind == STOPPED
    # From another machine the lock says nothing; the silence does.
    (run / ".lock").write_text("process 1 on elsewhere\n")
    assert read_run(run).state.kind == RUNNING
    os.utime(run / "metrics.jsonl", (1, 1))
    assert read_run(run).state.kind == STOPPED


def test_the_pace_is_that_of_late():
    lines = [
        {"step": step, "seconds": 100.0 + step if step <= 1000 else 1100.0 + 3 * (step - 1000)} for step in range(0, 2001, 10)
    ]
    assert seconds_per_step(lines) == pytest.approx(3.0)
    assert seconds_per_step(lines[:1]) is None and seconds_per_step([{"step": 1, "seconds": None}, {"step": 2}]) is None


def test_names_in_the_metrics_are_escaped(tmp_path):
    long_run(tmp_path, 5, **{"gradient_norm/<script>": 1.0})
    page = page_of([tmp_path / "run"], tmp_path)
    assert isinstance(page, Page) and "<script>" in page.text and "script" not in {tag for tag, _ in page.elements}
