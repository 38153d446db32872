"""The text of each language: what is scored as labelled is no text to train on."""

import gzip
import json
import lzma

from benchmarks import language_data


def write(folder, language, lines):
    (folder / "text").mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(language_data.CORPORA[language]):
        with lzma.open(folder / "text" / f"{name}.txt.xz", "wt") as handle:
            handle.writelines(f"{line}\n" for line in (lines if number == 0 else ["another"]))


def test_scored_sentences_are_left_out_where_a_language_says_so(tmp_path):
    file, (premise, hypothesis) = language_data.LEFT_OUT["zh_inference"]
    (tmp_path / "labelled" / file).parent.mkdir(parents=True)
    with gzip.open(tmp_path / "labelled" / file, "wt") as handle:
        for number in (3, 99):
            handle.write(json.dumps({premise: f"line {number}", hypothesis: f"line {number + 10} ", "label": "neutral"}) + "\n")
    lines = [f"line {number}" for number in range(100)]
    write(tmp_path, "zh_inference", [*lines, "line 4"])
    [(train, held_out), _] = language_data.parts_of("zh_inference", tmp_path)
    assert set(lines) - {*train, *held_out} == {"line 3", "line 13", "line 99"}
    assert held_out == lines[95:99] and len(train) == len({*train})
    [(train, held_out), _] = language_data.parts_of("zh", tmp_path)
    assert {*train, *held_out} == {*lines}
