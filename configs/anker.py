"""Anker beside the published methods, under one protocol: English to LANG, seed by seed.

Needs:    pip install -e ".[train,vectors]" jieba scikit-learn, and corpora/ as benchmarks/language_data.py describes it.
Command:  python -m benchmarks.language_data --data=corpora --output=data   # text, and data/wechsel_wiktionary/
          python -m benchmarks.anker dictionaries data                      # data/dictionaries/: smaller and shuffled ones
          for lang in de sw zh; do for seed in 0 1 2; do
            python -m train.compare --config=configs/anker.py:lang=$lang,seed=$seed,data=data --workdir=runs/anker/$lang-$seed
          done; done
          python -m benchmarks.anker gather runs/anker
          Also in the committed figures, with --workdir=runs/anker/LANG-0-NAME and data=data:
            lang=mg,methods=anker+wechsel (and fr, su, vi, ug, ar): languages on which nothing was chosen
            lang=sw,methods=anker_shuffled+anker_no_regression+... (names in `variants`): controls and parts
            lang=de,methods=anker_text_1+anker_text_4+anker_text_16 (and sw): less text
            lang=sw,domain=other,methods=anker_other_domain (and de, zh): anker counts text of another domain
            lang=sw,methods=anker+wechsel,steps=800: four times as long
            lang=sw,methods=anker+wechsel,warmup=0.1: a third of the warm-up
            lang=sw,methods=anker+wechsel,rate=0.003: twice the highest learning rate (and 0.00075, 0.005; focus: 0.003)
            lang=sw,methods=anker,steps=100: other lengths (and 400; with rate=0.003, and then wechsel: 400, 800)
            lang=sw,methods=wechsel_tfr+ofa+trans_inner+anker_dictionary_5000 (the first three also in de, zh): the other rivals
            lang=de,methods=anker+wechsel+focus,rate=0.003 (and zh; anker+wechsel with steps=800; anker with steps=100)
            lang=zh,methods=anker_calibrated: calibration in another language
            lang=sw,methods=anker+wechsel,model=roberta,source=runs/masked_english/export (and de, zh): a masked model, which
              configs/masked_english.py trains
            lang=sw,methods=trained_rows,rate=0.003,source=sw-trained (and steps=800): rows as anker has them after 800 steps at
              this rate, from `python -m benchmarks.anker trained_rows runs/anker/sw-0-NAME/anker sw-trained`
          python -m benchmarks.anker_probe corpora/labelled runs/anker   # MasakhaPOS, MasakhaNEWS, UD: see that file
          Not run: matrix=full, for one GPU (languages de, fr, sw, zh, vi, mg, seeds 0 to 2, seven methods and 2,000 steps);
          variants=1, all variants, perplexity before training only
Cost:     about 4 minutes of training a method, language and seed on 2 CPU cores; word vectors not counted.
Expected: docs/anker.md, and the figures in benchmarks/anker.json.

The source is the bundled English GPT-2 (4 layers x 256) or the one named. All methods have the same target tokenizer (8,192
tokens), batches, learning rate and held-out text. The schedule was tuned for none of them, but for two favours to what anker is
compared with: FullRand has the best of three warm-ups (benchmarks/demo_tuning.json) and TransInner its two phases. WECHSEL's
word vectors are scaled and centred, as in configs/demo.py. Anker counts the texts that the word vectors were trained on, all of
them, where its default is 16 MiB of either (`anker_text_16`).
"""

from pathlib import Path

from ml_collections import ConfigDict

from configs.compare_initializers import DICTIONARIES as OF_ALL
from configs.compare_initializers import require_some, set_schedules, set_training
from wechsel_jax import demo
from wechsel_jax.comparison import default_config
from wechsel_jax.errors import UserError
from wechsel_jax.training import config_arguments, one_phase

DICTIONARIES = {language: OF_ALL[language] for language in ("de", "sw", "zh", "fr", "vi", "mg", "su", "ug", "ar")}
METHODS = {
    "reduced": ("anker", "wechsel", "focus", "full_rand"),
    "full": ("anker", "wechsel", "wechsel_tfr", "focus", "ofa", "trans_inner", "full_rand"),
}
STEPS = {"reduced": 200, "full": 2000}
WARMUP = 0.3
LEARNING_RATE = 1.5e-3
EVALUATIONS = {"reduced": 8, "full": 20}
# Languages with text of another domain: encyclopedia instead of novels, the Bible instead of news and reviews.
OTHER_DOMAIN = ("de", "sw", "zh")
MEBIBYTE = 1 << 20
TEXT_SIZES = (1, 4, 16)


