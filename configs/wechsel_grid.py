"""Table 7 of the WECHSEL paper: neighbors k and temperature tau, by probes and perplexity before any training.

Command:  python -m benchmarks.language_data --data=corpora --output=data
          python -m train.compare --config=configs/wechsel_grid.py:lang=de,data=data,corpora=corpora --workdir=runs/grid-de
          wechsel-jax report runs/grid-de/scores.json --output=grid.png --grid=neighbors,temperature
          (lang: de, fr, zh; method=wechsel_tfr for words without n-grams, the other grid of the paper's first version)
Cost:     not measured alone: the committed result was made beside other work.
Expected: benchmarks/wechsel_grid.json, told in docs/papers.md: for word classes the paper's best, k = 10 and tau = .1. The
          paper's German figures for RoBERTa-base: NLI 55.8 (k = 1, tau = 1), 58.9 (10, .1), 57.5 (10, 1), 55.4 (50, .1), 53.6
          (50, 1), random 44.5; POS 72.7, 76.0, 75.4, 75.4, 69.5, 49.1.

Linear probes of the last hidden state, as in the paper's appendix A: NLI by the means of premise and hypothesis side by side,
word classes by the mean of a word's tokens, and the language model's own bits per byte and perplexity. The model is the bundled
English GPT-2 (4 layers x 256). XNLI's probe is trained on the 2,490 development pairs and scored on the test set, that of the
word classes on the development set of the GSD treebank, since their training sets are large. The single step of training is
what `train.compare` needs at least; the models are scored before it.
"""

from pathlib import Path

from ml_collections import ConfigDict

from configs import compare_initializers
from wechsel_jax.training import config_arguments

TREEBANKS = {"de": "German", "fr": "French", "zh": "Chinese"}
# Name of a run -> k and tau.
GRID = {"k1_tau1": (1, 1.0), "k10_tau01": (10, 0.1), "k10_tau1": (10, 1.0), "k50_tau01": (50, 0.1), "k50_tau1": (50, 1.0)}


def get_config(arguments: str = "") -> ConfigDict:
    given = {"lang": (*TREEBANKS,), "data": "data", "corpora": "corpora", "method": ("wechsel", "wechsel_tfr")}
    chosen = config_arguments(arguments, **given)
    language, labelled = chosen["lang"], Path(chosen["corpora"]) / "labelled"
    config = compare_initializers.get_config(
        f"lang={language},data={chosen['data']},steps=1,methods={chosen['method']}+full_rand"
    )
    for name, (neighbors, temperature) in GRID.items():
        config.variants[name] = ConfigDict({"method": chosen["method"], "neighbors": neighbors, "temperature": temperature})
    config.methods = (*GRID, "full_rand")
    config.evaluation.before, config.evaluation.after = True, False
    treebank = f"{TREEBANKS[language]}-GSD"
    config.evaluation.tasks = ConfigDict({
        "text": {"form": "text", "file": str(config.text.validation[0]), "text_bytes": 200_000},
        "NLI": {
            "form": "probe",
            "file": str(labelled / "xnli" / f"test-{language}.tsv.gz"),
            "train": str(labelled / "xnli" / f"dev-{language}.tsv.gz"),
            "texts": ("premise", "hypothesis"),
            "columns": ("premise", "hypothesis", "label"),
        },
        "POS": {
            "form": "probe",
            "kind": "tagging",
            "file": str(labelled / "ud" / f"{treebank}-test.conllu.gz"),
            "train": str(labelled / "ud" / f"{treebank}-dev.conllu.gz"),
        },
    })  # fmt: skip
    return config
