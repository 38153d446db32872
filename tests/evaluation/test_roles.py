"""Semantic roles: scores by the rules of srl-eval.pl, and a model's roles beside those that transformers finds."""

import json
import random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from wechsel_jax.data.examples import Task, read_examples
from wechsel_jax.evaluation.label_scores import arguments, role_scores
from wechsel_jax.evaluation.labels import score_labelled

seqeval = pytest.importorskip("seqeval.metrics")


def bio(text):
    """ "A0 A0 . V+" -> labels; a plus begins another argument of the same role."""
    labels, before = [], ""
    for cell in text.split():
        kind = cell.removesuffix("+")
        labels.append("O" if kind == "." else f"{'I' if kind == before and cell == kind else 'B'}-{kind}")
        before = kind
    return labels


def srl_eval(gold, predicted):
    """(right, excess, missed) of one predicate, step by step as evaluate_proposition of srl-eval.pl goes."""

    def args(labels):
        phrases = []
        for place, label in enumerate(labels):
            if label.startswith("B-"):
                phrases.append([label[2:], place, place])
            elif label != "O":
                phrases[-1][2] = place
        found, latest = [], {}
        for kind, start, end in phrases:
            if kind.startswith("C-") and kind[2:] in latest:
                arg = latest[kind[2:]]
                arg["phrases"] = arg["phrases"] or [(arg["type"], arg["start"], arg["end"])]
                arg["phrases"].append((kind, start, end))
                arg["end"] = end
                continue
            latest[kind.removeprefix("C-")] = {"type": kind.removeprefix("C-"), "start": start, "end": end, "phrases": []}
            found.append(latest[kind.removeprefix("C-")])
        return found

    table = {(arg["start"], arg["end"]): arg for arg in args(gold)}
    right, excess = [], []
    for arg in args(predicted):
        there = table.get((arg["start"], arg["end"]))
        same = there is not None and there["type"] == arg["type"] and bool(there["phrases"]) == bool(arg["phrases"])
        if same and sorted(there["phrases"]) == sorted(arg["phrases"]):
            right.append(arg["type"])
            del table[arg["start"], arg["end"]]
        else:
            excess.append(arg["type"])
    missed = [arg["type"] for arg in table.values()]
    return tuple(sum(kind != "V" for kind in kinds) for kinds in (right, excess, missed))


@pytest.mark.parametrize(
    ("gold", "predicted", "counts"),
    [
        # The predicate itself counts neither where it is right nor where it is wrong.
        ("A0 V A1 A1", "A0 V A1 A1", (2, 0, 0)),
        ("A0 V A1 A1", "A0 V V A1", (1, 1, 1)),
        ("A0 V . .", "A0 . V .", (1, 0, 0)),
        # Every word of an argument must be right, and its role.
        ("A0 A0 V .", "A0 . V .", (0, 1, 1)),
        ("A0 A0 V .", "A1 A1 V .", (0, 1, 1)),
        # A continuation belongs to the argument: half of it is as good as nothing.
        ("A1 V C-A1 .", "A1 V C-A1 .", (1, 0, 0)),
        ("A1 V C-A1 .", "A1 V . .", (0, 1, 1)),
        ("A1 V C-A1 C-A1+", "A1 V C-A1 C-A1", (0, 1, 1)),
        ("A1 V C-A1 .", "A1 V A1 .", (0, 2, 1)),
        # Without a beginning, it is an argument of that role; and of two arguments it continues the latest.
        ("A1 V . A0", "C-A1 V . A0", (2, 0, 0)),
        ("A1 A1+ V C-A1", "A1 A1+ V C-A1", (2, 0, 0)),
        ("A1 A1+ V C-A1", "A1 A1+ V .", (1, 1, 1)),
        ("A1 V C-A1 .", "A0 V C-A1 .", (0, 2, 1)),
        # So is the rest of the predicate, which then counts as little.
        ("V A1 C-V .", "V A1 . .", (1, 0, 0)),
        # References are arguments like others.
        ("A0 R-A0 V .", "A0 A0 V .", (0, 1, 2)),
        ("A0 R-A0 V .", "A0 R-A0 V A1", (2, 1, 0)),
    ],
)
def test_arguments_are_counted_as_srl_eval_does(gold, predicted, counts):
    gold, predicted = bio(gold), bio(predicted)
    wanted, given = arguments(gold), arguments(predicted)
    assert (len(wanted & given), len(given - wanted), len(wanted - given)) == counts == srl_eval(gold, predicted)


def random_labels(generator, kinds, size):
    labels = []
    while len(labels) < size:
        kind = generator.choice(kinds)
        span = ["O"] if kind == "." else [f"B-{kind}", *[f"I-{kind}"] * generator.randint(0, 2)]
        labels += span[: size - len(labels)]
    return labels


def mistaken(generator, labels, kinds):
    """The same with some spans of another role, moved or lost."""
    changed = list(labels)
    for place, label in enumerate(labels):
        if label.startswith("B-") and generator.random() < 0.4:
            kind, end = generator.choice(kinds), place + 1
            while end < len(labels) and labels[end].startswith("I-"):
                end += 1
            end = max(place + 1, end - generator.randint(0, 1))
            changed[place:end] = ["O"] * (end - place) if kind == "." else [f"B-{kind}", *[f"I-{kind}"] * (end - place - 1)]
            if end < len(changed) and changed[end].startswith("I-"):
                changed[end] = "B-" + changed[end][2:]
    return changed


