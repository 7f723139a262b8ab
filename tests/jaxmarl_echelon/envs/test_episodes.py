from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from marked import thorough
from probes import ROLE

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.check_env import random_actions
from jaxmarl_echelon.envs.episodes import EpisodeTask, start_episodes, step_episodes
from jaxmarl_echelon.envs.packed_rows import pack_batch
from jaxmarl_echelon.envs.trees import layout_difference


def fixed(env, **changes):
    """A draw that always gives the environment's default parameters, with some changes."""
    return lambda key: EpisodeTask(env.default_params() | changes)


def random_task(env):
    """A draw of a random task and of the gain that goes with it."""

    def draw(key):
        task = jax.random.randint(key, (), 0, 3)
        return EpisodeTask(env.default_params() | {"task": task, "gain": 1.0 + task}, {"stage": 10 * task})

    return draw


def act(env, key, episodes):
    keys = jax.random.split(key, episodes.time.over.shape[0])
    return jax.vmap(partial(random_actions, env.spec))(keys, episodes.time)


@partial(jax.jit, static_argnums=(0, 2, 3, 4), static_argnames="reset_chunk")
def run(env, key, draw, num_envs, steps, **options):
    """Plays randomly; returns the last episodes, transitions [T, E] and what was acted on [T, E]."""
    key_start, key_run = jax.random.split(key)

    def advance(episodes, key):
        key_act, key_step = jax.random.split(key)
        actions = act(env, key_act, episodes)
        following, transition = step_episodes(env, key_step, episodes, actions, draw, **options)
        return following, (transition, episodes.time, actions)

    return jax.lax.scan(
        advance, start_episodes(env, key_start, draw, num_envs), jax.random.split(key_run, steps)
    )


