"""Writes text with a causal model.

  wechsel-jax generate german-gpt2/ --prompt="Es war einmal"
  wechsel-jax generate german-gpt2/ --prompt="Es war einmal" --temperature=0.8 --top_p=0.95 --samples=3
  wechsel-jax generate chat-model/ --chat --prompt="Wie heißt die Hauptstadt von Kenia?" --max_tokens=200
  wechsel-jax generate german-gpt2/ --prompts=beginnings.txt --json > texts.jsonl

A model is a directory, or a run's, whose export is taken. The text of a single prompt appears as it is made; how fast it was is
said at the end on stderr. A text ends at the end-of-text tokens that generation_config.json names, else those of config.json,
else the tokenizer's. The same seed gives the same text.
"""

import json
import sys
import time
from typing import TYPE_CHECKING

from absl import flags

from wechsel_jax.commands import choice, number
from wechsel_jax.errors import UserError, from_extra, one_line

if TYPE_CHECKING:
    from wechsel_jax.evaluation.loaded import LoadedModel

ARGUMENTS = "DIR"
# All stay in memory until the end, some 5 kB each.
_MOST_TEXTS = 1 << 20


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `evaluation.generation.generate`."""
    flags.DEFINE_string("prompt", None, "How the text begins; empty: with the model's begin-of-text token.", flag_values=values)
    flags.DEFINE_string("prompts", None, "A file with a prompt on each line, in place of --prompt.", flag_values=values)
    flags.DEFINE_boolean("chat", False, "Write prompts as a user's turn, by the tokenizer's chat template.", flag_values=values)
    most = {"upper_bound": 1 << 24, "flag_values": values}
    flags.DEFINE_integer("max_tokens", 100, "New tokens of each text at most.", lower_bound=1, **most)
    default = "By default generation_config.json's where that asks for draws (do_sample), else"
    number(
        values, "temperature", None, f"0: always the likeliest token; more: draw, the hotter the wilder. {default} 0.", 0, 1e9
    )
    number(values, "top_p", None, f"Draw from the fewest likeliest tokens that have this share. {default} 1.", 1e-9, 1)
    fewer = f"Draw from so many likeliest tokens; 0: from all. {default} 0."
    flags.DEFINE_integer("top_k", None, fewer, lower_bound=0, **most)
    again = "Divide the logits of tokens that are there already by this. By default generation_config.json's, else 1."
    number(values, "repetition_penalty", None, again, 1e-6, 1e6)
    flags.DEFINE_multi_string("stop", [], "A string that ends a text and is left out; may be given again.", flag_values=values)
    flags.DEFINE_integer("seed", 0, "Of the draws.", lower_bound=0, upper_bound=2**32 - 1, flag_values=values)
    flags.DEFINE_integer("samples", 1, "Texts for each prompt.", lower_bound=1, **most)
    flags.DEFINE_integer("batch_size", 16, "Texts at once.", lower_bound=1, **most)
    flags.DEFINE_boolean("json", False, "Print one JSON object a text: prompt, text, tokens, end.", flag_values=values)
    choice(values, "dtype", "float32", ("float32", "bfloat16"), "What matrix products compute in")


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Reads the model and the prompts, writes, and prints."""
    if (values.prompt is None) == (values.prompts is None):
        raise UserError("expected either --prompt or --prompts; see wechsel-jax generate --help")
    import jax

    from wechsel_jax.evaluation.generation import asked_number, generate, unread
    from wechsel_jax.evaluation.loaded import LoadedModel
    from wechsel_jax.text.parts import read_documents

    prompts = [values.prompt] if values.prompts is None else list(read_documents(values.prompts))
    if not prompts:
        raise UserError(f"{values.prompts}: holds nothing but white space; expected a prompt a line")
    if values.samples > 1 and len(prompts) * values.samples > _MOST_TEXTS:
        raise UserError(
            f"--samples={values.samples}: {len(prompts):,} times as many are more than {_MOST_TEXTS:,} texts; expected fewer; "
            "another --seed gives others"
        )
    model = LoadedModel.open(arguments[0], dtype=values.dtype)
    if model.note:
        print(f"note: {model.note}", file=sys.stderr)
    draws = bool(model.generation_config.get("do_sample"))
    chosen = {}
    for name, otherwise, asked in (
        ("temperature", float(draws), draws),
        ("top_k", 0, draws),
        ("top_p", 1.0, draws),
        ("repetition_penalty", 1.0, True),
    ):
        given = values[name].value
        chosen[name] = given if given is not None else asked_number(model, name, otherwise) if asked else otherwise
    temperature = chosen["temperature"]
    if note := unread(model, temperature > 0):
        print(f"note: {note}", file=sys.stderr)
    if values.samples > 1 and temperature == 0:
        raise UserError("--samples: temperature 0 writes the same text each time; expected --temperature above 0, such as 0.8")
    for name in ("top_k", "top_p", "seed"):
        if values[name].present and temperature == 0:
            raise UserError(
                f"--{name}: has no effect at temperature 0, which draws nothing; leave it out, or set --temperature"
            )
    given = [_turn(model, prompt) for prompt in prompts] if values.chat else prompts
    shown = [prompt for prompt in prompts for _ in range(values.samples)]
    alone = len(shown) == 1 and not values.json

    # Of a single text; the prompt with the first piece, for it may be refused until then.
    waiting = [] if values.chat else [prompts[0]]

    def tell(_: int, piece: str) -> None:
        print(*waiting, piece, sep="", end="", flush=True)
        waiting.clear()

    def progress(done: int, total: int) -> None:
        if total > done and sys.stderr.isatty():
            print(f"{done} of {total} texts", file=sys.stderr)

    compiling = []
    # Making a program is no part of how fast it is.
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiling.append(seconds) if event.startswith("/jax/core/compile/") else None
    )
    start = time.monotonic()
    texts = generate(
        model,
        [ids for ids in given for _ in range(values.samples)],
        max_tokens=values.max_tokens,
        **chosen,
        stop=values.stop,
        seed=values.seed,
        batch_size=values.batch_size,
        on_text=tell if alone else None,
        progress=progress,
    )
    seconds = time.monotonic() - start
    if alone:
        tell(0, "\n")
    else:
        for i, (prompt, text) in enumerate(zip(shown, texts, strict=True)):
            if values.json:
                line = {"prompt": prompt, "text": text.text, "tokens": len(text.tokens), "end": text.end}
                print(json.dumps(line, ensure_ascii=False))
            else:
                print("\n" * (i > 0) + ("" if values.chat else prompt) + text.text)
    made, running = sum(len(text.tokens) for text in texts), max(seconds - sum(compiling), 1e-9)
    line = f"{made:,} tokens in {running:.1f} s ({made / running:,.0f} tokens/s) and {sum(compiling):.1f} s of compiling"
    full = sum(text.end == "full" for text in texts)
    if full:
        texts_ended = "the text" if len(texts) == 1 else f"{full} of {len(texts)} texts"
        line += f"; {texts_ended} ended at the model's last position, {model.config.max_length:,}"
    print(line, file=sys.stderr)


def _turn(model: "LoadedModel", prompt: str) -> list[int]:
    """The ids of a user's turn, up to where the answer begins."""
    tokenizer = model.tokenizer
    if not tokenizer.chat_template:
        raise UserError(f"{model.directory}: its tokenizer has no chat template; expected a chat model; leave out --chat")
    with from_extra("eval", "for --chat"):
        import jinja2
    try:
        talk = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    # A template is a program: it may divide by zero.
    except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = one_line(error)
        raise UserError(f"{model.directory}: its chat template takes no user's turn ({reason}); leave out --chat") from None
    # The template writes the tokens that begin a text itself.
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
