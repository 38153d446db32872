"""The papers' figures are well formed, and each comparison has both sides."""

import doctest

import pytest

from benchmarks import papers


def test_the_examples_run():
    result = doctest.testmod(papers)
    assert result.attempted and not result.failed


def test_each_setting_of_the_papers_stands_once_and_all_its_values_are_numbers():
    figures = papers.read_figures()
    places = [tuple(group[name] for name in ("paper", "table", "measure", "language", "setting")) for group in figures]
    assert len({*places}) == len(places)
    for group in figures:
        values = [float(printed) for printed in group["values"].values()]
        assert values and all(0 < value < (100 if "%" in group["unit"] else 1e9) for value in values), group


def test_every_row_compares_two_methods_at_least():
    rows = [row for language in ("fr", "de", "zh", "sw") for row in papers.texts_of_language(language)]
    for row in (*rows, *papers.little_text()):
        assert len(row.printed.keys() & row.ours.keys()) >= 3, row


def test_scores_are_those_of_the_evaluation():
    ours = next(row for row in reversed(papers.fine_tuned()) if row.language == "sw").ours
    assert ours["wechsel"].value == pytest.approx(73.01, abs=0.01)
    assert set(ours) == {"wechsel", "trans_inner", "full_rand"}


def test_a_cell_has_the_paper_above_and_ours_below():
    row = papers.Comparison(
        "3", "de", ("text", ""), "perplexity", {"a": "20.0", "b": "40"}, {"a": papers.Score(30.0, 2.0), "b": papers.Score(40.0)}
    )
    assert papers.markdown("Table", {"a": "A", "b": "B", "c": "C"}, [row]).splitlines()[2] == (
        "| 3 | de | text | 20.0<br>30 ± 2 | 40<br>40 | – | 1 of 1 |"
    )
    assert "20.0 (0.50)<br>30 ± 2 (0.75)" in papers.markdown("Table", {"a": "A", "b": "B"}, [row])
    loss = papers.Comparison("8", "de", ("loss", ""), "nats", {"a": "1.0", "b": "2.0"}, row.ours)
    assert "1.0 (0.37)" in papers.markdown("Table", {"a": "A", "b": "B"}, [loss])
