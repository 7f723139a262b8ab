"""JaxMARL's environments behind the environment contract: its numbers, our roles and flags."""

import functools
import operator
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from played_library import play_at_random, record_to_end

from jaxmarl_echelon.envs.adapters.inward import jaxmarl as inward
from jaxmarl_echelon.envs.adapters.inward.jaxmarl_ends import FAMILIES, find_ends, has_ends
from jaxmarl_echelon.envs.check_env import check_env, check_spec
from jaxmarl_echelon.envs.check_rollout import check_record
from jaxmarl_echelon.envs.spaces import Discrete

# Imported by tests alone: to import it takes seconds, which every worker would spend on collecting this file.
pytestmark = pytest.mark.needs("jaxmarl")
LIMIT = 60  # of battles


@functools.cache
def made(name, **settings):
    return inward.make(name, **settings)


@functools.cache
def spread():
    return made("MPE_simple_spread_v3", critic="state")


@functools.cache
def battle():
    options = {"max_steps": LIMIT - 1}
    return inward.make("HeuristicEnemySMAX", scenario="3m", critic="state", options=options)


@functools.cache
def played(env):
    """Random plays to the limit: records `[plays, steps]`, and what JaxMARL gives for the same steps."""
    (role,), own = env.spec.roles, env._env
    agents, plays = own.agents, -(-200 // env.spec.episode_limit)

    def theirs(key, state, actions):
        given = dict(zip(agents, actions[role.name], strict=True))
        obs, after, rewards, dones, _ = own.step_env(key, state, given)
        stacked = (jnp.stack([values[agent] for agent in agents]) for values in (obs, rewards))
        world = own.get_world_state(after) if hasattr(own, "get_world_state") else jnp.zeros(0)
        return *stacked, dones["__all__"], after, world

    @jax.jit
    def play(keys):
        record = jax.vmap(lambda key: play_at_random(key, env, env.spec.episode_limit, {})[1])(keys)
        states, before, after, actions, keys = record
        return states, before, after, jax.vmap(jax.vmap(theirs))(keys, states, actions)

    return jax.device_get(play(jax.random.split(jax.random.key(1), plays)))


BOTH = pytest.mark.parametrize("env", [spread, battle], ids=["spread", "battle"])


@BOTH
def test_observations_and_rewards_are_those_of_jaxmarl(env):
    """In at least 200 steps."""
    (role,) = env().spec.roles
    _, _, times, (obs, rewards, over, _, _) = played(env())
    np.testing.assert_allclose(times.obs[role.name], obs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(times.reward[role.name], rewards, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(times.over, over)
    assert over.size >= 200 and np.ptp(rewards) > 0.05


@BOTH
def test_the_contract_is_kept(env):
    check_spec(env().spec)
    *record, _ = played(env())
    for play in range(len(record[2].over)):
        check_record(env().spec, record_to_end(*jax.tree.map(operator.itemgetter(play), tuple(record))))


@pytest.mark.slow
@BOTH
def test_the_whole_check_passes(env):
    check_env(env(), plain=False)


def test_the_limit_of_spread_cuts_and_never_terminates():
    _, _, times, _ = played(spread())
    limit = spread().spec.episode_limit
    assert limit == 26 and not times.terminated["agent"].any()
    np.testing.assert_array_equal(times.over, np.tile(np.arange(limit) == limit - 1, (len(times.over), 1)))
    np.testing.assert_array_equal(times.truncated["agent"], np.repeat(times.over[..., None], 3, -1))
    np.testing.assert_array_equal(times.alive["agent"], ~times.truncated["agent"])


def test_a_limit_can_be_set():
    options = {"max_steps": 7, "num_agents": 2, "num_landmarks": 2, "damping": 0.5}
    spec = inward.make("MPE_simple_spread_v3", options=options).spec
    assert spec.episode_limit == 8 and spec.roles[0].size == 2


def test_critics_of_spread_see_all_observations_and_who_they_are():
    _, _, times, _ = played(spread())
    seen, obs = times.critic_obs["agent"], times.obs["agent"]
    assert seen.shape[-2:] == (3, 3 * 18 + 3)
    for row in range(3):
        np.testing.assert_array_equal(seen[..., row, :54], obs.reshape(*obs.shape[:2], -1))
        np.testing.assert_array_equal(
            seen[..., row, 54:], np.broadcast_to(np.eye(3)[row], (*obs.shape[:2], 3))
        )


def test_battles_end_with_a_team_and_are_cut_by_the_clock():
    _, _, times, (_, _, _, after, _) = played(battle())
    outcomes = battle().spec.outcomes
    found = set()
    for play, end in enumerate(times.over.argmax(1)):
        left = after.state.unit_alive[play, end]
        decided = not (left[:3].any() and left[3:].any())
        assert times.over[play, end] and (decided or end == LIMIT - 1)
        np.testing.assert_array_equal(times.terminated["ally"][play, end], decided)
        np.testing.assert_array_equal(times.truncated["ally"][play, end], not decided)
        assert not times.alive["ally"][play, end].any()
        assert (times.info["outcome"][play, :end] == -1).all()
        expected = "time_limit" if not decided else "won" if left[:3].any() else "lost"
        assert outcomes[times.info["outcome"][play, end]] == expected
        found.add(expected)
    assert "lost" in found


def test_who_is_dead_at_the_limit_of_a_battle_is_no_longer_present():
    """In the last step of 60, of which the limit is the end; before it, all are."""
    env = battle()
    state, _ = jax.eval_shape(env.reset, jax.random.key(0), {})
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state)
    left = jnp.array([True, False, True, False, True, False])
    state = state.replace(state=state.state.replace(unit_alive=left))
    agents, obs = (*env._env.agents, "__all__"), dict.fromkeys(env._env.agents, jnp.zeros(0))
    done = {agent: jnp.bool_(agent == "__all__" or not left[i]) for i, agent in enumerate(agents)}
    for over in (False, True):
        dones = done | {"__all__": jnp.bool_(over)}
        time = env._show(
            obs, state, dict.fromkeys(agents, 0.0), dones, find_ends("SMAX").ended(env._env, state, dones)
        )
        assert time.truncated["ally"].all() == over and not time.terminated["ally"].any()
        np.testing.assert_array_equal(time.present["ally"], [True, not over, True])


@pytest.mark.parametrize(
    ("allies", "enemies", "ended", "outcome"),
    [(1, 0, True, "won"), (0, 2, True, "lost"), (0, 0, True, "draw"), (2, 1, False, "time_limit")],
)
def test_a_battle_ends_truly_if_a_team_is_gone(allies, enemies, ended, outcome):
    ends = find_ends("SMAX")
    env, left = SimpleNamespace(num_allies=2), np.arange(2)
    state = SimpleNamespace(unit_alive=jnp.concatenate([left < allies, left < enemies]))
    assert bool(ends.ended(env, state, {})["__all__"]) == ended
    assert ends.outcomes[ends.outcome(env, state, jnp.bool_(True))] == outcome
    assert ends.outcome(env, state, jnp.bool_(False)) == -1


def test_the_dead_do_not_act_but_are_paid_with_their_team():
    _, _, times, (_, _, _, after, _) = played(battle())
    running, alive = ~times.over, after.state.unit_alive[..., :3]
    np.testing.assert_array_equal(times.alive["ally"][running], alive[running])
    assert battle().spec.late and not times.terminated["ally"][running].any()
    dead = running[..., None] & ~alive
    assert dead.any() and np.ptp(times.reward["ally"], axis=-1).max() == 0 < times.reward["ally"].max()
    # What is left to the dead is to stop, which is action 4.
    assert (times.action_mask["ally"][dead].sum(-1) == 1).all() and times.action_mask["ally"][..., 4].all()


def test_masks_are_those_of_jaxmarl():
    _, _, times, (_, _, _, after, _) = played(battle())
    legal = jax.jit(jax.vmap(jax.vmap(battle()._env.get_avail_actions)))(after)
    theirs = np.stack([legal[agent] for agent in battle()._env.agents], axis=2)
    np.testing.assert_array_equal(times.action_mask["ally"], theirs.astype(bool))
    assert times.action_mask["ally"][..., 5:].any() and not times.action_mask["ally"].all()


def test_critics_of_battles_see_the_world_and_who_they_are():
    _, _, times, (_, _, _, _, world) = played(battle())
    seen = times.critic_obs["ally"]
    np.testing.assert_allclose(seen[..., 1, :-3], world, rtol=1e-6)
    assert (seen[..., 1, -3:] == [0, 1, 0]).all()


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
        ("MPE_simple_facmac_v1", {"adversary": 3, "agent": 1}),
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
        ({"scenario": "3k"}, "env.scenario=3k: unknown; allowed: 3m, 2s3z"),
        ({"critic": "all"}, "env.critic=all: unknown; allowed: own, state"),
        ({"options": {"hats": 1}}, "env.options=.'hats': 1.: JaxMARL cannot make HeuristicEnemySMAX: .*hats"),
        (
            {"name": "MPE_simple_tag_v3", "options": {"max_step": 9}},
            "env.options.max_step=9: unknown to JaxMARL; did you mean max_steps",
        ),
        ({"name": "overcooked", "layout": "hall"}, "env.layout=hall: unknown; allowed: cramped_room"),
    ],
)
def test_wrong_settings_say_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        inward.make(**{"name": "HeuristicEnemySMAX"} | arguments)
    assert "\n" not in str(error.value)


