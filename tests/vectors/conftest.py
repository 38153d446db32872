"""Tiny fastText models, trained once: skipgram and cbow, several n-gram lengths, several scripts.

With fewer than 11 threads fastText 0.9.3 leaves rows of its matrix as it finds the memory, which may hold NaN.
"""

import random

import fasttext
import pytest

SCRIPTS = {
    "latin": "the house Haus größer naïve coöperation über ß Straße it's l'eau x yz The HOUSE",
    "cyrillic": "дом большой человек привет мир ёлка",
    "greek": "σπίτι άνθρωπος κόσμος",
    "arabic": "بيت كبير السلام عليكم",
    "devanagari": "हिन्दी भाषा नमस्ते दुनिया",
    "han": "中国 人民 银行 世界 家",
    "emoji": "😀 👍🏽 🇩🇪",
    "digits": "1914 3,5 % & # @",
}


def _sentences(seed: int) -> str:
    words = [word for text in SCRIPTS.values() for word in text.split()]
    draw = random.Random(seed)
    lines = (" ".join(draw.choices(words, weights=[1 + i % 7 for i in range(len(words))], k=12)) for _ in range(400))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(_sentences(0), encoding="utf-8")
    return path


@pytest.fixture(scope="session", params=["skipgram-5-5", "cbow-3-6", "skipgram-1-3", "cbow-0-0", "skipgram-2-4-labels"])
def model(request, corpus, tmp_path_factory):
    """(path of a .bin, the same model opened by fasttext)."""
    name, smallest, largest, *labels = request.param.split("-")
    path = tmp_path_factory.mktemp("models") / f"{request.param}.bin"
    if labels:
        corpus = path.with_suffix(".txt")
        corpus.write_text(_sentences(1).replace("Haus", "__label__haus"), encoding="utf-8")
    trained = fasttext.train_unsupervised(
        str(corpus),
        model=name,
        dim=12,
        minn=int(smallest),
        maxn=int(largest),
        bucket=3000,
        minCount=2,
        epoch=1,
        t=1,
        thread=11,
        verbose=0,
    )
    trained.save_model(str(path))
    return path, fasttext.load_model(str(path))


@pytest.fixture(scope="session")
def bin_path(corpus, tmp_path_factory):
    """A .bin with n-grams of 3 to 5 characters."""
    path = tmp_path_factory.mktemp("models") / "plain.bin"
    fasttext.train_unsupervised(
        str(corpus), dim=12, minn=3, maxn=5, bucket=3000, minCount=1, epoch=1, t=1, thread=11, verbose=0
    ).save_model(str(path))
    return path
