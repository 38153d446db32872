"""Target and source language, before and after training, in bits per byte and by minimal pairs: English to LANG.

Command:  python -m benchmarks.language_data --data=corpora --output=data
          python -m train.compare --config=configs/target_and_source.py:lang=de,data=data,corpora=corpora --workdir=runs/both-de
          (lang: de, fr, sw, zh; methods=anker+wechsel for some of them; seed=1; steps=20 for a first look)
Cost:     COST
Expected: benchmarks/target_and_source.json, told in docs/evaluation.md.

The protocol of Gren and Kurfali (EACL SRW 2026): text is scored in bits per byte, since perplexities of two tokenizers cannot
be compared, grammar by minimal pairs or, where a language has none here, by XCOPA; both on the target language and on the
source, which shows what is forgotten. The untouched source model is a row. Text is NTREX-128, the same news sentences in every
language. Nothing of it, and none of the pairs, is in the text that is trained on.

The source is the bundled English GPT-2 (4 layers x 256); training has the settings of configs/compare_initializers.py.
`corpora` holds parallel/ntrex/ and labelled/{clams,multiblimp,sling,xcopa}/, as in TASKS below.
"""

from pathlib import Path

from ml_collections import ConfigDict

from configs import compare_initializers
from wechsel_jax.training import config_arguments

# Of each language: its code in NTREX-128, and a file of forced choice.
TASKS = {
    "de": ("deu", "labelled/clams/deu.tsv.gz"),
    "fr": ("fra", "labelled/clams/fra.tsv.gz"),
    "sw": ("swa", "labelled/xcopa/test.sw.jsonl.gz"),
    "zh": ("zho-CN", "labelled/sling/zho.tsv.gz"),
}
METHODS = "anker+wechsel+wechsel_tfr+focus+fvt+trans_inner+full_rand"


def get_config(arguments: str = "") -> ConfigDict:
    given = {"lang": (*TASKS,), "data": "data", "corpora": "corpora", "steps": "200", "methods": METHODS, "seed": "0"}
    chosen = config_arguments(arguments, **given)
    passed = {name: chosen[name] for name in ("lang", "data", "steps", "methods")}
    config = compare_initializers.get_config(",".join(f"{name}={value}" for name, value in passed.items()))
    config.seed = int(chosen["seed"])
    code, choice = TASKS[chosen["lang"]]
    corpora = Path(chosen["corpora"])
    config.evaluation.before = True
    files = {
        "target text": ("text", f"parallel/ntrex/{code}.txt.gz"),
        "English text": ("text", "parallel/ntrex/eng.txt.gz"),
        "target choice": ("choice", choice),
        "English pairs": ("choice", "labelled/multiblimp/eng.tsv.gz"),
    }
    for name, (form, file) in files.items():
        config.evaluation.tasks[name] = ConfigDict({"form": form, "file": str(corpora / file)})
        if form == "text":
            config.evaluation.tasks[name].text_bytes = 100_000
    return config