def variants(dictionary: Path) -> dict[str, dict]:
    """Anker without one of its parts, with less to go on, and with what should make it useless."""
    sized = {size: str(dictionary.with_suffix(f".{size}.tsv")) for size in ("500", "5000", "shuffled")}
    changed = {
        # Without one part, or with copies.
        "anker_no_learning": {"rounds": 0},
        "anker_no_regression": {"regression": False},
        "anker_no_word_start": {"word_start": 0.0},
        "anker_copies": {"overlap": "exact"},
        # With less to go on.
        "anker_dictionary_0": {"dictionary": "identical"},
        "anker_dictionary_500": {"dictionary": sized["500"]},
        "anker_dictionary_5000": {"dictionary": sized["5000"]},
        **{f"anker_text_{size}": {"text_bytes": size * MEBIBYTE} for size in TEXT_SIZES},
        # Controls: what the dictionary says is wrong, and what frequency and word start give almost alone.
        "anker_shuffled": {"dictionary": sized["shuffled"]},
        "anker_shuffled_no_learning": {"dictionary": sized["shuffled"], "rounds": 0},
        "anker_one_dimension": {"dimensions": 1, "rounds": 0},
        # Others with what can be taken from anker.
        "wechsel_word_start": {"method": "wechsel", "word_start": 0.1},
        "wechsel_calibrated": {"method": "wechsel", "calibrate": "unigram"},
        "anker_calibrated": {"calibrate": "unigram"},
    }
    return {name: {"method": "anker", **settings} for name, settings in changed.items()}


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        matrix=("reduced", "full"),
        lang=(*DICTIONARIES,),
        seed=0,
        data="data",
        domain=("own", "other"),
        variants=("0", "1"),
        methods="",
        steps=int,
        warmup=WARMUP,
        rate=LEARNING_RATE,
        model=("gpt2", "roberta"),
        source=demo.path("english-gpt2"),
    )
    require_some(steps=chosen["steps"])
    language, data, matrix, all_variants = chosen["lang"], Path(chosen["data"]), chosen["matrix"], chosen["variants"] == "1"
    dictionary = data / "wechsel_wiktionary" / f"{DICTIONARIES[language]}.tsv"
    config = default_config()
    config.seed = chosen["seed"]
    config.source = chosen["source"]
    config.text.train = (str(data / f"{language}.train.txt"),)
    config.text.validation = (str(data / f"{language}.validation.txt"),)
    config.text.source = (str(data / "en.train.txt"),)
    if language == "zh":
        config.text.words = (str(data / "zh.words.txt"),)
    config.vectors.train_here = True
    config.vectors.epochs = 3
    config.dictionary = str(dictionary)
    config.transfer.normalize = True
    config.transfer.center = True
    config.transfer.text_bytes = 64 * MEBIBYTE
    known = variants(data / "dictionaries" / f"{language}.tsv")
    if chosen["domain"] == "other":
        if language not in OTHER_DOMAIN:
            raise UserError(
                f"--config: domain=other: no such text of {language}; expected lang to be {', '.join(OTHER_DOMAIN)}"
            )
        sides = {"source_text": "en_other", "target_text": f"{language}_other"}
        known["anker_other_domain"] = {"method": "anker"} | {
            name: (str(data / f"{file}.train.txt"),) for name, file in sides.items()
        }
    default = ("anker", "wechsel", *known) if all_variants else METHODS[matrix]
    if chosen["source"] != demo.path("english-gpt2"):
        # A source that has the target's tokens already: all rows are copied.
        known["trained_rows"] = {"method": "mean"}
    config.variants = ConfigDict(known)
    if chosen["domain"] == "other" and not all_variants:
        default = (*default, "anker_other_domain")
    config.methods = tuple(chosen["methods"].split("+")) if chosen["methods"] else default

    if chosen["model"] == "roberta":
        config.tokenizer.style = "roberta"
        config.training.objective = "mlm"
    steps = chosen["steps"] or (1 if all_variants else STEPS[matrix])
    set_training(config.training, steps)
    config.training.phases = one_phase(warmup=chosen["warmup"])
    config.training.eval_every = max(1, steps // EVALUATIONS[matrix])
    config.training.optimizer.peak_learning_rate = chosen["rate"]
    set_schedules(config)
    return config
