"""Sensors, electronic warfare and hearing (docs/reference/echelon.md 9 and 10)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_arena import FLAT, TALL_WALL, arena, at_start

from jaxmarl_echelon.envs.echelon.battle import sensors
from jaxmarl_echelon.envs.echelon.battle.surroundings import scene_of
from jaxmarl_echelon.envs.echelon.battle.unit_tables import HEAVY, LIGHT, MEDIUM, SCOUT

TEAM = np.array([0, 0, 1, 1])
acoustic = jax.jit(sensors.hear_noise)
NEAR, JAMMER = (HEAVY, 10.0, 20.0, 2.0, 0.0), (SCOUT, 20.0, 20.0, 1.0, 0.0)


@partial(jax.jit, static_argnames="simulation")
def sight(simulation, battle):
    """`[M, M]`: neither terrain nor smoke lies between two living mechs."""
    terrain, smoke = sensors.find_clear_lines(simulation.terrain(battle), battle)
    return terrain & smoke


def sense(start):
    """Quality, jamming and countering `[M]` each, and visibility `[M, M]`."""
    return jax.device_get(_sense(*start, arena()))


@partial(jax.jit, static_argnames="simulation")
def _sense(battle, params, simulation):
    scene = scene_of(simulation.terrain(battle), TEAM, params)
    terrain, smoke = sensors.find_clear_lines(scene.terrain, battle)
    seen = sensors.find_visible_mechs(
        battle, TEAM, scene.packmates, scene.chassis, terrain, smoke, params.full_observation
    )
    return sensors.compute_sensor_quality(battle.mechs, TEAM, scene.chassis), seen


def partly(start):
    battle, params = start
    return battle, params.replace(full_observation=jnp.bool_(False))


def test_jamming_and_countering():
    position = [(MEDIUM, 10.0, 20.0, 2.0, 0.0), (SCOUT, 10.0, 25.0, 1.0, 0.0), JAMMER, None]
    ecm = [False, False, True, False]
    (quality, jam, eccm), _ = sense(at_start(position, ecm=ecm))
    distance = np.sqrt(101.0)
    assert quality[0] == pytest.approx(0.32085, abs=1e-5)
    assert jam[0] == pytest.approx(1 - distance / 50, abs=1e-6) and eccm[0] == 0
    assert quality[2] == 1
    (quality, _, eccm), _ = sense(at_start(position, ecm=ecm, eccm=[False, True, False, False]))
    assert quality[0] == pytest.approx(0.90456, abs=1e-5)
    assert eccm[0] == pytest.approx(1 - np.sqrt(26.0) / 50, abs=1e-6) and eccm[1] == 0


def test_shut_down_mechs_neither_jam_nor_sense():
    bodies = [NEAR, None, JAMMER, None]
    ecm = [False, False, True, False]
    (quality, jam, _), _ = sense(at_start(bodies, ecm=ecm, heat=[0, 0, 80.0, 0]))
    assert quality[0] == 1 and jam[0] == 0 and quality[2] == 0.25
    (quality, jam, _), _ = sense(at_start(bodies, ecm=ecm, heat=[140.0, 0, 0, 0]))
    assert quality[0] == 0.25 and jam[0] == 0


def test_a_lone_jammer_breaks_paint_locks_within_32_voxels():
    ecm = [False, False, True, False]
    for x, breaks in ((10 + 32.3, True), (10 + 32.4, False)):
        bodies = [(MEDIUM, 10.0, 20.0, 1.0, 0.0), None, (SCOUT, x, 20.0, 1.0, 0.0), None]
        assert (sense(at_start(bodies, ecm=ecm))[0][0][0] < 0.7) == breaks


def behind_a_wall(**changes):
    """A wall at x = 15 between blue's first two mechs and all others."""
    bodies = [
        (MEDIUM, 8.0, 20.3, 1.5, 0.0),
        (SCOUT, 35.0, 20.4, 0.9, 0.0),
        (MEDIUM, 21.0, 20.6, 1.5, 0.0),
        (LIGHT, 35.0, 10.3, 1.0, 0.0),
    ]
    return at_start(bodies, map_index=TALL_WALL, **changes)


def test_radar_looks_through_walls_as_far_as_14_voxels():
    assert sense(behind_a_wall())[1][0].tolist() == [False, True, True, True]
    seen = sense(partly(behind_a_wall()))[1]
    assert seen[0].tolist() == [False, False, True, False]
    assert seen[2].tolist() == [True, True, False, True]


