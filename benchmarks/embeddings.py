"""Real embedding tables as Kim et al. (2024) describe theirs: distributions, positions, analogies, beside the paper's numbers.

    PYTHONPATH=. python -m benchmarks.embeddings --data=DATA --output=benchmarks/embeddings.json \
        --table="GloVe 6B, 50-d=glove.6B.50d.txt" --table="MiniLM (BERT)=all-MiniLM-L6-v2/"

DATA holds parallel/multi30k_raw/train.en.gz, labelled/sst2/train.tsv.gz and labelled/analogy/questions-words.txt.gz. Each place
is measured whole and, as in the paper, by the rows of what occurs twice or more in the English side of Multi30k and in SST-2:
words of word vectors, tokens of a model. Analogies are asked of the 5,893 most frequent words of Multi30k that have a row. What
stands in the output already is not measured again. Gemma and SmolLM2 were measured with --quick. Needs the extra `eval`.
"""

import dataclasses
import gzip
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from absl import flags

from benchmarks.results import read_flags
from wechsel_jax.inspection.analogies import read_questions
from wechsel_jax.inspection.embeddings import TableRows, open_tables, study
from wechsel_jax.program import program
from wechsel_jax.records.embeddings import Embeddings, EmbeddingsRecord
from wechsel_jax.report.embeddings_sections import named
from wechsel_jax.tokens import load_tokenizer

VALUES = flags.FlagValues()
flags.DEFINE_string("data", None, "Folder with the texts and the analogies.", flag_values=VALUES)
flags.DEFINE_multi_string("table", [], "LABEL=PLACE of a model or of word vectors.", flag_values=VALUES)
quick = "Whole tables alone, as they are: no transforms, probes or analogies."
flags.DEFINE_boolean("quick", False, quick, flag_values=VALUES)
flags.DEFINE_string("output", None, "JSON file for the result; read first where it exists.", flag_values=VALUES)

# As the paper prints them (tables 2 and 6): least, largest, mean, deviation.
PAPER = {
    "Xavier, SST-2": (-0.02, 0.02, 0, 0.01),
    "GloVe, SST-2": (-3.9, 3.9, -0.01, 0.37),
    "GloVe_Xavier, SST-2": (-0.13, 0.13, 0, 0.01),
    "BERT, SST-2": (-0.95, 0.73, -0.03, 0.04),
    "BERT_Xavier, SST-2": (-0.28, 0.23, 0, 0.01),
    "T5, SST-2": (-792, 332, 0.12, 22.6),
    "T5_Xavier, SST-2": (-0.51, 0.22, 0, 0.01),
    "Xavier, Multi30k": (-0.027, 0.027, 0, 0.016),
    "GloVe, Multi30k": (-3.93, 4.82, 0.053, 0.37),
    "GloVe_Xavier, Multi30k": (-0.17, 0.20, 0, 0.016),
    "mBERT, Multi30k": (-0.61, 0.22, -0.01, 0.05),
    "mT5, Multi30k": (-113.5, 94.5, 0.11, 11.5),
    "Xavier_BERT, SST-2": (-0.10, 0.05, -0.03, 0.04),
    "Xavier_T5, SST-2": (-38.9, 39.2, 0.12, 22.6),
}
# Table 4, in per cent of 1,631 questions: GloVe's row stands for all five that positions or scales do not change.
PAPER_ANALOGIES = {
    (): 87.3, ("scaled",): 87.3, ("positions",): 87.3, ("pretrained_xavier",): 87.3, ("pretrained_xavier", "scaled"): 87.3,
    ("pretrained_xavier", "positions"): 12.9, ("stretched_positions",): 11.1,
}  # fmt: skip
MULTI30K, SST2 = "Multi30k", "SST-2"
WORDS = 5893


def texts(data: Path) -> dict[str, list[str]]:
    """The lines of Multi30k's English side and the sentences of SST-2, in lower case."""
    with gzip.open(data / "parallel/multi30k_raw/train.en.gz", "rt", encoding="utf-8") as handle:
        captions = handle.read().lower().splitlines()
    with gzip.open(data / "labelled/sst2/train.tsv.gz", "rt", encoding="utf-8") as handle:
        reviews = [line.split("\t")[0].lower() for line in handle.read().splitlines()[1:]]
    return {MULTI30K: captions, SST2: reviews}


def words_of(lines: list[str]) -> list[str]:
    """Words and punctuation that occur twice or more, most frequent first."""
    counts = Counter(word for line in lines for word in re.findall(r"\w+(?:'\w+)?|[^\w\s]", line))
    return sorted((word for word, count in counts.items() if count > 1), key=lambda word: (-counts[word], word))


def rows_of(rows: TableRows, place: str, lines: list[str]) -> TableRows:
    """The rows of a task's vocabulary that the table has, in the order of their frequency."""
    if rows.table == "words":
        known = {word: i for i, word in enumerate(rows.words)}
        ids = [known[word] for word in words_of(lines) if word in known]
    else:
        tokenizer = load_tokenizer(place).backend_tokenizer
        counts = Counter(i for one in tokenizer.encode_batch(lines, add_special_tokens=False) for i in one.ids)
        ids = sorted((i for i, count in counts.items() if count > 1), key=lambda i: (-counts[i], i))
    order = np.array(ids)
    ascending = np.argsort(order)
    table = np.empty((len(order), rows.shape[1]), rows.dtype)
    table[ascending] = rows.read(order[ascending])
    return dataclasses.replace(TableRows.of(table, rows.name, rows.table), words=tuple(rows.words[i] for i in ids))


