"""Probes against scikit-learn on the hidden states of torch."""

import dataclasses

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tests.evaluation.tiny_models import save
from tests.tiny_tokenizers import wrap
from wechsel_jax import demo
from wechsel_jax.data.examples import Task
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.probes import probe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
linear = pytest.importorskip("sklearn.linear_model")
preprocessing = pytest.importorskip("sklearn.preprocessing")

SUBJECTS, VERBS, THINGS = (
    ("The dog", "A king", "Our ship", "My aunt"),
    ("sees", "loves", "sells"),
    ("the house.", "an old boat."),
)


@pytest.fixture(scope="module")
def model():
    return LoadedModel.open(demo.path("english-gpt2"))


@pytest.fixture(scope="module")
def hidden():
    """Returns a function: text -> (last hidden states of torch (L, d), (first character, end) of each token)."""
    place = demo.path("english-gpt2")
    reference = transformers.AutoModel.from_pretrained(place).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)

    def states(text):
        given = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
        offsets = given.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            return reference(**given).last_hidden_state[0].numpy(), offsets

    return states


def sentences():
    return [f"{subject} {verb} {thing}" for subject in SUBJECTS for verb in VERBS for thing in THINGS]


def predictions(train, right, test):
    scaler = preprocessing.StandardScaler().fit(train)
    return linear.LogisticRegression(max_iter=1000).fit(scaler.transform(train), right).predict(scaler.transform(test)).tolist()


@pytest.mark.slow
def test_a_text_is_the_mean_of_its_tokens(model, hidden, tmp_path):
    texts = sentences()
    labels = ["house" if "house" in text else "boat" for text in texts]
    for name, part in (("train", slice(0, 16)), ("test", slice(16, None))):
        lines = [f"{text}\t{label}" for text, label in zip(texts[part], labels[part], strict=True)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]))
    found = probe(model, [tmp_path / "train.tsv"], [tmp_path / "test.tsv"], Task("classification"), batch_size=8)
    means = [hidden(text)[0].mean(axis=0) for text in texts]
    assert found.predicted == predictions(means[:16], labels[:16], means[16:])
    assert found.metrics["accuracy"] == np.mean(found.numerators) and found.metrics["majority"] == 0.5


def test_texts_that_lost_their_end_are_counted(model, tmp_path):
    texts = sentences()
    for name, part in (("train", texts[:16]), ("test", texts[16:])):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{len(text) % 2}\n" for text in part))
    for length, cut in ((128, None), (3, len(texts[16:]))):
        found = probe(model, [tmp_path / "train.tsv"], [tmp_path / "test.tsv"], Task("classification"), length=length)
        assert found.metrics.get("cut") == cut


def test_a_word_is_the_mean_of_its_tokens(model, hidden, tmp_path):
    """Labels that make mistakes likely: the last letter of each word."""
    texts = [text.split() for text in sentences()]
    for name, part in (("train", texts[:16]), ("test", texts[16:])):
        (tmp_path / f"{name}.txt").write_text("\n".join("".join(f"{word} {word[-1]}\n" for word in words) for words in part))
    found = probe(model, [tmp_path / "train.txt"], [tmp_path / "test.txt"], Task("tagging"), batch_size=8)
    features = []
    for words in texts:
        states, offsets = hidden(" ".join(words))
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        owner = np.searchsorted(ends, [end for _, end in offsets])
        features += [states[owner == place].mean(axis=0) for place in range(len(words))]
    labels = [word[-1] for words in texts for word in words]
    count = sum(map(len, texts[:16]))
    assert found.predicted == predictions(features[:count], labels[:count], features[count:])
    # The words of a sentence depend on each other, so the items of intervals are sentences.
    right = [one == other for one, other in zip(found.predicted, labels[count:], strict=True)]
    assert found.denominators == list(map(len, texts[16:])) and found.metrics["accuracy"] == np.mean(right)
    ends = np.cumsum(found.denominators).astype(int)
    assert found.numerators == [sum(right[end - int(size) : end]) for end, size in zip(ends, found.denominators, strict=True)]


