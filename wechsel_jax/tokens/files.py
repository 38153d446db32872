"""Tokenizers from disk or from the hub, exactly as their files describe them, without running anyone's code."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wechsel_jax.errors import UserError, one_line
from wechsel_jax.files import file_hash, require_file
from wechsel_jax.files.hub import HUB_ID, download
from wechsel_jax.files.json import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_EXPECTED = "a directory with tokenizer.json (or vocab.json and merges.txt), a tokenizer.json file, or the id of a hub model"
_RESAVE = "load it with transformers' AutoTokenizer, save_pretrained() it to a new directory and pass that"
_HUB_FILES = ["tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "config.json"]
# Chat templates.
_HUB_FILES += ["*.jinja"]
# Vocabularies have few holes or none, and the libraries make a table with a row for each id.
_MOST_HOLES = 1024
# What tokens are called where no file says what they do; the first name that the tokenizer knows is taken.
_WELL_KNOWN = {
    "bos_token": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos_token": ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>"),
    "unk_token": ("<unk>", "[UNK]", "<|endoftext|>"),
    "pad_token": ("<pad>", "[PAD]"),
    "mask_token": ("<mask>", "[MASK]"),
    "cls_token": ("[CLS]", "<cls>"),
    "sep_token": ("[SEP]", "<sep>"),
}


def load_tokenizer(path: str | os.PathLike) -> "PreTrainedTokenizerFast":
    """Loads a fast tokenizer.

    A tokenizer.json is taken as it stands; the class that a tokenizer_config.json names is not asked, because such a class may
    build another tokenizer than the file describes. Where no file gives any token a role (bos, pad, mask, ...), well-known
    names do (<s>, [CLS], <|endoftext|>, ...).

    Special tokens to which a model's config.json gives no row, as that of Gemma 3 1B gives <image_soft_token> none, are left
    out, see `rowless_tokens`.

    Args:
      path: a directory, a tokenizer.json file, or a hub id ("org/name"). Code that a repository brings is never run.

    Raises:
      UserError: nothing is there, or it is no tokenizer, or it is damaged.

    >>> from wechsel_jax import demo
    >>> load_tokenizer(demo.path("english-gpt2")).tokenize("the house")
    ['the', 'Ġhouse']
    """
    place = Path(path)
    if place.is_file():
        return _from_file(place)
    if place.is_dir():
        return _from_directory(place)
    if place.suffix != ".json" and HUB_ID.fullmatch(os.fspath(path)) and not os.path.lexists(place):
        return _from_directory(download(os.fspath(path), _HUB_FILES, _EXPECTED))
    raise UserError(f"{path}: no such file or directory; expected {_EXPECTED}")


def tokenizer_hash(tokenizer: "PreTrainedTokenizerFast") -> str:
    """The sha256 of the JSON file that a tokenizer was loaded from: its bytes are the same for each version of the libraries.

    Of a tokenizer without one, that of the JSON that the library makes of it, which another version may write otherwise.
    """
    named = tokenizer.name_or_path
    places = [Path(named), Path(named, "tokenizer.json")] if named else []
    file = next((path for path in places if path.is_file()), None)
    return file_hash(file) if file else hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def write_tokenizer(tokenizer: "PreTrainedTokenizerFast", directory: Path) -> None:
    """Writes a tokenizer's files as transformers does, for its versions 4 and 5; raises `OSError` for a full disk, too."""
    try:
        tokenizer.save_pretrained(directory)
    except OSError:
        raise
    except Exception as error:  # the Rust side raises plain Exception
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), os.fspath(directory / "tokenizer.json")) from error
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("tokenizer_class") == "TokenizersBackend":
        # The name that both know.
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        path.write_text(json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def fast_tokenizer_class() -> type["PreTrainedTokenizerFast"]:
    """Imports transformers' fast tokenizer, without its advice to install PyTorch: this package does without."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast


def _from_file(path: Path) -> "PreTrainedTokenizerFast":
    if path.suffix != ".json":
        raise UserError(f"{path}: not a tokenizer.json; expected {_EXPECTED}; for another format, {_RESAVE}")
    _check(path)
    if path.name == "tokenizer.json":
        return _from_directory(path.parent)
    try:
        tokenizer = fast_tokenizer_class()(tokenizer_file=str(path), name_or_path=str(path))
    except Exception as error:  # the Rust side raises plain Exception
        raise UserError(f"{path}: the tokenizers library cannot read it ({one_line(error)}); {_RESAVE}") from error
    return _finish(tokenizer)


def _from_directory(directory: Path) -> "PreTrainedTokenizerFast":
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        _config(directory / name)
    if (directory / "tokenizer.json").exists():
        _check(directory / "tokenizer.json")
        return _with_rows(_finish(_transformers(fast_tokenizer_class(), directory)), directory)
    if (directory / "vocab.json").exists() and (directory / "merges.txt").exists():
        return _finish(_from_merges(directory))
    if any(directory.glob("*.model")) or (directory / "vocab.txt").exists():
        from transformers import AutoTokenizer

        return _finish(_transformers(AutoTokenizer, directory))
    raise UserError(f"{directory}: holds no tokenizer; expected {_EXPECTED}; {_RESAVE}")


def _transformers(loader: type, directory: Path) -> "PreTrainedTokenizerFast":
    try:
        tokenizer = loader.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever the missing piece raises
        raise UserError(f"{directory}: transformers cannot load this tokenizer ({one_line(error)}); {_RESAVE}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"{directory}: has no fast tokenizer; expected {_EXPECTED}; {_RESAVE}")
    # How it was loaded here is not what it is, and would be saved with it.
    for name in ("local_files_only", "is_local", "trust_remote_code"):
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer


def rowless_tokens(tokenizer: "PreTrainedTokenizerFast") -> tuple[str, ...]:
    """The special tokens that `load_tokenizer` left out, since their model's tables have no row for them."""
    return vars(tokenizer).get("rowless", ())


def _with_rows(tokenizer: "PreTrainedTokenizerFast", directory: Path) -> "PreTrainedTokenizerFast":
    """The tokenizer without special tokens at its end that the directory's config.json has no rows for.

    As it is, where an ordinary token has no row either: then it is the tokenizer of another model.
    """
    config: Any = {}
    # A damaged one is told by who reads the model.
    with contextlib.suppress(UserError):
        config = _config(directory / "config.json")
    inner = config.get("text_config")
    rows = (inner if isinstance(inner, dict) else config).get("vocab_size")
    lacking = {i: token for i, token in tokenizer.added_tokens_decoder.items() if isinstance(rows, int) and i >= rows}
    ordinary = (i for i in tokenizer.get_vocab().values() if i not in lacking)
    if not lacking or not all(token.special for token in lacking.values()) or max(ordinary, default=-1) >= rows:
        return tokenizer
    names = [token.content for token in lacking.values()]

    def gone(value: Any) -> bool:
        return (value.get("content") if isinstance(value, dict) else value) in names

    def left(value: Any) -> Any:
        """Settings without what names one of them: as a text, or as an object with it as its "content"."""
        if isinstance(value, dict):
            return {key: left(one) for key, one in value.items() if not gone(one)}
        return [left(one) for one in value if not gone(one)] if isinstance(value, list) else value

    with tempfile.TemporaryDirectory() as copy:
        tokenizer.save_pretrained(copy)
        state = _config(Path(copy, "tokenizer.json"))
        state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in names]
        if isinstance(state["model"].get("vocab"), dict):
            state["model"]["vocab"] = {token: i for token, i in state["model"]["vocab"].items() if token not in names}
        Path(copy, "tokenizer.json").write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if (file := Path(copy, name)).exists():
                file.write_text(json.dumps(left(_config(file)), ensure_ascii=False), encoding="utf-8")
        reduced = _finish(_transformers(fast_tokenizer_class(), Path(copy)))
    reduced.name_or_path, reduced.rowless = tokenizer.name_or_path, tuple(names)
    return reduced


