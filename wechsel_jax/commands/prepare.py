"""Makes text into tokens on disk, on all cores; the same command goes on where it was stopped, however that happened.

  wechsel-jax prepare --input='corpus/*.jsonl.zst' --tokenizer=german/ --output=prepared/ --validation_fraction=0.01
  wechsel-jax prepare --input=datasets:saved/:train,more.parquet --tokenizer=german/ --output=prepared/ --deduplicate
  wechsel-jax prepare --input='hf://USER/NAME:train#CONFIG' --tokenizer=swahili/ --output=prepared/ --max_bytes=256MiB

Training reads the result: --config.data.train='("prepared/train",)' (with --validation_fraction, else "prepared").
"""

from absl import flags

from wechsel_jax.commands import choice, longest_document, number, picked, size, sources, text_field

REQUIRED = ("input", "tokenizer", "output")


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `data.prepare` and `data.prepare_split`."""
    to = {"flag_values": values}
    sources(values, "input")
    flags.DEFINE_string("tokenizer", None, "A directory, a tokenizer.json or a hub id.", **to)
    flags.DEFINE_string("output", None, "Directory to write.", **to)
    choice(values, "documents", "lines", ("lines", "paragraphs", "files"), "What a document of a text file is")
    text_field(values)
    longest_document(values)
    held_out = "Share of the documents that becomes OUTPUT/validation; the others become OUTPUT/train."
    number(values, "validation_fraction", 0.0, held_out, 0.0, 1.0)
    size(values, "max_bytes", "0", "Take a random sample of documents of at most this size, e.g. 256MiB; 0: all.")
    flags.DEFINE_boolean("deduplicate", False, "Of documents with exactly the same text, keep the first.", **to)
    lines = "Each line of a document is a sentence: also record where they end, which training with objective=mlm_nsp reads."
    flags.DEFINE_boolean("sentences", False, lines, **to)
    threads = "Threads that tokenise; by default, or with 0, as many as there are cores."
    flags.DEFINE_integer("processes", None, threads, lower_bound=0, upper_bound=1024, **to)
    flags.DEFINE_boolean("verify", False, "Read the result once more and compare it with its sha256.", **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Prepares, and says how much there is and what was left out."""
    del arguments
    import os
    from pathlib import Path

    from wechsel_jax.data import prepare, prepare_split
    from wechsel_jax.data.manifest import verify_tokens
    from wechsel_jax.data.sentences import require_sentence_file, require_sentences

    names = ("documents", "text_field", "max_bytes", "max_document_bytes", "deduplicate", "sentences")
    settings = picked(values, *names)
    if values.processes:
        # The tokenizers library reads it when it first tokenises, and has no other way to be told.
        os.environ["RAYON_NUM_THREADS"] = str(values.processes)
    texts, tokenizer, output = values.input, values.tokenizer, Path(values.output)
    if values.validation_fraction:
        settings["validation_fraction"] = values.validation_fraction
        manifests = prepare_split(texts, tokenizer, output, **settings)
    else:
        manifests = {"": prepare(texts, tokenizer, output, **settings)}
    for side, manifest in manifests.items():
        if values.verify:
            verify_tokens(output / side, manifest)
        if values.verify and values.sentences:
            require_sentence_file(output / side, require_sentences(output / side), verify=True)
        print(f"{output / side}: {manifest['documents']:,} documents, {manifest['tokens']:,} tokens of {manifest['dtype']}")
    for reason, counts in manifest.get("dropped", {}).items():
        if counts["documents"]:
            text = f", {counts['text_bytes']:,} bytes of text" if "text_bytes" in counts else ""
            print(f"left out ({reason}): {counts['documents']:,} documents{text}")
