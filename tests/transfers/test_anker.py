"""`wechsel-jax transfer --method=anker` as a user runs it."""

import json
import re

import pytest

from wechsel_jax import cli
from wechsel_jax.errors import UserError
from wechsel_jax.inspection import score
from wechsel_jax.report.score import lines
from wechsel_jax.transfers.job import transfer
from wechsel_jax.transfers.settings import TransferSettings

SMALL = {"dimensions": 16, "rounds": 1}


@pytest.fixture(scope="module")
def run(world, source, tmp_path_factory):
    def run(**options):
        output = tmp_path_factory.mktemp("anker") / "model"
        texts = {"source_text": world.root / "english.txt", "target_text": world.root / "german.txt"}
        settings = {**texts, "dictionary": world.dictionary, **SMALL, **options}
        return output, transfer(
            source, world.tokenizer("german", "gpt2"), output, method="anker", log=lambda line: None, **settings
        )

    return run


@pytest.fixture(scope="module")
def made(run):
    return run()


@pytest.mark.slow
def test_the_record_says_what_the_anchors_were(made):
    output, record = made
    assert json.loads((output / "transfer.json").read_text()) == json.loads(json.dumps(record))
    found = record["alignment"]
    assert found["anchors"]["dictionary"] > 20 and found["anchors"]["equal"] > 100
    assert found["rounds"][0]["learned"] == 0 and found["rounds"][1]["learned"] == found["anchors"]["learned"]
    assert found["held_out_words"] > 0 and 0 <= found["precision_at_1"] <= 1
    assert found["target_text"]["tokens"] > 10_000 and found["target_text"]["without_vector"] < 300
    assert record["counts"]["mixed"] == record["target"]["vocabulary_size"] - record["counts"]["copied"]
    assert record["counts"]["copied"] == 1 and record["counts"]["random"] == 0
    assert record["settings"]["word_start"] == 0.1 and record["settings"]["source_text"][0].endswith("english.txt")
    assert "making token vectors" in record["timings"]


def test_inspect_tells_the_regression_and_does_not_scold_about_translations(made, run):
    facts = score(made[0])
    # Sixteen dimensions, one, frequency, its square, and word start.
    assert facts["regression"]["rank"] == 20 and 400 < facts["regression"]["target_tokens"] <= made[1]["counts"]["mixed"]
    # Half of the neighbors' residuals, and all of those of a source token that is spelled like one that the text does not show.
    assert facts["mixture"]["largest_absolute_sum"] == pytest.approx(1)
    assert any(line.startswith("weights of all: of rank 20, over ") for line in lines(facts))
    assert {f["severity"] for f in facts["findings"] if f["about"] == "alignment"} == {"ok"}
    plain, record = run(regression=False)
    assert score(plain)["regression"] is None and record["counts"]["copied"] == made[1]["counts"]["copied"]
    assert record["counts"]["random"] < 20


def test_the_card_tells_the_anchors_and_no_folder(made, world):
    card, found = (made[0] / "README.md").read_text(), made[1]["alignment"]
    assert all(f"| Text, {side} side | {found[f'{side}_text']['tokens']:,} |" in card for side in ("source", "target"))
    assert f"{found['anchors']['dictionary']:,} from the dictionary" in card and "| Translations found | " in card
    assert f"{found['anchors']['learned']:,} that are each other's nearest" in card
    assert "| source_text | `english.txt` |" in card and str(world.root) not in card


def test_the_same_bytes_again(made, run):
    again, _ = run()
    for name in ("model.safetensors", "transfer_plan.npz"):
        assert (again / name).read_bytes() == (made[0] / name).read_bytes()


def test_without_a_dictionary_and_with_other_vectors(run, world):
    vectors = {"source_vectors": world.vectors("english"), "target_vectors": world.vectors("german")}
    _, record = run(dictionary=None, **vectors, rounds=0, word_start=0.0, regression=False)
    assert record["alignment"]["anchors"]["dictionary"] == 0 and record["alignment"]["precision_at_1"] is None
    assert record["alignment"]["word_vectors"]["weighting"] == "identical"
    assert not any("does not use it" in note for note in record["notes"])


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, "anker"),
        ({"source_text": "en.txt"}, "anker"),
        ({"source_vectors": "en.bin"}, "wechsel"),
        ({"target_vectors": "de.bin", "target_text": "de.txt"}, "wechsel"),
        ({"source_vectors": "en.bin", "target_vectors": "de.bin", "source_text": "en.txt"}, "anker"),
    ],
)
def test_what_is_given_decides_which_method_is_the_default(given, method):
    with pytest.raises(UserError, match=f"method {method}: no "):
        TransferSettings.of(None, **given)


