"""Mechanics of the battles against recorded values of the original simulator."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_arena import (
    FAR,
    FLAT,
    GLASS_WALL,
    LAVA_FIELD,
    LEDGE,
    TALL_WALL,
    WALL,
    WATER_FIELD,
    arena,
    at_start,
    run,
    told,
)
from marked import thorough
from omegaconf import OmegaConf

from jaxmarl_echelon.envs.echelon.battle.movement import ground_around
from jaxmarl_echelon.envs.echelon.battle.projectiles import Impacts
from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH
from jaxmarl_echelon.envs.echelon.battle.surroundings import scene_of
from jaxmarl_echelon.envs.echelon.battle.terrain_destruction import update_terrain
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    AUTOCANNON,
    FLAMER,
    GAUSS,
    HEAVY,
    LASER,
    LIGHT,
    MEDIUM,
    MISSILE,
    PAINTER,
    SCOUT,
    SMOKE,
)
from physics.voxels import (
    AIR,
    DEBRIS_FIELD,
    SOLID,
    SOLID_DEBRIS,
    Terrain,
    empty_overlay,
    material_at,
    voxel_bank,
)

CONF = Path(__file__).parents[3] / "conf" / "env"
HEIGHT = {SCOUT: 0.9, LIGHT: 1.0, MEDIUM: 1.5, HEAVY: 2.0}
BACK = np.pi


def standing(kind, x, y=20.0, yaw=0.0):
    return (kind, x, y, HEIGHT[kind], yaw)


def alone(kind, x=10.0, y=20.0, **changes):
    return at_start([standing(kind, x, y), None, None, None], **changes)


def duel(blue, red, **changes):
    return at_start([blue, None, red, None], **changes)


@pytest.mark.parametrize(
    ("kind", "x", "speed"),
    [(SCOUT, 11.715002, 7.0), (LIGHT, 11.666002, 6.8), (MEDIUM, 11.347499, 5.5), (HEAVY, 10.612502, 2.5)],
)
def test_walks_forward(kind, x, speed):
    battle = run(alone(kind), told({"forward": 1}))
    assert battle.mechs.position[4, 0, 0] == pytest.approx(x, abs=1e-5)
    assert battle.mechs.velocity[4, 0, 0] == pytest.approx(0.98 * speed, abs=1e-5)
    assert battle.mechs.position[4, 0, 1:] == pytest.approx([20.0, HEIGHT[kind]], abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "place", "yaw"),
    [
        (SCOUT, (10.83846, 21.480156), 0.45),
        (MEDIUM, (10.79774, 21.081806), 0.25),
        (HEAVY, (10.39207, 20.469854), 0.15),
    ],
)
def test_walks_aside_while_turning(kind, place, yaw):
    battle = run(alone(kind), told({"forward": 1, "strafe": 1, "yaw_rate": 1}))
    assert battle.mechs.position[4, 0, :2] == pytest.approx(place, abs=2e-5)
    assert battle.mechs.yaw[4, 0] == pytest.approx(yaw, abs=1e-5)
    if kind == SCOUT:
        assert battle.mechs.velocity[4, 0, :2] == pytest.approx([2.257936, 6.477757], abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "z", "speed"), [(SCOUT, 4.624951, 6.669614), (LIGHT, 3.815317, 5.040893), (MEDIUM, 1.5, 0)]
)
def test_jets_lift_scouts_and_lights_only(kind, z, speed):
    battle = run(alone(kind), told({"vertical": 1}))
    assert battle.mechs.position[19, 0, 2] == pytest.approx(z, abs=2e-5)
    assert battle.mechs.velocity[19, 0, 2] == pytest.approx(speed, abs=2e-5)


def test_free_fall_matches_the_original():
    battle = run(at_start([(MEDIUM, 10.0, 20.0, 10.0, 0.0), None, None, None]), told())
    assert battle.mechs.position[19, 0, 2] == pytest.approx(5.538246, abs=2e-5)
    assert battle.mechs.velocity[19, 0, 2] == pytest.approx(-7.988877, abs=2e-5)
    assert battle.mechs.position[-1, 0, 2] == pytest.approx(1.5, abs=0.6)


def test_coasts_while_shut_down():
    velocity = [[2.0, 0.0, 0.0]] + [[0.0] * 3] * 3
    start = alone(MEDIUM, heat=[300.0, 0, 0, 0], velocity=velocity)
    battle = run(start, told({"forward": -1, "yaw_rate": 1, "vent": 1}))
    assert battle.mechs.position[19, 0, 0] == pytest.approx(11.628721, abs=2e-5)
    assert battle.mechs.velocity[19, 0, 0] == pytest.approx(1.335216, abs=2e-5)
    assert battle.mechs.yaw[19, 0] == 0
    assert battle.mechs.heat[19, 0] == pytest.approx(300 - 11, abs=1e-3)


def test_heat_dissipates_and_venting_triples_it():
    idle = run(alone(MEDIUM, heat=[80.0, 0, 0, 0]), told())
    vents = run(alone(MEDIUM, heat=[80.0, 0, 0, 0]), told({"vent": 1}))
    assert idle.mechs.heat[19, 0] == pytest.approx(69.0, abs=1e-4)
    assert vents.mechs.heat[19, 0] == pytest.approx(47.0, abs=1e-4)


def test_recovers_from_heat_after_21_substeps():
    mechs = run(alone(MEDIUM, heat=[111.0, 0, 0, 0]), told({"yaw_rate": 1})).mechs
    assert mechs.heat[18, 0] > 100.5
    assert mechs.heat[19, 0] == pytest.approx(100.0, abs=1e-3)
    assert mechs.heat[20, 0] == pytest.approx(99.45, abs=1e-4)
    turns = np.diff(mechs.yaw[:, 0], prepend=0.0) != 0
    assert list(turns[:22]) == [False] * 20 + [True] * 2


def test_electronic_warfare_heats_the_emitter():
    scout = alone(SCOUT, heat=[50.0, 0, 0, 0])
    heat = {s: run(scout, told({"secondary": s})).mechs.heat[19, 0] for s in (-1.0, 0.5, 1.0)}
    assert heat[0.5] - heat[-1.0] == pytest.approx(3.0, abs=1e-4)
    assert heat[1.0] - heat[-1.0] == pytest.approx(2.0, abs=1e-4)


@pytest.mark.parametrize("original", [False, thorough(True)])
def test_gauss_from_the_front(original):
    start = duel(standing(HEAVY, 5.0), standing(MEDIUM, 20.0, yaw=BACK))
    once = np.zeros((100, 4, 9), np.float32)
    once[0] = told({"tertiary": 1})
    battle = run(start, once, original=original)
    assert battle.projectiles.kind[0, 0, 0] == GAUSS
    assert battle.projectiles.velocity[0, 0, 0] == pytest.approx([39.8277, 0, -3.7085], abs=1e-3)
    assert battle.projectiles.position[0, 0, 0] == pytest.approx([5.0, 20.0, 3.6], abs=1e-5)
    assert list(battle.mechs.hp[6:8, 2]) == [150.0, 100.0]
    assert battle.mechs.stability[19, 2] == pytest.approx(46.0, abs=1e-4)
    assert battle.tally.hits[7, 0, GAUSS] == 1
    assert (battle.projectiles.kind[7:] == NO_MECH).all()


def test_gauss_from_behind():
    start = duel(standing(HEAVY, 5.0), standing(MEDIUM, 20.0))
    once = np.zeros((100, 4, 9), np.float32)
    once[0] = told({"tertiary": 1})
    battle = run(start, once)
    assert battle.mechs.hp[7, 2] == pytest.approx(75.0)
    assert battle.mechs.stability[19, 2] == pytest.approx(16.0, abs=1e-4)


def test_cadence_of_cannons():
    cannon = run(alone(MEDIUM), told({"tertiary": 1})).tally.shots[:, 0, AUTOCANNON]
    assert np.flatnonzero(cannon).tolist() == list(range(0, 100, 5))
    gauss = run(alone(HEAVY), told({"tertiary": 1})).tally.shots[:, 0, GAUSS]
    assert np.flatnonzero(gauss).tolist() == [0, 81]
    smoke = run(alone(HEAVY), told({"special": 1})).tally.shots[:, 0, SMOKE]
    assert np.flatnonzero(smoke).tolist() == [0]


@pytest.mark.parametrize("original", [False, thorough(True)])
def test_autocannon_suppresses(original):
    start = duel(standing(MEDIUM, 10.0), standing(HEAVY, 20.0, yaw=BACK))
    battle = run(start, told({"tertiary": 1}), original=original)
    hits = battle.tally.hits[:, 0, AUTOCANNON]
    assert np.flatnonzero(hits[:40]).tolist() == [7, 12, 17, 22, 27, 32, 37]
    assert battle.mechs.hp[39, 2] == pytest.approx(144.0)
    assert battle.mechs.stability[39, 2] == pytest.approx(69.0, abs=1e-4)
    assert battle.mechs.heat[39, 0] == pytest.approx(26.55, abs=1e-3)
    assert battle.mechs.suppressed[7, 2] == 24


def test_range_of_projectiles():
    """They fly 20, 11.25 and 19.5 voxels and vanish; smoke leaves no cloud in the open."""
    for kind, trigger, place, weapon, moves in (
        (HEAVY, "tertiary", 0, GAUSS, 10),
        (MEDIUM, "tertiary", 0, AUTOCANNON, 9),
        (SCOUT, "special", 2, SMOKE, 26),
    ):
        once = np.zeros((100, 4, 9), np.float32)
        once[0] = told({trigger: 1})
        start = at_start([(kind, 5.0, 20.0, 12.0, 0.0), None, None, None])
        flying = run(start, once)
        assert np.flatnonzero(flying.projectiles.kind[:, 0, place] == weapon).tolist() == list(
            range(moves + 1)
        )
        speed = {GAUSS: 40, AUTOCANNON: 25, SMOKE: 15}[weapon]
        assert flying.projectiles.position[moves, 0, place, 0] - 5 == pytest.approx(
            moves * speed / 20, rel=1e-4
        )
        assert not flying.smoke.left.any()


@pytest.mark.parametrize("original", [False, thorough(True)])
def test_laser_overheats(original):
    start = duel(standing(MEDIUM, 10.0), standing(HEAVY, 15.0, yaw=BACK))
    battle = run(start, told({"primary": 1}), original=original)
    assert battle.tally.shots[:, 0, LASER].sum() == 8
    assert np.flatnonzero(battle.tally.shots[:, 0, LASER])[:3].tolist() == [0, 13, 26]
    assert battle.mechs.heat[99, 0] == pytest.approx(121.55, abs=1e-3)
    damage = np.unique(np.round(battle.tally.dealt[:, 0], 4))
    assert set(damage) <= {0.0, 7.0, 14.0} and 14.0 in damage


def test_flamer_heats_the_target():
    start = duel(standing(LIGHT, 10.0), standing(HEAVY, 14.0, yaw=BACK))
    battle = run(start, told({"primary": 1}))
    assert battle.tally.shots[:20, 0, FLAMER].sum() == 7
    assert battle.mechs.heat[19, 0] == pytest.approx(58.6, abs=1e-3)
    assert battle.mechs.heat[19, 2] == pytest.approx(95.5, abs=1e-3)


def test_lasers_hit_legs_one_time_in_ten():
    hits, legs = 0, 0.0
    for seed in range(60):
        start = duel(standing(MEDIUM, 10.0), standing(HEAVY, 15.0, yaw=BACK))
        battle = run(start, told({"primary": 1}), seed=seed)
        hits += battle.tally.hits[:, 0, LASER].sum()
        legs += (100 - battle.mechs.leg_hp[-1, 2]) / 14
    assert abs(legs / hits - 0.1) < 3 * np.sqrt(0.09 / hits)


def test_missile_locks_what_it_sees():
    start = duel(standing(HEAVY, 5.0), standing(MEDIUM, 13.0, yaw=BACK))
    battle = run(start, told({"secondary": 1}))
    assert list(battle.mechs.hp[12:14, 2]) == [150.0, 110.0]
    assert np.flatnonzero(battle.tally.shots[:, 0, MISSILE]).tolist() == [0, 61]
    far = duel(standing(HEAVY, 5.0), standing(MEDIUM, 17.0, yaw=BACK))
    assert not run(far, told({"secondary": 1})).tally.shots.any()
    behind = duel(standing(HEAVY, 5.0, yaw=BACK), standing(MEDIUM, 13.0, yaw=BACK))
    assert not run(behind, told({"secondary": 1})).tally.shots.any()


def painted_far_away(packs=(0, 0, 0, 0)):
    bodies = [standing(HEAVY, 5.0), (SCOUT, *FAR, 0.0), standing(MEDIUM, 35.0, yaw=BACK), None]
    return at_start(bodies, painted=[0, 0, 101, 0], painter=[-1, -1, 1, -1], packs=packs)


def test_missile_follows_paint():
    battle = run(painted_far_away(), told({"secondary": 1}))
    hit = np.flatnonzero(battle.tally.hits[:, 0, MISSILE])
    assert hit.tolist() == [49]
    assert battle.tally.dealt[49, 0] == pytest.approx(44.0, rel=1e-6)
    assert battle.tally.assists[49].tolist() == [0, 1, 0, 0]
    for index, x, z in ((9, 10.3287, 5.0451), (19, 16.2889, 4.3682), (29, 22.2233, 3.4831)):
        place = battle.projectiles.position[index, 0, 2]
        assert [place[0], place[2]] == pytest.approx([x, z], abs=2e-3)


def test_paint_is_valid_for_one_pack_only():
    assert not run(painted_far_away((0, 1, 0, 0)), told({"secondary": 1})).tally.shots.any()


def test_splash_hurts_friend_and_foe():
    bodies = [
        standing(HEAVY, 5.0),
        (LIGHT, 13.0, 22.03, 1.0, 0.0),
        standing(MEDIUM, 13.0, yaw=BACK),
        (LIGHT, 13.0, 17.97, 1.0, 0.0),
    ]
    battle = run(at_start(bodies), told({"secondary": 1}))
    assert battle.mechs.hp[13].tolist() == pytest.approx([200.0, 60.0, 110.0, 60.0])
    assert battle.mechs.stability[13, [1, 3]] == pytest.approx([92.5, 92.5], abs=1e-3)
    assert battle.tally.dealt[13, 0] == pytest.approx(60.0)
    assert battle.tally.dealt_to_friends[13, 0] == pytest.approx(20.0)
    assert battle.tally.hits[13].sum() == 1


def test_laser_on_a_painted_target():
    bodies = [standing(MEDIUM, 10.0), (SCOUT, *FAR, 0.0), standing(HEAVY, 15.0, yaw=BACK), None]
    battle = run(at_start(bodies, painted=[0, 0, 101, 0], painter=[-1, -1, 1, -1]), told({"primary": 1}))
    dealt = np.round(battle.tally.dealt[:, 0], 4)
    assert set(dealt) <= {0.0, np.float32(15.4), np.float32(7.7)} and dealt.max() == pytest.approx(15.4)
    assert (battle.tally.assists[:, 1] == (dealt > 0)).all()


def test_painter_marks_and_waits():
    start = duel(standing(SCOUT, 10.0), standing(HEAVY, 15.0, yaw=BACK))
    once = np.zeros((100, 4, 9), np.float32)
    once[:21] = told({"primary": 1})
    battle = run(start, once)
    assert np.flatnonzero(battle.tally.shots[:, 0, PAINTER]).tolist() == [0, 20]
    assert battle.mechs.painted[20, 2] == 101 and battle.mechs.painter[20, 2] == 0
    assert battle.mechs.hp[-1, 2] == 200


def test_lava_debris_and_water_change_heat_and_hit_points():
    lava = run(alone(MEDIUM, map_index=LAVA_FIELD), told())
    assert lava.mechs.hp[19, 0] == pytest.approx(145.0, abs=1e-3)
    assert lava.mechs.heat[19, 0] == pytest.approx(29.0, abs=1e-3)
    assert lava.tally.taken[:20, 0].sum() == pytest.approx(5.0, abs=1e-3)
    water = run(alone(MEDIUM, map_index=WATER_FIELD, heat=[80.0, 0, 0, 0]), told({"forward": 1}))
    assert water.mechs.heat[19, 0] == pytest.approx(39.0, abs=1e-3)
    assert water.mechs.position[19, 0, 0] == pytest.approx(13.234, abs=1e-3)


def test_steps_up_one_voxel_but_not_two():
    ledge = run(alone(SCOUT, map_index=LEDGE), told({"forward": 1})).mechs.position[39, 0]
    assert ledge[0] == pytest.approx(23.72, abs=1e-4)
    assert ledge[2] == pytest.approx(1.904, abs=1e-3)
    wall = run(alone(SCOUT, map_index=WALL), told({"forward": 1})).mechs.position[39, 0]
    assert wall[0] == pytest.approx(14.116, abs=1e-4)
    assert wall[2] == pytest.approx(0.9, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "command", "stability"),
    [
        ({}, {}, 60.0),
        ({}, {"forward": 1}, 55.25),
        ({"suppressed": [24, 0, 0, 0], "velocity": [[5.0, 0, 0]] + [[0.0] * 3] * 3}, {"forward": 1}, 51.0),
        ({"leg_hp": [0.0, 1, 1, 1]}, {}, 50.0),
    ],
)
def test_regains_stability(changes, command, stability):
    start = alone(MEDIUM, stability=[50.0, 100, 100, 100], **changes)
    assert run(start, told(command)).mechs.stability[19, 0] == pytest.approx(stability, abs=1e-3)


def test_knocked_down_for_62_substeps():
    start = alone(MEDIUM, stability=[0.0, 100, 100, 100])
    mechs = run(start, told({"forward": 1, "yaw_rate": 1, "primary": 1})).mechs
    assert (mechs.fallen[:61, 0] > 0).all() and mechs.fallen[61, 0] == 0
    assert (mechs.position[:61, 0, 0] == 10).all() and mechs.position[61, 0, 0] > 10
    assert (mechs.yaw[:61, 0] == 0).all() and mechs.yaw[61, 0] > 0
    assert mechs.stability[60, 0] == 0 and mechs.stability[61, 0] == 50
    assert (mechs.noise[:61, 0] == 0).all() and mechs.noise[61, 0] > 0


def test_legged_mechs_are_slower_and_never_recover():
    battle = run(alone(LIGHT, leg_hp=[0.0, 1, 1, 1]), told({"forward": 1, "vertical": 1}))
    assert battle.mechs.velocity[4, 0, 0] == pytest.approx(0.98 * 0.4 * 6.8, abs=1e-4)
    assert battle.mechs.position[19, 0, 2] == pytest.approx(1.0, abs=1e-5)


materials = jax.jit(material_at)


def cells_of(battle, index, low, high):
    """Materials of a box of cells after one substep."""
    overlay = jax.tree.map(lambda v: v[index], battle.overlay)
    terrain = Terrain(arena().bank.voxels, battle.map_index[index], overlay)
    cells = np.stack(np.meshgrid(*map(np.arange, low, high), indexing="ij"), -1)
    return np.asarray(materials(terrain, cells))


def test_wreck_of_a_medium():
    found = set()
    for seed in range(8):
        battle = run(alone(MEDIUM, 20.0, 20.0, hp=[0.0, 1, 1, 1]), told(), seed=seed)
        assert battle.tally.died[0].tolist() == [True, False, False, False]
        assert not battle.mechs.alive[0, 0] and not battle.tally.died[1:].any()
        cells = cells_of(battle, 0, (15, 15, 0), (26, 26, 8))
        wreck = np.isin(cells, (DEBRIS_FIELD, SOLID_DEBRIS))
        assert wreck.sum() == 48 and wreck[3:7, 3:7, :3].all()
        found |= set(cells[wreck])
    assert found == {DEBRIS_FIELD, SOLID_DEBRIS}


@pytest.mark.parametrize(("trigger", "left"), [("primary", 27), ("secondary", 0), ("tertiary", 8)])
def test_the_explosion_that_kills_clears_its_victim_s_wreck(trigger, left):
    """Of a medium's 27 cells a laser leaves all, a missile none, and a gauss shell the corners."""
    start = duel(standing(HEAVY, 14.5, 20.5), standing(MEDIUM, 20.5, 20.5, yaw=BACK), hp=[200.0, 1, 1, 1])
    battle = run(start, told({trigger: 1}))
    assert not battle.mechs.alive[-1, 2]
    death = int(battle.tally.died[:, 2].argmax())
    for index in (death, -1):
        cells = cells_of(battle, index, (15, 15, 0), (26, 26, 8))
        assert np.isin(cells, (DEBRIS_FIELD, SOLID_DEBRIS)).sum() == left


