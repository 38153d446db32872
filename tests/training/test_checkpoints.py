"""Checkpoints on a disk that loses and changes bytes, fills up, and keeps what dead processes left."""

import errno
import os
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from wechsel_jax import files
from wechsel_jax.errors import UserError
from wechsel_jax.training import checkpoints as module
from wechsel_jax.training.checkpoints import Checkpoints
from wechsel_jax.training.step import TrainState


def make_state(step: int, *shape: int) -> TrainState:
    """A state on a mesh ("data", "fsdp", "tensor") of the given shape, with random numbers that depend on the step."""
    shape = shape or (1, 1, 1)
    count = int(np.prod(shape))
    mesh = jax.make_mesh(shape, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:count])
    split, whole = NamedSharding(mesh, PartitionSpec("fsdp", "tensor")), NamedSharding(mesh, PartitionSpec())
    generator = np.random.default_rng(step)
    kernel, moment = (jax.device_put(generator.standard_normal((16, 8), np.float32), split) for _ in range(2))
    bias = jax.device_put(generator.standard_normal(8, np.float32), whole)
    return TrainState(
        {"dense": {"kernel": kernel, "bias": bias}}, ({"dense/kernel": moment},), jax.device_put(jnp.int32(step), whole)
    )


def restore(checkpoints: Checkpoints, step: int, like: TrainState) -> TrainState:
    shapes = jax.eval_shape(lambda: like)
    return checkpoints.restore(step, shapes, jax.tree.map(lambda x: x.sharding, like))


@pytest.fixture
def said():
    return []


