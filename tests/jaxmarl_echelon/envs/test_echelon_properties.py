"""Properties that hold in every battle, for any commands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_battles import make_params

from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH
from jaxmarl_echelon.envs.echelon.battle.surroundings import chassis_of
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    AMS_PERIOD,
    FALL,
    PAINT,
    SMOKE_LIFE,
    SUPPRESSION,
    WEAPON,
)
from jaxmarl_echelon.envs.echelon.terrain.bank import stack_maps
from jaxmarl_echelon.envs.echelon.terrain.layout import make_map
from physics.voxels import DEBRIS_FIELD, DIRT, FOLIAGE, GLASS, LAVA, SOLID, WATER, blocking_columns

SIZE = (40, 40, 20)
TEAMS = (5, 5)
CLASSES = [3, 2, 2, 1, 0] * 2
BATTLES, DECISIONS = 48, 60
_SPAN = np.arange(12)


def _grid(rng) -> np.ndarray:
    grid = np.zeros(SIZE[::-1], np.uint8)
    grid[0] = DIRT
    for _ in range(30):
        x, y = rng.integers(0, SIZE[:2])
        width, depth, height = rng.integers(1, 6), rng.integers(1, 6), rng.integers(1, 8)
        grid[:height, y : y + depth, x : x + width] = rng.choice([SOLID, SOLID, DEBRIS_FIELD, GLASS, FOLIAGE])
    for material in (LAVA, WATER):
        x, y = rng.integers(5, 30, 2)
        grid[0, y : y + 6, x : x + 6] = material
    grid[:, :12, :20] = 0
    grid[:, -12:, -20:] = 0
    return grid


@pytest.fixture(scope="module")
def simulation():
    rng = np.random.default_rng(0)
    return BattleSimulation(
        stack_maps([make_map(_grid(rng), (20.0, 20.0, 5.0), team_size=5) for _ in range(6)]), TEAMS
    )


@pytest.fixture(scope="module")
def params():
    return make_params(CLASSES, [0] * 10, spawn_jitter=0.25, yaw_jitter=0.15)


def solid_around(columns, battle, low, high):
    """Whether boxes `[M, 3]` overlap a cell that blocks movement."""
    near, far = np.floor(low).astype(int), np.ceil(high).astype(int)
    grid = near[:, None, None, :2] + np.stack(np.meshgrid(_SPAN, _SPAN, indexing="ij"), -1)
    words = np.asarray(columns(battle, grid[..., 0], grid[..., 1]))
    covered = (grid < far[:, None, None, :2]).all(-1)
    bits = (words[..., None] >> np.arange(32, dtype=np.uint32)) & 1 != 0
    levels = (np.arange(32) >= near[:, 2:]) & (np.arange(32) < far[:, 2:])
    return (bits & covered[..., None] & levels[:, None, None]).any((1, 2, 3))


@pytest.fixture(scope="module")
def battles(simulation, params):
    """Battles `[T, E, ...]` in which mechs mostly approach the nearest enemy, with random other actions."""

    def command(key, mechs):
        apart = mechs.position - mechs.position[:, None]
        foes = (simulation.team[:, None] != simulation.team) & mechs.alive
        nearest = jnp.where(foes, jnp.linalg.norm(apart, axis=-1), 1e9).argmin(-1)
        to = jnp.take_along_axis(apart, nearest[:, None, None], 1)[:, 0]
        error = jnp.arctan2(to[:, 1], to[:, 0]) - mechs.yaw
        error = jnp.arctan2(jnp.sin(error), jnp.cos(error))
        commands = jax.random.uniform(key, (10, 26), minval=-1.3, maxval=1.3)
        seeks = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.7, (10,))
        towards = jnp.stack([jnp.cos(error), jnp.sin(error)], -1)
        commands = commands.at[:, :2].set(jnp.where(seeks[:, None], towards, commands[:, :2]))
        commands = commands.at[:, 3].set(jnp.where(seeks, error, commands[:, 3]))
        return jnp.where(jax.random.bernoulli(jax.random.fold_in(key, 2), 0.01, (10, 1)), jnp.nan, commands)

    def battle(key, map_index):
        start_key, key = jax.random.split(key)
        start = simulation.start(start_key, map_index, params)

        def step(battle, key):
            target_key, command_key, key = jax.random.split(key, 3)
            focus = jax.random.randint(target_key, (10,), NO_MECH, 10)
            battle = battle.replace(mechs=battle.mechs.replace(focus=focus))
            battle = simulation.decide(key, battle, command(command_key, battle.mechs), params)
            return battle, battle

        return start, jax.lax.scan(step, start, jax.random.split(key, DECISIONS))[1]

    compiled = jax.jit(jax.vmap(battle))
    keys = jax.random.split(jax.random.key(3), BATTLES)

    def run(order):
        start, after = compiled(keys[order], jnp.asarray(order) % 6)
        after = jax.tree.map(lambda a, b: np.concatenate([a[:, None], b], 1), start, after)
        return jax.tree.map(lambda v: np.moveaxis(v, 1, 0), after)

    return run


@pytest.fixture(scope="module")
def history(battles):
    return battles(np.arange(BATTLES))


def test_random_battles_contain_every_kind_of_event(history):
    """Otherwise the tests below say little."""
    tally = history.tally
    assert (tally.shots.sum((0, 1, 2)) > 0).all()
    assert (tally.hits.sum((0, 1, 2))[:5] > 0).all()
    assert tally.kills.sum() > BATTLES and tally.dealt_to_friends.sum() > 0 and tally.assists.sum() > 0
    assert history.smoke.left.any() and history.mechs.fallen.any() and history.overlay.used.max() > 10


def test_everything_is_finite(history):
    for leaf in jax.tree.leaves(history):
        if np.issubdtype(leaf.dtype, np.floating):
            assert np.isfinite(leaf).all()


def test_quantities_stay_in_range(history, params):
    mechs, chassis = history.mechs, chassis_of(params)
    assert (mechs.heat >= 0).all()
    assert (mechs.stability >= 0).all() and (mechs.stability <= 100).all()
    assert (mechs.hp <= chassis.hp).all() and (mechs.leg_hp <= chassis.leg_hp).all()
    assert (mechs.alive == (mechs.hp > 0)).all()
    assert (np.abs(mechs.yaw) <= np.pi + 1e-5).all()
    half = np.asarray(chassis.size) / 2
    alive = mechs.alive[..., None]
    assert np.where(alive, mechs.position >= half - 1e-5, True).all()
    assert np.where(alive[..., 0], mechs.position[..., 2] < 60, True).all()
    assert np.where(alive, mechs.position[..., :2] <= 40 - half[:, :2] + 1e-5, True)[..., :2].all()
    speed = np.linalg.norm(mechs.velocity[..., :2], axis=-1)
    assert (speed <= 0.98 * np.asarray(chassis.max_speed) + 1e-4).all()
    for timer, most in ((mechs.fallen, FALL), (mechs.suppressed, SUPPRESSION), (mechs.painted, PAINT)):
        assert (timer >= 0).all() and (timer <= most).all()
    longest = [WEAPON.period[0], WEAPON.period[6], WEAPON.period[3], WEAPON.period[5], AMS_PERIOD]
    assert (mechs.cooldown >= 0).all() and (mechs.cooldown <= longest).all()
    assert (history.smoke.left >= 0).all() and (history.smoke.left <= SMOKE_LIFE).all()
    assert (np.isin(history.projectiles.kind, [NO_MECH, 2, 3, 4, 6])).all()


def test_bodies_do_not_overlap(history, params):
    size = np.asarray(chassis_of(params).size)
    position, alive = history.mechs.position, history.mechs.alive
    apart = np.abs(position[..., :, None, :] - position[..., None, :, :])
    overlap = (apart < (size[:, None] + size) / 2 - 1e-4).all(-1)
    overlap &= alive[..., None] & alive[..., None, :] & ~np.eye(10, dtype=bool)
    assert not overlap.any()


def test_bodies_do_not_enter_terrain(simulation, history, params):
    half = np.asarray(chassis_of(params).size) / 2
    columns = jax.jit(lambda battle, x, y: blocking_columns(simulation.terrain(battle), x, y)[0])
    for time in range(0, DECISIONS + 1, 12):
        for env in range(0, BATTLES, 6):
            battle = jax.tree.map(lambda v, t=time, e=env: v[t, e], history)
            position = history.mechs.position[time, env]
            inside = solid_around(columns, battle, position - half + 1e-4, position + half - 1e-4)
            assert not (inside & history.mechs.alive[time, env]).any()


def test_the_dead_stay_dead_and_still(history):
    alive = history.mechs.alive
    assert not (alive[1:] & ~alive[:-1]).any()
    assert (history.tally.died[1:] == (alive[:-1] & ~alive[1:])).all()
    dead = ~alive[:-1]
    assert (history.mechs.position[1:] == history.mechs.position[:-1])[dead].all()
    assert (history.mechs.velocity[~alive] == 0).all() and (history.mechs.noise[~alive] == 0).all()
    assert (history.tally.shots[1:][dead] == 0).all() and (history.tally.taken[1:][dead] == 0).all()


def test_damage_adds_up(history):
    """All that is dealt is taken, but for hazards; hit points fall by what was taken."""
    tally, mechs = history.tally, history.mechs
    dealt = tally.dealt.sum(-1) + tally.dealt_to_friends.sum(-1)
    assert (tally.taken.sum(-1) >= dealt - 1e-3).all()
    np.testing.assert_allclose(mechs.hp[:-1] - mechs.hp[1:], tally.taken[1:], atol=1e-3)
    assert (tally.hit <= (tally.taken > 0)).all()
    length = np.linalg.norm(tally.hit_direction, axis=-1)
    assert np.all((np.abs(length - 1) < 1e-4) | (length < 1e-4)) and (length[~tally.hit] == 0).all()
    assert (tally.kills.sum(-1) <= tally.died.sum(-1)).all()


def test_shut_down_mechs_do_not_turn_or_fire(history, params):
    """A mech too hot at both ends of a decision, by more than it can lose meanwhile, was so throughout."""
    chassis = chassis_of(params)
    heat = history.mechs.heat
    off = (heat[:-1] - 5 * 0.15 * np.asarray(chassis.dissipation) > np.asarray(chassis.heat_capacity)) & (
        heat[1:] > np.asarray(chassis.heat_capacity)
    )
    off &= history.mechs.alive[1:]
    assert off.sum() > 20
    assert (history.tally.shots[1:][off] == 0).all()
    assert (history.mechs.yaw[1:] == history.mechs.yaw[:-1])[off].all()


def test_equal_keys_give_equal_battles(battles, history):
    """Also next to other battles in the batch, some of which need rare work at other times."""
    order = np.random.default_rng(1).permutation(BATTLES)
    again = battles(order)
    for a, b in zip(jax.tree.leaves(history), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a[:, order], b)


def test_starts_in_the_corners(simulation, params):
    keys = jax.random.split(jax.random.key(0), 200)
    start = jax.jit(jax.vmap(simulation.start, (0, 0, None)))
    starts = jax.device_get(start(keys, np.arange(200, dtype=np.int32) % 6, params))
    corners = np.asarray(simulation.bank.corners)[np.arange(200) % 6][:, simulation.team]
    position, size = starts.mechs.position, np.asarray(chassis_of(params).size)
    far = np.stack([corners & 1, corners >> 1], -1) == 1
    inset = np.where(far, 40 - position[..., :2], position[..., :2]) - size[:, :2] / 2
    place = 2 + 3.5 * np.stack([np.arange(10) % 5, np.zeros(10)], -1)
    shift = inset - place
    assert (shift > -1e-4).all() and (shift < 0.25 + 1e-4).all()
    assert (np.abs(shift[:, [0, 5]]) < 1e-4).all() and shift[:, 1].std() > 0.05
    np.testing.assert_allclose(position[..., 2], np.broadcast_to(size[:, 2] / 2, (200, 10)), atol=1e-6)
    to = np.array([20.0, 20.0]) - position[..., :2]
    error = starts.mechs.yaw - np.arctan2(to[..., 1], to[..., 0])
    assert np.abs(np.arctan2(np.sin(error), np.cos(error))).max() < 0.15 + 1e-4
