import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from wechsel_jax.errors import UserError
from wechsel_jax.models import family
from wechsel_jax.models.weights import flatten
from wechsel_jax.training import sharding


def make_mesh(data, fsdp, tensor):
    return sharding.make_mesh({"data": data, "fsdp": fsdp, "tensor": tensor})


def test_minus_one_takes_the_remaining_devices():
    mesh = make_mesh(-1, 2, 2)
    assert dict(mesh.shape) == {"data": jax.device_count() // 4, "fsdp": 2, "tensor": 2}
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert sharding.batch_devices(mesh) == jax.device_count() // 2


def test_fewer_devices_can_be_used():
    assert make_mesh(1, 1, 1).devices.size == 1


def test_several_processes_use_all_devices(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match="uses 4 of 8 devices; expected all of them"):
        make_mesh(2, 2, 1)


@pytest.mark.parametrize(
    ("shape", "named"), [((-1, 3, 1), "does not divide 8 devices"), ((4, 4, 1), "needs 16 devices and there are 8")]
)
def test_impossible_meshes_are_refused(shape, named):
    with pytest.raises(UserError, match=named):
        make_mesh(*shape)


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_the_rules_of_a_family_cover_every_parameter(name):
    model = family(name)
    for tied in (True, False):
        config = model.config({"vocab_size": 320, "tie_word_embeddings": tied})
        shardings, notes = sharding.parameter_shardings(make_mesh(1, 4, 2), model.sharding_rules, model.shapes(config))
        flat = flatten(shardings)
        assert set(flat) == set(model.shapes(config)) and notes == []
        assert flat["token_embedding/embedding"].spec == PartitionSpec("tensor", "fsdp")


def test_a_parameter_without_a_rule_is_named():
    with pytest.raises(UserError, match="layers/new/kernel: no sharding rule"):
        sharding.parameter_shardings(make_mesh(1, 1, 1), [("^a", PartitionSpec())], {"a": (2,), "layers/new/kernel": (2, 2)})


@given(st.tuples(st.integers(1, 20), st.integers(1, 20)))
def test_a_dimension_that_does_not_divide_stays_whole_and_is_stated(shape):
    rules = [("table", PartitionSpec("tensor", "fsdp"))]
    shardings, notes = sharding.parameter_shardings(make_mesh(1, 4, 2), rules, {"table": shape})
    fits = (shape[0] % 2 == 0, shape[1] % 4 == 0)
    assert tuple(shardings["table"].spec) == ("tensor" if fits[0] else None, "fsdp" if fits[1] else None)
    assert len(notes) == fits.count(False) and all(note.startswith("table: ") for note in notes)
    assert shardings["table"].shard_shape(shape) == (shape[0] // (2 if fits[0] else 1), shape[1] // (4 if fits[1] else 1))


MESHES = [(8, 1, 1), (2, 2, 2), (1, 8, 1), (1, 2, 4)]


@pytest.fixture
def as_one_of_several(monkeypatch):
    """Takes the way of several processes; this one still has all devices, so that everything can be compared."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)


@pytest.mark.parametrize("shape", MESHES)
def test_a_batch_of_local_rows_is_the_batch(shape, as_one_of_several):
    mesh = make_mesh(*shape)
    held = sharding.rows_of_process(mesh, 16)
    assert held.tolist() == list(range(16))
    batch = {"tokens": np.arange(2 * 16 * 3).reshape(2, 16, 3), "weights": np.random.default_rng(0).random((2, 16, 3))}
    where = sharding.batch_sharding(mesh, accumulated=True)
    placed = sharding.put_local(batch, where, held, 16)
    for name, value in batch.items():
        assert placed[name].sharding == where
        assert np.array_equal(placed[name], value.astype(placed[name].dtype))


@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_each_device_copies_its_own_rows_only(shape, monkeypatch):
    mesh, asked = make_mesh(*shape), []
    monkeypatch.setattr(jax, "process_count", lambda: 2)

    class Recorded(np.ndarray):
        def __getitem__(self, index):
            asked.append(index)
            return np.asarray(super().__getitem__(index))

    value = np.arange(4 * 2).reshape(4, 2).view(Recorded)
    sharding.put_local({"tokens": value}, sharding.batch_sharding(mesh), np.arange(4), 4)
    parts = 1 if shape[2] == 2 else 2
    assert {(index[0].start, index[0].stop) for index in asked} == {
        (i * 4 // parts, (i + 1) * 4 // parts) for i in range(parts)
    }


@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("largest", [1, 1000, 1 << 30])
def test_parameters_come_to_the_host_whole_and_leave_the_devices_as_they_were(shape, largest, as_one_of_several):
    mesh, generator = make_mesh(*shape), np.random.default_rng(0)
    specs = {"table": PartitionSpec("tensor", "fsdp"), "layers": PartitionSpec(None, "fsdp", "tensor"), "bias": PartitionSpec()}
    shapes = {"table": (16, 8), "layers": (5, 8, 8), "bias": (8,)}
    values = {name: generator.random(size, np.float32) for name, size in shapes.items()}
    placed = {name: jax.device_put(value, NamedSharding(mesh, specs[name])) for name, value in values.items()}
    for _ in range(2):
        host = sharding.to_host(placed, largest)
        assert all(isinstance(host[name], np.ndarray) and np.array_equal(host[name], values[name]) for name in values)


@pytest.mark.parametrize("several", [False, True])
def test_functions_are_called_one_after_the_other_and_placed(several, monkeypatch):
    if several:
        monkeypatch.setattr(jax, "process_count", lambda: 2)
    mesh, called = make_mesh(1, 4, 2), []

    def reader(i):
        def read():
            called.append(i)
            return np.full((4, 4), i, np.float32)

        return read

    where = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    placed = sharding.put({"a": reader(0), "b": {"c": reader(1), "d": np.ones((4, 4), np.float32)}}, where)
    assert called == [0, 1]
    assert [float(x.sum()) for x in jax.tree.leaves(placed)] == [0.0, 16.0, 16.0]
    assert all(x.sharding == where for x in jax.tree.leaves(placed))


def test_a_model_need_not_be_in_memory_as_a_whole():
    model = family("gpt2")
    config = model.config({"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8})
    params = jax.device_get(model.init(config, jax.random.key(0)))
    tensors = model.to_hugging_face(params, config)
    mesh = make_mesh(1, 4, 2)
    where, _ = sharding.parameter_shardings(mesh, model.sharding_rules, model.shapes(config))
    functions = model.from_hugging_face(tensors, config, lazy=True)
    assert all(callable(function) for function in flatten(functions).values())
    placed = flatten(sharding.put(functions, where))
    for path, value in flatten(params).items():
        assert np.array_equal(placed[path], value) and placed[path].sharding == flatten(where)[path]
    with pytest.raises(UserError, match="belongs to no parameter"):
        model.from_hugging_face(tensors | {"transformer.more": np.zeros(1)}, config, lazy=True)
