"""Every initialiser on the same tokens, the same overlap rules, the same vectors and the same training: English to LANG.

Command:  python -m benchmarks.language_data --data=corpora --output=data
          python -m train.compare --config=configs/compare_initializers.py:lang=de,data=data --workdir=runs/initializers-de
          (lang: de, fr, sw, zh, ar, hi, vi, th, mg, su, ug; steps=1 for the perplexity before training only;
          methods=focus+salt+wechsel for some of them)
Cost:     24 minutes for German on 2 CPU cores that had other work, word vectors (minutes more) not counted.
Expected: docs/methods.md, and the figures in benchmarks/initializers.json.

The source is the bundled English GPT-2 (4 layers x 256). `data` holds LANG.train.txt and LANG.validation.txt, en.train.txt (for
the English word vectors) and the dictionaries wechsel_wiktionary/*.tsv of CPJKU/wechsel. Methods that compare tokens inside the
target language get fastText vectors of the target tokenizer's tokens (FOCUS) or words (SALT); those that need a model of the
target language (SALT, SAVA, OMP, CLP) get one of 2 layers x 128 that is trained here for 400 steps. Warm-up is 30 %, for
FullRand 50 % (benchmarks/demo_tuning.json); TransInner trains the tokens alone in its first tenth.
"""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import wechsel_gpt2
from wechsel_jax import demo
from wechsel_jax.comparison import default_config
from wechsel_jax.demo.settings import get_config as demo_config
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS
from wechsel_jax.training import config_arguments, one_phase, trans_inner_phases

DICTIONARIES = {
    **{"de": "german", "fr": "french", "sw": "swahili", "zh": "chinese", "ar": "arabic", "vi": "vietnamese"},
    **{"th": "thai", "hi": "hindi", "mg": "malagasy", "su": "sundanese", "ug": "uyghur"},
}
VARIANTS = {
    "wechsel_overlap": {"method": "wechsel", "overlap": "exact"},
    "tran": {"method": "wechsel", "weights": "sparsemax", "dictionary": "identical"},
    "focus_words": {"method": "focus", "token_vectors": "ngram"},
    "ofa_fuzzy": {"method": "ofa", "overlap": "fuzzy"},
}
# They need parallel text, and vectors of the source table's dimension, which are not made here; `methods=` may name them.
APART = ("trans_tokenization", "trelm")
# Behind a start: the rows are a regression's, from its own vectors, as `transfer --regression` makes them; or have been moved
# by so many steps, as `transfer --tune_coefficients` does; or have so large a share of residuals, as by `transfer --residual`;
# or, last of all, the head is fitted to how often tokens are, as `transfer --calibrate=unigram` does.
REGRESSION, TUNED, RESIDUAL, CALIBRATED = "-regression", "-tuned", "-residual", "-calibrated"


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(arguments, lang=(*DICTIONARIES,), data="data", steps=60, methods="")
    language, data, steps = chosen["lang"], Path(chosen["data"]), chosen["steps"]
    require_some(steps=steps)
    config = default_config()
    config.source = demo.path("english-gpt2")
    config.text.train = (str(data / f"{language}.train.txt"),)
    config.text.validation = (str(data / f"{language}.validation.txt"),)
    config.text.source = (str(data / "en.train.txt"),)
    if language in ("zh", "th"):
        config.text.words = (str(data / f"{language}.words.txt"),)
    config.vectors.train_here = True
    config.vectors.epochs = 3
    config.dictionary = str(data / "wechsel_wiktionary" / f"{DICTIONARIES[language]}.tsv")
    config.variants = ConfigDict(VARIANTS)
    ordinary = (*VARIANTS, *(method for method in METHODS if method not in APART))
    config.methods = tuple(chosen["methods"].split("+")) if chosen["methods"] else ordinary

    set_training(config.training, steps)
    config.training.phases = one_phase(warmup=0.3)
    set_schedules(config)
    _helper(config.helper.training)
    return config