@pytest.mark.thorough
def test_wrecks_block_from_the_substep_in_which_mechs_die():
    """A scout runs at one who dies at once: a decision of twenty substeps is as twenty of one."""
    bodies = standing(MEDIUM, 10.0), None, standing(MEDIUM, 14.0, yaw=BACK), standing(SCOUT, 20.0, yaw=BACK)
    start = at_start(bodies, hp=[150.0, 1, 1, 60])
    commands = told({"primary": 1}, {}, {}, {"forward": 1})
    apart = run(start, commands)
    assert apart.tally.died[0].tolist() == [False, False, True, False]
    decide = jax.jit(replace(arena(), substeps=20).decide)
    whole = decide(jax.random.key(0), start[0], commands, start[1])
    assert whole.mechs.position[3, 0] > 16.0
    np.testing.assert_allclose(whole.mechs.position, apart.mechs.position[19], atol=1e-5)
    np.testing.assert_array_equal(whole.overlay.debris, apart.overlay.debris[19])


def test_walls_stop_beams_and_shells_glass_only_shells():
    for map_index, seen in ((TALL_WALL, False), (GLASS_WALL, True), (FLAT, True)):
        start = duel(standing(MEDIUM, 12.0), standing(HEAVY, 18.0, yaw=BACK), map_index=map_index)
        laser = run(start, told({"primary": 1}))
        assert (laser.tally.shots[:, 0, LASER].sum() > 0) == seen
        cannon = run(start, told({"tertiary": 1}))
        assert (cannon.tally.hits[:, 0, AUTOCANNON].sum() > 0) == (map_index == FLAT)


