"""Goals of the adversarial task, which hindsight relabelling reads from observations alone."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from algos import types
from jaxmarl_echelon import command_line
from jaxmarl_echelon.envs.check_env import check_env, check_traces, random_actions
from jaxmarl_echelon.envs.f110.cars.simulation import poses_of
from jaxmarl_echelon.envs.f110.observing.observe import rotate_vectors
from jaxmarl_echelon.envs.f110.starts.goals import make_goal
from jaxmarl_echelon.envs.f110.state import ATTACKER, DEFENDER

CONF = Path(__file__).resolve().parents[3] / "conf"
load = functools.cache(OmegaConf.load)
SMALL = {"lidar_beams": 12, "max_steps": 60}
RANGE = {"low": [-1.0, -0.5], "high": [2.0, 0.5]}


def build(goal=None, **changes):
    node = OmegaConf.merge(load(CONF / "env" / "f110.yaml"), SMALL | changes, {"goal": goal})
    reward = instantiate(load(CONF / "reward" / "gaplock_simple.yaml"), _convert_="all")
    return instantiate(node, _partial_=True)(reward=reward)


def play(env, episodes=16, steps=25):
    """Random attackers, no resets: `(states, time steps)`, `[1 + T, N]` with the first, keys and actions."""
    params = env.default_params()

    def step(carry, key):
        state, time = carry
        key_act, key_step = jax.random.split(key)
        actions = random_actions(env.spec, key_act, time)
        following = env.step(key_step, state, actions, params)
        return following, (following, (key_step, actions))

    def one(key):
        key_reset, key_steps = jax.random.split(key)
        first = env.reset(key_reset, params)
        _, (rest, given) = jax.lax.scan(step, first, jax.random.split(key_steps, steps))
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest), given

    return jax.jit(jax.vmap(one, out_axes=1))(jax.random.split(jax.random.key(3), episodes))


@pytest.fixture(scope="module")
def env():
    return build(RANGE | {"radius": 1.0, "amount": 2.5, "dense": True})


@pytest.fixture(scope="module")
def played(env):
    return play(env)


@pytest.mark.thorough
def test_the_contract_is_kept(env):
    check_env(env, steps=20, plain=False)


def test_the_environment_is_traced_as_the_contract_says(env):
    check_traces(env)


def test_the_component_is_what_hindsight_computes_from_observations(env, played):
    goal = types.Goal(*env.goals["attacker"])
    (_, time), _ = jax.device_get(played)
    obs = time.obs["attacker"][:, :, 0]
    paid = time.info["reward/goal"]
    expected = goal.reward(goal.achieved(obs[1:]), goal.desired(obs[:-1]))
    np.testing.assert_allclose(paid[1:], expected, atol=1e-5)
    assert (paid[0] == 0).all()
    reached = paid[1:] == 2.5
    assert 0.02 < reached.mean() < 0.98
    assert (paid[1:][~reached] < -1.0).all()


def test_goals_are_relative_positions_in_metres(env, played):
    """The achieved goal is the position of the defender, forward and left of the attacker."""
    (state, time), _ = jax.device_get(played)
    poses = poses_of(state.cars.state)
    ego, target = poses[:, :, ATTACKER], poses[:, :, DEFENDER]
    goal, obs = env.goals["attacker"], time.obs["attacker"][:, :, 0]
    place = jax.jit(jax.vmap(jax.vmap(rotate_vectors)))(target[..., :2] - ego[..., :2], -ego[..., 2])
    np.testing.assert_allclose(goal.achieved(obs), place, atol=1e-4)
    wanted = goal.desired(obs)
    np.testing.assert_allclose(wanted, state.goal, atol=1e-5)
    np.testing.assert_array_equal(state.goal, np.broadcast_to(state.goal[0], state.goal.shape))
    np.testing.assert_array_max_ulp(np.asarray(wanted), np.broadcast_to(wanted[0], wanted.shape), maxulp=2)
    assert (wanted >= np.array([-1.0, -0.5]) - 1e-5).all() and (wanted <= np.array([2.0, 0.5]) + 1e-5).all()
    assert (wanted[0].std(0) > np.array([0.4, 0.1])).all()


def test_the_rest_of_the_task_is_the_plain_one(env, played):
    """The same states, actions and keys: only two features, one component and its reward are added."""
    plain, params = build(), env.default_params()
    (states, times), (keys, actions) = played
    state, key, action = jax.jit(lambda tree: jax.tree.map(lambda x: x[5], tree))((states, keys, actions))
    ours = jax.tree.map(lambda x: np.asarray(x)[6], times)
    _, theirs = jax.jit(jax.vmap(plain.step, (0, 0, 0, None)))(key, state, action, params)
    np.testing.assert_allclose(ours.obs["attacker"][..., :-2], theirs.obs["attacker"], atol=1e-6)
    np.testing.assert_allclose(ours.obs["defender"], theirs.obs["defender"], atol=1e-6)
    extra = (ours.reward["attacker"] - theirs.reward["attacker"])[:, 0]
    np.testing.assert_allclose(extra, ours.info["reward/goal"], atol=1e-5)
    np.testing.assert_array_equal(ours.over, theirs.over)


def test_replace_changes_the_two_features_only():
    goal = make_goal(18, 12.0, radius=0.25, amount=1.0, dense=False)
    obs = jax.random.normal(jax.random.key(0), (3, 4, 25))
    wanted = jnp.broadcast_to(jnp.array([1.5, -0.6]), (3, 4, 2))
    replaced = goal.replace(obs, wanted)
    np.testing.assert_array_equal(replaced[..., :-2], obs[..., :-2])
    np.testing.assert_allclose(goal.desired(replaced), wanted, rtol=1e-6)
    np.testing.assert_allclose(replaced[..., -2:], wanted / 12.0, rtol=1e-6)
    np.testing.assert_allclose(goal.achieved(replaced), 12.0 * obs[..., 18:20], rtol=1e-6)


@pytest.mark.parametrize(("dense", "missed"), [(False, [0.0, 0.0]), (True, [-0.5, -5.0])])
def test_rewards_of_a_goal(dense, missed):
    goal = make_goal(0, 1.0, radius=0.3, amount=2.0, dense=dense)
    achieved = jnp.array([[1.0, 1.0], [1.2, 1.0], [1.5, 1.0], [4.0, 5.0]])
    np.testing.assert_allclose(goal.reward(achieved, jnp.ones(2)), [2.0, 2.0, *missed], rtol=1e-6)


def test_without_goals_nothing_changes():
    plain = build()
    assert not plain.goals and "goal" not in plain.spec.components
    sizes = {role.name: role.observation.shape for role in plain.spec.roles}
    assert sizes == {"attacker": (12 + 11,), "defender": (12 + 11,)}
    asked = build(RANGE)
    assert asked.spec.role("attacker").observation.shape == (12 + 13,)
    assert asked.spec.role("defender") == plain.spec.role("defender")
    assert asked.spec.components == (*plain.spec.components, "goal")
    assert build(RANGE, observe_time=True).spec.role("attacker").observation.shape == (12 + 14,)


def test_curricula_may_move_the_range(env):
    params = env.task_params(settings={"goal": {"low": [1.0, 0.1], "high": [1.0, 0.1]}, "lock_steps": 7})
    assert params.lock_steps == 7 and jax.tree.structure(params) == jax.tree.structure(env.default_params())
    _, time = jax.jit(env.reset)(jax.random.key(0), params)
    np.testing.assert_allclose(env.goals["attacker"].desired(time.obs["attacker"]), [[1.0, 0.1]], rtol=1e-5)
    low, high = (
        getattr(env.task_params({"goal": {"low": [0.0, 0.0]}}), f"goal_{end}") for end in ("low", "high")
    )
    np.testing.assert_allclose([low, high], [[0.0, 0.0], [2.0, 0.5]])


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({"high": [1.0, 1.0]}, "env.goal.low=None: must be 2 numbers"),
        (RANGE | {"low": [3.0, 0.0]}, "env.goal.low=.3.0, 0.0.: must not exceed env.goal.high"),
        (RANGE | {"high": [13.0, 0.0]}, "env.goal.high=.*: must lie within env.position_scale=12 m"),
        (RANGE | {"radius": 0.0}, "env.goal.radius=0.0: must be"),
        (RANGE | {"dense": 1}, "env.goal.dense=1: must be true or false"),
        (RANGE | {"size": 1}, "env.goal=size: unknown; allowed: low, high, radius, amount, dense"),
    ],
)
def test_wrong_settings_say_what_is_allowed(goal, message):
    with pytest.raises(ValueError, match=message):
        build(goal)


def test_goals_need_the_place_of_the_target():
    """Hidden, it would be read as 0, 0: the same achieved goal at every step."""
    with pytest.raises(ValueError, match="env.goal=.*: is read from .*; needs env.observe_target=true"):
        build(RANGE, observe_target=False)


def test_wrong_settings_of_a_stage():
    env = build(RANGE)
    with pytest.raises(ValueError, match="env.goal=radius: unknown; allowed: low, high"):
        env.task_params({"goal": {"radius": 1.0}})
    with pytest.raises(ValueError, match="must not exceed"):
        env.task_params({"goal": {"low": [2.5, 0.0]}})


def test_the_command_line_takes_goals():
    goal = "{low: [0.5, -0.5], high: [2.0, 0.5]}"
    config, _ = command_line.compose_config([f"env.goal={goal}"])
    assert config.env.goal.low == [0.5, -0.5]
