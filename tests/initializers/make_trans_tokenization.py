"""Writes trans_tokenization.json: what the authors' package makes of words that were aligned, for two small tokenizers.

pip install trans-tokenizers==0.1.4 && python -m tests.initializers.make_trans_tokenization
"""

import copy
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from unittest import mock

import transtokenizers.transtokenizers as package
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

ENGLISH = ["the quick brown fox jumps over the lazy dog and the dog sleeps on", "she said that 12 houses of the street burnt"]
GERMAN = ["der schnelle braune fuchs springt über den faulen hund und der hund schläft weiter", "sie sagte dass 12 häuser"]
# Words as fast_align sees them, a line of its table each: count, English, German. "—" stands between the tokens of a word.
COUNTS = (40, 3, 11, 10, 9, 25, 100, 17, 12, 31, 10, 57, 10, 13)


def tokenizer(lines: list[str], size: int) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    backend.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def main() -> None:
    old, new = tokenizer(ENGLISH * 3, 80), tokenizer(GERMAN * 3, 72)
    words = [
        ["—".join(one.tokenize(word)) for word in " ".join(lines).split()] for one, lines in ((old, ENGLISH), (new, GERMAN))
    ]
    table = [(words[0][i], words[1][i], COUNTS[i % len(COUNTS)]) for i in range(min(map(len, words)))]
    table += [(words[0][i + 1], words[1][i], COUNTS[(i + 5) % len(COUNTS)]) for i in range(0, 14, 2)]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "table.tsv"
        path.write_text("".join(f"{a}\t{b}\t-1.0\t{c}.7\n" for a, b, c in table), encoding="utf-8")
        with mock.patch.object(package.transformers.AutoTokenizer, "from_pretrained", {"old": old, "new": new}.get):
            mapped, _ = package.map_tokens(str(path), "old", "new")
    # A token at a time: the package passes on what tokens have got from others, in the order of a set.
    found = {token: dict(counts) for token, counts in mapped.items()}
    for token in sorted(set(new.get_vocab()) - set(mapped)):
        seen = mock.Mock(unk_token="<unk>", vocab=[token], convert_ids_to_tokens=lambda _, token=token: token)
        seen.get_vocab.return_value = [token, *mapped]
        fresh = copy.deepcopy(mapped)
        with mock.patch.object(package.transformers.AutoTokenizer, "from_pretrained", return_value=seen):
            found[token] = dict(package.smooth_mapping("new", fresh)[0][1])
    plain = {token: weights for token, weights in found.items() if token not in ("<unk>", "<s>", "</s>")}
    rows: dict[str, dict[str, float]] = defaultdict(dict)
    for token, weights in plain.items():
        if weights != {"<unk>": 1.0}:
            rows[token] = {other: weight / sum(weights.values()) for other, weight in sorted(weights.items())}
    written = {"old": json.loads(old.backend_tokenizer.to_str()), "new": json.loads(new.backend_tokenizer.to_str())}
    written |= {"table": table, "rows": dict(sorted(rows.items()))}
    (Path(__file__).parent / "trans_tokenization.json").write_text(
        json.dumps(written, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
