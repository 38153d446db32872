r"""Small Transformers from pretrained embeddings (Kim et al., "On Initializing Transformers with Pre-trained Embeddings").

Command:  python -m train.finetune --config=configs/kim.py:task=multi30k,rows=glove,init=pretrained_xavier --workdir=DIR
Before:   a tokenizer of the task's vocabulary and tables of its rows, for each side of a translation:
            wechsel-jax tokenizer --input=train.de.gz --algorithm=words --lowercase --output=kim/multi30k-glove/source
            wechsel-jax table --tokenizer=kim/multi30k-glove/source --vectors=german.txt --standardize=pretrained_xavier \
              --output=kim/multi30k-glove/source-pretrained_xavier.safetensors
          (init=xavier_pretrained likewise; pretrained without --standardize, shuffled with --shuffle=elements, shuffled_rows
          with --shuffle=rows_columns instead)
          and `target` likewise; with rows=bert or t5 `--source=MODEL` stands for `--algorithm=words` and for `--vectors`. IWSLT
          takes --min_count=5. `python -m benchmarks.kim` does all of it. Lower-cased words are what table 5 seems to have, 7.8k
          of German and 5.9k of English on Multi30k: so counted they are 7,857 and 5,977, with capitals 8,018 and 6,278.
Behind the colon:
  task=     multi30k or iwslt (translation, BLEU), sst2 or mnli (classification, accuracy)
  rows=     glove (300 wide, 10 heads), bert or t5 (768, of T5's classifiers 512; 8 heads); width= and heads= are others
  init=     xavier, pretrained, pretrained_xavier, shuffled (all entries) or shuffled_rows (rows and columns; the paper can be
            read as either), xavier_pretrained (tables 1 and 7)
  train=no positions=none   table 3's other rows; positions=paired has the exponents of Vaswani et al.
  tables=                   which sides of a translation begin with a table: both, source or target; the other with xavier
  source= target=           languages of a translation, de and en; kim= and data= the folders of the tables and of the data
Cost:     table 1's settings have 6 to 67 million parameters; Multi30k with rows=glove takes 20 epochs of 454 steps of 64 pairs.
Expected: table 1: Multi30k with GloVe 37.3 (xavier), 34.1 (pretrained), 38.7 (pretrained_xavier) BLEU; SST-2 82.7, 82.3, 83.6.
          Table 3, on the same task and in the same order, without positions 29.6, 31.9, 31.2; frozen 34.6, 33.9, 36.4.
          Figure 1 is the BLEU of the evaluations in metrics.jsonl, one an epoch.

Table 5 names epochs and batches, appendix A.2 Adam's settings, rates, dropout, layers and heads, and how many seeds there are.
The widths of the feed-forward layers and of the output follow from its numbers of parameters, see `wechsel_jax.models.vanilla`.
Neither schedule nor clipping is named: the rate is constant and nothing is clipped. A run exports its best evaluation, by loss
for translation and by accuracy otherwise, as the paper chooses epochs.
"""

import math
from pathlib import Path

from ml_collections import ConfigDict

from configs.compare_initializers import require_some
from wechsel_jax.errors import UserError
from wechsel_jax.training import config_arguments, default_config, one_phase

