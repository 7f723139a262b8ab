"""Calls of agents by a program and their inputs, tested with whole programs on probes."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from flax import struct
from marked import thorough
from probes import ROLE

from algos.off_policy.sac import SACConfig
from algos.on_policy import sample_epochs, segment_epochs
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.types import Agent, Asymmetric
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host.memory import replay_bytes
from jaxmarl_echelon.training.program.program import make_controllers, make_program
from jaxmarl_echelon.training.rollouts import collect
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec


def run_of(env, algo, updates=3, num_envs=8, **changes):
    return RunConfig(
        env=env,
        algo=algo,
        curriculum=constant_curriculum,
        total_env_steps=updates * num_envs * algo.horizon * getattr(algo, "segments_per_agent", 1),
        num_envs=num_envs,
        eval_episodes=16,
        window=8,
        stagger=False,
        **changes,
    )


def trained(config, program=None, then=lambda run: None):
    """The last state, the reports of all updates and what `then` makes of the state, as one program."""
    program = make_program(config) if program is None else program

    @jax.jit
    def whole(key):
        run, reports = jax.lax.scan(lambda r, _: program.update(r), program.init(key), None, config.updates)
        return run, reports, then(run)

    return jax.device_get(whole(jax.random.key(0)))


def returns_of(program):
    """`(run) -> [N]` returns of an evaluation."""
    return lambda run: program.evaluate(run, jax.random.key(1)).episode_return[ROLE]


@struct.dataclass
class Odds:
    """State of `reinforce`: how likely each action is, by the sign of what is seen."""

    logits: jax.Array


def reinforce(rate=0.5):
    """Williams' REINFORCE (1992) on one-step episodes: no critic, and extras in a form of its own."""

    def chances(state, obs):
        return jax.nn.log_softmax(state.logits[(obs[..., 0] > 0).astype(int)])

    def taken(state, obs, action):
        return jnp.take_along_axis(chances(state, obs), action, -1)[..., 0]

    def act(state, key, obs, carry, reset, mask):
        action = jax.random.categorical(key, chances(state, obs))[..., None]
        return action, carry, (taken(state, obs, action), {"seen": obs})

    def greedy(state, obs, carry, reset, mask):
        return chances(state, obs).argmax(-1)[..., None], carry

    def update(state, key, rollout):
        assert rollout.bootstrap is None and rollout.last_value is None
        sampled, witness = rollout.extras

        def loss(state):
            ratio = jnp.exp(taken(state, rollout.obs, rollout.action) - sampled)
            return -(ratio * rollout.reward).mean()

        same = jnp.abs(taken(state, rollout.obs, rollout.action) - sampled).max()
        away = jnp.abs(witness["seen"] - rollout.obs).max()
        state = jax.tree.map(lambda x, g: x - rate * g, state, jax.jit(jax.grad(loss))(state))
        return state, {"apart": jnp.maximum(same, away)}

    return Agent(
        init=lambda key: Odds(jnp.zeros((2, 2))),
        initial_carry=lambda batch_shape: (),
        act=act,
        greedy=greedy,
        value=None,
        update=update,
    )


def test_an_agent_without_a_critic_learns_from_extras_of_its_own():
    config = run_of(probes.ObservationActionReward(), A2CConfig(horizon=16), updates=40)
    program = make_program(config, agents={ROLE: reinforce()})
    run, reports, returns = trained(config, program, returns_of(program))
    assert float(reports.metrics["losses/apart"].max()) < 1e-6
    assert float(returns.min()) == 1.0
    np.testing.assert_array_equal(run.policies[ROLE].logits.argmax(-1), [0, 1])


LEARNERS = {
    "ppo": lambda **changes: PPOConfig(
        **{"horizon": 8, "epochs": 2, "num_minibatches": 2, "widths": (16,), "learning_rate": 0.01} | changes
    ),
    "ppo_rnn": lambda **changes: PPOConfig(
        **{
            "horizon": 8,
            "epochs": 2,
            "num_minibatches": 2,
            "widths": (16,),
            "learning_rate": 0.01,
            "sampling": "sequential",
            "core": {"kind": "gru", "width": 8},
        }
        | changes
    ),
    "a2c": lambda **changes: A2CConfig(
        **{"horizon": 8, "widths": (16,), "optimizer": "adam", "learning_rate": 0.03} | changes
    ),
    "sac": lambda **changes: SACConfig(
        **{"horizon": 8, "widths": (16,), "batch_size": 16, "learning_starts": 32, "learning_rate": 0.01}
        | changes
    ),
}


