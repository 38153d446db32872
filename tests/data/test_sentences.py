"""Pairs of segments: what prepared text says of its sentences, both kinds of pairs, cuts, epochs, and mistakes."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from wechsel_jax import cli
from wechsel_jax.data import TokenBlocks, prepare, prepare_split
from wechsel_jax.data.sentences import SentencePairs
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import load_tokenizer

CLS, SEP, PAD = 2, 3, 0
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
DOCUMENTS = 30


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A tokenizer as BERT's, of single words."""
    backend = Tokenizer(models.WordPiece({name: i for i, name in enumerate((*SPECIAL, *(f"w{i}" for i in range(1000))))}))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    place = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=backend, **roles).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def documents():
    """Sentences as lists of numbers of words, no word twice: where each stands is known by its numbers."""
    rng, number, found = np.random.default_rng(0), 0, []
    for count in rng.integers(1, 9, DOCUMENTS).tolist():
        sizes = rng.integers(1, 8, count).tolist()
        starts = number + np.cumsum([0, *sizes])
        found.append([list(range(start, start + size)) for start, size in zip(starts.tolist(), sizes, strict=False)])
        number = int(starts[-1])
    return found


@pytest.fixture(scope="module")
def text(documents, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    blocks = ["\n".join(" ".join(f"w{word}" for word in sentence) for sentence in document) for document in documents]
    path.write_text("\n\n".join(blocks) + "\n")
    return path


@pytest.fixture(scope="module")
def prepared(text, bert, tmp_path_factory):
    place = tmp_path_factory.mktemp("prepared") / "out"
    prepare(text, bert, place, documents="paragraphs", sentences=True)
    return place


@pytest.fixture(scope="module")
def pairs(prepared, bert):
    return SentencePairs.open(prepared, 16, load_tokenizer(bert), verify=True)


def segments(batch):
    """(tokens of a, tokens of b, label) of each row, after a look at everything around them."""
    for tokens, mask, types, label in zip(*(batch[name] for name in ("tokens", "mask", "types", "labels")), strict=True):
        row = tokens[mask].tolist()
        ends = [place for place, token in enumerate(row) if token == SEP]
        assert row[0] == CLS and len(ends) == 2 and ends[1] == len(row) - 1 and not mask[len(row) :].any()
        assert (tokens[~mask] == PAD).all() and types.tolist() == [int(ends[0] < i < len(row)) for i in range(types.size)]
        yield row[1 : ends[0]], row[ends[0] + 1 : -1], int(label)


def test_sentences_change_no_token_of_the_text(text, bert, prepared, documents, tmp_path):
    plain = prepare(text, bert, tmp_path / "plain", documents="paragraphs")
    manifest = json.loads((prepared / "manifest.json").read_text())
    assert manifest["sha256"] == plain["sha256"]
    # So it is text for masked language modelling alone, too.
    assert len(TokenBlocks.open(prepared, 16, verify=True))
    sizes = np.fromfile(prepared / "sentences.bin", "<u4").tolist()
    assert sizes == [size for document in documents for size in (*map(len, document), 0)]
    with pytest.raises(UserError, match="was prepared with sentences = False, not True"):
        prepare(text, bert, tmp_path / "plain", documents="paragraphs", sentences=True)


def test_both_sides_of_a_split_have_the_sentences_of_their_documents(text, bert, tmp_path):
    found = prepare_split(text, bert, tmp_path / "out", validation_fraction=0.3, documents="paragraphs", sentences=True)
    opened = [SentencePairs.open(tmp_path / "out" / side, 16, load_tokenizer(bert), verify=True) for side in found]
    for pairs, manifest in zip(opened, found.values(), strict=True):
        # No word is twice, so the sentences are those of the side if every place is the beginning of one.
        assert pairs.places.size == manifest["sentence_file"]["sentences"]
        assert sum(pairs.totals[1:] - pairs.totals[:-1]) == manifest["tokens"] - 2 * manifest["documents"]
        assert np.isin(pairs.stream[pairs.places - 1], [CLS, *pairs.stream[pairs.places[1:] - 1]]).all()


def test_half_of_the_pairs_go_on_and_the_others_come_from_another_document(pairs, documents):
    place = {word + len(SPECIAL): (i, j) for i, one in enumerate(documents) for j, some in enumerate(one) for word in some}
    ends = {one[j][-1] + len(SPECIAL) for one in documents for j in range(len(one))}
    labels, firsts = [], set()
    for step in range(80):
        for a, b, label in segments(pairs.batch(step, 8, seed=3)):
            labels.append(label)
            assert a and b and len(a) + len(b) + 3 <= 16
            assert a == list(range(a[0], a[-1] + 1)) and b == list(range(b[0], b[-1] + 1))
            assert len({place[word][0] for word in a}) == len({place[word][0] for word in b}) == 1
            assert (place[a[0]][0] != place[b[0]][0]) == bool(label)
            full = len(a) + len(b) + 3 == 16
            # What is not cut ends with a sentence, and goes on where it ends.
            assert full or (a[-1] in ends and b[-1] in ends and (label or b[0] == a[-1] + 1))
            if not label:
                assert place[b[0]][1] > place[a[-1]][1]
            firsts.add(place[b[0]])
    # 640 coins: five standard deviations are 63.
    assert abs(sum(labels) - 320) < 63
    assert len(firsts) > 60


def test_every_split_and_every_sentence_with_enough_behind_it_is_drawn(prepared, bert, documents):
    """Rows hold whole documents, so that nothing is cut: what is drawn is where b begins, and of which document it is."""
    pairs = SentencePairs.open(prepared, 64, load_tokenizer(bert))
    first, end, owner = pairs.windows
    begins = np.array([sentence[0] + len(SPECIAL) for document in documents for sentence in document])
    splits, others, reached = set(), set(), set()
    for step in range(1500):
        rows = pairs.drawn(step, len(pairs), seed=7)
        batch = pairs.padded(rows, 64)
        start = np.searchsorted(
            begins, np.take_along_axis(batch["tokens"], batch["types"].argmax(axis=1)[:, None], axis=1)[:, 0]
        )
        window, other = rows % len(pairs), batch["labels"] == 1
        splits.update(zip(window[~other].tolist(), start[~other].tolist(), strict=True))
        there = np.searchsorted(pairs.documents, start[other], side="right") - 1
        others.update(zip(owner[window[other]].tolist(), there.tolist(), strict=True))
        reached.update(start[other].tolist())
        # As many tokens follow as in the window behind a, but where a document has no more.
        of_a = (batch["mask"] & (batch["types"] == 0)).sum(axis=1) - 2
        wanted = (pairs.totals[end[window]] - pairs.totals[first[window]] - of_a)[other]
        enough = pairs.totals[pairs.documents[there + 1]] - pairs.totals[start[other]] >= wanted
        assert (enough | (start[other] == pairs.documents[there])).all()
    assert splits == {(i, split) for i in range(len(pairs)) for split in range(first[i] + 1, end[i])}
    assert others == {(one, two) for one in set(owner.tolist()) for two in range(DOCUMENTS) if one != two}
    # Of the windows of other documents the last sentence is the least that has to follow; a document's first always may begin.
    expected = set()
    for one, (begin, behind) in enumerate(zip(pairs.documents, pairs.documents[1:], strict=False)):
        least = min(pairs.totals[end[i]] - pairs.totals[end[i] - 1] for i in range(len(pairs)) if owner[i] != one)
        expected |= {j for j in range(begin, behind) if j == begin or pairs.totals[behind] - pairs.totals[j] >= least}
    assert reached == expected


def test_the_length_of_a_row_does_not_tell_what_follows(bert, tmp_path):
    """Documents of twelve sentences of four tokens: other documents have as many tokens as there were."""
    document = "\n".join(["w1 w2 w3 w4"] * 12)
    (tmp_path / "text.txt").write_text("\n\n".join([document] * 20) + "\n")
    prepare(tmp_path / "text.txt", bert, tmp_path / "out", documents="paragraphs", sentences=True)
    pairs = SentencePairs.open(tmp_path / "out", 32, load_tokenizer(bert))
    lengths = {0: [], 1: []}
    for step in range(100):
        for a, b, label in segments(pairs.batch(step, 8, seed=1)):
            lengths[label].append(len(a) + len(b))
    assert abs(np.mean(lengths[0]) - np.mean(lengths[1])) < 0.5


def test_every_sentence_of_a_document_with_two_is_in_a_window(pairs, documents):
    first, end, owner = pairs.windows
    assert (end - first >= 2).all() and (np.diff(first) > 0).all()
    covered = {sentence for one in zip(first, end, strict=True) for sentence in range(*one)}
    numbers = iter(range(pairs.places.size))
    expected = {number for one in documents for number in [next(numbers) for _ in one] if len(one) > 1}
    assert covered == expected
    np.testing.assert_array_equal(owner, np.searchsorted(pairs.documents, end - 1, side="right") - 1)
    filled = pairs.totals[end] - pairs.totals[first]
    last = np.isin(end, pairs.documents)
    assert (filled[~last] >= 13).all() and (filled[~last] - (pairs.totals[end] - pairs.totals[end - 1])[~last] < 13).any()


def test_the_longer_segment_is_cut_and_then_both(bert, tmp_path):
    path = tmp_path / "long.txt"
    sizes = (4, 40, 40)
    words = iter(f"w{i}" for i in range(1000))
    lines = [" ".join(next(words) for _ in range(size)) for size in sizes * 2]
    path.write_text("\n".join(lines[:3]) + "\n\n" + "\n".join(lines[3:]) + "\n")
    prepare(path, bert, tmp_path / "out", documents="paragraphs", sentences=True)
    pairs = SentencePairs.open(tmp_path / "out", 32, load_tokenizer(bert))
    seen = {(len(a), len(b)) for step in range(30) for a, b, _ in segments(pairs.batch(step, 4, seed=0))}
    # Truncation as in BERT's code: 29 tokens are left of 4 + 40 and of 40 + 40, the first one longer by the odd one.
    assert {(4, 25), (15, 14)} <= seen <= {(4, 25), (15, 14), (25, 4)}


def test_a_batch_is_a_function_of_seed_and_step_alone(pairs, prepared, bert):
    again = SentencePairs.open(prepared, 16, load_tokenizer(bert))
    whole = pairs.batch(11, 8, seed=1)
    for name, value in again.batch(11, 8, seed=1, rows=np.array([1, 6])).items():
        np.testing.assert_array_equal(value, whole[name][[1, 6]])
    assert again.fingerprint == pairs.fingerprint and again.positions(11, 8, 1) == whole["tokens"].size
    assert not np.array_equal(pairs.batch(11, 8, seed=2)["tokens"], whole["tokens"])


def test_every_epoch_has_every_window_once_and_draws_anew(pairs):
    count = len(pairs)
    epochs = np.stack([pairs.drawn(step, count, seed=5) for step in range(6)])
    assert (np.sort(epochs % count) == np.arange(count)).all()
    labels = [{int(row % count): int(label) for row, label in zip(rows, pairs.padded(rows, 16)["labels"], strict=True)}
              for rows in epochs]  # fmt: skip
    assert len({tuple(one[window] for window in range(count)) for one in labels}) == 6


def test_evaluations_have_every_window_once_and_always_the_same_pairs(pairs):
    batches = list(pairs.evaluation_batches(4))
    rows = np.concatenate([batch["row"] for batch in batches])
    assert sorted(rows[rows >= 0]) == [*range(len(pairs))]
    assert sum(batch["weights"].sum() for batch in batches) == len(pairs)
    for one, other in zip(batches, pairs.evaluation_batches(4), strict=True):
        np.testing.assert_array_equal(one["tokens"], other["tokens"])


@pytest.mark.parametrize(
    ("content", "documents", "message"),
    [
        ("w1 w2\nw3\nw4 w5\n", "lines", "3 documents have 3 sentences; expected one with two"),
        ("w1 w2\n\nw3\n", "paragraphs", "2 documents have 2 sentences; expected one with two"),
        ("w1 w2\nw3\n", "files", "1 documents have 2 sentences; expected one with two, and another"),
    ],
)
def test_text_without_a_pair_is_refused(tmp_path, bert, content, documents, message):
    (tmp_path / "text.txt").write_text(content)
    prepare(tmp_path / "text.txt", bert, tmp_path / "out", documents=documents, sentences=True)
    with pytest.raises(UserError, match=message):
        SentencePairs.open(tmp_path / "out", 16, load_tokenizer(bert))


def test_other_directories_rows_and_tokenizers_are_refused(tmp_path, text, bert, prepared, tokenizers):
    tokenizer = load_tokenizer(bert)
    prepare(text, bert, tmp_path / "plain", documents="paragraphs")
    with pytest.raises(UserError, match=r"without the places of its sentences.*--sentences"):
        SentencePairs.open(tmp_path / "plain", 16, tokenizer)
    with pytest.raises(UserError, match="block_length: is 4; expected at least 5"):
        SentencePairs.open(prepared, 4, tokenizer)
    with pytest.raises(UserError, match=r"lacks a \[CLS\]"):
        SentencePairs.open(prepared, 16, load_tokenizer(tokenizers["gpt2"]))


@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
def test_damage_is_noticed(tmp_path, text, bert, damage):
    prepare(text, bert, tmp_path / "out", documents="paragraphs", sentences=True)
    path = tmp_path / "out" / "sentences.bin"
    raw = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(raw[:-4] if damage == "short" else b"\x09" + raw[1:])
    with pytest.raises(UserError, match=r"sentences.bin: .*prepare the text again"):
        SentencePairs.open(tmp_path / "out", 16, load_tokenizer(bert), verify=damage == "changed")


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_the_command_verifies_the_sentences_too(tmp_path, text, bert, capsys, damage):
    flags = ["--documents=paragraphs", "--sentences", "--verify"]
    command = ["prepare", f"--input={text}", f"--tokenizer={bert}", f"--output={tmp_path / 'out'}", *flags]
    cli.main(command)
    path = tmp_path / "out" / "sentences.bin"
    path.unlink() if damage == "gone" else path.write_bytes(b"\x09" + path.read_bytes()[1:])
    with pytest.raises(SystemExit) as left:
        cli.main(command)
    assert left.value.code == 2 and "sentences.bin: is missing or damaged" in capsys.readouterr().err
