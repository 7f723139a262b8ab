"""Work for the few environments of a batch that need it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.envs.echelon.sparse import (
    anywhere,
    first,
    updated_where_needed,
    when_anywhere,
    where_needed,
)


def scaled(values, factor, common):
    return {"x": values * factor + common.sum()}


def call(needed, values, factor, common):
    return where_needed(scaled, needed, {"x": values}, values, factor, common, share=0.25)


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 1.0])
def test_where_needed_in_nested_batches(chance):
    rng = np.random.default_rng(0)
    needed = jnp.asarray(rng.random((3, 10)) < chance)
    values = jnp.asarray(rng.random((3, 10, 4)), jnp.float32)
    factor, common = jnp.arange(3.0), jnp.ones(5)
    nested = jax.vmap(jax.vmap(call, (0, 0, None, None)), (0, 0, 0, None))
    expected = jnp.where(needed[..., None], values * factor[:, None, None] + 5, values)
    np.testing.assert_allclose(jax.jit(nested)(needed, values, factor, common)["x"], expected, rtol=1e-6)
    alone = call(needed[0, 0], values[0, 0], factor[0], common)["x"]
    np.testing.assert_allclose(alone, expected[0, 0], rtol=1e-6)


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_updates_start_from_each_ones_own_state(chance):
    needed = jnp.asarray(np.random.default_rng(1).random(10) < chance)
    state = jnp.arange(20.0).reshape(10, 2)
    batch = jax.vmap(lambda n, s: updated_where_needed(lambda s, a: 2 * s + a, n, s, jnp.ones(2), share=0.2))
    np.testing.assert_allclose(batch(needed, state), jnp.where(needed[:, None], 2 * state + 1, state))


def test_only_as_many_as_there_is_room_for_are_worked_on_at_a_time():
    seen = []

    def look(values):
        seen.append(values.shape)
        return values

    batch = jax.vmap(lambda n, v: where_needed(look, n, v, v, share=0.1))
    text = str(jax.make_jaxpr(batch)(jnp.ones(40, bool), jnp.ones((40, 6))))
    assert set(seen) == {(6,)} and "f32[4,6]" in text


def test_first():
    mask = jnp.array([False, True, False, True, True])
    assert first(mask, 2).tolist() == [1, 3]
    assert first(mask, 4).tolist() == [1, 3, 4, 5]
    assert first(jnp.zeros(3, bool), 2).tolist() == [3, 3]


def test_a_loop_while_anywhere_selects_nothing():
    def count(value):
        return jax.lax.while_loop(
            lambda v: anywhere(v[0] < 5), lambda v: (jnp.where(v[0] < 5, v[0] + 1, v[0]), v[1]), value
        )

    start = jnp.arange(8), jnp.ones((8, 100))
    assert jax.vmap(count)(start)[0].tolist() == [5, 5, 5, 5, 5, 5, 6, 7]
    body = str(jax.make_jaxpr(jax.vmap(count))(start))
    assert "bool[8,100]" not in body


def test_when_anywhere_runs_for_all_or_nobody():
    def batch(flags):
        return jax.vmap(lambda f, v: when_anywhere(f, lambda v: v + 1, lambda v: v, v))(flags, jnp.zeros(3))

    assert batch(jnp.array([False, True, False])).tolist() == [1, 1, 1]
    assert batch(jnp.zeros(3, bool)).tolist() == [0, 0, 0]
