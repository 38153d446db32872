r"""Fine-tuning on labelled examples, with the WECHSEL paper's settings (Minixhofer et al., 2022, appendix B, table 5).

Command:  python -m train.finetune --workdir=DIR \
            --config=configs/finetune.py:task=xnli,lang=de,model=roberta-german,data=labelled --config.seeds=3
Tasks:    `xnli` (pairs, accuracy; from files it trains on the 2,490 development pairs and is scored on the test set), `wikiann`
          (entities, micro F1), `pos` (word classes of a UD treebank, accuracy), `parsing` (its trees, LAS; `lang` is the
          treebank's name, as Indonesian-GSD), `srl` (semantic roles in columns as CoNLL 2005 has them, F1; tried
          with small files alone), `sib200` (topics), `tnews` and `ocnli` (of CLUE, in Chinese: topics of
          titles, in FewCLUE's few examples, and inference), `xquad` (answers, F1; it trains on SQuAD's file). Behind the colon
          `train=` and `validation=` name other files or data sets, and `--config.task.*` their columns:
          `train=hf://facebook/xnli:train#de` is the paper's training set.
Cost:     XNLI's 2,490 development pairs with a RoBERTa of 6 x 384: a pass of 3.5 minutes on 2 CPU cores, of 2.2 with
          task.group_by_length (benchmarks/finetuning.json). The paper's training set has 392,702 pairs.
Expected: the paper's table 2 for its WECHSEL-RoBERTa, after XNLI's whole training set: German 81.8 (XNLI) and 89.7 (WikiANN),
          Chinese 78.3 and 80.6, Swahili 75.1 and 87.4.

Table 5 names rate, batch, length, epsilon, moments, epochs, warm-up and decay; weight decay is 0 and the gradient's norm at
most 1, as in transformers' trainer, where it names nothing.
"""

from pathlib import Path

from ml_collections import ConfigDict

from wechsel_jax.errors import UserError
from wechsel_jax.training import config_arguments, default_config, one_phase

PAIRS = {"objective": "classification", "batch_size": 128, "epochs": 2.0}
TAGS = {"objective": "tagging", "batch_size": 32, "epochs": 10.0}
# What the files of each task are, below the folder of the data: settings of the run, those of the task, train, validation.
TASKS = {
    "xnli": (
        PAIRS,
        {"texts": ("premise", "hypothesis"), "columns": ("premise", "hypothesis", "label")},
        "xnli/dev-{lang}.tsv.gz",
        "xnli/test-{lang}.tsv.gz",
    ),
    "wikiann": (TAGS, {}, "wikiann/train-{lang}.tsv.gz", "wikiann/dev-{lang}.tsv.gz"),
    "pos": (TAGS, {}, "ud_pos/{lang}-train.txt.gz", "ud_pos/{lang}-dev.txt.gz"),
    "xquad": (
        {"objective": "answers", "batch_size": 32, "epochs": 2.0, "block_length": 384},
        {"stride": 128},
        "squad/train-v1.1.json",
        "xquad/xquad.{lang}.json.gz",
    ),
    "parsing": (
        {
            "objective": "parsing",
            "batch_size": 32,
            "epochs": 10.0,
            # The head is new and the model is not: SuPar's rates for the two.
            "optimizer": {"peak_learning_rate": 5e-5, "groups": ({"match": "^classifier/", "rate": 20.0},)},
        },
        {},
        "ud/{lang}-train.conllu.gz",
        "ud/{lang}-dev.conllu.gz",
    ),
    "srl": ({"objective": "roles", "batch_size": 32, "epochs": 10.0}, {}, "srl/{lang}-train.txt", "srl/{lang}-test.txt"),
    "tnews": (
        {"objective": "classification", "batch_size": 32, "epochs": 10.0},
        {"texts": ("sentence",), "label": "label_desc"},
        "fewclue_tnews/train_few_all.json.gz",
        "fewclue_tnews/test_public.json.gz",
    ),
    "ocnli": (PAIRS, {"texts": ("sentence1", "sentence2")}, "ocnli/train.10k.json.gz", "ocnli/dev.json.gz"),
    "sib200": (
        {"objective": "classification", "batch_size": 32, "epochs": 10.0},
        {"label": "category"},
        "sib200/train-{lang}.tsv.gz",
        "sib200/dev-{lang}.tsv.gz",
    ),
}


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        **{"task": (*TASKS,), "lang": "de", "model": "roberta-target", "data": "labelled", "train": "", "validation": ""},
    )
    settings, task, train, validation = TASKS[chosen["task"]]
    config = default_config()
    config.model.checkpoint = chosen["model"]
    data = Path(chosen["data"])
    for given, place in (("train", train), ("validation", validation)):
        before, language, behind = place.partition("{lang}")
        files = [path.relative_to(data).as_posix() for path in data.glob(f"{before}*{behind}")] if language else []
        languages = sorted(file[len(before) : -len(behind)] for file in files)
        if languages and not chosen[given] and chosen["lang"] not in languages:
            raise UserError(
                f"--config: lang={chosen['lang']}: {data}/{before}* has {', '.join(languages)}; expected one of these"
            )
    config.data.train = (chosen["train"] or str(data / train.format(lang=chosen["lang"])),)
    config.data.validation = (chosen["validation"] or str(data / validation.format(lang=chosen["lang"])),)
    config.block_length = 128
    config.optimizer.update(
        {"peak_learning_rate": 2e-5, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "clip_norm": 1.0}
    )
    config.phases = one_phase(warmup=0.1)
    config.update(settings)
    config.task.update(task)
    config.eval_every = 500
    config.checkpoint_every = 500
    return config
