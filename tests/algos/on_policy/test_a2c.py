import functools

import jax
import jax.numpy as jnp
import numpy as np
import on_policy_cases
import probes
import pytest
from arrays import assert_same, numbers
from marked import thorough

from algos.nets.actor_critic import make_actor_critic
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.on_policy.sample_epochs import samples_from_rollout
from algos.types import ActionSpec, ObservationSpec, Rollout
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.program.program import make_program, make_train_function

CONTINUOUS = ActionSpec("continuous", (2,))
DISCRETE = ActionSpec("discrete", (3, 2))
T, E, A, F = 4, 3, 2, 5
SMALL = {"horizon": T, "widths": (16,), "max_grad_norm": None}
WITHOUT_THE_SECOND = np.broadcast_to(np.arange(5) != 1, (T, E, A, 5))


def make(config, action=CONTINUOUS):
    """An agent, and its state before the first update."""
    return on_policy_cases.make(config, (F,), action, samples=E * A)


def rollout_of(agent, state, key=1, mask=None):
    """A rollout whose actions, log-probabilities and values are the agent's own."""
    keys = jax.random.split(jax.random.key(key), 6)
    shape = (T, E, A)
    obs = 3.0 + 2.0 * jax.random.normal(keys[0], (*shape, F))
    reset = jnp.zeros(shape, bool)
    action, _, extras = agent.act(state, keys[1], obs, (), reset, mask)
    boundary = jax.random.bernoulli(keys[2], 0.3, shape)
    discount = jnp.where(boundary & jax.random.bernoulli(keys[4], 0.5, shape), 0.0, 1.0)
    return Rollout(
        obs=obs,
        action=action,
        extras=extras,
        reward=jax.random.normal(keys[3], shape),
        reset=reset,
        discount=discount,
        boundary=boundary,
        bootstrap=jnp.where(boundary & (discount > 0), 2.0, 0.0),
        alive=jnp.ones(shape, bool),
        mask=mask,
        carry=(),
        last_value=jax.random.normal(keys[5], (E, A)),
    )


@functools.cache
def played(action=CONTINUOUS):
    """Experience of an agent with the usual networks before its first update."""
    mask = None if action is CONTINUOUS else WITHOUT_THE_SECOND
    agent, state = make(A2CConfig(**SMALL), action)
    return numbers(jax.jit(lambda state: rollout_of(agent, state, mask=mask))(state))


def learn(agent, state, rollout, key=2):
    return numbers(jax.jit(agent.update)(state, jax.random.key(key), rollout))


def returns_by_hand(rollout, gamma):
    """Discounted returns of each step, in NumPy and one agent at a time."""
    reward, boundary, discount, bootstrap, last = (
        np.asarray(x, np.float64)
        for x in (rollout.reward, rollout.boundary, rollout.discount, rollout.bootstrap, rollout.last_value)
    )
    result = np.zeros(reward.shape)
    for e, a in np.ndindex(E, A):
        following = last[e, a]
        for t in reversed(range(T)):
            if boundary[t, e, a]:
                following = bootstrap[t, e, a]
            following = reward[t, e, a] + gamma * discount[t, e, a] * following
            result[t, e, a] = following
    return result


@pytest.mark.parametrize("action", [CONTINUOUS, thorough(DISCRETE)], ids=["continuous", "discrete"])
def test_one_step_follows_the_policy_gradient(action):
    """RMSprop without a memory steps by `g / (|g| + eps)`, which tells the gradient."""
    config = A2CConfig(
        **SMALL,
        learning_rate=1.0,
        rmsprop_decay=0.0,
        rmsprop_eps=1.0,
        gamma=0.9,
        value_coefficient=0.7,
        entropy_coefficient=0.1,
        normalize_observation=False,
        reward_scale=0.5,
    )
    agent, state = make(config, action)
    rollout = played(action)
    scaled = rollout.replace(reward=rollout.reward * 0.5)
    returned = np.float32(returns_by_hand(scaled, 0.9))

    def loss(params):
        now = state.replace(params=params)
        value = agent.value(now, rollout.obs, (), rollout.reset, rollout.mask)
        log_prob, entropy = likelihood(config, params, rollout, action)
        return (
            -jnp.mean(log_prob * (returned - rollout.extras["value"]))
            + 0.7 * 0.5 * jnp.mean(jnp.square(value - returned))
            - 0.1 * jnp.mean(entropy)
        )

    grads = numbers(jax.jit(jax.grad(loss))(state.params))
    learnt, metrics = learn(agent, state, rollout)
    expected = jax.tree.map(lambda p, g: p - g / (np.abs(g) + 1.0), state.params, grads)
    assert_same(learnt.params, expected, rtol=1e-4, atol=1e-5)
    norm = np.sqrt(sum(np.square(g).sum() for g in jax.tree.leaves(grads)))
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-4)


