"""The running mean of the parameters, which evaluations play."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import assert_same, numbers
from marked import mark_others

from algos.on_policy.a2c import A2CConfig
from algos.on_policy.agent import update_policy_average
from algos.on_policy.ppo import PPOConfig
from algos.types import ActionSpec, Rollout

T, E, A, F = 4, 3, 2, 5
ROWS = (T, E, A)
SMALL = {"horizon": T, "widths": (8,), "learning_rate": 0.1, "policy_average": 0.6}
CONFIGS = {"a2c": A2CConfig(**SMALL), "ppo": PPOConfig(**SMALL, epochs=1, num_minibatches=1)}


def rollout_of(agent, state, key):
    keys = jax.random.split(key, 3)
    obs = jax.random.normal(keys[0], (*ROWS, F))
    zeros = jnp.zeros(ROWS)
    action, _, extras = agent.act(state, keys[1], obs, (), zeros > 0, None)
    return Rollout(
        obs=obs,
        action=action,
        extras=extras,
        reward=jax.random.normal(keys[2], ROWS),
        reset=zeros > 0,
        discount=zeros + 1,
        boundary=zeros > 0,
        bootstrap=zeros,
        alive=zeros == 0,
        mask=None,
        carry=(),
        last_value=zeros[0],
    )


@cache
def learnt(name, updates=5):
    """An agent, its first state, and those after each update."""
    agent = CONFIGS[name].make((F,), ActionSpec("continuous", (2,)), samples=E * A)
    first = jax.jit(agent.init)(jax.random.key(0))

    def step(state, key):
        state, _ = agent.update(state, key, rollout_of(agent, state, key))
        return state, state

    keys = jax.random.split(jax.random.key(1), updates)
    _, later = jax.jit(lambda state: jax.lax.scan(step, state, keys))(first)
    return agent, numbers(first), [jax.tree.map(lambda x, i=i: x[i], numbers(later)) for i in range(updates)]


@pytest.mark.parametrize("name", mark_others(CONFIGS, "ppo"))
def test_the_average_is_a_plain_mean_first_and_exponential_later(name):
    _, _, later = learnt(name)
    kernels = [np.float64(state.params["params"]["value"]["out"]["kernel"]) for state in later]
    expected = kernels[0]
    for kept, kernel in zip((1 / 2, 0.6, 0.6, 0.6), kernels[1:], strict=True):
        expected = kept * expected + (1 - kept) * kernel
    found = later[-1].average["params"]["value"]["out"]["kernel"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(found, kernels[-1], rtol=1e-2)
    assert_same(later[0].average, later[0].params)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_average_starts_as_the_initial_policy(name):
    _, first, _ = learnt(name)
    assert_same(first.average, first.params)


def test_a_large_share_gives_the_plain_mean():
    average = np.float32(7.0)
    for updates, latest in enumerate((1.0, 2.0, 6.0)):
        average = update_policy_average(average, np.float32(latest), 0.99, np.int32(updates))
    np.testing.assert_allclose(average, 3.0, rtol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_rollouts_are_played_by_the_latest_policy_and_evaluations_by_the_mean(name):
    agent, _, states = learnt(name)
    obs, reset = np.ones((E, A, F), np.float32), np.zeros((E, A), bool)
    latest = states[-1].replace(average=None)
    mean = latest.replace(params=states[-1].average, optimizer=None)

    @jax.jit
    def played(state):
        sampled = agent.act(state, jax.random.key(3), obs, (), reset, None)
        return sampled, agent.value(state, obs, (), reset, None), agent.greedy(state, obs, (), reset, None)

    def taught(state):
        return agent.teach(state, obs[None], (), reset[None], None)[0].mean

    sampled, value, greedy = played(states[-1])
    assert_same((sampled, value), played(latest)[:2])
    assert_same(greedy, played(mean)[2])
    assert not np.allclose(greedy[0], played(latest)[2][0], atol=1e-3)
    np.testing.assert_array_equal(taught(states[-1]), taught(mean))
    kept = agent.policy_state(states[-1])
    assert kept.params is None and kept.optimizer is None
    assert_same(played(kept), played(mean))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_acting_state_has_the_structure_of_the_policy_state(name):
    """A state like that for evaluations, which acts as the latest policy does."""
    agent, _, states = learnt(name)
    latest, mean = agent.rollout_policy(states[-1]), agent.policy_state(states[-1])
    assert jax.tree.structure(latest) == jax.tree.structure(mean)
    assert_same(latest.average, states[-1].params)
    assert_same(mean.average, states[-1].average)
    plain = A2CConfig(widths=(8,)).make((F,), ActionSpec("continuous", (2,)), samples=E * A)
    assert_same(
        plain.rollout_policy(latest.replace(params=latest.average, average=None)).params, latest.average
    )


def test_a_share_of_one_is_refused_and_zero_keeps_no_average():
    with pytest.raises(ValueError, match="policy_average=1.0"):
        A2CConfig(policy_average=1.0)
    agent = A2CConfig(widths=(8,)).make((F,), ActionSpec("continuous", (2,)), samples=E * A)
    assert jax.eval_shape(agent.init, jax.random.key(0)).average is None