class Shown(probes.Hidden):
    """Critics see the cue where `shown` of the parameters is 1, and nothing where it is 0."""

    def default_params(self):
        return super().default_params() | {"shown": np.float32(1.0)}

    def _show(self, state, params, *rest):
        time = super()._show(state, params, *rest)
        return time.replace(critic_obs={ROLE: params["shown"] * time.critic_obs[ROLE]})


def decided(agent, state):
    """Decisions with and without what critics see, and its value, for two cues."""
    reset, carry, key = np.zeros((2, 1), bool), agent.initial_carry((2, 1)), jax.random.key(0)
    seen = Asymmetric(np.zeros((2, 1, 1), np.float32), np.float32([-1.0, 1.0])[:, None, None])
    both = agent.act(state, key, seen, carry, reset, None)
    alone = agent.act(state, key, seen.actor, carry, reset, None)
    return both, alone, agent.value(state, seen, carry, reset, None)


class Blind(NamedTuple):
    """Explained variance and share of right choices `[2, seeds]`, with and without a cue, and statistics and
    decisions of the first run.
    """

    explained: np.ndarray
    right: np.ndarray
    observations: Any
    decided: tuple


@functools.cache
def learnt_blindly(learner, updates, seeds):
    algo = LEARNERS[learner](normalize_reward=True)
    config = run_of(Shown(), algo, updates=updates, num_envs=16)
    program = make_program(config)
    agent = program.agents[ROLE]

    def start(shown, key):
        return program.init(key, course=program.curriculum.init() | {"shown": shown})

    def chosen(run, key):
        obs, reset = jnp.zeros((1000, 1, 1)), jnp.ones((1000, 1), bool)
        action, *_ = agent.act(run.policies[ROLE], key, obs, agent.initial_carry((1000, 1)), reset, None)
        return action.mean()

    @jax.jit
    def learnt(shown, keys):
        update = jax.vmap(program.update)
        runs, reports = jax.lax.scan(lambda r, _: update(r), jax.vmap(start)(shown, keys), None, updates)
        first = jax.tree.map(lambda x: x[0], runs.policies[ROLE])
        explained = reports.metrics["losses/explained_variance"][-1].reshape(2, seeds)
        right = jax.vmap(chosen)(runs, keys).reshape(2, seeds)
        return Blind(explained, right, first.observations, decided(agent, first))

    keys = jnp.tile(jax.random.split(jax.random.key(0), seeds), 2)
    return jax.device_get(learnt(np.repeat(np.float32([1.0, 0.0]), seeds), keys))


@pytest.mark.thorough
def test_a_critic_that_sees_the_cue_lets_blind_agents_learn():
    found = learnt_blindly("ppo_rnn", 100, 5)
    (known, unknown), (with_it, without) = found.explained, found.right
    assert known.min() > 0.9 and unknown.max() < 0.5
    assert with_it.min() > 0.95 and with_it.mean() > without.mean() + 0.2, (with_it, without)


@pytest.mark.parametrize(("learner", "updates", "seeds"), [("ppo", 3, 1), thorough("ppo_rnn", 100, 5)])
def test_critic_observations_are_recorded_and_do_not_affect_the_actor(learner, updates, seeds):
    found = learnt_blindly(learner, updates, seeds)
    (*acted, extras), (*alone, less), value = found.decided
    statistics = found.observations
    assert int(statistics.critic.count) == int(statistics.actor.count) == updates * 8 * 16
    assert float(statistics.critic.var[0]) > 0.5 and float(statistics.actor.var[0]) == 0.0
    jax.tree.map(np.testing.assert_array_equal, acted, alone)
    np.testing.assert_array_equal(extras["log_prob"], less["log_prob"])
    assert less["value"] is None and extras["value"][0, 0] != extras["value"][1, 0]
    np.testing.assert_array_equal(value, extras["value"])


