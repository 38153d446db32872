"""Trains a tokenizer on text: a directory that transformers' AutoTokenizer loads.

wechsel-jax tokenizer --input=german.txt --vocab_size=50000 --output=german/
wechsel-jax tokenizer --input='corpus/*.jsonl.zst' --input=more.txt --vocab_size=50000 --output=german/

--style chooses the special tokens, --pattern where byte_bpe ends a word. "marks" is GPT-2's pattern, but combining marks belong
to the letters that they follow: Hindi takes half the tokens, and text without such marks is cut as by GPT-2. "gpt2" is GPT-2's
own, for parity with a tokenizer that has it.
"""

from absl import flags

from wechsel_jax.commands import choice, longest_document, sources
from wechsel_jax.errors import UserError

REQUIRED = ("input", "output")


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `tokens.training.train_tokenizer`."""
    to = {"flag_values": values}
    sources(values, "input")
    flags.DEFINE_string("text_field", "text", "Of JSON lines and tables, the field that holds the text.", **to)
    longest_document(values)
    flags.DEFINE_string("output", None, "Directory to write.", **to)
    size = "Number of tokens, special ones included."
    flags.DEFINE_integer("vocab_size", 50_000, size, lower_bound=1, upper_bound=1 << 24, **to)
    choice(values, "algorithm", "byte_bpe", ("byte_bpe", "unigram", "wordpiece"), "Kind of tokenizer")
    choice(values, "style", "gpt2", ("gpt2", "roberta"), "The model whose special tokens byte_bpe and unigram have")
    choice(values, "pattern", "marks", ("marks", "gpt2"), "Where byte_bpe ends a word (marks: not before a combining mark)")
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Trains and says how many tokens there are."""
    del arguments
    if values.algorithm == "wordpiece" and values["style"].present:
        raise UserError("--style: has no effect with --algorithm=wordpiece, which has BERT's special tokens; leave it out")
    if values.algorithm != "byte_bpe" and values["pattern"].present:
        raise UserError(f"--pattern: has no effect with --algorithm={values.algorithm}, which has its own; leave it out")
    from wechsel_jax.tokens.training import train_tokenizer

    tokenizer = train_tokenizer(
        values.input,
        values.vocab_size,
        values.output,
        values.algorithm,
        values.style,
        pattern=values.pattern,
        overwrite=values.overwrite,
        text_field=values.text_field,
        max_document_bytes=values.max_document_bytes,
    )
    print(f"{values.output}: {len(tokenizer)} tokens")