def test_mistakes_are_one_line(run, world, tmp_path):
    with pytest.raises(UserError, match="no source_text and no target_text; expected text in both languages"):
        run(source_text=(), target_text=())
    with pytest.raises(UserError, match="no target_text; expected text"):
        run(target_text="")
    with pytest.raises(UserError, match="word vectors of one language only"):
        run(source_vectors=world.vectors("english"))
    with pytest.raises(UserError, match="nowhere"):
        run(target_text=tmp_path / "nowhere.txt")
    other = tmp_path / "other.txt"
    other.write_text("\u0416\n", encoding="utf-8")
    with pytest.raises(UserError, match="expected some tokens to start from"):
        run(target_text=other)
    for name, most in {"window": 20, "dimensions": 1024}.items():
        with pytest.raises(UserError, match=f"{name} {most + 1}: expected at most {most}"):
            run(**{name: most + 1})
    with pytest.raises(UserError, match=r"latent_dimension 100000: the rows of transformer\.wte\.weight .* expected 1 to "):
        run(latent_dimension=100_000)
    records = tmp_path / "records.jsonl"
    records.write_text('{"body": "x"}\n', encoding="utf-8")
    with pytest.raises(UserError, match="no field 'text' but 'body': name it with text_field"):
        run(target_text=records)


def test_text_in_a_field_of_json_lines_is_read_as_it_is(made, run, world, tmp_path):
    records = tmp_path / "german.jsonl"
    text = (world.root / "german.txt").read_text(encoding="utf-8").splitlines()
    records.write_text("".join(json.dumps({"body": line}) + "\n" for line in text), encoding="utf-8")
    output, record = run(target_text=records, text_field="body")
    assert record["alignment"] == made[1]["alignment"]
    assert (output / "model.safetensors").read_bytes() == (made[0] / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_what_cannot_help_is_said(made, run, world, source, tmp_path):
    assert not any("pairs only those" in note or "too seldom" in note for note in made[1]["notes"])
    pairs = [line.split("\t") for line in world.dictionary.read_text(encoding="utf-8").splitlines()]
    turned, quoted = tmp_path / "turned.tsv", tmp_path / "quoted.tsv"
    turned.write_text("".join(f"{b}\t{a}\n" for a, b in pairs), encoding="utf-8")
    quoted.write_text("".join(f'"{a}"\t"{b}"\n' for a, b in pairs), encoding="utf-8")
    note = r"turned.tsv: of its \d+ pairs only those of \d+ source words .*; the other way round they would be of \d+; expected"
    assert any(re.search(note, found) for found in run(dictionary=turned)[1]["notes"])
    assert any("anker has no reference implementation" in found for found in run(parity=True)[1]["notes"])
    assert any("quoted.tsv: of its" in found and "other way" not in found for found in run(dictionary=quoted)[1]["notes"])
    (tmp_path / "other.txt").write_text("zzz\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"{note}.*other.txt: in one of the two texts"):
        run(dictionary=turned, target_text=tmp_path / "other.txt")

    same = transfer(source, source, tmp_path / "same", method="fvt", log=lambda line: None)
    assert same["notes"][0].startswith("The target tokenizer has the source's tokens")
    little, said = tmp_path / "little.txt", []
    little.write_text((world.root / "english.txt").read_text(encoding="utf-8")[:500], encoding="utf-8")
    texts = {"source_text": little, "target_text": world.root / "german.txt", **SMALL}
    transfer(source, world.tokenizer("german", "gpt2"), tmp_path / "model", method="anker", log=said.append, **texts)
    assert any(re.match(r"note: The source text shows \d+ of \d+ source tokens too seldom", line) for line in said), said


def test_the_command_reads_several_files(world, source, tmp_path):
    output, german = tmp_path / "out", world.root / "german.txt"
    files = ["--source_text", world.root / "english.txt", "--target_text", german, "--target_text", german]
    models = ["--source", source, "--target_tokenizer", world.tokenizer("german", "gpt2"), "--output", output]
    cli.main([str(argument) for argument in ("transfer", *models, *files, "--rounds=0", "--dimensions=16")])
    record = json.loads((output / "transfer.json").read_text())
    assert record["method"] == "anker"
    assert record["settings"]["target_text"] == [str(german)] * 2 and record["alignment"]["rounds"][0]["anchors"] > 100
