"""The same bytes from the same seed on any number of threads, of BLAS as of XLA, and so on machines with other processors."""

import json

import numpy as np
import pytest
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from tests.forked import run_code
from wechsel_jax.initializers import Side, TransferPlan
from wechsel_jax.initializers.anker.decomposition import decompose
from wechsel_jax.initializers.least_squares import least_squares
from wechsel_jax.initializers.regression import fit_regression
from wechsel_jax.initializers.transforms import Factors, low_rank
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.transfers.unigram import constant_direction
from wechsel_jax.vectors import PlainVectors, align
from wechsel_jax.vectors.alignment import SideMap
from wechsel_jax.vectors.refinement import Refinement, refine_rotation
from wechsel_jax.vectors.self_learning import similarity_map

# Wide enough that the products are split among the threads: those of the other tests' models run on one.
WIDTH, DIMENSIONS = 96, 96
JOBS = ("anker", "multivariate", "standardized", "factorised")
PROGRAM = """
import hashlib, json, pathlib, sys
from threadpoolctl import threadpool_limits
from wechsel_jax.transfers.job import transfer
source, tokenizer, output, jobs, threads = json.loads(sys.argv[1])
# The environment can ask for no more threads than there are processors.
threadpool_limits(threads, user_api="blas")
for name, settings in jobs.items():
    place = pathlib.Path(output, name)
    transfer(source, tokenizer, place, log=lambda line: None, **settings)
    for file in sorted(place.glob("*.npz")) + sorted(place.glob("*.safetensors")):
        print(name, file.name, hashlib.sha256(file.read_bytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def hashes(world, save_source, tmp_path_factory):
    """(job, file, hash) of every array file of every job, for 1 and 4 threads, of machine code as users get it."""
    german = str(world.root / "german.txt")
    texts = {"source_text": str(world.root / "english.txt"), "target_text": german, "dictionary": str(world.dictionary)}
    # Calibration comes last: the saved plan is still that of the method alone.
    anker = {"method": "anker", "dimensions": DIMENSIONS, "calibrate": "unigram", **texts}
    wechsel = {name: str(path) for name, path in world.inputs().items()} | {"method": "wechsel"}
    settings = [
        anker,
        {"method": "multivariate"},
        wechsel | {"noise": "multivariate", "standardize": "pretrained_xavier"},
        wechsel | {"method": "ofa", "latent_dimension": 48, "factorised": True},
    ]
    source, found = str(save_source("gpt2", n_embd=WIDTH)[0]), []
    for threads in (1, 4):
        output, jobs = str(tmp_path_factory.mktemp(f"threads-{threads}")), dict(zip(JOBS, settings, strict=True))
        arguments = json.dumps([source, str(world.tokenizer("german", "gpt2")), output, jobs, threads])
        # XLA makes as many threads as NPROC says.
        done = run_code(PROGRAM, arguments, JAX_PLATFORMS="cpu", NPROC=str(threads))
        assert done.returncode == 0, done.stderr
        found.append([line.split() for line in done.stdout.splitlines()])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_the_number_of_threads_changes_no_byte_of_a_transfer(hashes, job):
    one, *others = ([line for line in lines if line[0] == job] for lines in hashes)
    assert [line[1] for line in one][-1] == "model.safetensors" and len(one) == (3 if job == "factorised" else 2)
    assert others == [one]


def problem():
    """Two languages' vectors, one of them turned, and support rows of which two are the same, so that A A^T is singular."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((700, 150)).astype(np.float32)
    turn = np.linalg.qr(generator.standard_normal((150, 150)))[0]
    z = (x @ turn + 0.3 * generator.standard_normal(x.shape)).astype(np.float32)
    wide, ids = generator.standard_normal((700, 768)), generator.integers(0, 700, (5, 61))
    ids[1, 1] = ids[1, 0]
    words = [f"w{i}" for i in range(700)]
    return {"x": x, "z": z, "turn": turn, "wide": wide, "ids": ids, "words": words}


def regression(x, words, **_):
    spelled = tuple(word.encode() for word in words)
    side = Side(Vocabulary(tuple(words), spelled, np.zeros(len(words), bool), (frozenset(),) * len(words), "byte_bpe"), x)
    return fit_regression(side, side).basis


def applied(x, turn, **_):
    """Large weights that cancel, so that what the order of additions changes is not rounded away."""
    large = 1e9 * x.T
    plan = TransferPlan.mixed(np.zeros((150, 0)), np.zeros((150, 0)))
    return plan.with_regression(turn, np.concatenate([large, -large], axis=1)).apply(np.concatenate([x, x]))


def align_with_axes(x, z, words, **_):
    found = align(PlainVectors(words, x), PlainVectors(words, z[:, :140]), "identical", center=True, held_out=0)
    return found.source.matrix


CALCULATIONS = {
    "fit_regression": regression,
    "apply": applied,
    "constant_direction": lambda x, **_: constant_direction(x),
    # The table has 75: rounding alone makes the others.
    "low_rank": lambda x, **_: low_rank(np.tile(x[:, :75], 2), 100).coordinates,
    "dense": lambda x, turn, **_: Factors(x, turn.astype(np.float32)).dense(),
    "least_squares": lambda wide, ids, **_: least_squares(wide, ids, np.ones(ids.shape, bool), wide[:5] + 1).weights,
    "decompose": lambda x, **_: decompose(csr_array(np.maximum(x - 1, 0)), 64)[0],
    "refine_rotation": lambda x, z, turn, **_: refine_rotation(x, z, turn, Refinement(rounds=1)).rotation,
    "similarity_map": lambda x, z, **_: similarity_map(x[:200], z[:200], np.random.default_rng(0), patience=1),
    "map": lambda x, turn, **_: SideMap(turn.astype(np.float32))(x),
    "align": align_with_axes,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALCULATIONS)
def test_the_number_of_threads_changes_no_bit_of_a_result(name):
    given, found = problem(), set()
    for threads in (1, 2, 4):
        with threadpool_limits(threads, user_api="blas"):
            found.add(np.asarray(CALCULATIONS[name](**given)).tobytes())
    assert len(found) == 1
