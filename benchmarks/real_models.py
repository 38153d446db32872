"""What every method makes of real models at step 0, before any training: bits per byte of German and Swahili text.

    PYTHONPATH=. python -m benchmarks.real_models --models=SMOLLM2,GEMMA --data=DATA --vectors=VECTORS --scratch=/tmp/real
        --output=benchmarks/real_models.json

MODELS are directories that transformers loads. DATA holds text/, tokenizers/ and dict/ as `TARGETS` names them; VECTORS holds
en.bin and one .bin a target. Perplexity is of one token, so it cannot compare tokenizers; bits per byte can. What stands in the
output already is not measured again, so an interrupted run goes on where it stopped. Needs torch and transformers.
"""

import dataclasses
import json
import lzma
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import flags

from benchmarks.machine import installed, processor
from benchmarks.results import read_flags
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.program import program
from wechsel_jax.records.names import PLAN_FILE

VALUES = flags.FlagValues()
flags.DEFINE_list("models", [], "Directories of the source models.", flag_values=VALUES)
flags.DEFINE_string("data", None, "Folder with text, tokenizers and dictionaries.", flag_values=VALUES)
flags.DEFINE_string("vectors", None, "Folder with en.bin and one .bin a target language.", flag_values=VALUES)
flags.DEFINE_string("scratch", None, "Folder for one transferred model at a time.", flag_values=VALUES)
flags.DEFINE_multi_string("method", [], "A name in `METHODS`, may be repeated; by default all that fit.", flag_values=VALUES)
flags.DEFINE_list("languages", [], "Names in `TARGETS`; by default all.", flag_values=VALUES)
flags.DEFINE_integer("text_bytes", 12_000, "How much text of a target language is scored.", flag_values=VALUES)
flags.DEFINE_integer("english_bytes", 48_000, "How much English text is scored, by the source models.", flag_values=VALUES)
flags.DEFINE_integer("window", 512, "Tokens that the model sees at once.", flag_values=VALUES)
flags.DEFINE_string("output", None, "JSON file for the result; read first where it exists.", flag_values=VALUES)


