"""Environments of brax and MuJoCo Playground: their numbers, our episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from flax import struct
from played_library import play_at_random

from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.adapters.inward import brax, playground
from jaxmarl_echelon.envs.adapters.inward.simulators import Simulator
from jaxmarl_echelon.envs.check_env import check_env

ROLE = "player"
needs_brax = pytest.mark.needs("brax")
needs_playground = pytest.mark.needs("mujoco_playground")


class Falling(struct.PyTreeNode):
    """State of `Fall`, with the fields of brax's."""

    height: jax.Array
    obs: dict
    reward: jax.Array
    done: jax.Array
    metrics: dict
    info: dict


class Fall:
    """A body that falls from a random height, with the interface of brax; it ends at the ground."""

    action_size, dt = 1, 0.5

    def reset(self, rng):
        return self.state(jax.random.uniform(rng, minval=3.0, maxval=9.0))

    def step(self, state, action):
        state.metrics.update(height=0.0)  # as brax does to its input
        return self.state(state.height - 1.0 + 0.0 * action[0])

    def state(self, height):
        obs = {"state": height[None], "privileged_state": jnp.stack([height, 2.0 * height])}
        done = (height <= 0).astype(jnp.float32)
        return Falling(height, obs, 1.0 - done, done, {"height": height}, {})


def test_the_contract_is_kept():
    check_env(Simulator("fall", Fall(), episode_length=5))


def test_ends_and_limits_are_kept_apart():
    env = Simulator("fall", Fall(), episode_length=5)
    params = env.default_params()
    play = jax.jit(jax.vmap(lambda key: play_at_random(key, env, 5, params)[1]))
    _, _, times, _, _ = jax.device_get(play(jax.random.split(jax.random.key(0), 64)))
    end = np.argmax(times.over, axis=1)
    height = times.obs[ROLE][np.arange(64), end, 0, 0]
    fell = height <= 0
    np.testing.assert_array_equal(times.terminated[ROLE][np.arange(64), end, 0], fell)
    np.testing.assert_array_equal(times.truncated[ROLE][np.arange(64), end, 0], ~fell)
    assert 0.1 < fell.mean() < 0.9 and (end[~fell] == 4).all()


def test_decisions_can_take_several_steps():
    """The last steps of a decision in which the body lands do not count."""
    env = Simulator("fall", Fall(), episode_length=12, action_repeat=4)
    assert env.spec.decision_period == 2.0 and env.spec.episode_limit == 3
    (_, first), (_, _, times, _, _) = play_at_random(jax.random.key(4), env, 3, env.default_params())
    height = float(first.obs[ROLE][0, 0])
    end = int(np.argmax(times.over))
    assert float(times.reward[ROLE][: end + 1].sum()) == np.ceil(height) - 1
    assert times.terminated[ROLE][end, 0] == (height <= 12)
    # Metrics are means over the steps of a decision that were taken, down to the one in which the body lands.
    heights = height - 1.0 - np.arange(np.ceil(height))
    means = [heights[4 * k : 4 * k + 4].mean() for k in range(end + 1)]
    np.testing.assert_allclose(times.info["metrics/height"][: end + 1], means, atol=1e-5)


def test_critics_see_what_agents_do_not():
    env = Simulator("fall", Fall(), episode_length=5)
    (role,) = env.spec.roles
    _, time = env.reset(jax.random.key(0), env.default_params())
    assert role.observation.shape == (1,) and role.critic_observation.shape == (2,)
    assert time.critic_obs[ROLE][0, 1] == 2 * time.obs[ROLE][0, 0]