def equal(a, b):
    return all(
        np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_true_final_observation_and_next_observation_are_both_kept():
    env = probes.DelayedReward()
    episodes, (transition, acted_on, _) = run(env, jax.random.key(0), fixed(env), 3, 4)
    time = jax.jit(lambda episodes: episodes.time)(episodes)
    assert transition.time.obs[ROLE][..., 0, 0].tolist() == [[1] * 3] * 4
    assert acted_on.obs[ROLE][..., 0, 0].tolist() == [[0] * 3, [1] * 3] * 2
    assert transition.time.info["clock"].tolist() == [[1] * 3, [2] * 3] * 2
    assert transition.time.terminated[ROLE][..., 0].tolist() == [[False] * 3, [True] * 3] * 2
    assert not transition.time.truncated[ROLE].any()
    assert not acted_on.over.any() and not time.over.any()
    assert transition.reset_next.tolist() == [[False] * 3, [True] * 3] * 2
    assert time.info["clock"].tolist() == [0] * 3


def test_time_limits_are_reported_as_truncation_only():
    env = probes.TimeLimit(3)
    _, (transition, _, _) = run(env, jax.random.key(0), fixed(env), 2, 6)
    assert transition.time.truncated[ROLE][:, 0, 0].tolist() == [False, False, True] * 2
    assert not transition.time.terminated[ROLE].any()
    assert transition.finished.mask[:, 0].tolist() == [False, False, True] * 2
    assert transition.finished.results["outcome"][:, 0].tolist() == [-1, -1, 1] * 2


def test_statistics_match_a_plain_loop_over_each_environment():
    env, num_envs, steps = probes.ObservationActionReward(), 5, 9
    env.horizon = 4
    played = run(env, jax.random.key(3), random_task(env), num_envs, steps)[1]
    transition, acted_on, actions = jax.tree.map(np.asarray, played)
    finished = transition.finished
    for i in range(num_envs):
        total = length = 0
        for t in range(steps):
            right = (actions[ROLE][t, i, 0] == 1) == (acted_on.obs[ROLE][t, i, 0, 0] > 0)
            task = int(acted_on.info["task"][t, i])
            total, length = total + (1 + task) * (1 if right else -1), length + 1
            assert bool(finished.mask[t, i]) == (length == 4)
            if length == 4:
                assert float(finished.episode_return[ROLE][t, i, 0]) == total
                assert float(finished.results["reward/main"][t, i]) == total
                assert float(finished.results["reward/count"][t, i]) == 4
                assert (int(finished.length[t, i]), int(finished.results["outcome"][t, i])) == (4, 0)
                assert (
                    int(finished.results["task"][t, i]) == task
                    and int(finished.tags["stage"][t, i]) == 10 * task
                )
                total = length = 0
            else:
                assert not finished.episode_return[ROLE][t, i].any() and finished.length[t, i] == 0
                assert finished.results["outcome"][t, i] == -1 and finished.results["task"][t, i] == -1
    assert finished.episode_return[ROLE].dtype == jnp.float32


def test_every_episode_has_its_own_start_and_params_from_beginning_to_end():
    env = probes.TimeLimit(5)
    _, (transition, acted_on, _) = run(env, jax.random.key(1), random_task(env), 6, 15)
    for name, distinct in (("start", 18), ("task", 3)):
        values = np.asarray(acted_on.info[name]).reshape(3, 5, 6)
        assert (values == values[:, :1]).all() and np.unique(values[:, 0]).size == distinct
    np.testing.assert_array_equal(transition.time.reward[ROLE][..., 0], 1.0 + acted_on.info["task"])


def test_dead_agents_do_not_act_and_their_rewards_are_dropped():
    env = probes.DeadAgent()
    draw = fixed(env, garbage=np.float32(1e6))
    _, (transition, _, actions) = run(env, jax.random.key(2), draw, 3, 8)
    acted = np.asarray(transition.acted[ROLE])
    assert acted[..., 0].all()
    assert acted[:, 0, 1].tolist() == [True, False, False, False] * 2
    assert (np.asarray(transition.time.reward[ROLE])[~acted] == 0).all()
    assert transition.time.terminated[ROLE][:, 0, 1].tolist() == [True, False, False, False] * 2
    chosen = np.where(acted, np.asarray(actions[ROLE]), 0).reshape(2, 4, 3, 2).sum(1)
    returns = np.asarray(transition.finished.episode_return[ROLE])[[3, 7]]
    np.testing.assert_array_equal(returns, chosen)


class Anywhere(probes.Poison):
    """Poisoned in one of the places: `params["place"]` is its number."""

    places = ("state", "obs", "reward", "info")

    def default_params(self):
        return super().default_params() | {"place": np.int32(0)}

    def disturb(self, state, time, params):
        for number, where in enumerate(self.places):
            poison = jnp.where(params["place"] == number, params["poison"], -1)
            state, time = probes.Poison(where).disturb(state, time, params | {"poison": poison})
        return state, time


SICK = 1


@jax.jit
def played(place, poison):
    """Three environments, the second of which is poisoned, and their transitions."""
    env = Anywhere()
    draw = fixed(env, place=place)

    def advance(episodes, key):
        return step_episodes(env, key, episodes, act(env, key, episodes), draw)

    episodes = start_episodes(env, jax.random.key(0), draw, 3)
    poisons = jnp.where(np.arange(3) == SICK, poison, -1)
    episodes = episodes.replace(
        drawn=pack_batch(EpisodeTask(episodes.params | {"poison": poisons}, episodes.tags))
    )
    return jax.lax.scan(advance, episodes, jax.random.split(jax.random.key(5), 10))


@pytest.mark.parametrize("where", Anywhere.places)
def test_one_environment_going_non_finite_leaves_the_others_untouched(where):
    sick, place = SICK, np.int32(Anywhere.places.index(where))
    (healthy_end, healthy), (end, transition) = jax.device_get([played(place, np.int32(x)) for x in (-1, 2)])
    others = np.array([0, 2])
    assert equal(*(jax.tree.map(lambda x: x[:, others], played) for played in (transition, healthy)))
    assert equal(*(jax.tree.map(lambda x: x[others], episodes) for episodes in (end, healthy_end)))
    assert np.argwhere(transition.quarantined).tolist() == [[1, sick]]
    assert not healthy.quarantined.any()
    for leaf in jax.tree.leaves((end, transition)):
        assert np.isfinite(leaf).all()

    shown = transition.time
    assert not transition.acted[ROLE][1, sick].any() and not shown.alive[ROLE][1, sick].any()
    assert shown.truncated[ROLE][1, sick].all() and not shown.terminated[ROLE][1, sick].any()
    assert shown.over[1, sick] and transition.reset_next[1, sick] and shown.reward[ROLE][1, sick] == 0
    assert equal(shown.obs[ROLE][1, sick], shown.obs[ROLE][0, sick])
    assert transition.finished.mask[:, sick].tolist() == [False] * 7 + [True] + [False] * 2
    assert transition.finished.length[7, sick] == 6
    assert transition.finished.episode_return[ROLE][7, sick, 0] == 6


@pytest.mark.parametrize("where", [thorough("state"), "obs"])
def test_a_failed_reset_is_discarded_and_repeated(where):
    env = probes.Poison(where)

    def draw(key):
        poison = jnp.where(jax.random.bernoulli(key), 0, -1)
        return EpisodeTask(env.default_params() | {"poison": poison})

    _, (transition, acted_on, _) = run(env, jax.random.key(0), draw, 4, 12)
    failed = np.asarray(acted_on.over)
    assert failed.any() and not failed.all()
    np.testing.assert_array_equal(transition.quarantined, failed)
    np.testing.assert_array_equal(transition.acted[ROLE][..., 0], ~failed)
    np.testing.assert_array_equal(acted_on.alive[ROLE][..., 0], ~failed)
    assert transition.reset_next[failed].all() and not transition.finished.mask[failed].any()
    for leaf in jax.tree.leaves((transition, acted_on)):
        assert np.isfinite(leaf).all()
    assert (np.asarray(transition.finished.length)[np.asarray(transition.finished.mask)] == 6).all()


class Ragged(probes.Probe):
    """Episodes of 1 to 6 steps, by the start's own draw; observations are transcendental."""

    horizon = 6
    observation = probes.Box((3,), -np.inf, np.inf)

    def reset(self, key, params):
        state, time = super().reset(key, params)
        state = state.replace(level=jnp.exp(jax.random.normal(key)), clock=jax.random.randint(key, (), 0, 6))
        return state, time.replace(obs={ROLE: self.observe(state, params)})

    def observe(self, state, params):
        x = state.level + state.clock
        return jnp.stack([jnp.sin(x), jnp.log1p(x), jnp.tanh(x)])[None]


RAGGED = Ragged()
RAGGED_DRAW = random_task(RAGGED)


@pytest.mark.parametrize("chunk", [thorough(1), 3])
def test_chunk_size_never_changes_a_bit(chunk):
    reference = run(RAGGED, jax.random.key(7), RAGGED_DRAW, 7, 12)
    resets = np.asarray(reference[1][0].reset_next).sum(1)
    assert len(set(resets.tolist())) > 2
    assert equal(reference, run(RAGGED, jax.random.key(7), RAGGED_DRAW, 7, 12, reset_chunk=chunk))


def test_seeds_under_vmap_equal_single_runs_bit_for_bit():
    keys = jax.random.split(jax.random.key(11), 3)
    together = jax.device_get(jax.jit(jax.vmap(lambda key: run(RAGGED, key, RAGGED_DRAW, 7, 12)))(keys))
    for i, key in enumerate(keys):
        alone = run(RAGGED, key, RAGGED_DRAW, 7, 12)
        assert equal(jax.tree.map(lambda x, i=i: x[i], together), alone)


def test_one_trace_serves_every_step_even_of_weakly_typed_states():
    class Loose(probes.TimeLimit):
        def reset(self, key, params):
            state, time = super().reset(key, params)
            return state.replace(level=0.0), time

        def disturb(self, state, time, params):
            return state.replace(level=jnp.float32(1)), time

    env, traces = Loose(2), []

    @jax.jit
    def advance(key, episodes, gain):
        traces.append(None)
        return step_episodes(env, key, episodes, act(env, key, episodes), fixed(env, gain=gain))

    episodes = start_episodes(env, jax.random.key(0), fixed(env, gain=2.0), 3)
    for seed in range(4):
        episodes, transition = advance(jax.random.key(seed), episodes, 2.0)
    assert len(traces) == 1
    assert transition.finished.episode_return[ROLE][:, 0].tolist() == [4.0] * 3


def test_every_draw_and_every_reset_has_a_key_of_its_own():
    class Keyed(probes.Probe):
        def reset(self, key, params):
            state, time = super().reset(key, params)
            return {"probe": state, "key": key}, time

        def step(self, key, state, actions, params):
            probe, time = super().step(key, state["probe"], actions, params)
            return {"probe": probe, "key": key}, time

    env = Keyed()

    def draw(key):
        return EpisodeTask(env.default_params() | {"key": key})

    @jax.jit
    def used():
        before = start_episodes(env, jax.random.key(0), draw, 3)
        after, _ = step_episodes(env, jax.random.key(1), before, act(env, jax.random.key(2), before), draw)
        keys = [x["key"] for episodes in (before, after) for x in (episodes.env, episodes.params)]
        return jax.random.key_data(jnp.concatenate(keys))

    assert np.unique(used(), axis=0).shape[0] == 12


def test_an_info_key_that_only_steps_have_is_refused():
    class Talkative(probes.Probe):
        def step(self, key, state, actions, params):
            state, time = super().step(key, state, actions, params)
            return state, time.replace(info=time.info | {"speed": jnp.float32(1)})

    env = Talkative()

    def play(key):
        episodes = start_episodes(env, key, fixed(env), 2)
        return step_episodes(env, key, episodes, act(env, key, episodes), fixed(env))

    with pytest.raises(ValueError, match=r"info\['speed'\] is unexpected"):
        jax.eval_shape(play, jax.random.key(0))


def test_mistakes_are_named():
    env = probes.ConstantReward()
    with pytest.raises(ValueError, match="num_envs=0"):
        start_episodes(env, jax.random.key(0), fixed(env), 0)


def test_layout_difference_names_the_leaf():
    tree = {"a": jnp.zeros(2), "b": (jnp.int32(1),)}
    assert layout_difference(tree, tree) is None
    assert layout_difference(tree, {"a": jnp.zeros(2)}) == "['b'][0] is missing"
    assert layout_difference(tree, tree | {"c": jnp.zeros(1)}) == "['c'] is unexpected"
    changed = tree | {"a": jnp.zeros((2, 1))}
    assert layout_difference(tree, changed) == "['a'] is float32[2, 1], expected float32[2]"
    assert "containers" in layout_difference(tree, tree | {"b": [jnp.int32(1)]})


def test_a_cut_episode_is_truncated_reset_and_not_counted():
    env = probes.TimeLimit(horizon=5)
    cut = np.array([True, False, True, False])

    @jax.jit
    def broken_off():
        running = start_episodes(env, jax.random.key(0), fixed(env), 4)
        actions = {probes.ROLE: jnp.zeros((4, 1), jnp.int32)}
        after, transition = step_episodes(
            env, jax.random.key(1), running, actions, fixed(env), cut=jnp.asarray(cut)
        )
        return after.running.tree.sums.length, after.env.clock, transition

    length, clock, transition = broken_off()
    np.testing.assert_array_equal(transition.time.truncated[probes.ROLE][:, 0], cut)
    assert not transition.time.terminated[probes.ROLE].any()
    np.testing.assert_array_equal(transition.reset_next, cut)
    assert not np.any(transition.finished.mask) and not np.any(transition.quarantined)
    assert np.all(transition.acted[probes.ROLE])
    np.testing.assert_array_equal(length, np.where(cut, 0, 1))
    np.testing.assert_array_equal(clock, np.where(cut, 0, 1))


class Extremes(probes.Comings):
    """Shows 10 plus the clock where a slot is filled, and garbage below or above it where it is empty."""

    @property
    def spec(self):
        own = (results.Result(name, role=ROLE, reduce=name) for name in ("min", "max"))
        return replace(super().spec, results=(*super().spec.results, *own))

    def _filled(self, state, time, reward):
        state, time = super()._filled(state, time, reward)
        shown = {"min": jnp.where(time.present[ROLE], 10.0 + state.clock, -1e3)}
        shown["max"] = jnp.where(time.present[ROLE], 10.0 + state.clock, 1e3)
        return state, time.replace(info=time.info | shown)


def test_extremes_of_a_slot_that_is_filled_later_are_those_of_its_own_steps():
    """The first slot is filled from the reset to the fourth step, the second from the second step on."""
    env = Extremes()
    _, (transition, _, _) = run(env, jax.random.key(0), fixed(env), 2, 4)
    found = transition.finished
    assert found.mask[3].all() and found.present[ROLE][3].tolist() == [[True, True, False]] * 2
    np.testing.assert_array_equal(found.results["min"][3, :, :2], [[10.0, 12.0]] * 2)
    np.testing.assert_array_equal(found.results["max"][3, :, :2], [[14.0, 14.0]] * 2)