def test_many_predicates_are_counted_as_srl_eval_does():
    generator, kinds = random.Random(0), (".", ".", "A0", "A1", "C-A0", "C-A1", "R-A0", "V", "C-V")
    gold = [random_labels(generator, kinds, generator.randint(3, 12)) for _ in range(400)]
    predicted = [mistaken(generator, labels, kinds) for labels in gold]
    counts = [srl_eval(*pair) for pair in zip(gold, predicted, strict=True)]
    right, excess, missed = map(sum, zip(*counts, strict=True))
    assert min(right, excess, missed) > 50
    scores = role_scores(gold, predicted)
    assert scores["precision"] == pytest.approx(right / (right + excess))
    assert scores["recall"] == pytest.approx(right / (right + missed))
    assert scores["f1"] == pytest.approx(2 * right / (2 * right + excess + missed))
    assert scores["items"] == [(2 * ok, 2 * ok + over + under) for ok, over, under in counts]
    assert role_scores(gold[:1], [["O"] * len(gold[0])])["precision"] == 0.0


def test_without_predicates_and_continuations_it_is_the_f1_of_seqeval():
    generator, kinds = random.Random(1), (".", "A0", "A1", "R-A0", "AM-TMP")
    gold = [random_labels(generator, kinds, 9) for _ in range(100)]
    predicted = [mistaken(generator, labels, kinds) for labels in gold]
    scores = role_scores(gold, predicted)
    assert 0.2 < scores["f1"] < 0.9
    for name, score in (("f1", seqeval.f1_score), ("precision", seqeval.precision_score), ("recall", seqeval.recall_score)):
        assert scores[name] == pytest.approx(score(gold, predicted)), name
    # V is left out of both sides.
    with_verb = [[[*labels, "B-V"] for labels in side] for side in (gold, predicted)]
    assert role_scores(*with_verb)["f1"] == pytest.approx(scores["f1"])


def test_roles_of_single_words_count_one_by_one():
    scores = role_scores([["A0", "O", "A1", "C-A1", "O"]], [["A0", "A0", "A1", "O", "A1"]])
    assert (scores["precision"], scores["recall"]) == (2 / 4, 2 / 3) and scores["items"] == [(4.0, 7.0)]


def test_a_model_gives_the_roles_that_transformers_gives(tmp_path):
    """From what the documentation says a sentence and its predicate are made into."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    words = ["the", "cat", "dog", "saw", "bit", "who"]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]")
    tokenizer.save_pretrained(tmp_path / "model")
    labels = ["O", "B-A0", "I-A0", "B-A1", "I-A1", "B-V", "B-C-A1", "B-R-A0"]
    described = transformers.BertConfig(
        vocab_size=len(names), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, id2label=dict(enumerate(labels)), label2id={name: i for i, name in enumerate(labels)},
        initializer_range=1.0,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertForTokenClassification(described).save_pretrained(tmp_path / "model")
    stated = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(stated | {"semantic_roles": True}))
    generator, lines = random.Random(2), []
    for _ in range(12):
        sentence = generator.choices(words, k=generator.randint(2, 8))
        columns = [["*"] * len(sentence) for _ in range(2)]
        places = sorted(generator.sample(range(len(sentence)), 2))
        for column, place in zip(columns, places, strict=True):
            column[place] = "(V*)"
            column[(place + 1) % len(sentence)] = "(A9*)"
        rows = (f"{word} {'x' if i in places else '-'} {columns[0][i]} {columns[1][i]}" for i, word in enumerate(sentence))
        lines.append("\n".join(rows))
    (tmp_path / "a.txt").write_text("\n\n".join(lines) + "\n")
    scores = score_labelled(tmp_path / "model", [tmp_path / "a.txt"])
    model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "model").eval()
    examples = read_examples([tmp_path / "a.txt"], Task("roles"))
    predicted = []
    for example in examples:
        place = example.target[0]
        given = tokenizer(list(example.texts), [example.texts[place]], is_split_into_words=True, return_tensors="pt",
                          return_token_type_ids=True)  # fmt: skip
        words_of, texts = given.word_ids(0), given.sequence_ids(0)
        asked = [text == 0 and word == place for word, text in zip(words_of, texts, strict=True)]
        given["token_type_ids"] = given["token_type_ids"] | torch.tensor([asked]).long()
        with torch.no_grad():
            found = model(**given).logits[0].argmax(-1).tolist()
        predicted.append([labels[number] for number in found[1 : len(example.texts) + 1]])
    assert [list(one) for one in scores.predicted] == predicted and len({tuple(one) for one in predicted}) > 12
    expected = role_scores([labels for _, labels in (one.target for one in examples)], predicted)
    # The file has a role that the model does not know; it is missed.
    assert scores.metrics["f1"] == expected["f1"] and scores.metric == "f1" and scores.metrics["recall"] == 0.0
