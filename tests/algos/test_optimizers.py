import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algos.optimizers import adam, anneal, clip_scale, global_norm, init_adam, init_rmsprop, rmsprop

PARAMS = {"a": jnp.array([1.0, -2.0, 0.5]), "b": jnp.array([[0.1], [3.0]])}


def gradients(i):
    return jax.tree.map(lambda x: jnp.sin(x * (i + 1)) * 10.0 ** (-i), PARAMS)


def test_adam_equals_optax():
    transform = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.01, b1=0.8, b2=0.99, eps=1e-5))
    reference, reference_state = PARAMS, transform.init(PARAMS)
    params, state = PARAMS, init_adam(PARAMS)
    for i in range(5):
        grads = gradients(i)
        updates, reference_state = transform.update(grads, reference_state)
        reference = optax.apply_updates(reference, updates)
        scale = clip_scale(global_norm(grads), 0.5)
        params, state = adam(
            grads, state, params, learning_rate=0.01, beta1=0.8, beta2=0.99, eps=1e-5, scale=scale
        )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), params, reference)
    assert state.count == 5


def test_rmsprop_equals_optax():
    transform = optax.chain(
        optax.clip_by_global_norm(0.5), optax.rmsprop(0.01, decay=0.9, eps=1e-3, eps_in_sqrt=False)
    )
    reference, reference_state = PARAMS, transform.init(PARAMS)
    params, state = PARAMS, init_rmsprop(PARAMS)
    for i in range(5):
        grads = gradients(i)
        updates, reference_state = transform.update(grads, reference_state)
        reference = optax.apply_updates(reference, updates)
        scale = clip_scale(global_norm(grads), 0.5)
        params, state = rmsprop(grads, state, params, learning_rate=0.01, decay=0.9, eps=1e-3, scale=scale)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), params, reference)


def test_the_first_step_of_rmsprop():
    """By hand: the running mean is (1 - decay) g^2, so the step is rate * g / (sqrt(1 - decay) |g| + eps)."""
    params = {"x": jnp.array([1.0, 1.0])}
    moved, state = rmsprop(
        {"x": jnp.array([3.0, -4.0])}, init_rmsprop(params), params, learning_rate=0.1, decay=0.75, eps=0.5
    )
    np.testing.assert_allclose(state.square["x"], [2.25, 4.0])
    np.testing.assert_allclose(moved["x"], [1.0 - 0.1 * 3.0 / 2.0, 1.0 + 0.1 * 4.0 / 2.5], rtol=1e-6)


@pytest.mark.parametrize(("init", "step"), [(init_adam, adam), (init_rmsprop, rmsprop)])
def test_a_step_that_is_not_applied_changes_nothing(init, step):
    params, state = step(gradients(0), init(PARAMS), PARAMS, learning_rate=0.1)
    poisoned = jax.tree.map(lambda x: x * jnp.nan, PARAMS)
    same = step(poisoned, state, params, learning_rate=0.1, apply=jnp.array(False))
    jax.tree.map(np.testing.assert_array_equal, (params, state), same)


def test_clipping():
    assert global_norm({"x": jnp.array([3.0]), "y": jnp.array([[4.0]])}) == 5.0
    np.testing.assert_allclose(clip_scale(jnp.array(5.0), 0.5), 0.1)
    assert clip_scale(jnp.array(0.2), 0.5) == 1.0
    assert clip_scale(jnp.array(0.0), 0.5) == 1.0
    assert clip_scale(jnp.array(5.0), jnp.inf) == 1.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedules_go_from_start_to_end_and_stay(schedule):
    values = [float(anneal(schedule, 4.0, 2.0, jnp.array(p))) for p in (0.0, 0.25, 0.5, 1.0, 3.0)]
    quarter = 3.5 if schedule == "linear" else 3.0 + np.cos(np.pi / 4)
    np.testing.assert_allclose(values, [4.0, quarter, 3.0, 2.0, 2.0], rtol=1e-6)


def test_constant_and_unknown_schedules():
    assert anneal("constant", 4.0, 2.0, jnp.array(0.7)) == 4.0
    with pytest.raises(ValueError, match="schedule=steps: unknown; allowed: constant, linear, cosine"):
        anneal("steps", 1.0, 0.0, 0.0)