def set_schedules(config: ConfigDict) -> None:
    """Gives TransInner its two phases and FullRand its longer warm-up, where they are compared over more than one step."""
    schedules = {"trans_inner": trans_inner_phases(warmup=0.3), "full_rand": one_phase(warmup=0.5)}
    for method in {*config.methods} & {*schedules} if config.training.steps > 1 else ():
        config.overrides[method] = ConfigDict({"phases": schedules[method]})


def study(arguments: str, small: int, papers: int, **own: str | int | tuple[str, ...]) -> tuple[ConfigDict, dict[str, Any]]:
    """Returns a comparison in one language, at a small scale or the paper's, and the arguments that say so.

    Args:
      arguments: lang=, data=, scale=, steps=, seed= and those of `own`.
      small: steps of the small scale, where `arguments` name none.
      papers: of the paper's.
      own: name -> default or known values, as of `config_arguments`.
    """
    known = {"lang": (*DICTIONARIES,), "data": "", "scale": ("small", "paper"), "steps": int, "seed": 0}
    chosen = config_arguments(arguments, **own, **known)
    paper = chosen["scale"] == "paper"
    default = papers if paper else small
    steps = default if chosen["steps"] is None else chosen["steps"]
    config = of_language(chosen["lang"], chosen["data"], steps)
    if paper:
        wechsel_gpt2.at_papers_scale(config, chosen["lang"], chosen["data"])
    config.seed, config.training.steps = chosen["seed"], steps
    return config, chosen


def of_language(language: str, data: str, steps: int) -> ConfigDict:
    """The comparison of a language with text in the folder `data`, or of the bundled German without one; no schedules.

    Raises:
      UserError: the language is not bundled, or there are no steps.
    """
    require_some(steps=steps)
    if not data and language != "de":
        raise UserError(f"--config: lang={language} without data=; expected the folder of benchmarks.language_data")
    config = get_config(f"lang={language},data={data},steps={steps}") if data else demo_config()
    if not data:
        _helper(config.helper.training)
    config.overrides = ConfigDict()
    config.training.steps = steps
    # What studies begin from; the demonstration has a recipe.
    config.training.optimizer.update({"peak_learning_rate": 1.5e-3, "groups": ()})
    return config


def require_some(**given: int | None) -> None:
    """Refuses an argument that is 0; None, where it is not given, stands for what the file has."""
    for name, value in given.items():
        if value == 0:
            raise UserError(f"--config: {name}=0 behind the colon; expected at least 1")


def variant(start: str) -> ConfigDict:
    """The settings of a start (`anker`, `wechsel-regression`, `anker-residual2`, `anker-tuned100`), as `variants` has them."""
    method = start.removesuffix(CALIBRATED)
    settings = {"calibrate": "unigram"} if method != start else {}
    for suffix, setting, like in ((TUNED, "tune_coefficients", 50), (RESIDUAL, "residual", 2)):
        method, found, number = method.partition(suffix)
        if found and not number.isdecimal():
            expected = f"a whole number behind {suffix}, as in {method}{suffix}{like}"
            raise UserError(f"--config: start {start}: expected {expected}")
        settings |= {setting: int(number)} if found else {}
    settings |= {"regression": True} if method.endswith(REGRESSION) else {}
    return ConfigDict({"method": method.removesuffix(REGRESSION)} | settings)


def _helper(training: ConfigDict) -> None:
    set_training(training, 400)
    training.phases = one_phase(warmup=0.1)
    training.eval_every = 400
    training.model.config = ConfigDict(
        {"model_type": "gpt2", "vocab_size": 8192, "n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": 128}
    )


def set_training(training: ConfigDict, steps: int) -> None:
    """Sets how each run of a comparison at this scale is trained, but for its phases."""
    training.steps = steps
    training.batch_size = 16
    training.block_length = 128
    training.model.dropout = 0.0
    training.optimizer.peak_learning_rate = 1.5e-3
    training.eval_every = max(1, steps // 2)
    training.checkpoint_every = max(1, steps)
    training.log_every = 10