def test_shells_break_walls():
    """Thirteen hits of 8 take the 100 hit points of a voxel."""
    start = at_start([standing(MEDIUM, 10.0), None, None, None], map_index=TALL_WALL)
    battle = run(start, told({"tertiary": 1}))
    before, after = (cells_of(battle, i, (15, 18, 0), (16, 23, 6)) for i in (0, -1))
    assert (before == 1).all()
    assert (after == 0).sum() == 1


@pytest.mark.parametrize("name", ["echelon", "echelon_10v10"])
def test_five_missiles_at_one_point_destroy_every_voxel_within_their_radius(name):
    """Each takes 20 of 100 hit points from the 81 voxels within 2.5, so that all must be remembered."""
    room = OmegaConf.load(CONF / f"{name}.yaml").damaged
    rock = voxel_bank([np.full((12, 12, 12), SOLID, np.uint8)])
    terrain = Terrain(rock, jnp.int32(0), empty_overlay((12, 12, 12), pages=9, damaged=room))
    start, params = jax.device_get(alone(MEDIUM))
    mechs, nobody = start.mechs, np.zeros(4, bool)
    missile = np.arange(16).reshape(4, 4) == 2
    impacts = Impacts(
        kind=np.where(missile, MISSILE, NO_MECH).astype(np.int32),
        point=np.where(missile[..., None], [6.5] * 3, 0.0).astype(np.float32),
        cell=np.zeros((4, 4, 3), np.int32),
        struck=np.zeros((4, 4), bool),
    )
    team = np.repeat(np.arange(2), 2)

    @jax.jit
    def explode(overlay):
        ground = ground_around(terrain, mechs.position, 1)
        scene = scene_of(terrain._replace(overlay=overlay), team, params)
        return update_terrain(scene, ground, mechs, nobody, nobody, impacts)[0]

    overlay = terrain.overlay
    for _ in range(5):
        assert overlay.gone.max() == 0
        overlay = explode(overlay)
    cells = np.stack(np.meshgrid(*[np.arange(12)] * 3, indexing="ij"), -1)
    near = ((cells + 0.5 - 6.5) ** 2).sum(-1) <= 2.5**2
    assert near.sum() == 81
    left = np.asarray(materials(terrain._replace(overlay=overlay), cells))
    np.testing.assert_array_equal(left == AIR, near)


