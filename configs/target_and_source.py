"""Target and source language, before and after training, in bits per byte and by minimal pairs: English to LANG.

Command:  python -m benchmarks.language_data --data=corpora --output=data
          python -m train.compare --config=configs/target_and_source.py:lang=de,data=data,corpora=corpora --workdir=runs/both-de
          (lang: de, fr, sw, zh, vi, th; methods=anker+wechsel for some of them; seed=1; the committed result: steps=120,
          methods=anker+wechsel+focus+fvt+full_rand)
Cost:     25 minutes for German, five methods of 120 steps, on 2 CPU cores with other work; word vectors 12 minutes more.
Expected: benchmarks/target_and_source.json, told in docs/papers.md.

The protocol of Gren and Kurfali (EACL SRW 2026): text is scored in bits per byte, since perplexities of two tokenizers cannot
be compared, grammar by minimal pairs or, where a language has none here, by XCOPA; both on the target language and on the
source, which shows what is forgotten. The untouched source model is a row. Text is NTREX-128, the same news sentences in every
language. Nothing of it, and none of the pairs, is in the text that is trained on. Beside them two probes of the frozen models:
topics (SIB-200) and word classes (Universal Dependencies, MasakhaPOS).

The source is the bundled English GPT-2 (4 layers x 256); training has the settings of configs/compare_initializers.py.
`corpora` holds parallel/ntrex/ and labelled/{clams,multiblimp,...}/, as in TASKS below.
"""

from pathlib import Path

from ml_collections import ConfigDict

from configs import compare_initializers
from wechsel_jax.training import config_arguments

# Of each language: its codes in NTREX-128 and SIB-200, forced choice, and a treebank to train and to score a probe on. The
# source reads 128 tokens, which are too few for XCOPA in Thai, of whose letters it takes several each.
TASKS = {
    "de": ("deu", "deu_Latn", "clams/deu.tsv.gz", "ud/German-GSD-dev.conllu.gz", "ud/German-GSD-test.conllu.gz"),
    "fr": ("fra", "fra_Latn", "clams/fra.tsv.gz", "ud/French-GSD-dev.conllu.gz", "ud/French-GSD-test.conllu.gz"),
    "sw": ("swa", "swh_Latn", "xcopa/test.sw.jsonl.gz", "masakhapos/swa-train.txt.gz", "masakhapos/swa-test.txt.gz"),
    "zh": ("zho-CN", "zho_Hans", "sling/zho.tsv.gz", "ud/Chinese-GSD-dev.conllu.gz", "ud/Chinese-GSD-test.conllu.gz"),
    "vi": ("vie", "vie_Latn", "xcopa/test.vi.jsonl.gz", "ud/Vietnamese-VTB-dev.conllu.gz", "ud/Vietnamese-VTB-test.conllu.gz"),
    "th": ("tha", "tha_Thai", "", "ud/Thai-TUD-dev.conllu.gz", "ud/Thai-TUD-test.conllu.gz"),
}
METHODS = "anker+wechsel+wechsel_tfr+focus+fvt+trans_inner+full_rand"


def get_config(arguments: str = "") -> ConfigDict:
    given = {"lang": (*TASKS,), "data": "data", "corpora": "corpora", "steps": 200, "methods": METHODS, "seed": 0}
    chosen = config_arguments(arguments, **given)
    passed = {name: chosen[name] for name in ("lang", "data", "steps", "methods")}
    config = compare_initializers.get_config(",".join(f"{name}={value}" for name, value in passed.items()))
    config.seed = chosen["seed"]
    ntrex, sib, choice, words, scored_words = TASKS[chosen["lang"]]
    texts, labelled = Path(chosen["corpora"]) / "parallel" / "ntrex", Path(chosen["corpora"]) / "labelled"
    config.evaluation.before = True
    config.evaluation.tasks = ConfigDict({
        "target text": {"form": "text", "file": str(texts / f"{ntrex}.txt.gz"), "text_bytes": 100_000},
        "English text": {"form": "text", "file": str(texts / "eng.txt.gz"), "text_bytes": 100_000},
        **({"target choice": {"form": "choice", "file": str(labelled / choice)}} if choice else {}),
        "English pairs": {"form": "choice", "file": str(labelled / "multiblimp" / "eng.tsv.gz")},
        "target topics": {
            "form": "probe",
            "file": str(labelled / "sib200" / f"test-{sib}.tsv.gz"),
            "train": str(labelled / "sib200" / f"train-{sib}.tsv.gz"),
            "label": "category",
        },
        "target words": {
            "form": "probe",
            "kind": "tagging",
            "file": str(labelled / scored_words),
            "train": str(labelled / words),
        },
    })  # fmt: skip
    return config