# Examples for training and the seeds of a setting; by rows: passes and batch.
TRANSLATION = {"objective": "translation", "seeds": 4, "block_length": 64}
LABELS = {"objective": "classification", "block_length": 128}
TASKS = {
    "multi30k": (TRANSLATION, 29_000, {"glove": (20, 64), "bert": (20, 128), "t5": (20, 96)}),
    "iwslt": (TRANSLATION, 206_112, {"glove": (20, 128), "bert": (20, 128), "t5": (20, 112)}),
    "sst2": (LABELS | {"seeds": 5}, 67_349, {"glove": (5, 128), "bert": (5, 128), "t5": (5, 128)}),
    "mnli": (LABELS | {"seeds": 3}, 392_702, {"glove": (9, 128), "bert": (10, 128), "t5": (10, 128)}),
}
FILES = {
    "multi30k": ("{name}.{source}.gz::{name}.{target}.gz", ("train",), ("val",)),
    "iwslt": ("{name}.{source}::{name}.{target}", ("train",), ("validation",)),
    # GLUE's training set in two parts, and its validation set, which has labels.
    "sst2": ("{name}.tsv.gz", ("train", "dev"), ("test",)),
    "mnli": ("{name}.jsonl", ("train",), ("validation_matched",)),
}
WIDTHS = {"glove": (300, 10), "bert": (768, 8), "t5": (768, 8)}
INITS = ("xavier", "pretrained", "pretrained_xavier", "shuffled", "shuffled_rows", "xavier_pretrained")
FROZEN = "^(?!token_embedding|target_embedding)"


def get_config(arguments: str = "") -> ConfigDict:
    choices = {"task": (*TASKS,), "rows": (*WIDTHS,), "init": INITS, "train": ("yes", "no")}
    choices |= {
        "positions": ("literal", "paired", "none"),
        "tables": ("both", "source", "target"),
        "source": "de",
        "target": "en",
        "kim": "kim",
        "data": "data",
    }
    chosen = config_arguments(arguments, **choices, width=int, heads=int)
    require_some(width=chosen["width"], heads=chosen["heads"])
    task, rows = chosen["task"], chosen["rows"]
    settings, examples, sizes = TASKS[task]
    translating = settings["objective"] == "translation"
    for name in () if translating else ("tables", "source", "target"):
        if name in (part.partition("=")[0] for part in arguments.split(",")):
            raise UserError(
                f"--config: {name}=: task={task} is no translation and does not read it; expected none; leave it out"
            )
    epochs, batch = sizes[rows]
    width, heads = WIDTHS[rows]
    width = 512 if rows == "t5" and not translating else width
    config = default_config()
    config.update(settings)
    pattern, *sides = FILES[task]
    for side, names in zip(("train", "validation"), sides, strict=True):
        files = [pattern.format(name=name, source=chosen["source"], target=chosen["target"]) for name in names]
        config.data[side] = tuple("::".join(str(Path(chosen["data"]) / one) for one in file.split("::")) for file in files)
    config.epochs, config.batch_size = float(epochs), batch
    config.eval_every = config.checkpoint_every = math.ceil(examples / batch)
    # The export is the best evaluation; the run goes on to its end.
    config.patience = 10**9
    config.model.config = ConfigDict(
        {
            "model_type": "transformer",
            "d_model": chosen["width"] or width,
            "nhead": chosen["heads"] or heads,
            "num_encoder_layers": 3,
            "num_decoder_layers": 3,
            "dim_feedforward": 512,
            "dropout": 0.1,
            "max_position_embeddings": 512,
            "positions": chosen["positions"],
        }
    )
    folder = Path(chosen["kim"]) / f"{task}-{rows}"
    sides = {"source": ("tokenizer", "embeddings"), "target": ("target_tokenizer", "target_embeddings")}
    for side, (tokenizer, table) in list(sides.items())[: 2 if translating else 1]:
        config.model[tokenizer] = str(folder / side)
        if chosen["init"] != "xavier" and chosen["tables"] in ("both", side):
            config.model[table] = str(folder / f"{side}-{chosen['init']}.safetensors")
    if translating:
        config.task.texts = (chosen["source"], chosen["target"])
        config.task.bleu = True
    else:
        config.task.texts = ("premise", "hypothesis") if task == "mnli" else ("sentence",)
    rate = 2e-4 if translating else 1e-4
    config.optimizer.update(
        {"peak_learning_rate": rate, "b1": 0.9, "b2": 0.98, "eps": 1e-9, "weight_decay": 0.0, "clip_norm": None}
    )
    config.phases = one_phase(warmup=0.0, decay="constant", trainable="all" if chosen["train"] == "yes" else FROZEN)
    return config