def test_no_episode_begins_like_another():
    env = Simulator("fall", Fall(), episode_length=2)
    actions, params = {ROLE: jnp.zeros((8, 1, 1))}, env.default_params()

    def draw(key):
        return episodes.EpisodeTask(params)

    @jax.jit
    def starts(key):
        def step(running, key):
            running, _ = episodes.step_episodes(env, key, running, actions, draw)
            return running, (running.time.obs[ROLE], running.running.tree.sums.length)

        begun = episodes.start_episodes(env, key, draw, 8)
        return jax.lax.scan(step, begun, jax.random.split(key, 12))[1]

    obs, length = starts(jax.random.key(0))
    first = np.asarray(obs[..., 0, 0])[np.asarray(length) == 0]
    assert len(first) == 48 and len(np.unique(first)) == 48


def play_and_repeat(env, plays, steps):
    """Time steps of random play `[plays * steps]` and the simulator's next states, where it still runs."""
    params, keys = env.default_params(), jax.random.split(jax.random.key(1), plays)

    @jax.jit
    def both(keys):
        states, _, times, actions, _ = jax.vmap(lambda key: play_at_random(key, env, steps, params)[1])(keys)
        flat = [
            jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), one)
            for one in (states, times, actions)
        ]
        return *flat[:2], jax.vmap(env._env.step)(flat[0].own, flat[2][ROLE][:, 0])

    states, times, theirs = jax.device_get(both(keys))
    runs = states.own.done == 0  # ours stands still after its end
    assert runs.sum() >= 200
    return jax.tree.map(lambda x: x[runs], (times, theirs))


@needs_brax
def test_rewards_are_those_of_brax():
    times, theirs = play_and_repeat(brax.make("fast"), 1, 200)
    np.testing.assert_allclose(times.obs[ROLE][:, 0], theirs.obs, rtol=1e-6)
    np.testing.assert_allclose(times.reward[ROLE][:, 0], theirs.reward, rtol=1e-6)
    assert np.ptp(theirs.reward) > 0.1 and not times.over.any()


@pytest.mark.slow
@needs_brax
def test_ends_are_those_of_brax():
    times, theirs = play_and_repeat(brax.make("inverted_pendulum", backend="generalized"), 64, 8)
    np.testing.assert_allclose(times.obs[ROLE][:, 0], theirs.obs, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(times.terminated[ROLE][:, 0], theirs.done > 0)
    assert 0 < theirs.done.mean() < 0.5


@needs_brax
def test_brax_is_made_by_name():
    env = brax.make("fast", episode_length=30)
    assert env.spec.episode_limit == 30
    with pytest.raises(ValueError, match=r"env.name=aunt: unknown to brax; allowed: ant, fast"):
        brax.make("aunt")
    with pytest.raises(ValueError, match=r"env.episode_length=0: must be"):
        brax.make("fast", episode_length=0)


@needs_playground
def test_rewards_are_those_of_playground():
    env = playground.make("CartpoleBalance", episode_length=50)
    times, theirs = play_and_repeat(env, 5, 50)
    np.testing.assert_allclose(times.reward[ROLE][:, 0], theirs.reward, rtol=1e-4, atol=1e-5)
    assert np.ptp(theirs.reward) > 0.1 and not times.terminated[ROLE].any()
    np.testing.assert_array_equal(times.truncated[ROLE][:, 0].reshape(5, 50), [[False] * 49 + [True]] * 5)


@needs_playground
def test_playground_is_made_by_name():
    with pytest.raises(ValueError, match=r"env.name=CartpoleBallance: unknown to MuJoCo Playground; did you"):
        playground.make("CartpoleBallance")
    with pytest.raises(ValueError, match=r"env.options=.*hats"):
        playground.make("CartpoleBalance", options={"hats": 1})


@needs_brax
def test_every_environment_of_brax_has_a_file(repository):
    from brax import envs

    assert names(repository / "conf" / "env" / "brax") == set(envs._envs)


@needs_playground
def test_every_environment_of_playground_has_a_file(repository):
    from mujoco_playground import registry

    assert names(repository / "conf" / "env" / "playground") == set(registry.ALL_ENVS)


def names(folder):
    return {yaml.safe_load(file.read_text())["name"] for file in folder.glob("*.yaml")}
