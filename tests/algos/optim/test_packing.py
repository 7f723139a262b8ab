import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.optim.optimizers import clip_scale, global_norm, make_optimizer
from algos.optim.packing import (
    SMALL,
    pack_moments,
    pack_small_arrays,
    unpack_moments,
    unpack_small_arrays,
)

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


def test_each_type_has_an_array_of_its_own():
    tree = {
        "a": jnp.arange(3.0),
        "b": jnp.ones((2, 2), jnp.bfloat16),
        "c": jnp.zeros(LARGE),
        "d": jnp.ones(1),
    }
    parts = pack_small_arrays(tree)
    assert [(x.shape, x.dtype) for x in parts[1:]] == [((4,), jnp.float32), ((4,), jnp.bfloat16)]
    jax.tree.map(np.testing.assert_array_equal, unpack_small_arrays(parts, tree), tree)


def array_by_array(optimizer, grads, state, params, scale, apply):
    """The step of every array by itself, each with the state of an optimiser of that array."""
    moved, after = {}, {}
    for name in params:
        own = jax.tree.map(lambda x, name=name: x[name] if isinstance(x, dict) else x, state, is_leaf=is_dict)
        moved[name], after[name] = optimizer.step(grads[name], own, params[name], HYPER, scale, apply)
    return moved, after


def is_dict(x) -> bool:
    return isinstance(x, dict)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop"])
def test_steps_of_many_arrays_are_those_of_each(optimizer, name):
    optimizer, params = make_optimizer(optimizer), draw(2, TREES[name])
    state = optimizer.init(params)
    for i in range(4):
        grads = jax.tree.map(lambda x, i=i: jnp.sin(x * (i + 1)), params)
        norm = np.sqrt(sum(float((np.asarray(x, np.float64) ** 2).sum()) for x in jax.tree.leaves(grads)))
        np.testing.assert_allclose(global_norm(grads), norm, rtol=1e-6)
        scale = clip_scale(global_norm(grads), 0.5)
        expected, states = array_by_array(optimizer, grads, state, params, scale, i != 2)
        params, after = optimizer.step(grads, state, params, HYPER, scale, i != 2)
        assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
        state = after
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), params, expected)
        moments = {name: own.square for name, own in states.items()}
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), state.square, moments)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_packed_step_that_is_not_applied_changes_nothing(optimizer):
    optimizer, params = make_optimizer(optimizer), draw(3, TREES["both"])
    state = optimizer.init(params)
    broken = jax.tree.map(lambda x: x * jnp.nan, params)
    after, state_after = jax.jit(optimizer.step)(broken, state, params, HYPER, 1.0, False)
    jax.tree.map(np.testing.assert_array_equal, (after, state_after), (params, state))


def test_a_single_number_is_stepped():
    """Its state has a count of the same shape, which is no moment."""
    optimizer = make_optimizer("adam")
    number = jnp.float32(2.0)
    moved, state = optimizer.step(jnp.float32(3.0), optimizer.init(number), number, HYPER)
    np.testing.assert_allclose(moved, 2.0 - HYPER["learning_rate"], rtol=1e-5)
    assert moved.shape == state.mean.shape == state.count.shape == () and state.count == 1


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "muon"])
def test_moments_stay_packed_in_a_loop_of_steps(optimizer):
    optimizer, params = make_optimizer(optimizer), draw(4, TREES["both"])
    state = start = optimizer.init(params)
    packed, other = pack_moments(state), params
    for i in range(3):
        grads = jax.tree.map(lambda x, i=i: jnp.sin(x * (i + 1)), params)
        params, state = optimizer.step(grads, state, params, HYPER, 0.5)
        other, packed = optimizer.step(grads, packed, other, HYPER, 0.5)
    assert jax.tree.structure(packed) == jax.tree.structure(pack_moments(start)) != jax.tree.structure(start)
    jax.tree.map(np.testing.assert_array_equal, (other, unpack_moments(packed)), (params, state))