@dataclasses.dataclass(frozen=True)
class Target:
    """One target language: what its name is, and where under --data or --vectors its files lie; `corpus` is never scored."""

    name: str
    tokenizer: str
    text: str
    dictionary: str
    vectors: str
    corpus: str


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of the table: a method and how it is called.

    `helper` asks for the other model as the target-language model, `same_text` for text of the target language on both sides,
    `fitted` for text of the target language to fit new rows on.
    """

    method: str
    options: dict = dataclasses.field(default_factory=dict)
    helper: bool = False
    same_text: bool = False
    fitted: bool = False


ENGLISH = "text/en.wikipedia_mlqa_xquad.txt.xz"
# What anker counts; the word vectors were trained on the same novels.
ENGLISH_CORPUS = "text/en.eltec.txt.xz"
TARGETS = {
    "de": Target(
        "German",
        "tokenizers/de/bpe-50k",
        "text/de.wikipedia_mlqa_xquad.txt.xz",
        "dict/wechsel_wiktionary/german.tsv",
        "de.bin",
        "text/de.eltec.txt.xz",
    ),
    "sw": Target(
        "Swahili",
        "tokenizers/sw/bpe-50k",
        "text/sw.wikipedia_tydiqa.txt.xz",
        "dict/wechsel_wiktionary/swahili.tsv",
        "sw.bin",
        "text/sw.globalvoices_lafand.txt.xz",
    ),
}
# Full covariance: noise that stays within what the source table's rows have in common.
COVARIANCE = {"noise": "multivariate"}
WORDS = {"token_vectors": "ngram"}
METHODS = {
    "trans_inner": Variant("trans_inner"),
    "mean": Variant("mean"),
    "multivariate": Variant("multivariate"),
    "wechsel": Variant("wechsel"),
    "wechsel, shared tokens copied": Variant("wechsel", {"overlap": "exact"}),
    "wechsel, shared tokens copied, covariance noise": Variant("wechsel", {"overlap": "exact", **COVARIANCE}),
    "wechsel_tfr": Variant("wechsel_tfr"),
    "wechsel_tfr, shared tokens copied, covariance noise": Variant("wechsel_tfr", {"overlap": "exact", **COVARIANCE}),
    "anker": Variant("anker"),
    "anker, shared tokens copied": Variant("anker", {"overlap": "exact"}),
    "anker, shared tokens copied, the target's text counted for both": Variant("anker", {"overlap": "exact"}, same_text=True),
    "ofa": Variant("ofa"),
    "focus": Variant("focus", WORDS),
    "focus, covariance noise": Variant("focus", WORDS | COVARIANCE),
    "clp, other model as helper, covariance noise": Variant("clp", COVARIANCE, helper=True),
    "omp, other model as helper, covariance noise": Variant("omp", COVARIANCE, helper=True),
    "salt, other model as helper, covariance noise": Variant("salt", COVARIANCE, helper=True),
    "fvt": Variant("fvt"),
    "fvt, source tokens kept": Variant("fvt", {"keep_source": True}),
    "fvt, attention matched": Variant("fvt", {"match_attention": 150}, fitted=True),
}


def main() -> None:
    """Measures what the output does not hold yet and writes it after every measurement."""
    output = Path(VALUES.output)
    result = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {"models": {}}
    settings = {name: VALUES[name].value for name in ("text_bytes", "english_bytes", "window")}
    if result.get("settings", settings) != settings:
        raise UserError(f"{output}: is of other settings, {result['settings']}; expected the same; name another file")
    result |= {"machine": machine(), "settings": settings}
    for directory in map(Path, VALUES.models):
        others = [Path(other) for other in VALUES.models if Path(other) != directory]
        for _ in measure_model(directory, others, result["models"].setdefault(directory.name, {})):
            with new_file(output, "w") as handle:
                handle.write(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(table(result))


def measure_model(directory: Path, others: list[Path], found: dict) -> Iterator[None]:
    """Fills `found` with everything about one source model; yields after every measurement."""
    data = Path(VALUES.data)
    if "english" not in found:
        found["english"] = perplexity(directory, read_text(data / ENGLISH, VALUES.english_bytes), VALUES.window)
        report(directory.name, "English", "its own tokenizer", found["english"])
        yield
    for code in VALUES.languages or TARGETS:
        target = TARGETS[code]
        text = read_text(data / target.text, VALUES.text_bytes)
        language = found.setdefault("targets", {}).setdefault(code, {"name": target.name, "text": target.text, "methods": {}})
        if "source" not in language:
            language["source"] = perplexity(directory, text, VALUES.window)
            report(directory.name, target.name, "its own tokenizer", language["source"])
            yield
        for name in VALUES.method or METHODS:
            if name in language["methods"] or (METHODS[name].helper and not others):
                continue
            try:
                language["methods"][name] = measure_method(directory, others, METHODS[name], target, text)
            except UserError as error:  # tokenizers of two kinds cannot be one, which is no reason to stop
                print(f"{directory.name}, {target.name}, {name}: left out: {error}", file=sys.stderr, flush=True)
                continue
            report(directory.name, target.name, name, language["methods"][name])
            yield


def measure_method(directory: Path, others: list[Path], variant: Variant, target: Target, text: str) -> dict:
    """Transfers the model, checks what came out, scores it, and deletes it."""
    from wechsel_jax import transfer

    place = Path(VALUES.scratch) / "transferred"
    options = inputs(variant, target, Path(VALUES.data), Path(VALUES.vectors)) | variant.options
    if variant.helper:
        options["helper"] = others[0]
    started = time.perf_counter(), time.process_time()
    record = transfer(directory, Path(VALUES.data) / target.tokenizer, place, overwrite=True, log=lambda line: None, **options)
    seconds = {"wall": time.perf_counter() - started[0], "cpu": time.process_time() - started[1]}
    try:
        found = {
            "counts": record["counts"],
            "seconds": {clock: round(value, 1) for clock, value in seconds.items()},
            "similarity": record["similarity"],
            "alignment": record["alignment"],
            "checks": check(directory, place),
        }
        return found | perplexity(place, text, VALUES.window, starts_with(directory))
    finally:
        shutil.rmtree(place)


def inputs(variant: Variant, target: Target, data: Path, vectors: Path) -> dict:
    """The arguments of `transfer` for a method: word vectors of both languages, of the target alone, text, or nothing."""
    method = variant.method
    options: dict = {"method": method}
    if method == "anker":
        options |= {"source_text": data / ENGLISH_CORPUS, "target_text": data / target.corpus}
        options["dictionary"] = data / target.dictionary
    if variant.fitted:
        options["target_text"] = data / target.corpus
    if variant.same_text:
        options |= {"source_text": options["target_text"], "dictionary": "identical"}
    if method in ("wechsel", "wechsel_tfr", "ofa"):
        options |= {"source_vectors": vectors / "en.bin", "dictionary": data / target.dictionary}
    if method in ("wechsel", "wechsel_tfr", "ofa", "focus", "salt"):
        options["target_vectors"] = vectors / target.vectors
    return options


def perplexity(directory: Path, text: str, window: int, first: str | None = None) -> dict:
    """Scores a text, window by window, without overlap.

    Args:
      directory: the model and its tokenizer.
      text: what is scored.
      window: tokens that the model sees at once.
      first: the role of the token that every window starts with, "bos" or ""; by default what the tokenizer does.

    Returns:
      {"perplexity": of one token, "bits_per_byte", "standard_error": of bits_per_byte, over windows, "tokens", "bytes": those
      scored, "bytes_per_token", "uniform": bits per byte if all tokens were equally likely}.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from wechsel_jax import Vocabulary, load_tokenizer

    tokenizer = load_tokenizer(directory)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if vocabulary.join(ids) != text.encode():
        raise UserError(
            f"{directory}: its tokenizer does not keep the text; expected one that does; bits per byte would be wrong"
        )
    start = [vocabulary.id_with_role("bos")] if (starts_with(directory) if first is None else first) else []
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    step, nats, lengths, tokens = window - len(start), [], [], 0
    with torch.inference_mode():
        for begin in range(0, len(ids), step):
            row = start + ids[begin : begin + step]
            if len(row) < 2:
                continue
            logits = model(torch.tensor([row])).logits[0, :-1]
            nats.append(torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum").item())
            lengths.append(sum(len(vocabulary.bytes[token]) for token in row[1:]))
            tokens += len(row) - 1
    bits = np.asarray(nats) / math.log(2)
    rate = float(bits.sum() / sum(lengths))
    errors = bits - rate * np.asarray(lengths)
    return {
        "perplexity": math.exp(sum(nats) / tokens),
        "bits_per_byte": rate,
        "standard_error": math.sqrt((errors**2).sum() * len(bits) / max(1, len(bits) - 1)) / sum(lengths),
        "tokens": tokens,
        "bytes": sum(lengths),
        "bytes_per_token": sum(lengths) / tokens,
        "uniform": math.log2(len(vocabulary)) * tokens / sum(lengths),
    }


def starts_with(directory: Path) -> str:
    """Returns "bos" where the model's tokenizer starts every text with that token (Gemma fails without it), else ""."""
    from wechsel_jax import load_tokenizer

    tokenizer = load_tokenizer(directory)
    return "bos" if tokenizer("").get("input_ids", [])[:1] == [tokenizer.bos_token_id] else ""


def check(source: Path, target: Path) -> dict:
    """Proves what a transfer promises, with torch's reader of safetensors and transformers' loader.

    Returns:
      {"missing", "unexpected": keys that transformers misses or does not know, "other_tensors": how many were compared and
      "other_tensors_equal", "copied_rows": how many, "copied_rows_equal": bit for bit, "special": target token -> source token,
      "logit_difference": the largest between both models, on copied tokens}.
    """
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    from wechsel_jax import Checkpoint, TransferPlan, Vocabulary, load_tokenizer

    plan = TransferPlan.load(target / PLAN_FILE)
    vocabularies = [Vocabulary.from_tokenizer(load_tokenizer(directory)) for directory in (source, target)]
    tables = {tensor.name for tensor in Checkpoint.open(source).vocabulary_tensors()}
    copied = torch.from_numpy(np.flatnonzero(plan.copy >= 0))
    origin = torch.from_numpy(plan.copy[plan.copy >= 0].astype(np.int64))
    with safe_open(source / "model.safetensors", "pt") as old, safe_open(target / "model.safetensors", "pt") as new:
        others = sorted(set(old.keys()) - tables)
        same = [same_bits(old.get_tensor(name), new.get_tensor(name)) for name in others]
        rows = [same_bits(old.get_tensor(name)[origin], new.get_tensor(name)[copied]) for name in tables]
    model, info = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, output_loading_info=True)
    special = {
        vocabularies[1].strings[i]: vocabularies[0].strings[plan.copy[i]] if plan.copy[i] >= 0 else None
        for i in map(int, np.flatnonzero(vocabularies[1].special))
    }
    return {
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
        "other_tensors": len(same),
        "other_tensors_equal": all(same),
        "copied_rows": len(copied),
        "copied_rows_equal": all(rows),
        "special": special,
        "logit_difference": logit_difference(source, model, copied, origin),
    }


