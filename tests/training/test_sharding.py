import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

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
