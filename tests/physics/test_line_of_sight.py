"""Lines of sight against an exact walk from voxel to voxel in float64, and cases computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physics import line_of_sight
from physics.line_of_sight import find_first_voxel, is_sight_clear, passes_smoke_cloud
from physics.voxel_damage import damage_cells, fill_box
from physics.voxels import (
    COLLIDES,
    DIRT,
    FOLIAGE,
    GLASS,
    OPAQUE,
    REINFORCED,
    SOLID,
    Terrain,
    empty_overlay,
    material_at,
    voxel_bank,
)

HEIGHTS = (0.9, 1.0, 1.5, 2.0)
clear = jax.jit(is_sight_clear, static_argnames="steps")
shoot = jax.jit(find_first_voxel, static_argnames="steps")
smoked = jax.jit(passes_smoke_cloud)


def world(grid, pages=0):
    return Terrain(voxel_bank([grid]), jnp.int32(0), empty_overlay(grid.shape, pages, 16))


def sparse(seed, size):
    rng = np.random.default_rng(seed)
    return np.where(rng.random((20, size, size)) < 0.05, SOLID, 0).astype(np.uint8)


def blocky(seed, size, blocks):
    """Walls, towers, floating slabs, glass and canopies, over dirt."""
    rng = np.random.default_rng(seed)
    grid = np.zeros((20, size, size), np.uint8)
    grid[0] = DIRT
    for _ in range(blocks):
        x, y = rng.integers(0, size, 2)
        width, depth = rng.choice([(1, 12), (12, 1), (3, 3), (6, 5), (1, 1)])
        low, high = (0, rng.integers(1, 12)) if rng.random() < 0.7 else (rng.integers(2, 6), 8)
        grid[low:high, y : y + depth, x : x + width] = rng.choice([SOLID, GLASS, FOLIAGE, REINFORCED])
    return grid


def ruined(seed):
    """A world whose overlay has holes and wrecks, and its grid of materials now."""
    terrain = world(blocky(seed, 60, 60), pages=225)
    rng = np.random.default_rng(seed)
    hurt, fill = jax.jit(damage_cells), jax.jit(fill_box, static_argnames="reach")
    for _ in range(40):
        cells = rng.integers([0, 0, 0], [60, 60, 10], (64, 3))
        cells[32:] = rng.integers([20, 20, 0], [40, 40, 5], (32, 3))
        overlay = hurt(terrain, jnp.asarray(cells, jnp.int32), jnp.full(64, 300.0), jnp.ones(64, bool))
        low = rng.uniform([0, 0, 0], [58, 58, 3]).astype(np.float32)
        overlay = fill(
            terrain._replace(overlay=overlay),
            low,
            low + np.float32([2.5, 2.5, 3]),
            jnp.zeros((1, 2, 3)),
            jnp.zeros(1, bool),
            loose=rng.random() < 0.5,
            reach=4,
            where=True,
        )
        terrain = terrain._replace(overlay=overlay)
    z, y, x = np.indices((20, 60, 60))
    return terrain, np.asarray(jax.jit(material_at)(terrain, np.stack([x, y, z], -1).astype(np.int32)))


def segments(seed, count, size, near=None):
    """Centres of mechs on the ground or, a quarter, in the air; `near` bounds the distance in x and y."""
    rng = np.random.default_rng(seed)
    points = rng.uniform([0.6, 0.6, 0], [size - 0.6, size - 0.6, 0], (2, count, 3))
    if near is not None:
        points[1] = np.clip(points[0] + rng.uniform(-near, near, (count, 3)), 0.6, size - 0.6)
    points[..., 2] = rng.choice(HEIGHTS, (2, count)) + rng.uniform(0, 12, (2, count)) * (
        rng.random((2, count)) < 0.25
    )
    return points.astype(np.float32)


def walk(opaque, start, end, include_end=False):
    """Every voxel of each segment in order, in float64: blocked or not, where, which voxel."""
    start, end = np.float64(start), np.float64(end)
    size = np.array(opaque.shape[::-1])
    blocked, at, voxel = np.zeros(len(start), bool), np.ones(len(start)), np.floor(end).astype(int)
    cell, last, way = np.floor(start).astype(int), np.floor(end).astype(int), end - start
    going = np.flatnonzero((cell != last).any(-1))
    while going.size:
        here, goal, slope = cell[going], last[going], way[going]
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(here == goal, np.inf, (here + (slope > 0) - start[going]) / slope)
        first_x = (times[:, 0] < times[:, 1]) & (times[:, 0] < times[:, 2])
        axis = np.where(first_x, 0, np.where(times[:, 1] < times[:, 2], 1, 2))
        rows = np.arange(len(going))
        here[rows, axis] += np.where(slope[rows, axis] > 0, 1, -1)
        cell[going] = here
        there = (here == goal).all(-1)
        inside = ((here >= 0) & (here < size)).all(-1)
        x, y, z = np.clip(here, 0, size - 1).T
        hit = (~inside | opaque[z, y, x]) & (include_end | ~there)
        blocked[going] |= hit
        at[going] = np.where(hit, times[rows, axis], 1)
        voxel[going[hit]] = here[hit]
        going = going[~there & ~hit]
    return blocked, at, voxel


@pytest.mark.parametrize("kind", ["sparse", "walls", "large", "ruined"])
def test_agrees_with_an_exact_walk_on_a_hundred_thousand_segments(kind):
    if kind == "ruined":
        terrain, grid = ruined(3)
        assert (grid != np.asarray(terrain.bank.material[0])).sum() > 1000
    else:
        grid = {"sparse": sparse(0, 60), "walls": blocky(1, 60, 60), "large": blocky(2, 100, 120)}[kind]
        terrain = world(grid)
    start, end = segments(4, 100_000, grid.shape[1])
    seen = np.asarray(clear(terrain, start, end))
    assert 0.05 < seen.mean() < 0.8
    blocked, _, _ = walk(OPAQUE[grid], start, end)
    np.testing.assert_array_equal(seen, ~blocked)
    np.testing.assert_array_equal(seen, np.asarray(clear(terrain, end, start)))


def test_short_segments_with_a_fixed_number_of_steps():
    grid = blocky(5, 60, 100)
    start, end = segments(6, 30_000, 60, near=8)
    blocked, _, _ = walk(OPAQUE[grid], start, end)
    assert 0.3 < blocked.mean() < 0.9
    np.testing.assert_array_equal(np.asarray(clear(world(grid), start, end, steps=18)), ~blocked)


def test_points_outside_the_map():
    rng = np.random.default_rng(7)
    grid = np.zeros((6, 9, 9), np.uint8)
    grid[:3, 4, 4] = SOLID
    start, end = rng.uniform(-2.5, [11.5, 11.5, 8.5], (2, 40_000, 3)).astype(np.float32)
    nearby = (start + rng.uniform(-1, 1, start.shape)).astype(np.float32)
    for goal in (end, nearby):
        blocked, _, _ = walk(OPAQUE[grid], start, goal)
        np.testing.assert_array_equal(np.asarray(clear(world(grid), start, goal)), ~blocked)


def test_columns_of_thirty_two_cells():
    rng = np.random.default_rng(8)
    grid = np.where(rng.random((32, 10, 10)) < 0.1, SOLID, 0).astype(np.uint8)
    start, end = rng.uniform(0, [10, 10, 32], (2, 20_000, 3)).astype(np.float32)
    blocked, _, _ = walk(OPAQUE[grid], start, end)
    np.testing.assert_array_equal(np.asarray(clear(world(grid), start, end)), ~blocked)


def test_a_wall_between_two_points_blocks_sight():
    grid = np.zeros((10, 10, 10), np.uint8)
    empty = world(grid.copy())
    grid[:, :, 5] = SOLID
    walled = world(grid)
    assert not clear(walled, np.float32([2.5, 5, 5]), np.float32([8.5, 5, 5]))
    hit, at, voxel = shoot(walled, np.float32([2.5, 5, 5]), np.float32([8.5, 5, 5]), steps=30)
    assert hit and voxel[0] == 5
    np.testing.assert_allclose(at, 2.5 / 6, rtol=1e-6)
    assert clear(walled, np.float32([2.5, 5, 5]), np.float32([4, 5, 5]))
    assert clear(walled, np.float32([6.5, 5, 5]), np.float32([9.5, 5, 5]))
    corner, far = np.full(3, 0.5, np.float32), np.full(3, 9.5, np.float32)
    assert clear(empty, corner, far) and not clear(walled, corner, far)
    hit, _, voxel = shoot(walled, corner, far, steps=30)
    assert hit and voxel.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("material", "seen"), [(GLASS, True), (FOLIAGE, False), (DIRT, True), (REINFORCED, False)]
)
def test_only_opaque_materials_block_sight(material, seen):
    grid = np.zeros((10, 10, 10), np.uint8)
    grid[:, :, 3] = material
    assert bool(clear(world(grid), np.float32([1.2, 2.3, 1.4]), np.float32([5.2, 3.3, 2.4]))) == seen


def test_the_voxels_of_the_two_points_do_not_count():
    grid = np.zeros((10, 10, 10), np.uint8)
    grid[1, 1, 1] = grid[1, 1, 4] = SOLID
    start, end = np.float32([1.5, 1.4, 1.3]), np.float32([4.5, 1.6, 1.7])
    assert clear(world(grid), start, end)
    assert clear(world(grid), start, start) and clear(world(grid), start, start + 0.1)
    grid[2, 1, 1] = SOLID
    # The segment climbs within the first column, through the cell above its start.
    assert not clear(world(grid), start, np.float32([2.2, 1.6, 4.7]))


def test_whole_coordinates_in_an_empty_world():
    rng = np.random.default_rng(9)
    terrain = world(np.zeros((20, 40, 40), np.uint8))
    start, end = rng.integers(0, [40, 40, 20], (2, 20_000, 3)).astype(np.float32)
    assert clear(terrain, start, end).all()
    end[:, 2] += np.float32(0.5)
    assert clear(terrain, start, end).all()


def test_whole_coordinates_among_voxels_look_the_same_both_ways():
    rng = np.random.default_rng(10)
    terrain = world(sparse(11, 40))
    start, end = (rng.integers(0, [80, 80, 40], (2, 20_000, 3)) / 2).astype(np.float32)
    seen = np.asarray(clear(terrain, start, end))
    np.testing.assert_array_equal(seen, np.asarray(clear(terrain, end, start)))
    blocked, _, _ = walk(OPAQUE[np.asarray(terrain.bank.material[0])], start, end)
    assert (seen != ~blocked).mean() < 0.05


@pytest.mark.parametrize("pages", [0, 100])
def test_environments_see_their_own_maps_and_overlays(pages):
    """Through `vmap`, nested `vmap` and one by one, the answers are the same."""
    rng = np.random.default_rng(12)
    bank = voxel_bank([blocky(seed, 40, 60) for seed in range(3)])
    environments, pairs = 6, 400
    maps = jnp.asarray(rng.integers(0, 3, environments), jnp.int32)
    overlays = jax.jit(jax.vmap(lambda _: empty_overlay((20, 40, 40), pages, 4)))(maps)
    cells = jnp.asarray(rng.integers(0, [40, 40, 3], (environments, 400, 3)), jnp.int32)

    @jax.jit
    @jax.vmap
    def hurt(index, overlay, cells):
        return damage_cells(Terrain(bank, index, overlay), cells, jnp.full(400, 500.0), jnp.ones(400, bool))

    overlays = hurt(maps, overlays, cells)
    start, end = segments(13, environments * pairs, 40).reshape(2, environments, pairs, 3)

    def sees(index, overlay, start, end):
        return is_sight_clear(Terrain(bank, index, overlay), start, end)

    each = [
        np.asarray(
            clear(Terrain(bank, maps[e], jax.tree.map(lambda v, e=e: v[e], overlays)), start[e], end[e])
        )
        for e in range(environments)
    ]
    by_environment = jax.jit(jax.vmap(sees))
    np.testing.assert_array_equal(by_environment(maps, overlays, start, end), each)
    by_pair = jax.vmap(jax.vmap(sees, (None, None, 0, 0)))
    np.testing.assert_array_equal(jax.jit(by_pair)(maps, overlays, start, end), each)
    shared_points = jax.jit(jax.vmap(sees, (0, 0, None, None)))(maps, overlays, start[0], end[0])
    np.testing.assert_array_equal(shared_points[0], each[0])
    if pages:
        fixed = by_environment(maps, jax.tree.map(jnp.zeros_like, overlays), start, end)
        assert (np.asarray(fixed) != np.array(each)).any()


def test_many_segments_take_the_same_decisions_as_few():
    """Large batches are walked in stages, which must not change the result."""
    terrain = world(blocky(14, 100, 60))
    start, end = segments(15, 100_000, 100)
    together = np.asarray(clear(terrain, start, end))
    parts = [
        np.asarray(clear(terrain, start[i : i + 2000], end[i : i + 2000])) for i in range(0, 100_000, 2000)
    ]
    np.testing.assert_array_equal(together, np.concatenate(parts))


def test_points_that_are_not_finite_see_nothing():
    start = np.float32([[np.nan, 1, 1], [1, 1, np.nan], [1, np.inf, 1], [1, 1, 1]])
    end = np.float32([[3, 3, 1], [3, 3, 1], [3, 3, 1], [1e30, 3, 1]])
    terrain = world(np.zeros((4, 8, 8), np.uint8))
    assert not clear(terrain, start, end).any() and not clear(terrain, end, start).any()


def test_empty_batch():
    assert clear(world(sparse(0, 40)), np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).shape == (
        0,
    )


def test_cast_agrees_with_an_exact_walk():
    grid = blocky(16, 60, 120)
    start, end = segments(17, 50_000, 60, near=3)
    end[:100] = start[:100]
    end[100:1000, 2] = -0.5
    blocked, at, voxel = walk(OPAQUE[grid], start, end, include_end=True)
    assert 0.1 < blocked.mean() < 0.9
    hit, share, cell = (np.asarray(v) for v in shoot(world(grid), start, end, steps=24))
    np.testing.assert_array_equal(hit, blocked)
    np.testing.assert_array_equal(cell, voxel)
    np.testing.assert_allclose(share, at, atol=2e-5)


def test_glass_stops_no_ray_though_it_stops_bodies():
    grid = np.zeros((10, 10, 10), np.uint8)
    grid[:, :, 4] = GLASS
    assert COLLIDES[GLASS]
    assert not shoot(world(grid), np.float32([1.5, 1.5, 1.5]), np.float32([6.5, 1.6, 1.7]), steps=30)[0]


def test_cast_takes_no_more_steps_than_it_is_given():
    grid = np.zeros((4, 4, 8), np.uint8)
    grid[:, :, 4] = SOLID
    start, end = np.float32([1.5, 1.5, 1.5]), np.float32([6.5, 1.5, 1.5])
    assert not shoot(world(grid), start, end, steps=2)[0] and shoot(world(grid), start, end, steps=3)[0]


def test_smoke_hides_what_it_touches():
    start, end = np.float32([0, 0, 1]), np.float32([10, 0, 1])
    centre = np.float32([[5, 4, 1]])
    alive = np.ones(1, bool)
    assert smoked(start, end, centre, alive, 4.0) and not smoked(start, end, centre, alive, 3.999)
    assert not smoked(start, end, centre, ~alive, 4.0)
    beyond = np.float32([[13, 4, 1]])
    # The distance is that to the segment's end, 5, and not to its line, 4.
    assert not smoked(start, end, beyond, alive, 4.9) and smoked(start, end, beyond, alive, 5.0)
    assert smoked(start, start, np.float32([[0, 0, 4]]), alive, 3.0)
    assert not smoked(start, start, np.float32([[0, 0, 4]]), alive, 2.9)


def test_smoke_against_points_along_the_segment():
    rng = np.random.default_rng(18)
    start, end = rng.uniform(0, 40, (2, 200, 3)).astype(np.float32)
    centre, alive = rng.uniform(0, 40, (6, 3)).astype(np.float32), rng.random(6) < 0.6
    along = start[:, None] + np.linspace(0, 1, 4001)[:, None] * (end - start)[:, None]
    apart = np.stack([np.linalg.norm(along - c, axis=-1).min(-1) for c in centre], -1)
    hidden = np.asarray(smoked(start, end, centre, alive, 4.0))
    decided = (np.abs(apart - 4) > 1e-3).all(-1)
    assert decided.mean() > 0.95 and 0.1 < hidden.mean() < 0.9
    np.testing.assert_array_equal(hidden[decided], ((apart <= 4) & alive).any(-1)[decided])


def test_no_arrays_are_made_at_import():
    assert not [name for name, value in vars(line_of_sight).items() if isinstance(value, jax.Array)]
