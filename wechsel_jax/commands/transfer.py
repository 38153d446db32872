"""Gives a model a new vocabulary: a directory that transformers loads, with the plan of where every token came from.

  wechsel-jax transfer --source=gpt2/ --target_tokenizer=german/ --output=german-gpt2/ \\
    --source_text=english.txt --target_text=german.txt --dictionary=german.tsv
  wechsel-jax transfer --source=gpt2/ --target_tokenizer=german/ --output=german-gpt2/ --method=wechsel \\
    --source_vectors=cc.en.300.bin --target_vectors=cc.de.300.bin --dictionary=german.tsv
  wechsel-jax transfer --source=gpt2/ --target_tokenizer=german/ --output=german-gpt2/ --method=focus \\
    --target_vectors=german-tokens.bin
  wechsel-jax transfer --source=llama/ --target_tokenizer=gbert/ --output=german-llama/ --method=salt \\
    --helper=gbert/ --target_vectors=cc.de.300.bin
"""

from absl import flags

from wechsel_jax.commands import choice, longest_document, number
from wechsel_jax.errors import UserError, from_extra
from wechsel_jax.initializers import AUTO, METHODS
from wechsel_jax.transfers.settings import described_settings

REQUIRED = ("source", "target_tokenizer", "output")


def define(values: flags.FlagValues) -> None:
    """Defines a flag for every setting of `transfers.settings`: nothing about a method is written here."""
    to = {"flag_values": values}
    flags.DEFINE_string("source", None, "Model directory (config.json, model.safetensors, tokenizer) or hub id.", **to)
    flags.DEFINE_string("target_tokenizer", None, "Directory, tokenizer.json or hub id of the new tokenizer.", **to)
    flags.DEFINE_string("output", None, "Directory to write.", **to)
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", **to)
    made = "How the new embeddings are made; by default (auto) by anker where text is given, by wechsel where word vectors are"
    choice(values, "method", None, (*METHODS, AUTO), made)
    probed = "Where no method is named: train so many steps from each that what is given allows, and keep the best; 0: do not."
    flags.DEFINE_integer("probe_steps", 0, probed, lower_bound=0, upper_bound=1 << 30, **to)
    for name, (kind, default, setting) in described_settings().items():
        methods = [method for method in METHODS.values() if name in method.settings]
        summary = f"{setting.help}." if not methods else f"{setting.help} ({_readers(name, methods, default)})."
        if name == "max_document_bytes":
            longest_document(values)
        elif setting.choices:
            choice(values, name, default, setting.choices, summary.removesuffix("."))
        elif kind is int:
            flags.DEFINE_integer(name, default, summary, lower_bound=setting.least, upper_bound=setting.most, **to)
        elif kind is float:
            number(values, name, default, summary, setting.least, setting.most)
        elif kind is bool:
            flags.DEFINE_boolean(name, default, summary, **to)
        elif kind is tuple:
            flags.DEFINE_multi_string(name, list(default), summary, **to)
        else:
            flags.DEFINE_string(name, default, summary, **to)


def _readers(name: str, methods: list, default: object) -> str:
    """Which methods have the setting, and their defaults where they differ."""
    if default is not None:
        return ", ".join(method.name for method in methods)
    defaults = {method.name: method.settings[name].default for method in methods}
    shown = {name: str(value).lower() if isinstance(value, bool) else f"{value:g}" for name, value in defaults.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Runs the transfer; progress goes to stderr."""
    del arguments
    settings = values.flag_values_dict()
    if settings["method"] == AUTO:
        settings["method"] = None
    if not (steps := settings.pop("probe_steps")):
        from wechsel_jax.transfers.job import transfer

        transfer(**settings)
        return
    if method := settings.pop("method"):
        raise UserError(f"--probe_steps={steps}: the method is named ({method}); expected one of the two")
    with from_extra("train", "to train models"):
        from wechsel_jax.comparison.candidates import transfer_by_probe
    transfer_by_probe(steps=steps, **settings)
