"""JaxMARL's environments behind the environment contract: its numbers, our roles and flags."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from played_library import play_at_random

from jaxmarl_echelon.envs.adapters.inward import jaxmarl as inward
from jaxmarl_echelon.envs.adapters.inward.jaxmarl_ends import FAMILIES, has_ends
from jaxmarl_echelon.envs.check_env import check_env
from jaxmarl_echelon.envs.spaces import Discrete

jaxmarl = pytest.importorskip("jaxmarl")
STEPS = 200


@functools.cache
def made(name, **settings):
    return inward.make(name, **settings)


@functools.cache
def played(env, steps=STEPS):
    """Random play without resets, as NumPy arrays: time steps, states, actions and keys `[steps]`."""
    begun, (states, times, actions, keys) = play_at_random(jax.random.key(1), env, steps, {})
    return jax.device_get(begun), states, jax.device_get(times), actions, keys


def spread():
    return made("MPE_simple_spread_v3", critic="state")


def battle(scenario="3m"):
    return made("HeuristicEnemySMAX", scenario=scenario, critic="state")


@pytest.mark.parametrize("env", [spread, battle], ids=["MPE_simple_spread_v3", "HeuristicEnemySMAX"])
def test_the_contract_is_kept(env):
    check_env(env(), plain=False)


@pytest.mark.parametrize("env", [spread, battle], ids=["MPE_simple_spread_v3", "HeuristicEnemySMAX"])
def test_observations_and_rewards_are_those_of_jaxmarl(env):
    env = env()
    (role,) = env.spec.roles
    _, states, times, actions, keys = played(env)

    @jax.jit
    def theirs(key, state, given):
        named = dict(zip(env._env.agents, given[role.name], strict=True))
        obs, _, rewards, dones, _ = env._env.step_env(key, state, named)
        stacked = (jnp.stack([values[agent] for agent in env._env.agents]) for values in (obs, rewards))
        return *stacked, dones["__all__"]

    obs, rewards, over = jax.device_get(jax.vmap(theirs)(keys, states, actions))
    np.testing.assert_allclose(times.obs[role.name], obs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(times.reward[role.name], rewards, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(times.over, over)
    assert np.ptp(rewards) > 0.1


def test_the_limit_of_spread_cuts_and_never_terminates():
    _, _, times, _, _ = played(spread())
    limit = spread().spec.episode_limit
    assert limit == 26 and not times.terminated["agent"].any()
    np.testing.assert_array_equal(times.over, np.arange(STEPS) >= limit - 1)
    np.testing.assert_array_equal(times.truncated["agent"], np.repeat(times.over[:, None], 3, 1))
    np.testing.assert_array_equal(times.alive["agent"], ~times.truncated["agent"])


def test_a_limit_can_be_set():
    options = {"max_steps": 7, "num_agents": 2, "num_landmarks": 2}
    spec = inward.make("MPE_simple_spread_v3", options=options).spec
    assert spec.episode_limit == 8 and spec.roles[0].size == 2


def test_critics_of_spread_see_all_observations_and_who_they_are():
    (_, first), *_ = played(spread())
    seen = first.critic_obs["agent"]
    assert seen.shape == (3, 3 * 18 + 3)
    for row in range(3):
        np.testing.assert_array_equal(seen[row, :54], first.obs["agent"].ravel())
        np.testing.assert_array_equal(seen[row, 54:], np.eye(3)[row])


def end_of(times):
    return int(np.argmax(times.over))


def test_battles_end_with_a_team_and_are_cut_by_the_clock():
    """Random marines lose to the script long before the limit of 100 steps."""
    _, states, times, _, _ = played(battle())
    end = end_of(times)
    after = np.asarray(states.state.unit_alive)[end + 1]  # its state is that before the next step
    assert times.over[end] and not after[:3].all() and not (after[:3].any() and after[3:].any())
    assert times.terminated["ally"][end].all() and not times.truncated["ally"][end].any()
    assert times.info["outcome"][end] == battle().spec.outcomes.index("lost")
    assert (times.info["outcome"][:end] == -1).all()
    short = inward.make("HeuristicEnemySMAX", scenario="3m", options={"max_steps": 5})
    _, (_, cut, _, _) = play_at_random(jax.random.key(1), short, 5, {})
    assert cut.over[4] and cut.truncated["ally"][4].all() and not cut.terminated["ally"].any()
    assert cut.info["outcome"][4] == short.spec.outcomes.index("time_limit")


def test_the_dead_do_not_act_but_are_paid_with_their_team():
    env = battle()
    _, states, times, _, _ = played(env)
    end = end_of(times)
    alive = np.asarray(states.state.unit_alive)[1 : end + 1, :3]  # after steps 0 .. end - 1
    np.testing.assert_array_equal(times.alive["ally"][:end], alive)
    assert env.spec.late and not alive.all() and not times.terminated["ally"][:end].any()
    # The team's reward is everybody's.
    np.testing.assert_array_equal(times.reward["ally"][:, 0], times.reward["ally"][:, 2])
    # What is left to the dead is to stop, which is action 4.
    dead = ~alive[-1]
    masks = times.action_mask["ally"][end - 1]
    assert dead.any() and (masks[dead].sum(-1) == 1).all() and masks[:, 4].all()


def test_masks_are_those_of_jaxmarl():
    env = battle()
    _, states, times, _, _ = played(env)
    legal = jax.jit(jax.vmap(env._env.get_avail_actions))(states)
    for place, agent in enumerate(env._env.agents):
        shown = times.action_mask["ally"][:-1, place]
        np.testing.assert_array_equal(shown, np.asarray(legal[agent])[1:].astype(bool))
    assert not times.action_mask["ally"].all()


def test_critics_of_battles_see_the_world():
    env = battle()
    (state, first), *_ = played(env)
    world = np.asarray(env._env.get_world_state(state))
    np.testing.assert_array_equal(first.critic_obs["ally"][1, :-3], world)
    np.testing.assert_array_equal(first.critic_obs["ally"][1, -3:], [0, 1, 0])


def test_both_teams_can_be_roles():
    env = inward.make("SMAX", scenario="5m_vs_6m")
    ally, enemy = env.spec.roles
    assert (ally.name, ally.size, ally.action) == ("ally", 5, Discrete(11))
    assert (enemy.name, enemy.size, enemy.action) == ("enemy", 6, Discrete(10))
    assert env.spec.score == "success" and enemy.score == "enemy_success"
    assert env.spec.result("enemy_success").among == ("lost",)


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("MPE_simple_tag_v3", {"adversary": 3, "agent": 1}),
        ("MPE_simple_speaker_listener_v4", {"speaker": 1, "listener": 1}),
        ("MPE_simple_world_comm_v3", {"leadadversary": 1, "adversary": 3, "agent": 2}),
        ("overcooked", {"agent": 2}),
    ],
)
def test_roles_are_agents_of_a_class_with_equal_spaces(name, roles):
    assert {role.name: role.size for role in made(name).spec.roles} == roles


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "MPE_simple_spred_v3"},
            "env.name=MPE_simple_spred_v3: unknown to JaxMARL; did you mean",
        ),
        ({"scenario": "3k"}, "env.scenario=3k: must be 3m, 2s3z"),
        ({"critic": "all"}, "env.critic=all: must be own or state"),
        ({"options": {"hats": 1}}, "env.options=.'hats': 1.: JaxMARL cannot make HeuristicEnemySMAX: .*hats"),
        ({"name": "overcooked", "layout": "hall"}, "env.layout=hall: must be cramped_room"),
    ],
)
def test_wrong_settings_say_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        inward.make(**{"name": "HeuristicEnemySMAX"} | arguments)
    assert "\n" not in str(error.value)


def test_every_environment_with_known_ends_has_a_file(repository):
    files = (repository / "conf" / "env" / "jaxmarl").glob("*.yaml")
    settings = [yaml.safe_load(file.read_text()) for file in files]
    assert {one["name"] for one in settings} == {name for name in jaxmarl.registered_envs if has_ends(name)}
    assert all(any(name.startswith(start) for name in jaxmarl.registered_envs) for start in FAMILIES)