class Steered(probes.Hidden):
    action = probes.ContinuousTarget.action


def test_privileged_critics_are_refused_where_unsupported():
    with pytest.raises(ValueError, match="^algo=sac: cannot train player, which has privileged critics"):
        run_of(Steered(), LEARNERS["sac"]())
    config = run_of(probes.Hidden(), LEARNERS["ppo"](shared=True))
    with pytest.raises(ValueError, match="^algo.shared=True: must be false where critics have"):
        make_program(config)


class Pulled(probes.Opposites):
    """With continuous actions: the reward falls with the distance from -.8 and from .8."""

    action = probes.Box((1,), -1.0, 1.0)

    def reward(self, state, action, params):
        return 1.0 - jnp.abs(action[:, 0] - jnp.array([-0.8, 0.8]))


PER_AGENT = {ROLE: "learner:per_agent"}


@pytest.mark.thorough
@pytest.mark.parametrize("learner", ["sac"])
def test_only_learners_per_agent_do_opposite_things_in_equal_places(learner):
    env, changes = (Pulled(), {"gamma": 0.0}) if learner == "sac" else (probes.Opposites(), {})
    returns = {}
    for name in (None, PER_AGENT):
        config = run_of(env, LEARNERS[learner](**changes), updates=40, controllers=name or {})
        program = make_program(config)
        _, reports, played = trained(config, program, returns_of(program))
        returns[name is not None] = float(played.mean())
        metrics = reports.metrics
        assert all(x.shape == (40,) for x in metrics.values())
    assert "losses/parameter_norm" in metrics
    # Where it is paid by distance, one policy for both can do no better than .2 on average.
    least, most = (0.75, 0.25) if learner == "sac" else (1.0, 0.5)
    assert returns[True] >= least and returns[False] <= most, returns


def test_a_run_of_learners_per_agent_continues_and_tells_its_learners_apart():
    config = run_of(probes.Opposites(), LEARNERS["ppo_rnn"](), controllers=PER_AGENT)
    program = make_program(config)

    def played(run):
        bare = program.policy(run)
        assert bare.policies[ROLE].optimizer is None
        return [returns_of(program)(x) for x in (run, bare)]

    run, _, same = trained(config, program, played)
    policy = run.policies[ROLE]
    assert all(x.shape[0] == 2 for x in jax.tree.leaves(policy))
    jax.tree.map(np.testing.assert_array_equal, program.renewed(run).policies[ROLE], policy)
    faster = dataclasses.replace(config, algo=LEARNERS["ppo_rnn"](learning_rate=0.5), algos={})
    np.testing.assert_array_equal(
        make_program(faster).renewed(run).policies[ROLE].hyper["learning_rate"], np.float32([0.5, 0.5])
    )
    np.testing.assert_array_equal(*same)


def test_a_replay_per_agent_is_counted_as_often_as_there_are_agents():
    one, each = (
        run_of(Pulled(), LEARNERS["sac"](replay={"capacity": 1600}), controllers=name)
        for name in ({}, PER_AGENT)
    )
    assert each.agents(ROLE) == 1 and each.policies(ROLE) == 2
    rings = jax.eval_shape(make_program(each).init, jax.random.key(0)).policies[ROLE].replay
    assert replay_bytes(each) == sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(rings))
    assert replay_bytes(each) > 1.9 * replay_bytes(one)


def test_learners_per_agent_cannot_be_shared():
    with pytest.raises(ValueError, match="^controllers.prey=shared:hunter: hunter has one learner per agent"):
        run_of(
            probes.Rivals(),
            LEARNERS["sac"](),
            controllers={"hunter": "learner:per_agent", "prey": "shared:hunter"},
        )
    config = run_of(
        probes.Rivals(), LEARNERS["sac"](), controllers={"hunter": "learner", "prey": "learner:each"}
    )
    with pytest.raises(ValueError, match="^controllers.prey=learner:each: .*learner, learner:per_agent"):
        make_program(config)


class Shades(probes.Pictures):
    """With continuous actions: the reward falls with the distance from .8 times the cue."""

    action = probes.Box((1,), -1.0, 1.0)

    def reward(self, state, action, params):
        return 1.0 - jnp.abs(action[:, 0] - 0.8 * state.cue)


