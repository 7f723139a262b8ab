"""Slots that come and go, and agents with delayed rewards, tested with whole programs."""

import functools
from dataclasses import replace
from operator import attrgetter

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from marked import thorough
from probes import ROLE

from algos.off_policy.dqn import DQNConfig
from algos.off_policy.replay.rings import make_windows, read_samples, read_sequences
from algos.off_policy.sac import SACConfig
from algos.on_policy import sample_epochs, segment_epochs
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.on_policy.pqn_vdn import PQNVDNConfig
from algos.types import Transition
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs import episodes as episodes_lib
from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.check_env import check_env
from jaxmarl_echelon.tracking import Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink, read_columns
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import loop
from jaxmarl_echelon.training.program.agents import make_controllers
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.rollouts import collect, transitions
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec


def ppo(**changes):
    return PPOConfig(epochs=2, num_minibatches=2, widths=(16,), normalize_observation=False, **changes)


def ppo_segments(**changes):
    return PPOConfig(
        epochs=2,
        num_minibatches=2,
        widths=(16,),
        normalize_observation=False,
        sampling="sequential",
        core={"kind": "gru", "width": 8},
        **changes,
    )


def a2c(**changes):
    return A2CConfig(widths=(16,), normalize_observation=False, **changes)


def pqn_vdn(**changes):
    return PQNVDNConfig(num_minibatches=1, widths=(16,), normalize_observation=False, **changes)


def sac(**changes):
    settings = {"batch_size": 16, "learning_starts": 32, "replay": {"capacity": 600}}
    return SACConfig(widths=(16,), **settings | changes)


class Walkers(probes.Comings):
    """With continuous actions, for learners with a replay."""

    action = probes.ContinuousTarget.action


class Steered(probes.Fallen):
    """With continuous actions: the first coordinate of the first action is the final reward."""

    action = probes.Box((1,), -1.0, 1.0)

    def step(self, key, state, actions, params):
        return super().step(key, state, {ROLE: actions[ROLE][..., 0]}, params)


def run_of(env, algo, updates=3, num_envs=4, **changes):
    steps = updates * num_envs * algo.horizon
    return RunConfig(
        env=env,
        algo=algo,
        curriculum=constant_curriculum,
        total_env_steps=steps,
        num_envs=num_envs,
        eval_episodes=4,
        eval_every=updates,
        checkpoint_every=updates,
        window=8,
        stagger=False,
        **changes,
    )


class CutShort(Steered):
    """Truncated by its own limit after one step instead of going on; the second agent goes out in it."""

    horizon = 1

    def _show(self, state, params, reward, terminated, truncated):
        time = super()._show(state, params, reward, truncated, terminated)
        there = jnp.array([True, False]) | ~time.over
        return time.replace(present={ROLE: there})


class CutTeam(probes.TimeLimit):
    """Truncated after two steps, in the second of which the second of its agents goes out."""

    agents = 2

    def __init__(self):
        super().__init__(2)

    @property
    def spec(self):
        return replace(super().spec, late=True, ends_with_team=True)

    def _show(self, state, *rest):
        time = super()._show(state, *rest)
        there = jnp.array([True, False]) | ~time.over
        return time.replace(present={ROLE: there}, alive={ROLE: time.alive[ROLE] & ~time.over})


class Broken(Steered):
    """Truncated after four steps instead of ended."""

    def _show(self, state, params, reward, terminated, truncated):
        return super()._show(state, params, reward, truncated, terminated)


@pytest.mark.parametrize("learner", [thorough(ppo), thorough(a2c), ppo_segments, thorough(sac)])
def test_no_average_counts_a_slot_that_is_not_filled(learner, tmp_path):
    env = Walkers() if learner is sac else probes.Comings()
    config = run_of(env, learner(horizon=8))
    program = make_program(config)
    loop.train_run(config, program, {"seed": 0}, tmp_path, Tracker({"csv": CsvSink()}))
    metrics, episodes = (read_columns(tmp_path / name) for name in ("metrics.csv", "episodes.csv"))
    scores, played = (read_columns(tmp_path / name) for name in ("eval.csv", "eval_episodes.csv"))
    # Two agents take part, with returns of 4 and 2, 4 and 2 steps, and scores of 1 and .5.
    for name, value in (("return", 3.0), ("travelled", 3.0), ("pace", 2.0), ("share_rate", 0.75)):
        np.testing.assert_allclose(metrics[f"train/{name}"][1:], value, err_msg=name)
    for name, value in (("travelled", 3.0), ("pace", 2.0), ("share", 0.75), (f"return/{ROLE}", 3.0)):
        np.testing.assert_allclose(episodes[name], value, err_msg=name)
    for name, value in (("avg_reward", 3.0), ("travelled", 3.0), ("pace", 2.0), ("share_rate", 0.75)):
        np.testing.assert_allclose(scores[name], value, err_msg=name)
    for name, value in (("reward", 3.0), ("travelled", 3.0), ("share", 0.75)):
        np.testing.assert_allclose(played[name], value, err_msg=name)
    assert (scores["share_low"] <= 0.75).all() and (scores["share_high"] >= 0.75).all()


