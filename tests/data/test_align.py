"""Parallel text to linked pairs: the verb, against links worked out from words that stand for each other."""

import itertools
import json
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.tiny_tokenizers import wordpiece
from wechsel_jax.cli import main
from wechsel_jax.data.align import align_pairs
from wechsel_jax.data.parallel import ParallelRows
from wechsel_jax.data.rows import with_special_tokens
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.extension import place_beside
from wechsel_jax.tokens.training import train_tokenizer

WORDS = {"dog": "hund", "fox": "fuchs", "lazy": "faulen", "quick": "schnelle", "brown": "braune", "over": "uber"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    place = tmp_path_factory.mktemp("tokenizer")
    with_special_tokens(wordpiece(), causal=False).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Every order of three of the words, and their translations in the opposite order."""
    place = tmp_path_factory.mktemp("text") / "en-de.tsv"
    lines = [(chosen, [WORDS[word] for word in chosen[::-1]]) for chosen in itertools.permutations(WORDS, 3)]
    place.write_text("".join(f"{' '.join(one)}\t{' '.join(two)}\n" for one, two in lines))
    return place


def words_of(backend, ids: list[int]) -> list[tuple[str, int, int]]:
    """The words of tokens, with the first token and the number of tokens of each."""
    found = []
    for place, token in enumerate(backend.convert_ids_to_tokens(ids)):
        if token.startswith("##"):
            word, first, count = found.pop()
            found.append((word + token[2:], first, count + 1))
        else:
            found.append((token, place, 1))
    return found


def test_words_that_stand_for_each_other_are_linked(text, tokenizer, tmp_path):
    """In both directions, token k of n with token k m // n of the word's m."""
    facts = align_pairs([text], tokenizer, tmp_path / "pairs", units="words")[""]
    assert facts["languages"] == ["en", "de"] and facts["pairs"] == 120 and facts["linked"] == [1.0, 1.0]
    rows, loaded = ParallelRows.open(tmp_path / "pairs", 64, verify=True), load_tokenizer(tokenizer)
    right = total = 0
    for pair in range(120):
        parts = [slice(*side.starts[pair : pair + 2]) for side in rows.sides]
        first, second = (words_of(loaded, side.tokens[part].tolist()) for side, part in zip(rows.sides, parts, strict=True))
        for target, source, side in ((second, first, 1), (first, second, 0)):
            links = rows.links[side][parts[side]]
            for word, start, count in target:
                other = {b: a for a, b in WORDS.items()}[word] if side else WORDS[word]
                (_, begin, size) = next(one for one in source if one[0] == other)
                expected = [begin + k * size // count for k in range(count)]
                right += expected == links[start : start + count].tolist()
                total += 1
    # The opposite order is the diagonal prior's worst case; nine of ten words are found all the same.
    assert right / total > 0.9


def test_the_verb_splits_and_repeats_itself(text, tokenizer, tmp_path, capsys):
    command = ["align", f"--input={text}", f"--tokenizer={tokenizer}", "--validation_fraction=0.2"]
    for name in ("one", "two"):
        main([*command, f"--output={tmp_path / name}"])
    assert "pairs; linked are " in capsys.readouterr().out
    for side in ("train", "validation"):
        made = [ParallelRows.open(tmp_path / name / side, 64) for name in ("one", "two")]
        assert made[0].fingerprint == made[1].fingerprint
    assert sum(len(ParallelRows.open(tmp_path / "one" / side, 64)) for side in ("train", "validation")) == 240
    with pytest.raises(SystemExit) as ended:
        main([*command, f"--output={tmp_path / 'one'}"])
    assert ended.value.code == 2 and "exists already" in capsys.readouterr().err


def test_links_from_files_are_those_of_the_files(text, tokenizer, tmp_path):
    """As TreLM makes them: over tokens with the special ones, which are left out here."""
    loaded, lines = load_tokenizer(tokenizer), text.read_text().splitlines()[:3]
    (tmp_path / "some.tsv").write_text("\n".join([*lines[:2], "\t", lines[2]]) + "\n")
    sizes = [[len(loaded(part)["input_ids"]) for part in line.split("\t")] for line in lines]
    forward = [[(0, 0), (1, n - 2), (n - 2 and 1, n - 1)] for _, n in sizes]
    backward = [[(i, 1) for i in range(m)] for m, _ in sizes]
    for name, links in (("forward", forward), ("backward", backward)):
        shown = [" ".join(f"{i}-{j}" for i, j in pair) for pair in links]
        (tmp_path / name).write_text("\n".join([*shown[:2], "", shown[2]]) + "\n")
    options = {"languages": ("en", "de"), "units": "special_tokens"}
    files = [tmp_path / "forward", tmp_path / "backward"]
    facts = align_pairs([tmp_path / "some.tsv"], tokenizer, tmp_path / "pairs", links=files, **options)[""]
    rows = ParallelRows.open(tmp_path / "pairs", 64)
    assert facts["pairs"] == 3 and facts["dropped"]["blank"] == 1 and facts["aligner"]["name"] == "files"
    for pair, (m, n) in enumerate(sizes):
        links = [one[slice(*side.starts[pair : pair + 2])].tolist() for one, side in zip(rows.links, rows.sides, strict=True)]
        assert links[1] == [-1] * (n - 3) + [0] and links[0] == [0] * (m - 2)
    with pytest.raises(UserError, match=r"backward: links each token of the first sentences at most once.*swap"):
        align_pairs([tmp_path / "some.tsv"], tokenizer, tmp_path / "again", links=files[::-1], **options)
    assert not (tmp_path / "again").exists()
    one = align_pairs([tmp_path / "some.tsv"], tokenizer, tmp_path / "one", links=files[:1], **options)[""]
    assert one["linked"][1] == facts["linked"][1] and one["linked"][0] < 1


def test_the_error_rate_on_peoples_links_is_nltks(text, tokenizer, tmp_path, capsys):
    from nltk.translate.metrics import alignment_error_rate

    some, found, gold = (tmp_path / name for name in ("en-de.tsv", "found", "gold"))
    first, second, third = text.read_text().splitlines()[:3]
    some.write_text("\n".join([first, "\t", second, third]) + "\n")
    found.write_text("0-2 1-1 2-0\n\n0-2 1-2 2-0\n0-0\n")
    gold.write_text("0-2 1-1 2p0\n\n0-2 1-1 0p1 1p2\n\n")
    command = ["align", f"--input={some}", f"--tokenizer={tokenizer}", "--units=words", f"--links={found}", f"--gold={gold}"]
    main([*command, f"--output={tmp_path / 'pairs'}"])
    sure = {(0, 0, 2), (0, 1, 1), (1, 0, 2), (1, 1, 1)}
    possible = sure | {(0, 2, 0), (1, 0, 1), (1, 1, 2)}
    # Of two links of a word the last counts: the second sentences' word 2 has 1-2.
    ours = [{(0, 0, 2), (0, 1, 1), (0, 2, 0), (1, 0, 2), (1, 1, 2), (1, 2, 0)}]
    ours += [ours[0] - {(1, 0, 2)}]
    rates = [alignment_error_rate(sure, one, possible) for one in ours]
    facts = json.loads((tmp_path / "pairs" / "pairs.json").read_text())["aligner"]["gold"]
    assert facts["pairs"] == 2 and facts["error_rates"] == pytest.approx(rates) and rates[0] != rates[1]
    assert f"on 2 pairs that people linked: {rates[0]:.1%} of en, {rates[1]:.1%} of de" in capsys.readouterr().out
    for wrong, message in (("0p0", "gold: no link that people are sure of"), ("0-3", "gold: line 1: link 0-3 is out of range")):
        gold.write_text(wrong + "\n" * 4)
        with pytest.raises(SystemExit):
            main([*command, f"--output={tmp_path / 'again'}"])
        told = capsys.readouterr().err
        assert message in told and "aligning" not in told and not (tmp_path / "again").exists()
    with pytest.raises(UserError, match="gold: there are no links to compare with it"):
        align_pairs([some], tokenizer, tmp_path / "again", aligner="none", gold=gold)


def test_tokens_of_another_tokenizer_are_refused(text, tokenizer, tmp_path):
    align_pairs([text], tokenizer, tmp_path / "pairs")
    rows, loaded = ParallelRows.open(tmp_path / "pairs", 64), load_tokenizer(tokenizer)
    rows.check(loaded.backend_tokenizer)
    # The model's tokenizer may have more tokens, as those of a chat.
    more = load_tokenizer(tokenizer)
    more.add_tokens(["<|turn|>"])
    rows.check(more.backend_tokenizer)
    swapped = json.loads(loaded.backend_tokenizer.to_str())
    ids = swapped["model"]["vocab"]
    one, other = sorted(ids, key=ids.get)[-2:]
    ids[one], ids[other] = ids[other], ids[one]
    with pytest.raises(UserError, match=r"pairs: was aligned with the tokens of another tokenizer \(.+\); expected the "):
        rows.check(Tokenizer.from_str(json.dumps(swapped)))
    # Pairs of earlier versions do not say whose tokens they hold.
    facts = json.loads((tmp_path / "pairs" / "pairs.json").read_text())
    del facts["tokenizer"]["vocabulary"]
    (tmp_path / "pairs" / "pairs.json").write_text(json.dumps(facts))
    ParallelRows.open(tmp_path / "pairs", 64).check(Tokenizer.from_str(json.dumps(swapped)))


def test_text_that_is_not_parallel_makes_masked_rows_of_both_languages(text, tokenizer, tmp_path):
    lines = [line.split("\t") for line in text.read_text().splitlines()]
    for side, name in enumerate(("one", "two")):
        (tmp_path / name).write_text("\n".join(pair[side] for pair in lines) + "\n")
    files, options = [f"{tmp_path / 'one'}::{tmp_path / 'two'}"], {"languages": ("en", "de"), "aligner": "none"}
    facts = align_pairs(files, tokenizer, tmp_path / "made", **options)[""]
    assert facts["linked"] == [0, 0] and facts["pairs"] == len(lines)
    loaded = load_tokenizer(tokenizer)
    rows = ParallelRows.open(tmp_path / "made", 64, "masked")
    batch = rows.padded(np.arange(len(rows)), 64)
    # Each language is half of the rows, and each row one sentence, as the tokenizer gives it.
    assert batch["masked"].all() and batch["languages"].tolist() == [0, 1] * len(lines)
    for row, real, sentence in zip(batch["tokens"], batch["mask"], [part for pair in lines for part in pair], strict=True):
        assert row[real].tolist() == loaded(sentence)["input_ids"]
    rows.check(loaded.backend_tokenizer)
    with pytest.raises(UserError, match=r"made: was made with --aligner=none; expected links"):
        rows.check(loaded.backend_tokenizer, links=True)


def test_separate_vocabularies_share_no_token(text, tokenizer, tmp_path):
    """Each side has the tokens that its own tokenizer gives it, the first's behind the second's."""
    train_tokenizer([text], 300, tmp_path / "first", style="roberta")
    options = {"languages": ("en", "de"), "first_tokenizer": tmp_path / "first"}
    facts = align_pairs([text], tokenizer, tmp_path / "pairs", **options)[""]
    first, second = load_tokenizer(tmp_path / "first"), load_tokenizer(tokenizer)
    assert facts["vocabulary_size"] == len(first) + len(second) and min(facts["linked"]) > 0.5
    rows, lines = ParallelRows.open(tmp_path / "pairs", 64), [line.split("\t") for line in text.read_text().splitlines()]
    batch = rows.padded(np.arange(20), 64)
    for row in range(0, 20, 2):
        around = second("")["input_ids"]
        own = [token + len(second) for token in first(lines[row // 2][0], add_special_tokens=False)["input_ids"]]
        assert batch["tokens"][row][batch["mask"][row]].tolist() == [around[0], *own, around[1]]
        assert batch["targets"][row][batch["target_mask"][row]].tolist() == second(lines[row // 2][1])["input_ids"]
    rows.check(place_beside(second, first)[0].backend_tokenizer)
    with pytest.raises(UserError, match="was aligned with the tokens of another tokenizer"):
        rows.check(place_beside(second, second)[0].backend_tokenizer)
    # Pairs in which both languages have the second's tokens fit its ids, but not its meaning.
    align_pairs([text], tokenizer, tmp_path / "joint")
    with pytest.raises(UserError, match="joint: was aligned with one tokenizer for both languages; expected one of each"):
        ParallelRows.open(tmp_path / "joint", 64).check(place_beside(second, first)[0].backend_tokenizer)


def test_words_of_a_language_without_spaces_are_refused(tokenizer, tmp_path):
    (tmp_path / "en-zh.tsv").write_text("the quick brown fox\t中国人民银行日本語の文章\n" * 3)
    with pytest.raises(UserError, match="units 'words': what is between white space of zh has 12 tokens on average; expected"):
        align_pairs([tmp_path / "en-zh.tsv"], tokenizer, tmp_path / "pairs", units="words")
    assert align_pairs([tmp_path / "en-zh.tsv"], tokenizer, tmp_path / "pairs")[""]["pairs"] == 3


@pytest.mark.parametrize("options", [["--aligner=none", "--symmetry=union"], ["--links=a.align", "--aligner=diagonal"]])
def test_what_has_no_effect_is_refused(text, tokenizer, tmp_path, capsys, options):
    with pytest.raises(SystemExit):
        main(["align", f"--input={text}", f"--tokenizer={tokenizer}", f"--output={tmp_path / 'pairs'}", *options])
    assert f"{options[1].split('=')[0]}: has no effect with {options[0].split('=')[0]}" in capsys.readouterr().err


def test_a_package_that_is_missing_is_named(text, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "eflomal", None)
    with pytest.raises(UserError, match=r"eflomal: not installed; expected .*`pip install 'wechsel-jax\[align\]'`"):
        align_pairs([text], tokenizer, tmp_path / "pairs", aligner="eflomal")
    assert {path.name for path in tmp_path.iterdir()} == set()


def test_a_damaged_record_and_bad_settings_are_one_line(text, tokenizer, tmp_path):
    for options, message in (
        ({"aligner": "giza"}, "aligner 'giza': unknown; expected one of diagonal, eflomal, none"),
        ({"units": "special_tokens"}, "units 'special_tokens': is for links from files"),
        ({"links": ["a"], "symmetry": "union"}, "links: 1 files and symmetry 'union'"),
        ({"validation_fraction": 1.0}, "validation_fraction: is 1.0"),
    ):
        with pytest.raises(UserError, match=message):
            align_pairs([text], tokenizer, tmp_path / "bad", **options)
    # Before the long work.
    said = []
    with pytest.raises(UserError, match="validation_fraction 1e-12: leaves no pair for validation; expected another share"):
        align_pairs([text], tokenizer, tmp_path / "bad", validation_fraction=1e-12, log=said.append)
    assert said and "aligning" not in said
    assert not (tmp_path / "bad").exists()
    align_pairs([text], tokenizer, tmp_path / "good", symmetry="grow-diag")
    facts = json.loads((tmp_path / "good" / "pairs.json").read_text())
    (tmp_path / "good" / "pairs.json").write_text(json.dumps(facts | {"format": 9}))
    with pytest.raises(UserError, match=r"pairs\.json: format is 9; expected 1"):
        ParallelRows.open(tmp_path / "good", 12)
    assert np.mean([facts["linked"]]) > 0.5