def paper_table(record: EmbeddingsRecord) -> str:
    """Range, mean and deviation of the rows of each task's vocabulary, and what the paper prints of its tables."""
    lines = ["| table | rows x dimensions | least | largest | mean | deviation |", "|---|---|---:|---:|---:|---:|"]
    own = {(): "{}", ("pretrained_xavier",): "{} at Xavier's spread", ("xavier_pretrained",): "Xavier at the spread of {}"}
    for task in (SST2, MULTI30K):
        for table in record.tables:
            if not table.name.endswith(f", {task}"):
                continue
            for one in table.distributions:
                if one.group == "all" and (one.steps in own):
                    values = " | ".join(f"{value:.3g}" if abs(value) > 5e-7 else "0" for value in _four(one))
                    lines.append(f"| {own[one.steps].format(table.name)} | {table.rows:,} x {table.dimensions} | {values} |")
        for name, values in PAPER.items():
            if name.endswith(f", {task}"):
                lines.append(f"| *the paper's {name}* | | " + " | ".join(f"*{value:g}*" for value in values) + " |")
    return "\n".join(lines)


def _four(one) -> tuple[float, ...]:
    return one.least, one.largest, one.mean, one.sd


def whole_table(record: EmbeddingsRecord) -> str:
    """Whole tables: how far from Xavier's, how long, how much one way; and what becomes of positions."""
    heads = ["table", "rows x dimensions", "deviation", "of Xavier's", "mean length", "mean cosine", "own positions' share"]
    heads += ["added ones' share", "linear reader, R²", "probe, R²", "probe, right of 64"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for table in record.tables:
        if table.name.endswith((f", {SST2}", f", {MULTI30K}")):
            continue
        plain = table.distributions[0]
        kind = table.settings.get("positions")
        own = next((f"{100 * one.share:.2g} % ({kind})" for one in table.absorptions if one.positions == kind), "–")
        new = _new(table)
        cells = [table.name, f"{table.rows:,} x {table.dimensions}", f"{plain.sd:.3g}", f"{plain.ratio:.3g} ×"]
        cells += [f"{plain.norm_mean:.3g}", f"{plain.anisotropy:.3f}", own, f"{100 * new.share:.2g} %", f"{new.linear:.3f}"]
        probed = new.probe_r2 is not None
        cells += [f"{new.probe_r2:.3f}", f"{100 * new.probe_accuracy:.0f} %"] if probed else ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _new(table: Embeddings):
    """What becomes of sinusoidal positions after sqrt(D), as in a new Transformer."""
    return next(one for one in table.absorptions if one.positions == "sinusoidal" and one.scale > 1 and not one.steps)


def scales_table(record: EmbeddingsRecord) -> str:
    """One table at each scale: the rows of Multi30k's vocabulary."""
    heads = ["table", "what is added to", "deviation", "of positions", "share of variance", "linear reader, R²", "probe, R²"]
    lines = ["| " + " | ".join([*heads, "probe, right of 64"]) + " |", "|---|---|" + "---:|" * 6]
    for table in record.tables:
        for one in table.absorptions if table.name.endswith(f", {MULTI30K}") else ():
            if one.positions == "sinusoidal":
                what = f"{named(one.steps)}{' × √D' if one.scale != 1 else ''}"
                cells = [table.name, what, f"{one.embedding_sd:.3g}", f"{one.position_sd:.3g}", f"{100 * one.share:.3g} %"]
                cells += [f"{one.linear:.3f}", f"{one.probe_r2:.3f}", f"{100 * one.probe_accuracy:.0f} %"]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def analogies_table(record: EmbeddingsRecord) -> str:
    """Table 4: analogies after each step, a column for each table, the paper's first."""
    tables = [table for table in record.tables if table.analogies]
    lines = [
        "| | the paper's GloVe | " + " | ".join(table.name for table in tables) + " |",
        "|---|" + "---:|" * (len(tables) + 1),
    ]
    for i, one in enumerate(tables[0].analogies):
        paper = PAPER_ANALOGIES.get(one.steps)
        cells = ["" if paper is None else f"*{paper}*"]
        found = [table.analogies[i] for table in tables]
        cells += [f"{100 * each.correct / each.total:.1f}" if each.total else "–" for each in found]
        lines.append(f"| {named(one.steps)} | " + " | ".join(cells) + " |")
    totals = [f"{table.analogies[0].total:,}" for table in tables]
    lines.append("| questions | *1,631* | " + " | ".join(totals) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Measures what is missing."""
    read_flags(VALUES, __doc__, arguments)
    output, data = Path(VALUES.output), Path(VALUES.data)
    record = EmbeddingsRecord.read(output) if output.exists() else EmbeddingsRecord()
    questions = read_questions(data / "labelled/analogy/questions-words.txt.gz")
    lines = texts(data)
    for given in VALUES.table:
        label, _, place = given.partition("=")
        rows = open_tables(place)[0]
        wanted = [(label, rows, {"steps": ()} if VALUES.quick else {"probe": True})]
        if not VALUES.quick:
            wanted += [
                (f"{label}, {SST2}", rows_of(rows, place, lines[SST2]), {}),
                (f"{label}, {MULTI30K}", rows_of(rows, place, lines[MULTI30K]), {"probe": True, "questions": questions}),
            ]
        for name, some, options in wanted:
            if any(table.name == name for table in record.tables):
                continue
            options["max_words"] = WORDS
            found = study(dataclasses.replace(some, name=name), kinds=("sinusoidal",), **options)
            record = EmbeddingsRecord((*record.tables, found))
            record.write(output)
            print(name, *(finding.text for finding in found.findings), sep="\n  ", flush=True)


if __name__ == "__main__":
    with program("benchmarks.embeddings"):
        main(sys.argv[1:])
