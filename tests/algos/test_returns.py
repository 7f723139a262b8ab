import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.returns import gae

T, SHAPE = 13, (3, 2)


@pytest.fixture
def rollout():
    rng = np.random.default_rng(0)
    boundary = rng.random((T, *SHAPE)) < 0.25
    terminated = boundary & (rng.random((T, *SHAPE)) < 0.5)
    return {
        "reward": rng.normal(size=(T, *SHAPE)),
        "value": rng.normal(size=(T, *SHAPE)),
        "last_value": rng.normal(size=SHAPE),
        "discount": np.where(terminated, 0.0, 1.0),
        "boundary": boundary,
        "bootstrap": np.where(boundary & ~terminated, rng.normal(size=(T, *SHAPE)), 0.0),
    }


def by_definition(rollout, gamma, lambda_):
    """Sums the discounted temporal differences forwards, one start at a time."""
    following = np.concatenate([rollout["value"][1:], rollout["last_value"][None]])
    following = np.where(rollout["boundary"], rollout["bootstrap"], following)
    delta = rollout["reward"] + gamma * rollout["discount"] * following - rollout["value"]
    advantage = np.zeros_like(delta)
    for index in np.ndindex(delta.shape):
        start, column = index[0], index[1:]
        weight = 1.0
        for t in range(start, T):
            advantage[index] += weight * delta[(t, *column)]
            if rollout["boundary"][(t, *column)] or rollout["discount"][(t, *column)] == 0:
                break
            weight *= gamma * lambda_
    return advantage


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_equals_the_definition(rollout, lambda_):
    with jax.enable_x64(True):
        arrays = {key: jnp.asarray(x) for key, x in rollout.items()}
        advantage, target = gae(**arrays, gamma=0.9, lambda_=lambda_)
        np.testing.assert_allclose(advantage, by_definition(rollout, 0.9, lambda_), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(target, advantage + rollout["value"], rtol=1e-12)


def test_lambda_one_is_the_discounted_return_of_the_segment(rollout):
    quiet = rollout | {"boundary": np.zeros((T, *SHAPE), bool), "discount": np.ones((T, *SHAPE))}
    with jax.enable_x64(True):
        _, target = gae(**{key: jnp.asarray(x) for key, x in quiet.items()}, gamma=0.9, lambda_=1.0)
        powers = 0.9 ** np.arange(T)[:, None, None]
        expected = (powers * rollout["reward"]).sum(0) + 0.9**T * rollout["last_value"]
        np.testing.assert_allclose(target[0], expected, rtol=1e-12)


def test_a_time_limit_bootstraps_and_a_death_does_not():
    kwargs = {
        "reward": jnp.array([[1.0, 1.0]]),
        "value": jnp.zeros((1, 2)),
        "last_value": jnp.full(2, 100.0),
        "discount": jnp.array([[1.0, 0.0]]),
        "boundary": jnp.ones((1, 2), bool),
        "bootstrap": jnp.array([[10.0, 7.0]]),
    }
    _, target = gae(**kwargs, gamma=0.5, lambda_=0.95)
    np.testing.assert_allclose(target, [[6.0, 1.0]])


def test_nothing_flows_back_over_a_boundary(rollout):
    rollout["boundary"][6] = True
    arrays = {key: jnp.asarray(x) for key, x in rollout.items()}
    changed = arrays | {
        "reward": arrays["reward"].at[7:].set(99.0),
        "value": arrays["value"].at[7:].set(99.0),
    }
    before, _ = gae(**arrays, gamma=0.9, lambda_=0.9)
    after, _ = gae(**changed, gamma=0.9, lambda_=0.9)
    np.testing.assert_array_equal(before[:7], after[:7])
    assert not np.allclose(before[7:], after[7:])


def test_garbage_after_an_ending_stays_there():
    kwargs = {
        "reward": jnp.array([1.0, 2.0, jnp.nan, jnp.nan]),
        "value": jnp.array([0.5, 0.5, jnp.nan, jnp.inf]),
        "last_value": jnp.array(jnp.nan),
        "discount": jnp.array([1.0, 0.0, 1.0, 1.0]),
        "boundary": jnp.array([False, False, False, False]),
        "bootstrap": jnp.array([0.0, jnp.nan, jnp.nan, jnp.nan]),
        "alive": jnp.array([True, True, False, False]),
    }
    advantage, _ = gae(**kwargs, gamma=0.9, lambda_=1.0)
    np.testing.assert_allclose(advantage, [1.0 + 0.9 * 2.0 - 0.5, 1.5, 0.0, 0.0], rtol=1e-6)


def test_agents_do_not_mix(rollout):
    arrays = {key: jnp.asarray(x) for key, x in rollout.items()}
    together, _ = gae(**arrays, gamma=0.9, lambda_=0.9)
    alone = {key: x[..., 2, 1] for key, x in arrays.items()}
    np.testing.assert_allclose(gae(**alone, gamma=0.9, lambda_=0.9)[0], together[:, 2, 1], rtol=1e-6)