def test_a_slot_that_is_filled_later_begins_with_an_empty_memory():
    config = run_of(probes.Comings(), ppo_segments(horizon=8))
    program = make_program(config)

    @jax.jit
    def played(key):
        run = program.init(key)
        restarts = run.episodes.time.restarts(ROLE, jnp.zeros(4, bool))
        after, collected = played_by(program, config, run)
        return restarts, collected.rollouts[ROLE].reset, after.episodes.time.over

    restarts, reset, over = jax.device_get(played(jax.random.key(0)))
    assert not restarts.any() and over.shape == (4,)
    assert reset[0].all()
    np.testing.assert_array_equal(reset[2], [[False, True, False]] * 4)
    np.testing.assert_array_equal(reset[[1, 3]], False)


def played_by(program, config, run):
    """One rollout of the program's own collector, with sampled actions."""
    acting = make_controllers(config, program.env, program.agents, {}, greedy=False)
    teams = frozenset(name for name, algo in config.algos.items() if algo.teams)
    collector = RolloutSpec(program.env, program.agents, acting, config.horizon, config.segments, teams=teams)
    return collect.collect_rollout(
        collector, run, run.key, lambda key: program.curriculum.draw(key, run.curriculum)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("learner", [ppo, a2c, ppo_segments])
def test_a_final_reward_reaches_the_last_decision_of_an_agent_that_is_out(learner):
    """The second agent's only decision is rewarded three steps later, always after the rollout: the critic
    values its observation at that time.
    """
    config = run_of(probes.Fallen(), learner(horizon=3, learning_rate=1e-2), updates=300, num_envs=16)
    program = make_program(config)

    @jax.jit
    def learnt(key):
        run, reports = jax.lax.scan(lambda r, _: program.update(r), program.init(key), None, 300)
        return reports.metrics["train/return"], program.evaluate(run, jax.random.key(1)).episode_return[ROLE]

    returns, evaluated = jax.device_get(learnt(jax.random.key(0)))
    assert returns[1:5].mean() < 0.85 and returns[-50:].mean() > 0.95
    np.testing.assert_array_equal(evaluated, 1.0)


PREPARE = {
    ppo: sample_epochs.samples_from_rollout,
    a2c: sample_epochs.samples_from_rollout,
    ppo_segments: segment_epochs.segments_from_rollout,
}


@pytest.mark.parametrize("learner", PREPARE)
def test_targets_are_the_values_of_whole_episodes_wherever_rollouts_cut_them(learner):
    """With lambda 1, however wrong the critic is within a rollout, if it is right where the rollout ends."""
    env = probes.Unequal()
    config = run_of(env, learner(gamma=env.gamma, gae_lambda=1.0, horizon=3))
    (agent,) = make_program(config).agents.values()

    def act(*given):
        action, carry, extras = agent.act(*given)
        return action, carry, extras | {"value": given[2][..., 0] + 0.5}

    def update(state, key, rollout):
        batch = PREPARE[learner](config.algo, state, rollout, state.hyper)
        seen, alive = (x.reshape(batch.target.shape) for x in (rollout.obs, rollout.alive))
        return state, {"alive": alive, "target": batch.target - seen, "advantage": batch.advantage + 0.5}

    value = lambda state, obs, *_: obs[..., 0]  # noqa: E731
    watched = make_program(config, {ROLE: agent._replace(act=act, value=value, update=update)})

    @jax.jit
    def wrong(key):
        metrics = jax.lax.scan(lambda run, _: watched.update(run), watched.init(key), None, 5)[1].metrics
        return {name: metrics[f"losses/{name}"] for name in ("alive", "target", "advantage")}

    found = jax.device_get(wrong(jax.random.key(0)))
    for name in ("target", "advantage"):
        np.testing.assert_allclose(found[name][found["alive"]], 0.0, atol=1e-5, err_msg=name)
    assert 0.5 < found["alive"].mean() < 0.7


def test_the_evaluation_counts_what_comes_late():
    config = run_of(probes.Fallen(), ppo(horizon=8))
    program = make_program(config)
    forced = lambda parts: {  # noqa: E731
        ROLE: program.controllers(parts)[ROLE]._replace(
            act=lambda key, state, memory, view, reset: (memory, jnp.ones((4, 2), jnp.int32), {})
        )
    }

    @jax.jit
    def returns(key):
        run = program.init(key)
        result = program.evaluate_with_controllers(forced, run.policies, run, jax.random.key(1), episodes=4)
        return result.episode_return[ROLE]

    np.testing.assert_array_equal(returns(jax.random.key(0)), 1.0)


def given_to_a_replay(env, monkeypatch, names, **changes):
    """Trains for eight steps; returns what the learner with a replay is given, `[8, E, A]` by name."""
    config = replace(run_of(env, sac(horizon=8, learning_starts=10_000)), **changes)
    (agent,) = make_program(config).agents.values()

    def update(state, key, batch):
        return state, {name: attrgetter(name)(batch) for name in names}

    # Metrics of every step as they are: what the learner is given comes out with them.
    monkeypatch.setattr(collect, "mean_over_steps", lambda metrics: metrics)
    watched = make_program(config, {ROLE: agent._replace(update=update)})
    given = jax.jit(lambda key: watched.update(watched.init(key))[1].metrics)(jax.random.key(0))
    return [np.asarray(given[f"losses/{name}"]) for name in names]


def test_a_replay_is_given_decisions_with_all_that_came_of_them(monkeypatch):
    """A transition is complete, with all rewards until the end of the agent's trajectory."""
    names = ("alive", "reward", "action", "discount")
    alive, reward, action, discount = given_to_a_replay(Steered(), monkeypatch, names)
    # The first agent acts in each of four steps; the second's only decision is complete at the end.
    np.testing.assert_array_equal(alive[:, :, 0], True)
    np.testing.assert_array_equal(alive[:, 0, 1], [False, False, False, True] * 2)
    np.testing.assert_allclose(reward[3::4, :, 1], 0.99**3 * action[3::4, :, 1, 0], atol=1e-6)
    np.testing.assert_array_equal(discount[3::4, :, 1], 0.0)


def test_a_replay_drops_decisions_that_are_truncated_while_their_agent_is_out(monkeypatch):
    alive, discount = given_to_a_replay(Broken(), monkeypatch, ("alive", "discount"))
    np.testing.assert_array_equal(alive[:, :, 0], True)
    np.testing.assert_array_equal(discount[:, :, 0], 1.0)
    np.testing.assert_array_equal(alive[:, :, 1], False)


def test_a_replay_drops_decisions_after_which_their_agent_is_out_and_cut_at_once(monkeypatch):
    """First episodes are cut after one to four steps; the second agent is out after the first."""
    names = ("alive", "boundary", "discount", "next_context.alive")
    alive, boundary, discount, acts = given_to_a_replay(Steered(), monkeypatch, names, stagger=True)
    assert (boundary & alive & (discount > 0))[0, :, 0].any()  # some are cut after one step
    np.testing.assert_array_equal(alive[:, :, 0], True)
    assert alive[:, :, 1].any() and not (discount > 0)[:, :, 1][alive[:, :, 1]].any()
    assert not acts[:, :, 1].any()  # nor does a team count it


@pytest.mark.parametrize("stagger", [False, True])
def test_a_replay_drops_decisions_after_which_their_agent_is_out_at_a_limit(monkeypatch, stagger):
    """Whether episodes can be cut (`stagger`) or not, the environment's own limit is the same."""
    names = ("alive", "discount", "next_context.alive")
    alive, discount, acts = given_to_a_replay(CutShort(), monkeypatch, names, stagger=stagger)
    assert alive[:, :, 0].all() and acts[:, :, 0].all() and (discount > 0).all()
    assert not alive[:, :, 1].any() and not acts[:, :, 1].any()  # neither it nor a team bootstraps from it


def test_a_rollout_tells_a_team_who_decides_next():
    """Not who is out at the limit, though its own value would be learnt alone."""
    config = run_of(CutTeam(), pqn_vdn(horizon=3))
    program = make_program(config)
    played = jax.jit(lambda key: played_by(program, config, program.init(key))[1].rollouts[ROLE])
    rollout = played(jax.random.key(0))
    np.testing.assert_array_equal(rollout.alive, True)
    np.testing.assert_array_equal(rollout.discount[:, 0], [[1, 1], [1, 0], [1, 1]])
    np.testing.assert_array_equal(rollout.boundary[:, 0], [[False] * 2, [True] * 2, [False] * 2])
    np.testing.assert_array_equal(rollout.last_alive, True)


def test_a_replay_is_told_where_memories_are_empty(monkeypatch):
    """In the first of four steps all are, in the third that of the agent that comes."""
    names = ("context.begins", "next_context.begins")
    begins, later = given_to_a_replay(Walkers(), monkeypatch, names)
    np.testing.assert_array_equal(
        begins[:, 0], [[True] * 3, [False] * 3, [False, True, False], [False] * 3] * 2
    )
    np.testing.assert_array_equal(
        later[:, 0], [[False] * 3, [False, True, False], [False] * 3, [False] * 3] * 2
    )


def test_successes_are_kept_whole_of_agents_that_wait_for_the_end():
    env = probes.Unequal()
    env.action = probes.Box((1,), -1.0, 1.0)
    replay = {"capacity": 600, "success_capacity": 200, "success_ratio": 0.5}
    program = make_program(run_of(env, sac(horizon=10, learning_starts=10_000, replay=replay)))
    trained = jax.jit(lambda key: program.update(program.init(key))[0].policies[ROLE])(jax.random.key(0))
    # Two episodes in each of four environments, in which the agents decide 1, 3 and 5 times.
    assert trained.replay.successes.ring.count.item() == 4 * 2 * sum(env.lives)


def stored_by_waiting_agents(replay, core):
    """The replay of three episodes in which agents decide 1, 3 and 5 times and then wait to the end."""
    algo = DQNConfig(horizon=15, learning_starts=10_000, batch_size=16, replay=replay, core=core, widths=(8,))
    program = make_program(run_of(probes.Unequal(), replace(algo, gamma=probes.Unequal.gamma)))
    trained = jax.jit(lambda key: program.update(program.init(key))[0].policies[ROLE])(jax.random.key(0))
    ring = trained.replay.ring
    np.testing.assert_array_equal(ring.count.reshape(-1, 3), 3 * probes.Unequal.lives[None].repeat(4, 0))
    return ring, jnp.arange(ring.count.size), jnp.zeros(ring.count.size, jnp.int32)


def test_sequences_go_on_over_decisions_that_wait():
    """What an agent sees is its value, so that targets by the next observation equal the observation."""
    replay = {"capacity": 600, "sequence": 8}
    ring, row, slot = stored_by_waiting_agents(replay, {"kind": "gru", "width": 4})
    one = read_sequences(ring, row, slot, 8, None, None, probes.Unequal.gamma)
    decided = np.minimum(ring.count, 8)
    np.testing.assert_array_equal(one.inside.sum(-1), decided)
    target = one.reward + one.discount * one.next_obs[..., 0]
    np.testing.assert_allclose(np.where(one.inside, target - one.obs[..., 0], 0.0), 0.0, atol=1e-5)
    lives = np.tile(probes.Unequal.lives, 4)[:, None]
    begins = (np.arange(9) % lives == 0) & (np.arange(9) > 0) & (np.arange(9) < decided[:, None])
    np.testing.assert_array_equal(np.where(np.arange(9) < decided[:, None], one.reset, False), begins)


def test_several_steps_go_on_to_decisions_that_wait():
    ring, row, slot = stored_by_waiting_agents({"capacity": 600, "n_step": 4}, {"kind": "none"})
    window = make_windows(ring, row, slot, 4, probes.Unequal.gamma)
    np.testing.assert_array_equal(window.inside.sum(-1).reshape(-1, 3), [[1, 3, 4]] * 4)
    one = read_samples(ring, window, None, None)
    np.testing.assert_allclose(one.reward + one.discount * one.next_obs[:, 0], one.obs[:, 0], atol=1e-5)


def test_settling_keeps_one_decision_per_agent():
    def one(reward, alive, obs):
        values = jnp.full((1, 1), reward, jnp.float32)
        return Transition(
            obs=jnp.full((1, 1, 1), obs, jnp.float32),
            action=jnp.full((1, 1, 1), obs, jnp.float32),
            reward=values,
            discount=jnp.ones((1, 1)),
            next_obs=jnp.full((1, 1, 1), obs + 1, jnp.float32),
            boundary=jnp.zeros((1, 1), bool),
            success=jnp.zeros((1, 1), bool),
            alive=jnp.full((1, 1), alive),
        )

    no = jnp.zeros((1, 1), bool)
    none = jnp.zeros((1, 1))
    pending = transitions.Pending(none[..., None], none[..., None], none, no, none)
    settle = functools.partial(transitions.settle_pending, gamma=0.5)
    pending, first = settle(pending, one(1.0, True, 5.0), ~no)
    assert not first.alive.any() and pending.waits.all() and first.waits.all()
    pending, second = settle(pending, one(2.0, False, 6.0), ~no)
    assert not second.alive.any() and pending.waits.all()
    pending, third = settle(pending, one(4.0, False, 7.0), no)
    assert third.alive.all() and not pending.waits.any() and not third.waits.any()
    assert [x.item() for x in (third.reward, third.obs, third.next_obs)] == [1 + 0.5 * 2 + 0.25 * 4, 5.0, 8.0]
    assert third.discount.item() == 0.25
    pending, fourth = settle(pending, one(8.0, True, 9.0), no)
    assert fourth.alive.all() and [x.item() for x in (fourth.reward, fourth.obs)] == [8.0, 9.0]
    assert fourth.discount.item() == 1.0


def test_breaking_an_episode_off_truncates_those_that_wait_as_well():
    env = probes.Fallen()

    def draw(key):
        return episodes_lib.EpisodeTask(env.default_params())

    @jax.jit
    def two_steps(key):
        running = episodes_lib.start_episodes(env, key, draw, 2)
        actions = {ROLE: jnp.ones((2, 2), jnp.int32)}
        running, _ = episodes_lib.step_episodes(env, key, running, actions, draw)
        return episodes_lib.step_episodes(env, key, running, actions, draw, cut=jnp.array([True, False]))

    running, stepped = two_steps(jax.random.key(0))
    np.testing.assert_array_equal(stepped.time.truncated[ROLE], [[True, True], [False, False]])
    np.testing.assert_array_equal(stepped.waited[ROLE], [[False, True], [False, True]])
    np.testing.assert_array_equal(stepped.reset_next, [True, False])
    np.testing.assert_array_equal(running.time.alive[ROLE], [[True, True], [True, False]])


class Scored(probes.Fallen):
    """With a result per agent that changes to the end: the step, plus the agent's number."""

    @property
    def spec(self):
        plain = super().spec
        return replace(plain, results=(*plain.results, results.Result("final", role=ROLE)))

    def _show(self, state, *rest):
        time = super()._show(state, *rest)
        return time.replace(info=time.info | {"final": state.clock + jnp.arange(2.0)})


class CutAlone(probes.Fallen):
    """The second agent is truncated in the first step, by a limit of its own; each decision pays 1."""

    def step(self, key, state, actions, params):
        after, time = super().step(key, state, actions, params)
        acted = jnp.array([True, False]) | (state.clock == 0)
        none = jnp.zeros(self.agents, bool)
        cut = none.at[1].set(state.clock == 0)
        paid, ends = jnp.where(acted, 1.0, 0.0), time.terminated[ROLE] & acted
        return after, time.replace(reward={ROLE: paid}, terminated={ROLE: ends}, truncated={ROLE: cut})


def test_an_agent_that_is_truncated_alone_waits_for_nothing():
    """What its last decision bootstraps from is no value of rows in which nothing can follow."""
    check_env(CutAlone(), plain=False)
    config = run_of(CutAlone(), ppo(horizon=4))
    program = make_program(config)
    played = jax.jit(lambda key: played_by(program, config, program.init(key))[1].rollouts[ROLE])
    rollout = played(jax.random.key(0))
    np.testing.assert_array_equal(rollout.boundary[0], [[False, True]] * 4)
    np.testing.assert_array_equal(rollout.out, False)
    np.testing.assert_array_equal(rollout.has_value_target.sum(0), [[4, 1]] * 4)


def test_agents_that_wait_report_what_the_end_shows_of_them():
    program = make_program(run_of(Scored(), ppo(horizon=8)))
    result = jax.jit(lambda key: program.evaluate(program.init(key), key).results["final"])
    np.testing.assert_array_equal(result(jax.random.key(0)), [[4.0, 5.0]] * 4)