def likelihood(config, params, rollout, action):
    """Log-probabilities and entropies of the rollout's actions, from the networks' raw outputs."""
    distribution, _ = make_actor_critic(config, ObservationSpec((F,)), action).apply(
        params, rollout.obs, rollout.mask
    )
    if action is CONTINUOUS:
        mean, std = distribution.mean, distribution.std
        log_prob = -0.5 * jnp.square((rollout.action - mean) / std) - jnp.log(std * jnp.sqrt(2 * jnp.pi))
        entropy = 0.5 * jnp.log(2 * jnp.pi * jnp.e * jnp.square(std)).sum()
        return log_prob.sum(-1), jnp.broadcast_to(entropy, rollout.reward.shape)
    log_prob, entropy = jnp.zeros(rollout.reward.shape), jnp.zeros(rollout.reward.shape)
    for place, part in enumerate((slice(0, 3), slice(3, 5))):
        logits = jax.nn.log_softmax(distribution.logits[..., part])
        chosen = jnp.asarray(rollout.action)[..., place, None]
        log_prob += jnp.take_along_axis(logits, chosen, -1)[..., 0]
        entropy -= jnp.where(rollout.mask[..., part], jnp.exp(logits) * logits, 0.0).sum(-1)
    return log_prob, entropy


def test_the_gradient_is_that_of_ppo_at_ratio_one():
    """One step of PPO on the whole rollout moves where A2C moves, with the same optimiser."""
    shared = SMALL | {"entropy_coefficient": 0.01, "normalize_advantage": "batch", "max_grad_norm": 0.5}
    a2c, state = make(A2CConfig(**shared, learning_rate=3e-4, gae_lambda=0.95, optimizer="adam"))
    ppo, other = make(PPOConfig(**shared, epochs=1, num_minibatches=1))
    assert_same(state.params, other.params)
    state, _ = learn(a2c, state, played())
    other, _ = learn(ppo, other, played(), key=3)
    assert_same(state.params, other.params, rtol=1e-5, atol=1e-6)


def test_advantages_are_standardised_only_if_asked_for():
    for choice, standard in (("batch", True), ("none", False)):
        config = A2CConfig(**SMALL, normalize_advantage=choice)
        _, state = make(config)
        batch = jax.jit(functools.partial(samples_from_rollout, config))(state, played(), state.hyper)
        assert bool(np.isclose(np.std(batch.advantage), 1.0, atol=1e-4)) == standard


def test_hyper_parameters_are_traced():
    agent, state = make(A2CConfig(**SMALL))

    def start(rate, decay):
        return state.replace(hyper=state.hyper | {"learning_rate": rate, "rmsprop_decay": decay})

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0, None))
    def together(rate, decay, rollout):
        return agent.update(start(rate, decay), jax.random.key(2), rollout)

    rates, decays = np.float32([1e-4, 1e-3]), np.float32([0.5, 0.99])
    results = numbers(together(rates, decays, played()))
    for i in range(2):
        single = learn(agent, start(rates[i], decays[i]), played())
        assert_same(jax.tree.map(lambda x, i=i: x[i], results), single, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["rmsprop", thorough("adam")])
def test_dead_agents_do_not_influence_learning_whatever_their_data(optimizer):
    agent, state = make(A2CConfig(**SMALL, optimizer=optimizer))
    rollout = played()
    state, _ = learn(agent, state, rollout, key=0)
    alive, last_value = np.array(rollout.alive), np.array(rollout.last_value)
    alive[:, 0, 1], last_value[0, 1] = False, np.nan
    rollout = rollout.replace(alive=alive)
    poisoned = rollout.replace(
        obs=np.where(alive[..., None], rollout.obs, np.float32(np.nan)),
        reward=np.where(alive, rollout.reward, np.float32(np.inf)),
        extras=rollout.extras | {"value": np.where(alive, rollout.extras["value"], np.float32(np.nan))},
        last_value=last_value,
    )
    clean, garbage = (learn(agent, state, x, key=5) for x in (rollout, poisoned))
    assert_same(clean, garbage, rtol=1e-6)
    nobody, _ = learn(agent, state, poisoned.replace(alive=np.zeros_like(alive)), key=5)
    assert_same((nobody.params, nobody.optimizer), (state.params, state.optimizer))


@pytest.mark.parametrize(
    ("env", "obs", "expected"),
    [
        thorough(probes.ObservationActionReward(), [[-1.0], [1.0]], [1.0, 1.0]),
        thorough(probes.TimeLimit(), [[0.0]], [10.0]),
    ],
    ids=["choice", "time-limit"],
)
def test_probes_are_solved(env, obs, expected):
    algo = A2CConfig(widths=(32,), learning_rate=5e-3, learning_rate_schedule="linear", gamma=0.9)
    config = RunConfig(
        env=env,
        algo=algo,
        curriculum=constant_curriculum,
        total_env_steps=500 * 16 * algo.horizon,
        num_envs=16,
        eval_episodes=16,
        window=64,
        episode_rows=64,
    )
    program, train, obs = make_program(config), make_train_function(config), np.float32(obs)[:, None]
    agent = program.agents[probes.ROLE]

    @jax.jit
    def learnt(key):
        run, _ = train(key)
        value = agent.value(run.policies[probes.ROLE], obs, (), np.zeros(obs.shape[:2], bool), None)
        return value[:, 0], program.evaluate(run, jax.random.key(1)).episode_return[probes.ROLE]

    value, returned = learnt(jax.random.key(0))
    np.testing.assert_allclose(value, expected, rtol=0.06)
    np.testing.assert_allclose(returned, env.spec.episode_limit)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer=sgd: unknown; allowed: rmsprop, adam"),
        ({"rmsprop_decay": 1.0}, "rmsprop_decay=1.0: must be a number from 0 to"),
        (
            {"normalize_advantage": "minibatch"},
            "normalize_advantage=minibatch: unknown; allowed: batch, none",
        ),
        ({"horizon": 0}, "horizon=0: must be a whole number of at least 1"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        A2CConfig(**settings)
