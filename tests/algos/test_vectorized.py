"""States side by side: learners per agent are what each would be alone, groups what each state does alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import numbers

from algos.off_policy.sac import SACConfig
from algos.on_policy.distillation import Teacher
from algos.on_policy.ppo import PPOConfig
from algos.stacked_agents import vectorize_over_agents, vectorize_over_groups
from algos.types import ActionSpec, Rollout, Transition

T, E, A, F = 4, 6, 3, 5
DISCRETE, CONTINUOUS = ActionSpec("discrete", (3, 2)), ActionSpec("continuous", (2,))
SMALL = {"horizon": T, "widths": (8,)}
PPO = SMALL | {"epochs": 2, "num_minibatches": 2, "normalize_reward": True, "total_updates": 9}
SEGMENTS = {"sampling": "sequential", "core": {"kind": "gru", "width": 4}}


def ppo(**changes):
    return PPOConfig(**PPO | changes).make((F,), DISCRETE, samples=E)


def ppo_rnn(**changes):
    return ppo(**SEGMENTS | changes)


def sac():
    config = SACConfig(widths=(8,), batch_size=8, learning_starts=2 * E, replay={"capacity": 60})
    return config.make((F,), CONTINUOUS, samples=E, updates=9, episode_limit=9)


def rollout_of(agent, state, key, shape):
    """Decisions on random observations, in episodes that end at random."""
    keys = jax.random.split(key, 5)
    obs = jax.random.normal(keys[0], (T, *shape, F))
    boundary = jax.random.bernoulli(keys[1], 0.3, (T, *shape))
    reset = jnp.concatenate([jnp.ones((1, *shape), bool), boundary[:-1]])
    mask = None
    first = agent.initial_carry(shape)

    def step(carry, now):
        action, carry, extras = agent.act(state, now[2], now[0], carry, now[1], mask)
        return carry, (action, extras)

    last, (action, extras) = jax.lax.scan(step, first, (obs, reset, jax.random.split(keys[2], T)))
    return Rollout(
        obs=obs,
        action=action,
        extras=extras,
        reward=jax.random.normal(keys[3], (T, *shape)),
        reset=reset,
        discount=jnp.where(boundary, 0.0, 1.0),
        boundary=boundary,
        bootstrap=jnp.zeros((T, *shape)),
        alive=jax.random.bernoulli(keys[4], 0.8, (T, *shape)),
        mask=mask,
        carry=jax.tree.map(lambda x: x[None], first),
        last_value=agent.value(state, obs[0], last, boundary[-1], mask),
        skip=None,
        last_skip=None,
    )


def transition_of(agent, state, key, shape):
    keys = jax.random.split(key, 4)
    obs, after = jax.random.normal(keys[0], (2, *shape, F))
    boundary = jax.random.bernoulli(keys[1], 0.3, shape)
    return Transition(
        obs=obs,
        action=agent.act(state, keys[2], obs, (), boundary, None)[0],
        reward=jax.random.normal(keys[3], shape),
        discount=jnp.where(boundary, 0.0, 1.0),
        next_obs=after,
        boundary=boundary,
        success=jnp.zeros(shape, bool),
        alive=jnp.ones(shape, bool),
    )


def of_agent(batch, i):
    """Experience of the agent with this index, with an axis of one agent."""
    if isinstance(batch, Transition):
        return jax.tree.map(lambda x: x[:, i : i + 1], batch)
    last_value = batch.last_value[:, i : i + 1]
    inside = jax.tree.map(lambda x: x[:, :, i : i + 1], batch.replace(last_value=None))
    return inside.replace(last_value=last_value)


def assert_close(x, y, **tolerance):
    tolerance = {"rtol": 1e-4, "atol": 1e-6} | tolerance
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), x, y)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [ppo_rnn, sac])
def test_learners_per_agent_become_what_each_would_become_alone(make):
    alone = make()
    agent = vectorize_over_agents(alone, A)
    play = transition_of if agent.learns == "step" else rollout_of
    state = numbers(jax.jit(agent.init)(jax.random.key(0)))
    apart = [jax.tree.map(lambda x, i=i: x[i], state) for i in range(A)]
    update, update_alone = jax.jit(agent.update), jax.jit(alone.update)
    batch_of = jax.jit(lambda state, key: play(agent, state, key, (E, A)))
    start = state
    for key in jax.random.split(jax.random.key(1), 6):
        batch = numbers(batch_of(state, key))
        state, metrics = update(state, key, batch)
        keys = jax.random.split(key, A)
        learnt = [update_alone(apart[i], keys[i], of_agent(batch, i)) for i in range(A)]
        apart = [each for each, _ in learnt]
        means = jax.tree.map(lambda *x: np.mean(x), *(each for _, each in learnt))
        assert_close(metrics, means, atol=1e-5)
    assert_close(state, jax.tree.map(lambda *x: np.stack(x), *apart), rtol=1e-3, atol=1e-5)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).reshape(A, -1).max(-1), state.params, start.params)
    assert (np.max(jax.tree.leaves(moved), 0) > 1e-4).all()


@pytest.mark.parametrize("make", [ppo_rnn])
def test_each_agent_acts_values_and_teaches_with_its_own_parameters(make):
    alone = make()
    agent = vectorize_over_agents(alone, A)
    state = different(jax.jit(agent.init)(jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), 3)
    obs, carry = jax.random.normal(keys[0], (E, A, F)), noise(agent.initial_carry((E, A)))
    reset = jax.random.bernoulli(keys[1], 0.5, (E, A))
    mask = np.ones((E, A, 5), bool)
    mask[:, 1, 0] = False
    seen = numbers((obs, carry, reset, mask))
    taught = jax.jit(lambda state, key, *seen: answers(agent, agent.policy_state(state), state, key, *seen))
    taught_alone = jax.jit(lambda state, key, *seen: answers(alone, state, state, key, *seen))
    answer, (chances, values) = numbers(taught(state, keys[2], *seen))
    for i, key in enumerate(jax.random.split(keys[2], A)):
        own = jax.tree.map(lambda x, i=i: x[i], state)
        mine = jax.tree.map(lambda x, i=i: x[:, i : i + 1], seen)
        expected, lesson = taught_alone(own, key, *mine)
        assert_close(jax.tree.map(lambda x, i=i: x[:, i : i + 1], answer), expected)
        assert_close((chances[:, i::A], values[:, i::A]), lesson)
    _, greedy, value = answer
    assert (np.ptp(value, axis=1) > 1e-3).any()
    assert not (greedy[0][:, 1, 0] == 0).any()


def test_learners_per_agent_have_one_teacher():
    """The first state, to which a run passes the teacher's parameters, has them as if they were constants."""
    taught = ppo()
    teacher = Teacher(taught, taught.policy_state(jax.jit(taught.init)(jax.random.key(1))))
    config = PPOConfig(**PPO | {"sampling": "sequential", "teacher": "RUN"})
    agent = vectorize_over_agents(config.make((F,), DISCRETE, samples=E, teacher=teacher), A)
    first = jax.jit(lambda key: (agent.init(key), agent.init_with(key, agent.frozen)))
    own, given = jax.device_get(first(jax.random.key(0)))
    jax.tree.map(np.testing.assert_array_equal, own, given)
    assert all(x.shape[0] == A for x in jax.tree.leaves(given))