def _from_merges(directory: Path) -> "PreTrainedTokenizerFast":
    """What transformers makes of vocab.json and merges.txt where the folder names a class or a model; else GPT-2's pipeline."""
    backend = _byte_level_from_merges(directory)
    options: dict[str, Any] = _named_tokens(directory)
    classed = _config(directory / "tokenizer_config.json").get("tokenizer_class")
    if classed or _config(directory / "config.json").get("model_type"):
        from transformers import AutoTokenizer

        # Classes differ in how they cut words (Qwen2) and in what they put around a text (OPT).
        loaded = _transformers(AutoTokenizer, directory)
        ids = loaded.get_vocab()
        moved = [token for token, token_id in backend.get_vocab().items() if ids.get(token) != token_id]
        if moved or "ByteLevel" not in str(loaded.backend_tokenizer.pre_tokenizer):
            problem = f"token {moved[0][:40]!r} would not keep its id" if moved else "words are not cut into bytes"
            raise UserError(
                f"{directory}: vocab.json and merges.txt do not suit {classed or 'the model of config.json'} ({problem}); "
                f"expected a byte-level BPE; {_RESAVE}"
            )
        backend = loaded.backend_tokenizer
        options = {key: getattr(loaded, key) for key in _WELL_KNOWN if getattr(loaded, key) is not None}
        options |= {"chat_template": loaded.chat_template, "model_max_length": loaded.model_max_length}
    return fast_tokenizer_class()(tokenizer_object=backend, name_or_path=str(directory), **options)


