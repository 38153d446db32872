"""Tables 1 to 5 and Figure 2 of the SALT paper: methods, or helpers, under one budget, then knowledge and reading.

Command:  python -m train.compare --workdir=runs/salt-de \\
            --config=configs/salt_tables.py:table=1,lang=de,data=data,corpora=corpora,source=SMOLLM2,helper=GERMAN_GPT2
          (lang: de, ar, vi, zh; steps=, rows=, length=, rate=, methods= and seed= for another budget, scale=paper for that of
          configs/salt.py and for cc.en.300.bin and cc.LANG.300.bin of fastText in `data`, on an accelerator; limit= for some of
          the items; without source the bundled English GPT-2, without helper one that is trained here, as in
          configs/compare_initializers.py)
Cost:     table 5 with SmolLM2-135M, seven methods (methods=) of 60 steps of 4 x 128 tokens: 45 minutes on 2 CPU cores with
          other work.
          With the bundled model seven runs of 200 steps of about a CPU second, a helper of 400, 20 minutes for word vectors,
          and with limit=400 two minutes of questions for each model.
Expected: the paper, Gemma-2b in German after 8 million sentences: ARC 29.43 (Multivariate), 26.95 (FOCUS), 28.74 (OFA), 30.80
          (SALT), TruthfulQA 24.37, 24.24, 24.62, 24.75; XQuAD, F1: 34.62, 39.00, 38.99, 44.41. At this size near chance.

table=1    ARC and TruthfulQA (Okapi's translations), without examples; for Chinese and Vietnamese XCOPA, too
table=2    XQuAD with three examples, in the language and in English
table=3    XQuAD with three examples across languages: text in one, question in the other. The paper has MLQA there.
table=4    as 1, SALT alone: a run for each kind of helper, helper=BERT, GPT or T5's encoder, each with its own tokenizer
table=5    held-out loss after each tenth of the steps, SALT alone: a run for each helper, as of 4; no questions
figure=2   is the training loss in metrics.jsonl of any of these; report.html draws it

All methods have the helper's tokenizer, as in the paper, and its four methods share SALT's overlap, so that they differ in
the other rows alone; FOCUS has vectors of words there (`focus_words`), not of tokens. OFA keeps vectors of both languages, as
its own paper has them; SALT's gave it those of the target's alone. `data` is made by `python -m benchmarks.language_data`,
`corpora` holds labelled/{okapi,xquad,xcopa}. HellaSwag, MLQA and Belebele, which the tables have too, are not in it: another
line of `QUESTIONS` reads them. The bundled model reads 128 tokens, which is too few for tables 2 and 3. In Arabic, Vietnamese
and Chinese the text to train on has XQuAD's own texts in it, so tables 2 and 3 mean something for German only.
"""

from pathlib import Path

from ml_collections import ConfigDict

from configs import compare_initializers, salt, wechsel_gpt2
from wechsel_jax import initializers
from wechsel_jax.training import config_arguments, one_phase

METHODS = "salt+focus_words+ofa+multivariate+wechsel+fvt+anker"
# In what may be given behind the colon.
BUDGET = {"steps": 200, "rows": 16, "length": 128, "rate": 1.5e-3}
LANGUAGES = ("de", "ar", "vi", "zh")
# Of each task: its form, its file below `labelled`, and settings; LANG stands for the language.
QUESTIONS = {
    "1": {
        "ARC": ("choice", "okapi/m_arc-LANG_test.json.gz", {}),
        "TruthfulQA": ("choice", "okapi/m_truthfulqa-LANG_validation.json.gz", {}),
        "XCOPA": ("choice", "xcopa/test.LANG.jsonl.gz", {}),
    },
    "2": {
        "XQuAD": ("reading", "xquad/xquad.LANG.json.gz", {"words": "LANG", "shots": 3}),
        "English XQuAD": ("reading", "xquad/xquad.en.json.gz", {"words": "en", "shots": 3}),
    },
    "3": {
        "English text": ("reading", "xquad/xquad.en.json.gz", {"questions": "xquad/xquad.LANG.json.gz", "shots": 3}),
        "English question": ("reading", "xquad/xquad.LANG.json.gz", {"questions": "xquad/xquad.en.json.gz", "shots": 3}),
    },
    "5": {},
}
QUESTIONS["4"] = QUESTIONS["1"]
XCOPA = ("vi", "zh")


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        **{"table": (*sorted(QUESTIONS),), "lang": LANGUAGES, "data": "data", "corpora": "corpora", "source": "", "helper": ""},
        **{"methods": "", "seed": 0, "limit": 0, "scale": ("small", "paper")},
        **{name: type(value) for name, value in BUDGET.items()},
    )
    language, table, paper = chosen["lang"], chosen["table"], chosen["scale"] == "paper"
    alone = salt.get_config()
    papers = {"steps": alone.steps, "rows": alone.batch_size, "length": alone.block_length}
    papers["rate"] = alone.optimizer.peak_learning_rate
    budget = (papers if paper else BUDGET) | {name: chosen[name] for name in BUDGET if chosen[name] is not None}
    steps = budget["steps"]
    methods = chosen["methods"] or ("salt" if table in ("4", "5") else METHODS)
    config = compare_initializers.get_config(f"lang={language},data={chosen['data']},steps={steps},methods={methods}")
    config.seed = chosen["seed"]
    config.source = chosen["source"] or config.source
    if chosen["helper"]:
        config.helper.checkpoint = config.tokenizer.directory = chosen["helper"]
    for name in ("focus_words", "ofa", "multivariate"):
        alike = {"method": name, **config.variants.get(name, {}), "overlap": initializers.METHODS["salt"].overlap}
        config.variants[name] = ConfigDict(alike)

    if paper:
        config.training = alone
        # There are files for that.
        alone.data.validation_fraction = 0.0
        wechsel_gpt2.take_crawl_vectors(config, language, chosen["data"])
    training = config.training
    training.steps, training.batch_size, training.block_length = steps, budget["rows"], budget["length"]
    training.optimizer.peak_learning_rate = budget["rate"]
    training.phases = one_phase(warmup=0.05, decay="cosine")
    training.eval_every = max(1, steps // 10)
    config.overrides = ConfigDict()

    labelled = Path(chosen["corpora"]) / "labelled"
    for name, (form, file, settings) in QUESTIONS[table].items():
        if name == "XCOPA" and language not in XCOPA:
            continue
        task = {"form": form, "file": str(labelled / file.replace("LANG", language)), "limit": chosen["limit"]}
        for setting, value in settings.items():
            value = value.replace("LANG", language) if isinstance(value, str) else value
            task[setting] = str(labelled / value) if setting == "questions" else value
        config.evaluation.tasks[name] = ConfigDict(task)
    return config
