"""Measures how much memory a transfer of a large model needs: a synthetic Llama in shards, a new vocabulary, one command.

    PYTHONPATH=. python benchmarks/memory.py --gigabytes=20 --directory=/somewhere/with/room --output=benchmarks/memory.json

Writes `--gigabytes` of bfloat16 weights to a temporary directory inside `--directory` (input table and head of --vocabulary x
--width, then layers), runs `wechsel-jax transfer` in a process of its own, and deletes everything. Room for twice that size is
needed. Peak memory is what the system counted for that process (pages of mapped files included); anonymous memory, which cannot
be dropped under pressure, was sampled every 20 ms.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
from absl import app, flags

from benchmarks.results import write_results
from wechsel_jax.checkpoint.tensors import ComputedTensor, TensorFiles, write_shards
from wechsel_jax.records.names import RECORD_FILE

_GIGABYTES = flags.DEFINE_float("gigabytes", 20, "Size of the source's weights, in 10^9 bytes.", lower_bound=0.01)
_VOCABULARY = flags.DEFINE_integer("vocabulary", 128_256, "V_s and V_t.", lower_bound=600)
_WIDTH = flags.DEFINE_integer("width", 8192, "d, a multiple of 64.", lower_bound=64)
_SHARD = flags.DEFINE_float("shard_gigabytes", 5, "Largest shard, in 10^9 bytes.", lower_bound=0.001)
_METHODS = flags.DEFINE_list("methods", ["trans_inner"], "Methods that need no word vectors; one run each.")
_DIRECTORY = flags.DEFINE_string("directory", None, "Where the temporary directory is made; the system's place by default.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file for the result.")

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    with tempfile.TemporaryDirectory(dir=_DIRECTORY.value, prefix="wechsel-memory-") as place:
        source, tokenizer = Path(place) / "source", Path(place) / "tokenizer"
        largest = make_source(source)
        make_tokenizer(source, "s")
        make_tokenizer(tokenizer, "t")
        runs = [measure(source, tokenizer, Path(place) / method, method) for method in _METHODS.value]
        files = TensorFiles.open(source)
        described = {
            "bytes": sum(stored.byte_count for stored in files.values()),
            "largest_tensor_bytes": largest,
            "shards": len({stored.file for stored in files.values()}),
            "table": [_VOCABULARY.value, _WIDTH.value],
        }
    result = {"machine": machine(), "source": described, "runs": runs}
    print(json.dumps(result, indent=2))
    if _OUTPUT.value:
        write_results(_OUTPUT.value, result)


def make_source(directory: Path) -> int:
    """Writes a Llama of about the asked size; returns the bytes of its largest tensor."""
    directory.mkdir(parents=True)
    width, rows = _WIDTH.value, _VOCABULARY.value
    shapes = {"model.embed_tokens.weight": (rows, width), "lm_head.weight": (rows, width), "model.norm.weight": (width,)}
    layers, wanted = 0, _GIGABYTES.value * 1e9
    while layers == 0 or sum(2 * int(np.prod(shape)) for shape in shapes.values()) < wanted:
        shapes |= dict(layer_shapes(layers, width))
        layers += 1
    block = (np.random.default_rng(0).standard_normal(1 << 22, np.float32) * 0.02).astype(_BFLOAT16)
    tensors = {
        name: ComputedTensor(_BFLOAT16, shape, lambda shape=shape: np.resize(block, shape))
        for name, shape in sorted(shapes.items())
    }
    write_shards(directory, tensors, max_shard_bytes=int(_SHARD.value * 1e9))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": rows, "hidden_size": width,
        "num_hidden_layers": layers, "num_attention_heads": width // 64, "num_key_value_heads": max(width // 512, 1),
        "intermediate_size": 7 * width // 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "eos_token_id": 0,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return max(tensor.byte_count for tensor in tensors.values())


def layer_shapes(layer: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one layer: 8 query heads share a key, the inner width is 3.5 d."""
    keys, inner = max(width // 512, 1) * 64, 7 * width // 2
    parts = {
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, width), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner), "input_layernorm": (width,), "post_attention_layernorm": (width,),
    }  # fmt: skip
    for name, shape in parts.items():
        yield f"model.layers.{layer}.{name}.weight", shape


def make_tokenizer(directory: Path, letter: str) -> None:
    """A byte-level vocabulary of the asked size: one special token, the bytes, and made-up words, half of them shared."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = (f"Ġ{letter if number % 2 else 'w'}{number}" for number in range(_VOCABULARY.value - len(alphabet) - 1))
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(["<|endoftext|>", *alphabet, *words])}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    end = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **end).save_pretrained(directory)


def measure(source: Path, tokenizer: Path, output: Path, method: str) -> dict:
    """Runs the command in a process of its own."""
    flagged = {"source": source, "target_tokenizer": tokenizer, "output": output, "method": method}
    command = [sys.executable, "-m", "wechsel_jax", "transfer", *(f"--{name}={value}" for name, value in flagged.items())]
    began = time.perf_counter()
    with subprocess.Popen(command) as process:
        anonymous = 0
        while (finished := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            anonymous = max(anonymous, anonymous_bytes(process.pid))
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(finished[1])
    if process.returncode:
        raise SystemExit(f"{method}: the transfer failed with exit status {process.returncode}")
    usage: resource.struct_rusage = finished[2]
    record = json.loads((output / RECORD_FILE).read_text(encoding="utf-8"))
    return {
        "method": method,
        "counts": record["counts"],
        "peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "peak_anonymous_bytes": anonymous,
        "wall_seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "steps": record["timings"],
    }


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that no file backs; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)


def machine() -> dict:
    """What the figures were taken on."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    app.run(main)
