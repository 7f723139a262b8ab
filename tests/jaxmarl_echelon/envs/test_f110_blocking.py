"""The scripted attacker makes defenders crash from every spawn point, without jitter of the starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmarl_echelon as je
from jaxmarl_echelon.envs.f110 import results
from jaxmarl_echelon.envs.f110.scripts import blocking
from jaxmarl_echelon.training.acting.controllers import find_baselines, find_script

# Phases 20 and 25 of `phased26`: the strongest drivers of either aim.
DRIVERS = {
    "center": {"steering_gain": 0.35, "bubble_radius": 2.5, "target_mode": "center"},
    "farthest": {"steering_gain": 0.60, "bubble_radius": 3.5, "target_mode": "farthest"},
}


@pytest.fixture(scope="module")
def play():
    """`(driver's settings) -> outcomes [S]` of an episode from each spawn point, from rest."""
    env = je.make("f110", spawns="all", spawn_speed=0.0, lock_steps=0)
    scripts = env.scripts["blocking_attacker"], env.scripts["ftg"]
    number = len(env.spec.tasks)

    def step(carry, key, params):
        state, memories = carry
        mine, act = scripts[0].act(key, memories[0], state, params)
        theirs, answer = scripts[1].act(key, memories[1], state, params)
        moved, _ = env.step(key, state, {"attacker": act, "defender": answer}, params)
        # Episodes that are over stay as they are.
        return jax.tree.map(
            lambda a, b: jnp.where(state.outcome == results.RUNNING, a, b), (moved, (mine, theirs)), carry
        )

    def episode(key, params):
        carry = env.reset(key, params)[0], tuple(script.init() for script in scripts)
        keys = jax.random.split(key, env.spec.episode_limit)
        (state, _), _ = jax.lax.scan(lambda carry, key: (step(carry, key, params), None), carry, keys)
        return state.outcome

    @jax.jit
    def outcomes(key, params):
        params = jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *jnp.shape(x))), params)
        params = params.replace(spawn_weights=jnp.eye(number))
        return jax.vmap(episode)(jax.random.split(key, number), params)

    return lambda driver: outcomes(jax.random.key(0), env.task_params(settings={"ftg": driver}))


@pytest.mark.thorough
@pytest.mark.parametrize("aim", DRIVERS)
def test_every_defender_crashes_from_every_spawn_point(play, aim):
    np.testing.assert_array_equal(play(DRIVERS[aim]), results.TARGET_CRASH)


def test_the_script_plays_the_attacker_only():
    """In the defender's car its commands, computed for the attacker's, would mean nothing."""
    env = je.make("f110", lidar_beams=8)
    assert find_script(env, "attacker", "blocking") is env.scripts["blocking_attacker"]
    with pytest.raises(
        ValueError, match=r"controllers\.defender=blocking: unknown controller; allowed: .*ftg"
    ):
        find_script(env, "defender", "blocking")
    assert find_baselines(env, "attacker") == env.baselines
    assert find_baselines(env, "defender") == ("random", "gaussian", "standing")


def test_unknown_spawn_points_take_a_known_law():
    table = blocking.read_law_table(("elsewhere", "pinch_ahead", "pinch_left"))
    assert table.poses.shape == (2, 3, 3, 3)
    assert np.array_equal(table.kx[:, 0], table.kx[:, 1]) and (table.kx[:, 1] != table.kx[:, 2]).all()


def test_a_car_steers_towards_its_pose_forwards_and_in_reverse():
    law = blocking.BlockingLaw(None, 2.0, 1.0, 1.5, 0.0, 0.0, 0.0)
    defender = jnp.zeros(7).at[3].set(0.4)

    def command(x, y):
        mine = jnp.zeros(7).at[0].set(x).at[1].set(y)
        return np.asarray(blocking.track_pose(law, jnp.array([0.5, 0.1, 0.0]), mine, defender))

    # At the pose: the defender's speed, straight on.
    np.testing.assert_allclose(command(0.5, 0.1), [0.0, 0.4], atol=1e-6)
    # Behind and to the right of it: faster, to the left; steering is 1.5 times the course error of 0.2.
    np.testing.assert_allclose(command(0.3, -0.1), [0.3, 0.8], atol=1e-6)
    # Far ahead: backwards, in which a car turns the other way to reach the same side.
    steer, speed = command(1.0, -0.1)
    assert speed == pytest.approx(-0.6) and steer == pytest.approx(0.3)