def _byte_level_from_merges(directory: Path) -> "Tokenizer":
    """Builds GPT-2's pipeline around vocab.json, merges.txt and added_tokens.json; the first two alone mean byte-level BPE."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = read_json(directory / "vocab.json", "the vocabulary of a byte-level BPE")
    _check_ids(directory / "vocab.json", list(vocabulary.items()))
    require_file(directory / "merges.txt", "BPE merges, two tokens a line")
    missing = [character for character in pre_tokenizers.ByteLevel.alphabet() if character not in vocabulary]
    if missing or any(token.endswith("</w>") for token in vocabulary):
        raise UserError(f"{directory}/vocab.json: not the vocabulary of a byte-level BPE; expected tokenizer.json; {_RESAVE}")
    try:
        model = models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt"))
    except Exception as error:  # the Rust side raises plain Exception
        problem = f"vocab.json and merges.txt do not fit together ({one_line(error)})"
        raise UserError(f"{directory}: {problem}; copy both again") from error
    backend = Tokenizer(model)
    config = _config(directory / "tokenizer_config.json")
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space", False)))
    backend.decoder = decoders.ByteLevel()
    names = set(_well_known(vocabulary).values())
    tokens = [AddedToken(name, special=True, normalized=False, lstrip=name == "<mask>") for name in names]
    backend.add_special_tokens(sorted(tokens, key=lambda token: vocabulary[token.content]))
    added = _config(directory / "added_tokens.json")
    _check_ids(directory / "added_tokens.json", list(vocabulary.items()), list(added.items()))
    for name in sorted(added, key=added.get):
        backend.add_tokens([AddedToken(name, normalized=False)])
        if backend.token_to_id(name) != added[name]:
            raise UserError(
                f"{directory}/added_tokens.json: token {name[:40]!r} has the id {added[name]}, and {backend.token_to_id(name)} "
                f"behind vocab.json; expected the ids behind it, without a gap; {_RESAVE}"
            )
    if {"<s>", "</s>"} <= names:
        ids = [(name, vocabulary[name]) for name in ("<s>", "</s>")]
        backend.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", ids)
    else:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend


def _named_tokens(directory: Path) -> dict[str, str]:
    """What the directory's configuration files say about special tokens, as keyword arguments of a tokenizer."""
    named = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config = _config(directory / name)
        for key in _WELL_KNOWN:
            value = config.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if not isinstance(value, str | None):
                raise UserError(f"{directory / name}: {key} is no text; expected the name of a token; copy the file again")
            if value is not None:
                named[key] = value
    return named


def _config(path: Path) -> dict[str, Any]:
    return read_json(path, "a JSON file of a tokenizer") if path.exists() else {}


