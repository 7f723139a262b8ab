import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.optim.optimizers import OPTIMIZERS, clip_scale, global_norm, make_optimizer
from algos.optim.packing import SMALL, pack_optimizer, pack_small_arrays, unpack_small_arrays

LARGE = (SMALL // 64 + 1, 64)
TREES = {
    "both": {"a": (3,), "b": {"kernel": LARGE, "bias": (64,)}, "c": (), "d": (2, 3), "e": LARGE},
    "small": {"a": (3, 2), "b": (4,)},
    "large": {"a": LARGE, "b": LARGE},
    "one": {"a": (5,)},
}
HYPER = {"learning_rate": 0.01, "weight_decay": 0.1, "adam_beta1": 0.8, "rmsprop_decay": 0.9}


def draw(seed: int, shapes) -> dict:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda s: jnp.asarray(rng.normal(size=s), jnp.float32), shapes, is_leaf=lambda s: isinstance(s, tuple)
    )


def test_every_small_array_is_in_the_last_one_and_every_large_one_by_itself():
    parts = pack_small_arrays(draw(0, TREES["both"]))
    assert [x.shape for x in parts] == [LARGE, LARGE, (3 + 64 + 1 + 6,)]


@pytest.mark.parametrize("name", TREES)
def test_unpacking_restores(name):
    tree = draw(1, TREES[name])
    back = unpack_small_arrays(pack_small_arrays(tree), jax.tree.map(jnp.zeros_like, tree))
    jax.tree.map(np.testing.assert_array_equal, back, tree)


def test_several_types_are_refused():
    with pytest.raises(TypeError):
        pack_small_arrays({"a": jnp.zeros(3), "b": jnp.zeros(3, jnp.bfloat16)})


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_packed_steps_are_the_same_steps(optimizer, name):
    plain = make_optimizer(optimizer)
    joined = pack_optimizer(plain)
    params = other = draw(2, TREES[name])
    state = other_state = plain.init(params)
    for i in range(4):
        grads = jax.tree.map(lambda x, i=i: jnp.sin(x * (i + 1)), params)
        scale = clip_scale(global_norm(grads), 0.5)
        np.testing.assert_allclose(joined.norm(grads), global_norm(grads), rtol=1e-6)
        params, state = plain.step(grads, state, params, HYPER, scale, i != 2)
        other, other_state = joined.step(grads, other_state, other, HYPER, scale, i != 2)
    assert jax.tree.structure(other_state) == jax.tree.structure(state)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), other, params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), other_state, state)


def test_a_packed_step_that_is_not_applied_changes_nothing():
    optimizer = pack_optimizer(make_optimizer("adam"))
    params = draw(3, TREES["both"])
    state = optimizer.init(params)
    broken = jax.tree.map(lambda x: x * jnp.nan, params)
    after, state_after = jax.jit(optimizer.step)(broken, state, params, HYPER, 1.0, False)
    jax.tree.map(np.testing.assert_array_equal, (after, state_after), (params, state))


def test_optimizers_of_matrices_are_not_packed():
    muon = make_optimizer("muon")
    assert pack_optimizer(muon) is muon
    assert pack_optimizer(make_optimizer("adam")).step is not make_optimizer("adam").step