@pytest.fixture
def open_checkpoints(tmp_path, said):
    """Returns a function that opens the same directory anew."""
    opened = []

    def open_(keep: int = 2, **options) -> Checkpoints:
        opened.append(Checkpoints(tmp_path / "checkpoints", keep, say=said.append, **options))
        return opened[-1]

    yield open_
    for checkpoints in opened:
        checkpoints.close()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A directory with the checkpoints 10 and 20; not to be changed."""
    checkpoints = Checkpoints(tmp_path_factory.mktemp("stored") / "checkpoints", 2)
    for step in (10, 20):
        checkpoints.save(step, make_state(step))
    assert checkpoints.wait() == 20
    checkpoints.close()
    return checkpoints.directory


def damage(place) -> str | None:
    return files.damage(place, "manifest.json")


def files_of(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def copied(stored, tmp_path):
    shutil.copytree(stored, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def test_a_changed_byte_in_any_file_is_found(copied):
    generator, files = np.random.default_rng(0), files_of(copied / "20")
    assert len(files) > 8 and damage(copied / "20") is None
    for path in files:
        original = path.read_bytes()
        for place in {0, len(original) - 1, *generator.integers(len(original), size=4).tolist()}:
            changed = bytearray(original)
            changed[place] ^= 1 << int(generator.integers(8))
            path.write_bytes(changed)
            what = damage(copied / "20")
            # White space between the fields of the manifest means nothing.
            assert what is not None or (path.name == "manifest.json" and chr(original[place]).isspace()), (path.name, place)
        path.write_bytes(original)
    assert damage(copied / "20") is None


@pytest.mark.parametrize("how", ["flipped", "cut off", "emptied", "removed", "no manifest", "nothing in it"])
def test_the_checkpoint_before_a_damaged_one_is_used(copied, open_checkpoints, said, how):
    biggest = max(files_of(copied / "20" / "state"), key=lambda path: path.stat().st_size)
    content = biggest.read_bytes()
    if how == "flipped":
        biggest.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    elif how in ("cut off", "emptied"):
        biggest.write_bytes(content[: len(content) // 2 if how == "cut off" else 0])
    elif how == "removed":
        biggest.unlink()
    elif how == "no manifest":
        (copied / "20" / "manifest.json").unlink()
    else:
        shutil.rmtree(copied / "20")
        (copied / "20").mkdir()
    checkpoints = open_checkpoints()
    assert checkpoints.find() == checkpoints.saved == 10
    assert len(said) == 1 and f"{copied / '20'}: damaged, " in said[0] and "\n" not in said[0]
    assert np.array_equal(
        restore(checkpoints, 10, make_state(0)).params["dense"]["kernel"], make_state(10).params["dense"]["kernel"]
    )
    # Training gets there again and replaces it.
    checkpoints.save(20, make_state(20))
    assert checkpoints.wait() == 20 and damage(copied / "20") is None
    assert checkpoints.steps() == [10, 20]


def test_without_a_whole_checkpoint_nothing_is_trained(copied, open_checkpoints, said):
    for step in ("10", "20"):
        (copied / step / "state" / "manifest.ocdbt").write_bytes(b"")
    with pytest.raises(UserError, match="every checkpoint is damaged; expected a whole one; put one back from a copy"):
        open_checkpoints().find()
    assert len(said) == 2
    shutil.rmtree(copied)
    assert open_checkpoints().find() is None


@pytest.mark.parametrize("how", ["moved", "copied", "over an older one"])
def test_a_checkpoint_under_another_step_s_name_is_not_used(copied, open_checkpoints, said, how):
    if how == "over an older one":
        shutil.rmtree(copied / "10")
    name = "10" if how == "over an older one" else "30"
    if how == "moved":
        (copied / "20").rename(copied / name)
    else:
        shutil.copytree(copied / "20", copied / name)
    checkpoints = open_checkpoints()
    assert checkpoints.find() == (10 if how == "moved" else 20) and not checkpoints.whole(int(name))
    assert f"{copied / name}: damaged, it was saved as the checkpoint of step 20; it is not used" in said
    for step in checkpoints.steps():
        assert bool(checkpoints.facts(step)["step"] == step) == (step != int(name))
    assert module.newest_facts(copied) == {"step": 10 if how == "moved" else 20}


def test_what_a_checkpoint_is_saved_with_can_be_read_and_replaced(open_checkpoints):
    checkpoints = open_checkpoints()
    checkpoints.save(10, make_state(10), {"metrics": {"lines": 3}})
    checkpoints.wait()
    place = checkpoints.directory / "10"
    assert checkpoints.facts(10) == module.newest_facts(checkpoints.directory) == {"step": 10, "metrics": {"lines": 3}}
    checkpoints.note(10, {"metrics": {"lines": 4}})
    assert open_checkpoints().find() == 10 and checkpoints.facts(10) == {"step": 10, "metrics": {"lines": 4}}
    (place / "manifest.json").write_text("[" * 100_000)
    assert checkpoints.facts(10) == {"step": None} and module.newest_facts(checkpoints.directory) == {}


def test_only_what_a_run_left_is_removed(copied, open_checkpoints):
    others = (".ssh", ".20", ".notes.saving", ".3.1.saving.old", ".removed", "20.removed")
    for name in others:
        (copied / name).mkdir()
    checkpoints = open_checkpoints()
    checkpoints.save(30, make_state(30))
    checkpoints.wait()
    checkpoints.close()
    assert {path.name for path in copied.iterdir()} == {*others, "20", "30"}


def test_what_a_dead_process_left_is_removed(copied, open_checkpoints):
    shutil.copytree(copied / "20", copied / ".30.1.saving")
    shutil.copytree(copied / "20", copied / ".10.removed")
    checkpoints = open_checkpoints()
    assert checkpoints.find() == 20 and sorted(path.name for path in copied.iterdir()) == ["10", "20"]


def test_the_newest_every_nth_and_the_best_stay(open_checkpoints, said):
    losses = {}
    checkpoints = open_checkpoints(2, keep_every=30, losses=losses)
    kept = {}
    for step in range(10, 100, 10):
        losses[step] = abs(step - 20)
        checkpoints.save(step, make_state(step))
        checkpoints.wait()
        kept[step] = checkpoints.steps()
    assert kept[10] == [10] and kept[40] == [20, 30, 40] and kept[50] == [20, 30, 40, 50]
    assert kept[70] == [20, 30, 60, 70] and kept[90] == [20, 30, 60, 80, 90]
    assert checkpoints.best() == 20 and not said
    assert all(damage(checkpoints.directory / str(step)) is None for step in kept[90])


@pytest.mark.parametrize(("before", "after"), [((8, 1, 1), (4, 1, 1)), ((2, 4, 1), (1, 2, 4)), ((1, 1, 1), (2, 2, 2))])
def test_other_devices_get_the_same_numbers(open_checkpoints, before, after):
    checkpoints, state, like = open_checkpoints(), make_state(7, *before), make_state(0, *after)
    checkpoints.save(7, state)
    checkpoints.wait()
    found = restore(checkpoints, 7, like)
    for one, other, wanted in zip(*map(jax.tree.leaves, (state, found, like)), strict=True):
        assert np.array_equal(one, other) and other.sharding == wanted.sharding


def test_another_model_is_refused_by_name(copied, open_checkpoints):
    checkpoints, other = open_checkpoints(), make_state(0)
    other.params["dense"]["extra"] = other.params["dense"]["bias"]
    with pytest.raises(UserError, match=r"20: cannot be restored .*; expected a checkpoint of this model"):
        restore(checkpoints, 20, other)


def test_saving_does_not_wait_for_the_disk(open_checkpoints, monkeypatch):
    may_go_on, seal = threading.Event(), module.seal

    def slow(*arguments):
        assert may_go_on.wait(60)
        seal(*arguments)

    monkeypatch.setattr(module, "seal", slow)
    checkpoints = open_checkpoints()
    checkpoints.save(10, make_state(10))
    assert checkpoints.steps() == [] and checkpoints.saved is None
    may_go_on.set()
    assert checkpoints.wait() == 10 == checkpoints.saved and checkpoints.steps() == [10]


@pytest.mark.parametrize("where", ["directory", "orbax", "seal"])
def test_a_failed_save_costs_nothing_but_itself(open_checkpoints, said, monkeypatch, where):
    checkpoints = open_checkpoints(1)
    checkpoints.save(10, make_state(10))
    checkpoints.wait()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if where == "directory":
            patch.setattr(module.Path, "mkdir", full)
        elif where == "orbax":
            patch.setattr(checkpoints._checkpointer, "wait_until_finished", full)
        else:
            patch.setattr(module, "seal", full)
        checkpoints.save(20, make_state(20))
        assert checkpoints.wait() == 10
    reason = "could not be written (No space left on device); that of step 10 is kept; the next one is tried"
    assert said == [f"the checkpoint of step 20 {reason}"]
    assert [path.name for path in checkpoints.directory.iterdir()] == ["10"]
    checkpoints.save(30, make_state(30))
    assert checkpoints.wait() == 30 and checkpoints.steps() == [30] and len(said) == 1