RINGS = {"capacity": 80, "success_capacity": 40, "success_ratio": 0.5}
SEEN = {"ppo_rnn": {"normalize_observation": False}, "sac": {"normalize_observation": True, "replay": RINGS}}


@functools.cache
def seen_as(learner, dtype):
    """A run, its last state and its metrics, on pictures of that dtype."""
    env = Shades if learner == "sac" else probes.Pictures
    config = run_of(env(dtype), LEARNERS[learner](**SEEN[learner]), updates=6)
    run, reports, _ = trained(config)
    return config, run.policies[ROLE], reports.metrics


@pytest.mark.thorough
@pytest.mark.parametrize("learner", SEEN)
def test_bytes_are_learnt_from_like_the_same_numbers_in_float32(learner):
    runs = [seen_as(learner, dtype)[1:] for dtype in (np.uint8, np.float32)]
    if learner == "sac":
        # XLA's code for what is gathered from a ring depends on its type, in the last digit.
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        jax.tree.map(close, *((policy.replace(replay=None), metrics) for policy, metrics in runs))
    else:
        jax.tree.map(np.testing.assert_array_equal, *runs)


class Unjudged(Shades):
    """Without a score."""

    @property
    def spec(self):
        return dataclasses.replace(super().spec, score=None)


def test_successes_are_refused_where_no_score_tells_them():
    with pytest.raises(ValueError) as caught:
        run_of(Unjudged(np.float32), LEARNERS["sac"](replay=RINGS))
    assert str(caught.value) == (
        "algo.replay.success_ratio=0.5: must be 0, as Unjudged has no score of player that tells successes"
    )


@pytest.mark.parametrize("learner", ["ppo", "ppo_rnn"])
def test_bytes_stay_bytes_in_rollouts_and_batches(learner):
    config = run_of(probes.Pictures(), LEARNERS[learner]())
    program = make_program(config)
    run = jax.eval_shape(program.init, jax.random.key(0))
    acting = make_controllers(config, program.env, program.agents, {}, greedy=False)
    collector = RolloutSpec(program.env, program.agents, acting, config.horizon, config.segments)
    recorded = jax.eval_shape(
        lambda s: collect.collect_rollout(
            collector, s, s.key, lambda k: program.curriculum.draw(k, s.curriculum)
        )[1],
        run,
    ).rollouts[ROLE]
    assert recorded.obs.shape == (8, 8, 1, 2, 3) and recorded.obs.dtype == jnp.uint8
    prepare = {"ppo": sample_epochs.samples_from_rollout, "ppo_rnn": segment_epochs.segments_from_rollout}[
        learner
    ]

    def batch(state, recorded):
        flat = recorded.replace(obs=recorded.obs.reshape(8, 8, 1, 6))
        return prepare(config.algo, state, flat, state.hyper)

    made = jax.eval_shape(batch, run.policies[ROLE], recorded)
    kept = made.obs if learner == "ppo" else made.rollout.obs
    assert kept.dtype == jnp.uint8 and kept.size == 8 * 8 * 6


@pytest.mark.thorough
def test_a_ring_of_bytes_takes_a_quarter():
    bytes_of = {}
    for dtype in (np.uint8, np.float32):
        config, policy, _ = seen_as("sac", dtype)
        rings = policy.replay.ring, policy.replay.successes.ring
        assert all(ring.obs.dtype == ring.next_obs.dtype == dtype for ring in rings)
        bytes_of[dtype] = replay_bytes(config)
        np.testing.assert_array_equal(np.unique(np.asarray(rings[0].obs)[:, :3] > 110), [False, True])
    # 120 transitions of two observations of 6 numbers each.
    assert bytes_of[np.float32] - bytes_of[np.uint8] == 120 * 2 * 6 * 3


def test_an_environment_that_shows_other_numbers_than_it_says_is_refused():
    class Wrong(Shades):
        def observe(self, state, params):
            return super().observe(state, params) + 0.5

    config = run_of(Wrong(), LEARNERS["sac"]())
    program = make_program(config)
    with pytest.raises(ValueError, match="^observations are float32, but their space is uint8"):
        jax.eval_shape(lambda key: program.update(program.init(key)), jax.random.key(0))