def test_both_die_when_both_fire():
    bodies = standing(MEDIUM, 10.0), standing(MEDIUM, 14.0, yaw=BACK)
    start = duel(*bodies, hp=[1.0, 1, 1, 1])
    fire = told({"primary": 1}, {}, {"primary": 1})
    together = run(start, fire)
    assert together.mechs.alive[0, [0, 2]].tolist() == [False, False]
    assert together.tally.kills[0].tolist() == [1, 0, 1, 0]


@pytest.mark.thorough
def test_blue_fires_first_in_the_original():
    bodies = standing(MEDIUM, 10.0), standing(MEDIUM, 14.0, yaw=BACK)
    start = duel(*bodies, hp=[1.0, 1, 1, 1])
    original = run(start, told({"primary": 1}, {}, {"primary": 1}), original=True)
    assert original.mechs.alive[0, [0, 2]].tolist() == [True, False]
    assert original.tally.kills[0].tolist() == [1, 0, 0, 0]


def test_friendly_fire_does_not_count_as_a_kill():
    bodies = [
        standing(HEAVY, 5.0),
        (LIGHT, 13.0, 22.03, 1.0, 0.0),
        standing(MEDIUM, 13.0, yaw=BACK),
        (LIGHT, 13.0, 17.97, 1.0, 0.0),
    ]
    battle = run(at_start(bodies, hp=[200.0, 1, 150, 1]), told({"secondary": 1}))
    assert battle.tally.died[13].tolist() == [False, True, False, True]
    assert battle.tally.kills[13].tolist() == [1, 0, 0, 0]


