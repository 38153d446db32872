"""A model directory as a model of lm-eval (EleutherAI's evaluation harness)."""

import json
import sys
from typing import Any

import jinja2
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs

from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.generation import asked_number, unread
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.reading import continued
from wechsel_jax.evaluation.scoring import loglikelihoods, rolling_loglikelihoods


@register_model("wechsel_jax")
class HarnessModel(LM):
    """Scores and generates on all devices of this process, as lm-eval's `HFLM` does with torch.

    Args:
      pretrained: a directory of a causal model, or the id of one on the hub.
      dtype: what matrix products compute in, "float32" or "bfloat16".
      max_length: tokens that the model reads at most; 0: as many as it can.
      seed: of what is drawn where a task asks for a temperature.
      batch_size: lm-eval gives one always; batches are made by what fits here.
      max_batch_size: as `batch_size`.
      device: lm-eval gives a name of torch's; all devices of JAX are used here.

    Raises:
      UserError: it is no causal model that is known here, or an argument is none of these.
    """

    def __init__(
        self,
        pretrained: str = "",
        dtype: str = "float32",
        max_length: int = 0,
        seed: int = 0,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **others: Any,
    ):
        super().__init__()
        if others or not pretrained:
            wrong = f"has no {', '.join(sorted(others))}" if others else "names no model"
            raise UserError(f"model_args: {wrong}; expected pretrained=DIR and, if one likes, dtype, max_length and seed")
        self.model = LoadedModel.open(pretrained, dtype=dtype)
        self.max_length, self.seed = max_length or self.model.config.max_length, seed

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in lm-eval's cache of requests."""
        return str(self.model.directory).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's chat template; None where it has none."""
        return self.model.tokenizer.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat as the text that the model was trained on; without its system turns where the template takes none."""
        options = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        try:
            return self.model.tokenizer.apply_chat_template(chat_history, tokenize=False, **options)
        except jinja2.TemplateError:
            turns = [turn for turn in chat_history if turn["role"] != "system"]
            return self.model.tokenizer.apply_chat_template(turns, tokenize=False, **options)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """See `scoring.loglikelihoods`."""
        sums, greedy = loglikelihoods(self.model, [request.args for request in requests], max_length=self.max_length)
        return list(zip(sums.tolist(), greedy.tolist(), strict=True))

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """See `scoring.rolling_loglikelihoods`."""
        texts = [request.args[0] for request in requests]
        return rolling_loglikelihoods(self.model, texts, max_length=self.max_length).tolist()

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Continues contexts, of which the end is kept where they are too long, up to the first of a task's stop strings.

        Raises:
          UserError: a task asks for a way of drawing that is not implemented, or leaves no room for the context.
        """
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
        written = [""] * len(requests)
        for settings, numbers in groups.items():
            asked = normalize_gen_kwargs(json.loads(settings))
            most, stop = asked.pop("max_gen_toks"), [text for text in asked.pop("until") if text]
            drawn, temperature = asked.pop("do_sample"), asked.pop("temperature", 0.0)
            # What a task leaves open, transformers takes from the model's file; where that has no top_k, it takes 50.
            usual = {"top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0}
            chosen = {name: asked.pop(name, asked_number(self.model, name, number)) for name, number in usual.items()}
            if not drawn:
                chosen = {"repetition_penalty": chosen["repetition_penalty"]}
            if asked:
                expected = f"expected until, max_gen_toks, do_sample, temperature, {', '.join(usual)}"
                raise UserError(f"generation_kwargs {', '.join(asked)}: {expected}")
            if note := unread(self.model, drawn):
                print(f"note: {note}", file=sys.stderr)
            if most >= self.max_length:
                expected = f"expected fewer than the {self.max_length} tokens that the model reads"
                raise UserError(f"max_gen_toks {most}: {expected}; pass --gen_kwargs max_gen_toks=N")
            found, _ = continued(
                self.model,
                [requests[number].args[0] for number in numbers],
                stop=stop,
                max_tokens=most,
                max_length=self.max_length,
                temperature=temperature if drawn else 0.0,
                seed=self.seed,
                **chosen,
            )
            for number, text in zip(numbers, found, strict=True):
                written[number] = text
        return written