def same_bits(one, other) -> bool:
    """Whether two tensors agree in type, shape and every bit (equality alone lets -0 pass for 0)."""
    import torch

    return one.dtype == other.dtype and torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def logit_difference(source: Path, model, copied, origin) -> float | None:
    """Feeds both models the same copied tokens and compares the logits of all copied tokens; None where too few were copied."""
    import torch
    from transformers import AutoModelForCausalLM

    if len(copied) < 8:
        return None
    before = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    chosen = torch.from_numpy(np.random.default_rng(0).choice(len(copied), 8, replace=False))
    with torch.inference_mode():
        new = model(copied[chosen][None]).logits[0][:, copied]
        old = before(origin[chosen][None]).logits[0][:, origin]
    return float((new - old).abs().max())


def read_text(path: Path, size: int) -> str:
    """The first whole lines of a text, together at most `size` bytes."""
    lines, length = [], 0
    with lzma.open(path, "rt", encoding="utf-8") as handle:
        for line in handle:
            length += len(line.encode())
            if length > size:
                break
            lines.append(line)
    return "".join(lines).strip()


def report(model: str, language: str, name: str, found: dict) -> None:
    """Prints one measurement."""
    rate = f"{found['bits_per_byte']:.3f} ± {found['standard_error']:.3f} bits per byte"
    print(f"{model}, {language}, {name}: {rate}, perplexity {found['perplexity']:,.1f}", flush=True)