@pytest.mark.parametrize("shape", [(A,), (A, E, A)])
def test_agents_are_the_last_of_any_leading_axes(shape):
    alone = ppo(normalize_reward=False)
    agent = vectorize_over_agents(alone, A)
    state = different(jax.jit(agent.init)(jax.random.key(0)))
    obs, reset = jax.random.normal(jax.random.key(1), (*shape, F)), jnp.zeros(shape, bool)
    seen = obs, agent.initial_carry(shape), reset, None
    actions, values = agent.greedy(state, *seen)[0], agent.value(state, *seen)
    for i in range(A):
        own = jax.tree.map(lambda x, i=i: x[i], state)
        mine = obs[..., i, :], (), reset[..., i], None
        np.testing.assert_array_equal(actions[..., i, :], alone.greedy(own, *mine)[0])
        assert_close(values[..., i], alone.value(own, *mine))


def looks(agent, state, key, *seen):
    """Sampled actions, greedy actions and values of an agent."""
    return agent.act(state, key, *seen), agent.greedy(state, *seen), agent.value(state, *seen)


def answers(agent, policy, state, key, *seen):
    """`looks`, and what the agent teaches: chances of its choices, and values."""
    choices, values = agent.teach(policy, *rows(*seen))
    return looks(agent, state, key, *seen), (choices.probabilities(), values)


def rows(obs, carry, reset, mask):
    """One decision of all agents as histories `[1, E * A, ...]` of rows."""
    obs, reset, mask = (x.reshape((1, -1) + x.shape[2:]) for x in (obs, reset, mask))
    return obs, jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:]), carry), reset, mask


def different(state):
    """The same states with parameters far from where they begin."""
    noise = np.random.default_rng(0)
    state = numbers(state)
    moved = jax.tree.map(lambda x: x + np.float32(0.3 * noise.standard_normal(x.shape)), state.params)
    return state.replace(params=moved)


def noise(carry):
    draws = np.random.default_rng(1)
    return jax.tree.map(lambda x: np.float32(draws.standard_normal(x.shape)), carry)


@pytest.mark.parametrize("make", [ppo_rnn])
def test_groups_of_environments_act_as_each_state_alone(make):
    groups, part = 3, E // 3
    alone = make()
    bank = vectorize_over_groups(alone, groups)
    state = different(jax.jit(jax.vmap(alone.init))(jax.random.split(jax.random.key(0), groups)))
    keys = jax.random.split(jax.random.key(1), 4)
    obs, carry = jax.random.normal(keys[0], (E, A, F)), noise(bank.initial_carry((E, A)))
    reset = jax.random.bernoulli(keys[1], 0.5, (E, A))
    mask = np.array(jax.random.bernoulli(keys[2], 0.7, (E, A, 5)))
    mask[..., [0, 3]] = True
    seen = numbers((obs, carry, reset, mask))
    look, look_alone = (jax.jit(functools.partial(looks, one)) for one in (bank, alone))
    found = numbers(look(state, keys[3], *seen))
    for g, key in enumerate(jax.random.split(keys[3], groups)):
        own = jax.tree.map(lambda x, g=g: x[g], state)
        mine, ours = (
            jax.tree.map(lambda x, g=g: x[g * part : (g + 1) * part], tree) for tree in (seen, found)
        )
        assert_close(ours, look_alone(own, key, *mine), rtol=1e-6, atol=1e-6)
    *_, swapped = look(jax.tree.map(lambda x: x[::-1], state), keys[3], *seen)
    assert np.abs(swapped - found[2])[:part].min() > 1e-4


def test_groups_that_do_not_come_out_even_are_refused():
    bank = vectorize_over_groups(ppo(), 4)
    state = jax.jit(jax.vmap(ppo().init))(jax.random.split(jax.random.key(0), 4))
    with pytest.raises(ValueError, match="^groups=4: must divide the 6 environments$"):
        bank.greedy(state, jnp.zeros((E, A, F)), (), jnp.zeros((E, A), bool), None)