def test_heavies_intercept_missiles_in_range():
    """A heavy near the target shoots down six missiles in ten that it tries once."""
    stopped = 0
    for seed in range(60):
        bodies = [
            standing(HEAVY, 5.0),
            None,
            standing(MEDIUM, 13.0, yaw=BACK),
            (HEAVY, 13.0, 16.5, 2.0, BACK),
        ]
        once = np.zeros((100, 4, 9), np.float32)
        once[0] = told({"secondary": 1})
        battle = run(at_start(bodies), once, seed=seed)
        shot = battle.tally.intercepted
        assert shot[:, [0, 1, 2]].sum() == 0 and shot.sum() <= 1
        stopped += shot.sum()
        if shot.sum():
            index = shot[:, 3].argmax()
            assert battle.mechs.cooldown[index, 3, 4] == 20
            assert (battle.mechs.hp[-1, 2:] == [150, 200]).all()
    assert stopped >= 57


def test_smoke_blocks_sight():
    bodies = standing(MEDIUM, 12.0), standing(HEAVY, 18.0, yaw=BACK)
    commands = np.zeros((100, 4, 9), np.float32)
    commands[0] = told({"special": 1})
    commands[30:] = told({"primary": 1})
    battle = run(duel(*bodies), commands)
    cloud = battle.smoke.left[:, 0]
    assert cloud.max() == 200 and battle.smoke.position[-1, 0, cloud[-1].argmax()] == pytest.approx(
        [18, 20, 2]
    )
    assert not battle.tally.shots[:, 0, LASER].any()
    assert battle.mechs.hp[-1, 2] == 200 and not battle.tally.hit.any()