def table(result: dict) -> str:
    """Bits per byte, a line a method, a column a model and language; perplexities of one token in brackets."""
    columns = [
        (model, code)
        for model, found in result["models"].items()
        for code, target in found.get("targets", {}).items()
        if target["methods"]
    ]
    targets = [result["models"][model]["targets"][code] for model, code in columns]
    heads = [f"{model}, {target['name']}" for (model, _), target in zip(columns, targets, strict=True)]
    lines = ["| bits per byte (perplexity) at step 0 | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    lines.append("| before, with its own tokenizer | " + " | ".join(_cell(target["source"]) for target in targets) + " |")
    names = list(dict.fromkeys(name for target in targets for name in target["methods"]))
    for name in names:
        cells = [_cell(target["methods"].get(name)) for target in targets]
        label, _, rest = name.partition(", ")
        lines.append(f"| `{label}`{', ' + rest if rest else ''} | " + " | ".join(cells) + " |")
    uniform = [f"{min(found['uniform'] for found in target['methods'].values()):.2f}" for target in targets]
    lines.append("| every token equally likely | " + " | ".join(uniform) + " |")
    english = ", ".join(f"{name} {found['english']['perplexity']:.1f}" for name, found in result["models"].items())
    checks = [found["checks"] for target in targets for found in target["methods"].values()]
    proven = f"In {sum(map(passed, checks))} of {len(checks)} transfers"
    lines.append(
        f"\nEnglish perplexity before: {english}. {proven} transformers missed no key, and every copied row and every other "
        f"tensor was the source's bit for bit. {result['machine']['description']}."
    )
    return "\n".join(lines)


def passed(checks: dict) -> bool:
    """Whether a transfer kept all its promises."""
    return not checks["missing"] and not checks["unexpected"] and checks["copied_rows_equal"] and checks["other_tensors_equal"]


def _cell(found: dict | None) -> str:
    return "" if found is None else f"{found['bits_per_byte']:.2f} ({_short(found['perplexity'])})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value < 1e6 else f"{value:.0e}".replace("e+0", "e").replace("e+", "e")


def machine() -> dict:
    """The processor and the versions that decide the figures."""
    name, cores, versions = processor(), os.cpu_count(), installed("jax", "numpy", "torch", "transformers")
    described = ", ".join([f"{name}, {cores} cores", *(f"{package} {version}" for package, version in versions.items())])
    return {"description": described, "processor": name, "cores": cores, "versions": versions}


if __name__ == "__main__":
    with program("benchmarks.real_models"):
        read_flags(VALUES, __doc__, sys.argv[1:])
        main()