def test_every_environment_with_known_ends_has_a_file(repository):
    import jaxmarl

    files = (repository / "conf" / "env" / "jaxmarl").glob("*.yaml")
    settings = [yaml.safe_load(file.read_text()) for file in files]
    assert {one["name"] for one in settings} == {name for name in jaxmarl.registered_envs if has_ends(name)}
    assert all(any(name.startswith(start) for name in jaxmarl.registered_envs) for start in FAMILIES)


@pytest.mark.thorough
def test_every_environment_with_a_file_can_be_made(repository):
    for file in sorted((repository / "conf" / "env" / "jaxmarl").glob("*.yaml")):
        env = made(yaml.safe_load(file.read_text())["name"])
        check_spec(env.spec)
        jax.eval_shape(lambda key, env=env: env.reset(key, env.default_params()), jax.random.key(0))


def test_importing_jaxmarl_prints_nothing_and_leaves_the_streams(tmp_path, monkeypatch, capfd):
    """The module that its extra for brax reads sets both streams to those that the process began with."""
    noisy = "import sys\nsys.stdout = sys.__stdout__\nsys.stderr = sys.__stderr__\nprint('lacks')\n"
    (tmp_path / "jaxmarl.py").write_text(noisy + "print('lacks', file=sys.stderr)\nregistered_envs = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "jaxmarl", None)  # so that what is there now, or nothing, is put back
    del sys.modules["jaxmarl"]
    before = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
    with pytest.raises(ValueError, match="MPE_simple_spread_v3"):
        inward.make("MPE_simple_spread_v3")
    assert (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__) == before
    assert capfd.readouterr() == ("", "")