def test_non_finite_commands_do_nothing():
    bad = np.full((4, 9), np.nan, np.float32)
    bad[:, 1] = np.inf
    battle, still = run(alone(SCOUT), bad), run(alone(SCOUT), told())
    np.testing.assert_array_equal(battle.mechs.position, still.mechs.position)
    fast = run(alone(SCOUT), told({"forward": 50.0}))
    assert fast.mechs.velocity[0, 0, 0] == pytest.approx(0.98 * 7, abs=1e-5)


@pytest.mark.parametrize("original", [False, thorough(True)])
def test_mechs_do_not_climb_on_each_other(original):
    start = duel(standing(SCOUT, 10.0), (HEAVY, 14.0, 20.0, 2.0, 0.0))
    position = run(start, told({"forward": 1}), original=original).mechs.position[:, 0]
    assert position[:, 0].max() < 14 - 1.75 - 0.6 + 1e-4
    assert position[-1, 2] == pytest.approx(0.9, abs=1e-5)


def test_overlapping_mechs_can_separate():
    start = duel(standing(MEDIUM, 10.0), standing(MEDIUM, 11.0))
    position = run(start, told({"forward": -1})).mechs.position[:, 0, 0]
    assert position[0] < 10 and position[-1] == pytest.approx(1.25)


@pytest.mark.thorough
def test_overlapping_mechs_block_each_other_in_the_original():
    start = duel(standing(MEDIUM, 10.0), standing(MEDIUM, 11.0))
    position = run(start, told({"forward": -1}), original=True).mechs.position[:, 0, 0]
    assert (position == 10).all()