def test_an_unknown_token_is_part_of_its_word_whatever_its_id(model, tmp_path):
    """What stands behind a token does not change a causal model's state there: only the unknown token tells the words apart."""
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁a", -1.0)], 0))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    other = dataclasses.replace(model, tokenizer=wrap(backend, unk_token="<unk>"))
    assert other.tokenizer("a☃").input_ids == [1, 0]
    (tmp_path / "words.txt").write_text("a☃ unknown\n\na known\n\n" * 3)
    found = probe(other, [tmp_path / "words.txt"], [tmp_path / "words.txt"], Task("tagging"), batch_size=8)
    assert found.predicted == ["unknown", "known"] * 3


def write_pairs(folder):
    """Writes pairs of sentences, and whether they end alike, 16 of them to train on; returns pairs, labels and the task."""
    texts = sentences()
    pairs = [(one, texts[(i + i // 3) % len(texts)]) for i, one in enumerate(texts)]
    labels = [str(one.split()[-1] == other.split()[-1]) for one, other in pairs]
    for name, part in (("train", slice(0, 16)), ("test", slice(16, None))):
        lines = ["\t".join((*pair, label)) for pair, label in zip(pairs[part], labels[part], strict=True)]
        (folder / f"{name}.tsv").write_text("\n".join(lines))
    task = Task("classification", ("a", "b"), columns=("a", "b", "label"))
    return pairs, labels, task


@pytest.mark.slow
def test_a_pair_is_two_means_side_by_side(model, hidden, tmp_path):
    """The two texts are read one after the other, with the end-of-text token between them."""
    pairs, labels, task = write_pairs(tmp_path)
    found = probe(model, [tmp_path / "train.tsv"], [tmp_path / "test.tsv"], task, batch_size=8)
    features = []
    for one, other in pairs:
        states, offsets = hidden(f"{one}<|endoftext|>{other}")
        first = next(place for place, (_, end) in enumerate(offsets) if end > len(one))
        features.append(np.concatenate([states[:first].mean(axis=0), states[first + 1 :].mean(axis=0)]))
    assert found.predicted == predictions(features[:16], labels[:16], features[16:])


@pytest.mark.slow
def test_a_pair_of_a_bert_has_its_token_types(tmp_path):
    save(tmp_path / "bert", "bert", 96)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    template = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    tokenizer.backend_tokenizer.post_processor = template
    tokenizer.save_pretrained(tmp_path / "bert")
    pairs, labels, task = write_pairs(tmp_path)
    found = probe(LoadedModel.open(tmp_path / "bert"), [tmp_path / "train.tsv"], [tmp_path / "test.tsv"], task, batch_size=8)
    reference = transformers.AutoModel.from_pretrained(tmp_path / "bert").eval()

    def features(types):
        made = []
        for one, other in pairs:
            given = tokenizer.backend_tokenizer.encode(one, other)
            texts_of = np.asarray([-1 if text is None else text for text in given.sequence_ids])
            ids, segments = torch.tensor([given.ids]), types * torch.tensor([given.type_ids])
            with torch.no_grad():
                states = reference(ids, token_type_ids=segments).last_hidden_state[0].numpy()
            made.append(np.concatenate([states[texts_of == text].mean(axis=0) for text in (0, 1)]))
        return made

    expected, without = (predictions(some[:16], labels[:16], some[16:]) for some in (features(1), features(0)))
    assert found.predicted == expected != without


def test_mistakes_are_one_line(model, tmp_path, monkeypatch):
    (tmp_path / "one.tsv").write_text("text\tlabel\na\tx\nb\tx\n")
    files = [tmp_path / "one.tsv"]
    with pytest.raises(UserError, match=r"one\.tsv: has the label 'x' alone"):
        probe(model, files, files, Task("classification"))
    with pytest.raises(UserError, match="answers cannot be probed"):
        probe(model, files, files, Task("answers"))
    (tmp_path / "two.tsv").write_text("text\tlabel\na\tx\nb\ty\n")
    damaged = dataclasses.replace(model, parameters=jax.tree.map(lambda one: one * np.nan, model.parameters))
    with pytest.raises(UserError, match="the state of a token is no finite number; expected weights that give one"):
        probe(damaged, [tmp_path / "two.tsv"], [tmp_path / "two.tsv"], Task("classification"))
    monkeypatch.setitem(__import__("sys").modules, "sklearn.linear_model", None)
    with pytest.raises(UserError, match=r"sklearn: not installed; .* train the probe; .*'wechsel-jax\[eval\]'"):
        probe(model, files, files, Task("classification"))
