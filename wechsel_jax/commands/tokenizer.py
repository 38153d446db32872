"""Trains a tokenizer on text: a directory that transformers' AutoTokenizer loads.

wechsel-jax tokenizer --input=german.txt --vocab_size=50000 --output=german/
wechsel-jax tokenizer --input='corpus/*.jsonl.zst' --input=more.txt --vocab_size=50000 --output=german/
wechsel-jax tokenizer --input=english.txt,chinese.txt --algorithm=wordpiece --vocab_size=80000 --alphabet=30000 \\
  --min_frequency=2 --strip_accents --output=joint/
wechsel-jax tokenizer --input=task.txt --algorithm=words --min_count=2 --output=words/
wechsel-jax tokenizer --input=task.txt --source=bert/ --min_count=2 --output=pieces/

The last two make the vocabulary of a task: its words, or the tokens of another tokenizer, that occur often enough.

--style chooses the special tokens, --pattern where byte_bpe ends a word. "marks" is GPT-2's pattern, but combining marks belong
to the letters that they follow: Hindi takes half the tokens, and text without such marks is cut as by GPT-2. "gpt2" is GPT-2's
own, for parity with a tokenizer that has it.
"""

from absl import flags

from wechsel_jax.commands import choice, longest_document, picked, sources, text_field
from wechsel_jax.errors import UserError

REQUIRED = ("input", "output")


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `tokens.training.train_tokenizer`."""
    to = {"flag_values": values}
    sources(values, "input")
    text_field(values)
    longest_document(values)
    flags.DEFINE_string("output", None, "Directory to write.", **to)
    size = "Number of tokens, special ones included; not of words or --source, see --min_count."
    flags.DEFINE_integer("vocab_size", 50_000, size, lower_bound=1, upper_bound=1 << 24, **to)
    choice(values, "algorithm", "byte_bpe", ("byte_bpe", "unigram", "wordpiece", "words"), "Kind of tokenizer")
    flags.DEFINE_string(
        "source", None, "Keep of this tokenizer the tokens that the text holds, in place of training one.", **to
    )
    rare = "Of words and --source: leave out what is rarer."
    flags.DEFINE_integer("min_count", 2, rare, lower_bound=1, upper_bound=1 << 40, **to)
    flags.DEFINE_boolean("lowercase", False, "Of words: without their case.", **to)
    choice(values, "style", "gpt2", ("gpt2", "roberta"), "The model whose special tokens byte_bpe and unigram have")
    choice(values, "pattern", "marks", ("marks", "gpt2"), "Where byte_bpe ends a word (marks: not before a combining mark)")
    limit = "Of wordpiece: keep only so many characters, the most frequent ones; 0: all."
    flags.DEFINE_integer("alphabet", 0, limit, lower_bound=0, upper_bound=1 << 24, **to)
    together = "Of wordpiece: join only what stands together so often."
    flags.DEFINE_integer("min_frequency", 0, together, lower_bound=0, upper_bound=1 << 40, **to)
    marks = "Of wordpiece: read letters without their marks; in Hindi and Thai these are vowels."
    flags.DEFINE_boolean("strip_accents", False, marks, **to)
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Trains and says how many tokens there are."""
    del arguments
    counted = values.source is not None or values.algorithm == "words"
    if values.source is not None and values["algorithm"].present:
        raise UserError("--algorithm: has no effect with --source, which stays what it is; leave it out")
    without = ("vocab_size", "style", "pattern") if counted else ("min_count", "lowercase")
    for name in (name for name in without if values[name].present):
        kind = "a vocabulary that is counted" if counted else "a tokenizer that is trained"
        raise UserError(f"--{name}: has no effect on {kind}; leave it out")
    for name in ("alphabet", "min_frequency", "strip_accents"):
        if values[name].present and (counted or values.algorithm != "wordpiece"):
            raise UserError(f"--{name}: is for --algorithm=wordpiece; leave it out")
    if counted:
        from wechsel_jax.tokens.task_vocabulary import task_tokenizer

        names = ("source", "min_count", "lowercase", "overwrite", "text_field", "max_document_bytes")
        tokenizer = task_tokenizer(values.input, values.output, **picked(values, *names))
        print(f"{values.output}: {len(tokenizer)} tokens")
        return
    if values.algorithm == "wordpiece" and values["style"].present:
        raise UserError("--style: has no effect with --algorithm=wordpiece, which has BERT's special tokens; leave it out")
    if values.algorithm != "byte_bpe" and values["pattern"].present:
        raise UserError(f"--pattern: has no effect with --algorithm={values.algorithm}, which has its own; leave it out")
    from wechsel_jax.tokens.training import train_tokenizer

    names = ("algorithm", "style", "pattern", "alphabet", "min_frequency", "strip_accents", "overwrite")
    options = picked(values, *names, "text_field", "max_document_bytes")
    tokenizer = train_tokenizer(values.input, values.vocab_size, values.output, **options)
    print(f"{values.output}: {len(tokenizer)} tokens")
