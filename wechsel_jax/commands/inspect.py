"""Shows what a model directory or a transfer holds: tensors, special tokens, where tokens came from.

  wechsel-jax inspect german-gpt2/ --tokens=Ġfür,heit

A token is given as the tokenizer spells it, or as this command prints it ("Ġ" or "▁" for the start of a word).
"""

from pathlib import Path

from absl import flags

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_directory

ARGUMENTS = "DIR"


def define(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flags.DEFINE_list("tokens", [], "Tokens to show the origin of (needs transfer_plan.npz).", flag_values=values)
    flags.DEFINE_string("source", None, "The source model, where it has moved since the transfer.", flag_values=values)
    flags.DEFINE_boolean("all", False, "List every tensor.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Prints the checkpoint, then the transfer, then the tokens."""
    directory = Path(arguments[0])
    has_plan = (directory / "transfer_plan.npz").exists()
    if not has_plan or (directory / "config.json").exists():
        _print_checkpoint(arguments[0], values.all)
    if has_plan:
        _print_transfer(directory)
    if values.tokens:
        if not has_plan:
            raise UserError(f"{directory}: has no transfer_plan.npz; expected the directory that `wechsel-jax transfer` wrote")
        _print_tokens(directory, values)


def _print_checkpoint(path: str, every: bool) -> None:
    from wechsel_jax.checkpoint import Checkpoint
    from wechsel_jax.tokens import ROLES, Vocabulary, load_tokenizer

    checkpoint = Checkpoint.open(path)
    parameters = sum(_count(stored.shape) for stored in checkpoint.tensors.values())
    print(f"model: {checkpoint.architecture}, {len(checkpoint.tensors)} tensors, {parameters:,} elements")
    head = "tied head" if checkpoint.tied else "head not tied"
    print(f"vocabulary: {checkpoint.vocabulary_size:,} rows of {checkpoint.hidden_size}, {head}")
    shown = {tensor.name: tensor.role for tensor in checkpoint.vocabulary_tensors()}
    for name in checkpoint.names() if every else shown:
        stored = checkpoint.tensors[name]
        print(f"  {name}: {stored.code} {list(stored.shape)}{' (' + shown[name] + ')' if name in shown else ''}")
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(checkpoint.directory))
    print(f"tokenizer: {len(vocabulary):,} tokens, {vocabulary.kind}")
    for role in ROLES:
        token_id = vocabulary.id_with_role(role)
        if token_id is not None:
            print(f"  {role}: {token_id} {vocabulary.strings[token_id]}")


def _count(shape: tuple[int, ...]) -> int:
    import math

    return math.prod(shape)


def _print_transfer(directory: Path) -> None:
    from wechsel_jax.initializers import TransferPlan

    plan = TransferPlan.load(directory / "transfer_plan.npz")
    print(f"plan: {len(plan):,} tokens, " + ", ".join(f"{count:,} {how}" for how, count in plan.counts().items()))
    if (directory / "transfer.json").exists():
        record = _read_record(directory)
        print(f"transfer: {record['method']} from {record['source']['model']} to {record['target']['tokenizer']}")
        for sentence in [*record["behaviour"], *record["notes"]]:
            print(f"  {sentence}")


def _print_tokens(directory: Path, values: flags.FlagValues) -> None:
    from wechsel_jax.initializers import TransferPlan
    from wechsel_jax.tokens import Vocabulary, load_tokenizer
    from wechsel_jax.transfer_record import origin, readable

    plan = TransferPlan.load(directory / "transfer_plan.npz")
    place = values.source or _read_record(directory)["source"]["model"]
    tokenizer = load_tokenizer(directory)
    source, target = Vocabulary.from_tokenizer(load_tokenizer(place)), Vocabulary.from_tokenizer(tokenizer)
    if len(target) != len(plan):
        raise UserError(
            f"{directory}: the plan is for {len(plan)} tokens, the tokenizer has {len(target)}; expected one directory's"
        )
    by_string = {string: i for i, string in enumerate(target.strings)}
    by_text = {readable(target, i): i for i in reversed(range(len(target)))}
    for token in values.tokens:
        token_id = by_string.get(token, by_text.get(token))
        if token_id is None:
            # A word as it stands in a text; the first of the encodings that is one token.
            encoded = [tokenizer.encode(text, add_special_tokens=False) for text in (" " + token, token)]
            token_id = next((ids[0] for ids in encoded if len(ids) == 1), None)
        if token_id is None:
            raise UserError(f"{token}: no single token of {directory}; expected a word that is one, or a token's own spelling")
        found = origin(plan, source, target, token_id)
        weights = ", ".join(f"{name} {weight:.3f}" for name, weight in found["sources"])
        print(f"{found['target']} ({token_id}): {found['how']}{': ' + weights if weights else ''}")


def _read_record(directory: Path) -> dict:
    from wechsel_jax.checkpoint import read_json

    require_directory(directory, "the directory of a transfer")
    record = read_json(directory / "transfer.json", "the transfer.json that `wechsel-jax transfer` writes")
    if not {"method", "source", "target", "behaviour", "notes"} <= record.keys():
        raise UserError(
            f"{directory / 'transfer.json'}: not a record of a transfer; expected what `wechsel-jax transfer` writes"
        )
    return record