def _finish(tokenizer: "PreTrainedTokenizerFast") -> "PreTrainedTokenizerFast":
    """Gives nameless tokenizers their special tokens, and drops a truncation or padding that the file carries along."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    for number, added in backend.get_added_tokens_decoder().items():
        # Where the model's ids have holes, the library numbers an added token after how many tokens there are.
        if (taken := backend.model.id_to_token(number)) not in (None, added.content):
            raise UserError(
                f"{tokenizer.name_or_path}: the added token {added.content[:40]!r} gets the id {number} of {taken[:40]!r} from "
                "the tokenizers library; expected one that is free; put it into the model's vocab, too"
            )
    if any(getattr(tokenizer, key) is not None for key in _WELL_KNOWN):
        return tokenizer
    flags = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    special = {name for name, token in flags.items() if token.special}
    named = _well_known(special or backend.get_vocab(with_added_tokens=True))
    tokenizer.add_special_tokens({key: flags.get(name, name) for key, name in named.items()})
    return tokenizer


def _well_known(known: Container[str]) -> dict[str, str]:
    """Names special tokens after what they are usually called, of the names in `known`."""
    named = {key: next((name for name in names if name in known), None) for key, names in _WELL_KNOWN.items()}
    if named["mask_token"] == "<mask>" and named["bos_token"] == "<s>":
        named["cls_token"], named["sep_token"] = "<s>", named["eos_token"]
    return {key: name for key, name in named.items() if name is not None}


def _check(path: Path) -> None:
    """Raises `UserError` where a tokenizer.json is damaged or something else, or would make a library ask for gigabytes."""
    content = read_json(path, "a tokenizer.json")
    model, added = content.get("model"), content.get("added_tokens") or []
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = [token if isinstance(token, dict) else {} for token in added] if isinstance(added, list) else []
    if not isinstance(vocabulary, dict | list):
        raise UserError(f"{path}: JSON, but no tokenizer (it has no model with a vocab); expected a tokenizer.json; {_RESAVE}")
    # The ids of a unigram model's tokens are their places.
    pairs = list(vocabulary.items() if isinstance(vocabulary, dict) else enumerate(range(len(vocabulary))))
    _check_ids(path, pairs, [(token.get("content"), token.get("id")) for token in added])
    # The library cuts the prefix off the second part of each merge, and ends the process where that has none.
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if isinstance(prefix, str) and isinstance(merges, list):
        for merge in merges:
            parts = merge.split(" ") if isinstance(merge, str) else merge
            if isinstance(parts, list) and parts and not str(parts[-1]).startswith(prefix):
                raise UserError(
                    f"{path}: merge {ascii(merge)[:40]} does not continue with {ascii(prefix)[:40]}, its "
                    "continuing_subword_prefix; expected one that all merges have; copy the file again"
                )


def _check_ids(path: Path, vocabulary: Sequence[tuple[object, object]], added: Sequence[tuple[object, object]] = ()) -> None:
    """Raises `UserError` where the (token, id) pairs of a vocabulary leave no table of about as many rows."""
    if not vocabulary:
        raise UserError(f"{path}: its vocabulary is empty; expected a trained tokenizer; train it, or copy the file again")
    highest, taken = 2 * (len(vocabulary) + len(added)) + _MOST_HOLES, {}
    for token, token_id in (*vocabulary, *added):
        if type(token_id) is not int or not 0 <= token_id < highest:
            raise UserError(
                f"{path}: token {str(token)[:40]!r} has the id {str(token_id)[:40]!r}; expected whole numbers, most of them in "
                f"use, so below {highest} for {len(vocabulary)} tokens; copy the file again"
            )
    for token, token_id in vocabulary:
        if taken.setdefault(token_id, token) != token:
            both = f"{str(taken[token_id])[:40]!r} and {str(token)[:40]!r}"
            raise UserError(f"{path}: tokens {both} have the same id {token_id}; expected one for each; copy the file again")


# A word of several scripts, marks, digits, blanks and a line feed: where the rules of two tokenizers differ.
_PROBE = "Haus größer l'eau 12345 हिन्दी นี่คือ 東京  x\n\n y"


def reloads_alike(
    directory: str | os.PathLike, tokenizer: "PreTrainedTokenizerFast", config: str | os.PathLike = "config.json"
) -> bool:
    """Whether transformers' AutoTokenizer makes of a model directory the tokenizer that was written there.

    For some models it reads no more than the vocabulary of tokenizer.json and cuts words by the rule of the original model
    (transformers 5 with `"model_type": "qwen2"`).

    Args:
      directory: of the model.
      tokenizer: that was written.
      config: the file that its config.json is made from, for the message.

    Raises:
      UserError: transformers, which reads config.json on the way, refuses the type of a field.

    >>> from wechsel_jax import demo
    >>> reloads_alike(demo.path("english-gpt2"), load_tokenizer(demo.path("english-gpt2")))
    True
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoTokenizer

    from wechsel_jax.tokens.encoding import plain_backend

    def cut(one: Any) -> Any:
        try:
            return plain_backend(one).encode(_PROBE, add_special_tokens=False).ids
        except Exception as error:  # the Rust side's own, where a tokenizer has no token for what it does not know
            return str(error)

    try:
        loaded = AutoTokenizer.from_pretrained(os.fspath(directory), local_files_only=True, trust_remote_code=False)
    except StrictDataclassError as error:
        raise UserError(f"{config}: transformers refuses it ({one_line(error)}); mend the field") from error
    return cut(loaded) == cut(tokenizer)
