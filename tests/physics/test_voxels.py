"""Voxel terrain against plain arrays: collisions of boxes, damage, wrecks, and full overlays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physics import voxels
from physics.voxel_damage import damage_cells, fill_box
from physics.voxels import (
    AIR,
    COLLIDES,
    DEBRIS_FIELD,
    DIRT,
    FOLIAGE,
    GLASS,
    HIT_POINTS,
    LAVA,
    MATERIALS,
    OPAQUE,
    REINFORCED,
    SOLID,
    SOLID_DEBRIS,
    WATER,
    Terrain,
    blocking_columns,
    box_collides,
    empty_overlay,
    material_at,
    voxel_bank,
)

hurt = jax.jit(damage_cells)
fill = jax.jit(fill_box, static_argnames="reach")
collide = jax.jit(box_collides, static_argnames="reach")
words_of = jax.jit(blocking_columns)
NO_BOX, NOBODY = np.zeros((1, 2, 3), np.float32), np.zeros(1, bool)


def world(grid, pages=1000, damaged=256):
    return Terrain(voxel_bank([grid]), jnp.int32(0), empty_overlay(grid.shape, pages, damaged))


def scattered(seed, shape=(12, 22, 27), air=0.6):
    rng = np.random.default_rng(seed)
    share = [air] + [(1 - air) / (len(MATERIALS) - 1)] * (len(MATERIALS) - 1)
    return rng.choice(len(MATERIALS), shape, p=share).astype(np.uint8)


@jax.jit
def materials(terrain):
    z, y, x = np.indices(terrain.shape)
    return material_at(terrain, jnp.asarray(np.stack([x, y, z], -1), jnp.int32))


def damaged(terrain, hits):
    """The terrain after hits (x, y, z, amount)."""
    hits = np.atleast_2d(hits)
    return terrain._replace(
        overlay=hurt(terrain, hits[:, :3].astype(np.int32), np.float32(hits[:, 3]), np.ones(len(hits), bool))
    )


def filled(terrain, low, high, boxes=NO_BOX, spared=NOBODY, loose=False, where=True, reach=5):
    low, high = np.float32(low), np.float32(high)
    return terrain._replace(
        overlay=fill(terrain, low, high, boxes, spared, loose=loose, reach=reach, where=where)
    )


class Model:
    """The same world as plain arrays, without limits."""

    def __init__(self, grid):
        self.grid, self.left = grid.copy(), HIT_POINTS[grid]

    def damage(self, cells, amount, where):
        for (x, y, z), much in zip(cells[where], amount[where], strict=True):
            inside = all(0 <= i < n for i, n in zip((z, y, x), self.grid.shape, strict=True))
            if not inside or much <= 0 or self.grid[z, y, x] in (AIR, REINFORCED):
                continue
            self.left[z, y, x] -= much
            if self.left[z, y, x] <= 0:
                self.grid[z, y, x], self.left[z, y, x] = AIR, 0

    def fill(self, low, high, boxes, spared, loose):
        near = np.maximum(np.floor(low), 0).astype(int)
        far = np.minimum(np.ceil(high), self.grid.shape[::-1]).astype(int)
        for z, y, x in np.ndindex(*np.maximum(far - near, 0)[::-1]):
            cell = near + (x, y, z)
            overlap = ((cell < boxes[:, 1]) & (cell + 1 > boxes[:, 0])).all(-1) & spared
            place = tuple(cell[::-1])
            if self.grid[place] in (AIR, DIRT) and not overlap.any():
                self.grid[place], self.left[place] = (DEBRIS_FIELD if loose else SOLID_DEBRIS), 0


def test_tables_of_materials():
    assert COLLIDES.tolist() == [0, 1, 0, 0, 1, 1, 0, 1, 1, 0]
    assert np.flatnonzero(OPAQUE != COLLIDES).tolist() == [GLASS, FOLIAGE]
    assert OPAQUE[FOLIAGE] and not OPAQUE[GLASS]
    assert HIT_POINTS.tolist() == [0, 100, 0, 0, 50, 200, 0, 10, 1000, 1]
    assert [MATERIALS[i] for i in (AIR, SOLID, LAVA, WATER, DIRT)] == [
        "air",
        "solid",
        "lava",
        "water",
        "dirt",
    ]


def test_columns_hold_one_bit_per_cell():
    grids = [scattered(0, (32, 5, 7)), scattered(1, (32, 5, 7))]
    bank = voxel_bank(grids)
    y, x = np.indices((9, 11)) - 2
    for index, grid in enumerate(grids):
        terrain = Terrain(bank, jnp.int32(index), empty_overlay(grid.shape, 0, 0))
        padded = np.pad(grid, ((0, 0), (2, 2), (2, 2)))
        for words, table in zip(words_of(terrain, x, y), (COLLIDES, OPAQUE), strict=True):
            assert words.dtype == jnp.uint32
            bits = (np.asarray(words) >> np.arange(32, dtype=np.uint32)[:, None, None]) & 1
            np.testing.assert_array_equal(bits, table[padded])


def test_materials_inside_and_outside_the_map():
    grid = scattered(2)
    terrain = world(grid)
    np.testing.assert_array_equal(materials(terrain), grid)
    outside = np.array([[-1, 3, 3], [27, 3, 3], [3, -1, 3], [3, 22, 3], [3, 3, -1], [3, 3, 12]], np.int32)
    assert material_at(terrain, outside).tolist() == [SOLID] * 6


@pytest.mark.parametrize("pages", [0, 1000])
def test_boxes_collide_as_their_cells_do(pages):
    rng = np.random.default_rng(3)
    grid = scattered(4, air=0.93)
    terrain = world(grid, pages)
    if pages:
        terrain = filled(
            damaged(terrain, [[*cell, 300] for cell in np.argwhere(grid.T > 0)[::2]]), [3, 3, 0], [7, 7, 3]
        )
        grid = np.asarray(materials(terrain))
    count = 20_000
    size = rng.uniform(0.05, 3.9, (count, 3))
    low = rng.uniform([-5, -5, -0.7], [28, 23, 14], (count, 3)).astype(np.float32)
    low[: count // 4] = np.round(low[: count // 4])
    high = (low + size).astype(np.float32)
    high[: count // 8] = low[: count // 8] + np.round(size[: count // 8])
    solid = COLLIDES[grid]
    expected = np.empty(count, bool)
    for i, (a, b) in enumerate(
        zip(np.maximum(np.floor(low), 0).astype(int), np.ceil(high).astype(int), strict=True)
    ):
        b = np.maximum(b, 0)
        expected[i] = low[i, 2] < 0 or solid[a[2] : b[2], a[1] : b[1], a[0] : b[0]].any()
    assert 0.2 < expected.mean() < 0.9
    got = collide(terrain, low, high, reach=5)
    np.testing.assert_array_equal(got, expected)


def test_walls_of_the_map_and_its_top_are_open():
    terrain = world(np.full((4, 4, 4), SOLID, np.uint8))
    low = jnp.float32(
        [[-2, 1, 1], [4, 1, 1], [1, -2, 1], [1, 4, 1], [1, 1, 4], [1, 1, -0.01], [3.9, 1, 1], [1, 1, 3.9]]
    )
    assert collide(terrain, low, low + 1, reach=2).tolist() == [False] * 5 + [True] * 3


def test_damage_takes_hit_points_and_then_the_voxel():
    grid = np.zeros((3, 6, 6), np.uint8)
    grid[1, 2, 3] = SOLID
    terrain = damaged(world(grid), [3, 2, 1, 40])
    assert materials(terrain)[1, 2, 3] == SOLID and 40.0 in terrain.overlay.damage
    terrain = damaged(terrain, [3, 2, 1, 70])
    assert materials(terrain)[1, 2, 3] == AIR
    assert [int(word[0]) for word in words_of(terrain, jnp.array([3]), jnp.array([2]))] == [0, 0]
    assert not collide(terrain, jnp.float32([3.2, 2.2, 1.2]), jnp.float32([3.8, 2.8, 1.8]), reach=2)
    assert (terrain.overlay.cell == -1).all()


@pytest.mark.parametrize(
    ("material", "amount", "after"),
    [
        (SOLID, 99.9, SOLID),
        (SOLID, 100, AIR),
        (SOLID_DEBRIS, 199, SOLID_DEBRIS),
        (DEBRIS_FIELD, 50, AIR),
        (GLASS, 9, GLASS),
        (GLASS, 10, AIR),
        (FOLIAGE, 0.5, FOLIAGE),
        (FOLIAGE, 1, AIR),
        (REINFORCED, 1e6, REINFORCED),
        (WATER, 0.01, AIR),
        (LAVA, 0.01, AIR),
        (DIRT, 0.01, AIR),
        (DIRT, 0, DIRT),
        (DIRT, -5, DIRT),
    ],
)
def test_materials_break_at_their_hit_points(material, amount, after):
    grid = np.zeros((2, 3, 3), np.uint8)
    grid[1, 1, 1] = material
    expected = grid.copy()
    expected[1, 1, 1] = after
    np.testing.assert_array_equal(materials(damaged(world(grid), [1, 1, 1, amount])), expected)


def test_equal_cells_of_one_call_add_up():
    grid = np.full((2, 8, 8), SOLID, np.uint8)
    terrain = damaged(
        world(grid), [[2, 2, 1, 40], [5, 5, 0, 60], [2, 2, 1, 40], [5, 5, 0, 39], [2, 2, 1, 20]]
    )
    assert materials(terrain)[1, 2, 2] == AIR and materials(terrain)[0, 5, 5] == SOLID
    assert terrain.overlay.damage.max() == 99
    assert (materials(terrain) == AIR).sum() == 1


def test_many_hits_add_up_wherever_they_stand_in_a_call():
    rng = np.random.default_rng(14)
    grid = scattered(15, (6, 12, 12), air=0.3)
    terrain, model = world(grid), Model(grid)
    for _ in range(3):
        cells = rng.integers(0, [9, 9, 5], (300, 3)).astype(np.int32)
        amount, where = rng.integers(1, 30, 300).astype(np.float32), rng.random(300) < 0.8
        terrain = terrain._replace(overlay=hurt(terrain, cells, amount, where))
        model.damage(cells, amount, where)
        np.testing.assert_array_equal(materials(terrain), model.grid)


def test_cells_outside_the_map_take_nothing():
    grid = np.full((2, 5, 5), FOLIAGE, np.uint8)
    hits = [[-1, 2, 1, 9], [5, 2, 1, 9], [2, -1, 1, 9], [2, 5, 1, 9], [2, 2, -1, 9], [2, 2, 2, 9]]
    np.testing.assert_array_equal(materials(damaged(world(grid), hits)), grid)


def test_the_wreck_of_a_medium_mech():
    grid = np.zeros((8, 40, 40), np.uint8)
    grid[0] = DIRT
    centre, half = np.array([20, 20, 1.5]), np.array([1.25, 1.25, 1.5])
    for loose, material in ((False, SOLID_DEBRIS), (True, DEBRIS_FIELD)):
        terrain = filled(world(grid), centre - half, centre + half, loose=loose)
        expected = grid.copy()
        expected[:3, 18:22, 18:22] = material
        np.testing.assert_array_equal(materials(terrain), expected)
        assert (expected == material).sum() == 48
        solid, opaque = words_of(terrain, jnp.array([18]), jnp.array([21]))
        assert solid[0] == opaque[0] == 0b111
        terrain = damaged(terrain, [20, 19, 2, 0.01])
        expected[2, 19, 20] = AIR
        np.testing.assert_array_equal(materials(terrain), expected)


def test_a_masked_wreck_changes_nothing():
    terrain = world(scattered(5))
    same = filled(terrain, [3, 3, 0], [6, 6, 3], where=False)
    jax.tree.map(np.testing.assert_array_equal, terrain.overlay, same.overlay)


@pytest.mark.parametrize("seed", range(4))
def test_random_hits_and_wrecks_match_plain_arrays(seed):
    rng = np.random.default_rng(seed)
    grid = scattered(seed + 10, (9, 22, 27))
    terrain, model = world(grid), Model(grid)
    for _ in range(25):
        cells = rng.integers([5, 5, -1], [14, 14, 6], (40, 3)).astype(np.int32)
        cells[30:] = cells[:10]
        amount, where = rng.integers(-1, 60, 40).astype(np.float32), rng.random(40) < 0.7
        terrain = terrain._replace(overlay=hurt(terrain, cells, amount, where))
        model.damage(cells, amount, where)
        low = rng.uniform([-2, -2, -1], [25, 20, 8]).astype(np.float32)
        high = (low + rng.uniform(0.5, 3.9, 3)).astype(np.float32)
        boxes = np.sort(low + rng.uniform(-2, 4, (3, 2, 3)), axis=1).astype(np.float32)
        boxes[0] = np.round(boxes[0])
        spared, loose = rng.random(3) < 0.5, rng.random() < 0.5
        terrain = filled(terrain, low, high, boxes, spared, loose)
        model.fill(low, high, boxes, spared, loose)
        np.testing.assert_array_equal(materials(terrain), model.grid)
    standing = HIT_POINTS[model.grid] - model.left
    standing[model.left == 0] = 0
    known = np.asarray(terrain.overlay.cell)
    lost = np.zeros(grid.size)
    lost[known[known >= 0]] = np.asarray(terrain.overlay.damage)[known >= 0]
    np.testing.assert_array_equal(lost.reshape(grid.shape), standing)
    y, x = np.indices(grid.shape[1:])
    for words, table in zip(words_of(terrain, x, y), (COLLIDES, OPAQUE), strict=True):
        bits = (np.asarray(words) >> np.arange(9, dtype=np.uint32)[:, None, None]) & 1
        np.testing.assert_array_equal(bits, table[model.grid])


def test_changes_without_a_free_page_are_dropped():
    grid = np.full((4, 16, 16), FOLIAGE, np.uint8)
    terrain = world(grid, pages=2)
    hits = [[1, 1, 1, 5], [9, 9, 2, 5], [13, 1, 3, 5], [2, 1, 0, 5], [14, 2, 0, 5]]
    expected = grid.copy()
    expected[1, 1, 1] = expected[2, 9, 9] = expected[0, 1, 2] = AIR
    terrain = damaged(terrain, hits)
    np.testing.assert_array_equal(materials(terrain), expected)
    assert terrain.overlay.used == 2
    terrain = damaged(terrain, [[6, 6, 1, 5], [10, 10, 1, 5]])
    expected[1, 10, 10] = AIR
    np.testing.assert_array_equal(materials(terrain), expected)
    hollow = np.zeros((4, 16, 16), np.uint8)
    wreck = filled(filled(world(hollow, pages=2), [2.5, 0, 0], [5.5, 3, 2]), [8, 8, 0], [10, 10, 2])
    expected = hollow.copy()
    expected[:2, 0:3, 2:6] = SOLID_DEBRIS
    np.testing.assert_array_equal(materials(wreck), expected)
    assert wreck.overlay.used == 2


def test_a_voxel_without_a_page_stands_and_its_damage_stays():
    grid = np.full((4, 16, 16), SOLID, np.uint8)
    terrain = damaged(damaged(world(grid, pages=1), [1, 1, 1, 100]), [9, 9, 1, 60])
    terrain = damaged(terrain, [9, 9, 1, 60])
    assert (materials(terrain) == AIR).sum() == 1
    assert terrain.overlay.used == 1


def test_the_oldest_damage_is_forgotten_first():
    grid = np.full((2, 8, 8), SOLID, np.uint8)
    terrain = world(grid, damaged=2)
    for x in (1, 2, 3):
        terrain = damaged(terrain, [x, 1, 1, 60])
    terrain = damaged(terrain, [[3, 1, 1, 60], [2, 1, 1, 60]])
    assert np.argwhere(np.asarray(materials(terrain)) == AIR).tolist() == [[1, 1, 2], [1, 1, 3]]
    assert materials(damaged(terrain, [1, 1, 1, 60]))[1, 1, 1] == SOLID


def test_without_room_for_damage_only_a_deadly_hit_counts():
    grid = np.full((2, 8, 8), SOLID, np.uint8)
    terrain = damaged(damaged(world(grid, damaged=0), [1, 1, 1, 60]), [1, 1, 1, 60])
    np.testing.assert_array_equal(materials(terrain), grid)
    assert materials(damaged(terrain, [[1, 1, 1, 60], [1, 1, 1, 60]]))[1, 1, 1] == AIR


def test_static_terrain_takes_nothing():
    grid = scattered(6)
    terrain = world(grid, pages=0)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(terrain.overlay)) <= 8
    np.testing.assert_array_equal(materials(damaged(terrain, [3, 3, 3, 1e6])), grid)
    np.testing.assert_array_equal(materials(filled(terrain, [1, 1, 0], [4, 4, 4])), grid)


def test_environments_change_independently():
    bank = voxel_bank([scattered(seed, (6, 12, 12)) for seed in (7, 8)])
    maps = jnp.arange(4) % 2
    overlays = jax.jit(jax.vmap(lambda _: empty_overlay((6, 12, 12), 9, 8)))(maps)
    cells = jnp.asarray(np.random.default_rng(9).integers(0, [12, 12, 6], (4, 30, 3)), jnp.int32)
    amount, where = jnp.full(30, 70.0), jnp.ones(30, bool)

    @jax.jit
    def step(index, overlay, cells):
        return materials(
            Terrain(bank, index, damage_cells(Terrain(bank, index, overlay), cells, amount, where))
        )

    together = jax.jit(jax.vmap(step))(maps, overlays, cells)
    for e in range(4):
        alone = step(maps[e], jax.tree.map(lambda v, e=e: v[e], overlays), cells[e])
        np.testing.assert_array_equal(together[e], alone)
        model = Model(np.asarray(bank.material[maps[e]]))
        model.damage(np.asarray(cells[e]), np.asarray(amount), np.asarray(where))
        np.testing.assert_array_equal(alone, model.grid)


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ([], "grids"),
        ([np.zeros((3, 4, 4)), np.zeros((3, 4, 5))], "one size"),
        ([np.zeros((33, 4, 4))], "33 layers"),
        ([np.full((3, 4, 4), 10)], "material 10"),
    ],
)
def test_invalid_banks_are_refused(grids, message):
    with pytest.raises(ValueError, match=message):
        voxel_bank(grids)


def test_negative_sizes_are_refused():
    with pytest.raises(ValueError, match="pages=-1"):
        empty_overlay((3, 4, 4), -1, 0)


@pytest.mark.parametrize(("size", "limit"), [(40, 15_000), (100, 25_000)])
def test_an_overlay_is_small(size, limit):
    overlay = empty_overlay((20, size, size), 128, 64)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(overlay)) < limit


def test_no_arrays_are_made_at_import():
    assert not [name for name, value in vars(voxels).items() if isinstance(value, jax.Array)]