def test_heat_emitters_and_paint_show_through_walls():
    hot = sense(partly(behind_a_wall(heat=[0, 0, 0, 70.0])))[1]
    assert hot[0].tolist() == [False, False, True, True]
    emits = sense(partly(behind_a_wall(eccm=[False, True, False, True])))[1]
    assert emits[0].tolist() == [False, False, True, True]  # a friend's emitter shows nothing
    painted = sense(partly(behind_a_wall(painted=[0, 0, 0, 9], painter=[-1, -1, -1, 1])))[1]
    assert painted[0].tolist() == [False, False, True, True]
    other = behind_a_wall(painted=[0, 0, 0, 9], painter=[-1, -1, -1, 1], packs=(1, 0, 0, 0))
    assert not sense(partly(other))[1][0, 3]


def test_the_dead_neither_see_nor_are_seen():
    bodies = [NEAR, None, JAMMER, (LIGHT, 30.0, 10.0, 1.0, 0.0)]
    seen = sense(at_start(bodies))[1]
    assert not seen[1].any() and not seen[:, 1].any()
    assert seen[0].tolist() == [False, False, True, True]


def test_sight_is_symmetric_and_stopped_by_smoke():
    battle, _params = behind_a_wall()
    clear = np.asarray(sight(arena(), battle))
    np.testing.assert_array_equal(clear, clear.T)
    assert not clear[0, 1:].any() and clear[1, 2] and clear[2, 3]
    position, left = np.array(battle.smoke.position), np.array(battle.smoke.left)
    position[3, 1], left[3, 1] = [28.0, 23.0, 1.0], 7
    smoke = battle.smoke.replace(position=position, left=left)
    smoked = np.asarray(sight(arena(), battle.replace(smoke=smoke)))
    assert not smoked[1, 2] and not smoked[2, 1] and smoked[1, 3]
    gone = smoke.replace(left=np.zeros_like(left))
    np.testing.assert_array_equal(np.asarray(sight(arena(), battle.replace(smoke=gone))), clear)


def test_smoke_and_sight_of_batches_are_those_of_single_battles():
    """Few of many environments have smoke: they are looked at apart."""
    battle, _ = behind_a_wall()
    rng = np.random.default_rng(0)
    count = 40
    position = rng.uniform(2, 38, (count, 4, 3)) * [1, 1, 0.2]
    left = rng.integers(0, 9, (count, 4, 3)) * (rng.random((count, 1, 1)) < 0.3)
    clouds = rng.uniform(2, 38, (count, 4, 3, 3)) * [1, 1, 0.2]
    batch = jax.tree.map(lambda v: np.repeat(np.asarray(v)[None], count, axis=0), battle)
    batch = batch.replace(
        mechs=batch.mechs.replace(position=position.astype(np.float32)),
        smoke=batch.smoke.replace(position=clouds.astype(np.float32), left=left.astype(np.int32)),
    )
    place = arena()
    together = np.asarray(jax.jit(jax.vmap(lambda b: sight(place, b)))(batch))
    batch = jax.device_get(batch)
    apart = [np.asarray(sight(place, jax.tree.map(lambda v, e=e: v[e], batch))) for e in range(count)]
    np.testing.assert_array_equal(together, np.stack(apart))
    assert together.any() and not together.all()


@pytest.mark.parametrize(
    ("place", "quadrant"),
    [
        ((10.0, 12.0), 2),
        ((12.0, 9.0), 1),
        ((8.0, 11.0), 2),
        ((8.0, 9.0), 3),
        ((12.0, 10.0), 0),
        ((10.0, 8.0), 3),
    ],
)
def test_hears_in_quadrants(place, quadrant):
    bodies = [(SCOUT, 10.0, 10.0, 0.9, 0.0), None, (SCOUT, *place, 0.9, 0.0), None]
    battle, _ = at_start(bodies, map_index=FLAT, noise=[50.0, 0, 3.0, 0])
    for clear, factor in ((True, 1.0), (False, 0.2)):
        heard = np.asarray(acoustic(battle.mechs, np.full((4, 4), clear)))
        square = np.sum(np.square(np.array(place) - 10.0))
        expected = np.zeros(4)
        expected[quadrant] = np.log1p(factor * 3.0 / (1 + square)) / 5
        np.testing.assert_allclose(heard[0], expected, atol=1e-6)
    turned = battle.mechs.replace(yaw=np.float32([0.7, 0, 0, 0]))
    assert np.asarray(acoustic(turned, np.full((4, 4), True)))[0].sum() > 0
