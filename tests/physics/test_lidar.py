"""Lidar scans against recorded ones, exact ray casting and themselves in other arrangements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physics import lidar as module
from physics.gridmap import OccupancyMap
from physics.lidar import Lidar, add_opponent_boxes, add_range_noise, scan_walls
from physics.mapbank import map_bank
from physics.occupancy import load_map

CAR_1 = (-46.769, -0.7, 0.0)
# fmt: off
CAR_1_SCAN = [
    1.9, 1.75, 1.65, 1.55, 1.5, 1.45, 1.4, 1.35, 1.35, 1.35, 1.35, 1.4, 1.4, 1.45, 1.5, 1.6, 1.7, 1.8,
    1.95, 2.2, 2.45, 2.85, 3.45, 4.4, 6.1, 10.1, 30, 29, 9.7, 5.85, 4.25, 3.3, 2.75, 2.35, 2.1, 1.9,
    1.75, 1.6, 1.5, 1.45, 1.4, 1.35, 1.35, 1.3, 1.3, 1.3, 1.3, 1.35, 1.35, 1.4, 1.5, 1.55, 1.7, 1.8,
]
# fmt: on


def random_grid(seed, shape=(120, 150), resolution=0.1, origin=(-3.0, 2.0, 0.0)):
    rng = np.random.default_rng(seed)
    occupied = np.zeros(shape, bool)
    for row, col, height, width in zip(
        rng.integers(shape[0], size=12),
        rng.integers(shape[1], size=12),
        *rng.integers(2, 14, size=(2, 12)),
        strict=True,
    ):
        occupied[row : row + height, col : col + width] = True
    return OccupancyMap(f"random{seed}", occupied, resolution, origin)


def free_poses(grid, count, seed, margin=0.15):
    """Poses at least `margin` from any wall."""
    rng = np.random.default_rng(seed)
    rows, cols = np.nonzero(grid.field > margin)
    pick = rng.integers(len(rows), size=count)
    xy = grid.world(rows[pick] + rng.uniform(-0.4, 0.4, count), cols[pick] + rng.uniform(-0.4, 0.4, count))
    return np.concatenate([xy, rng.uniform(-7, 7, (count, 1))], axis=-1)


def cast(grid, pose, angle, limit):
    """Distance to the first occupied cell along one ray, cell border by cell border."""
    x, y, yaw = grid.origin
    dx, dy = pose[0] - x, pose[1] - y
    start = (
        np.array([np.cos(yaw) * dx + np.sin(yaw) * dy, np.cos(yaw) * dy - np.sin(yaw) * dx]) / grid.resolution
    )
    way = np.array([np.cos(angle - yaw), np.sin(angle - yaw)])
    borders = [
        (np.arange(-1, size + 2) - s) / w
        for s, w, size in zip(start, way, grid.occupied.shape[::-1], strict=True)
    ]
    at = np.concatenate([[0.0], np.sort(np.concatenate(borders))])
    at = at[at >= 0]
    col, row = np.floor(start[:, None] + way[:, None] * (at[:-1] + at[1:]) / 2).astype(int)
    outside = (row < 0) | (col < 0) | (row >= grid.occupied.shape[0]) | (col >= grid.occupied.shape[1])
    hit = outside | grid.occupied[np.where(outside, 0, row), np.where(outside, 0, col)]
    return min(at[:-1][hit][0] * grid.resolution, limit)


rays = jax.jit(scan_walls, static_argnames="lidar")
shortened = jax.jit(add_opponent_boxes, static_argnames="lidar")


def traced(bank, poses, lidar, map_index=0):
    return np.asarray(rays(bank, map_index, np.asarray(poses), lidar=lidar))


def reference(beams):
    return Lidar(beams=beams, angle_bins=2000)


def test_recorded_scans_in_double_precision():
    with jax.enable_x64(True):
        bank = map_bank([load_map("line2")])
        np.testing.assert_allclose(traced(bank, CAR_1, reference(54)), CAR_1_SCAN, atol=2e-5)
        right = traced(bank, (-45.569, -1.0, 0.2), reference(54))
        left = traced(bank, (-45.569, -0.4, -0.2), reference(54))
        assert (right.argmin(), left.argmin()) == (5, 44)
        np.testing.assert_allclose([right.min(), left.min()], [1.05, 1.0], atol=1e-5)
        np.testing.assert_allclose([right.mean(), left.mean()], [3.248148, 3.262963], atol=1e-5)
        np.testing.assert_allclose(traced(bank, CAR_1, reference(108)).mean(), 3.178704, atol=1e-5)


def test_recorded_scans_in_single_precision():
    bank = map_bank([load_map("line2")])
    ranges = traced(bank, CAR_1, reference(54))
    assert ranges.dtype == np.float32
    np.testing.assert_allclose(ranges, CAR_1_SCAN, atol=0.0501)


@pytest.mark.parametrize(
    ("beams", "fov", "max_range", "yaw"),
    [(108, 4.7, 30.0, 0.7), (131, 2.0, 30.0, 0.3), (37, 2.0, 5.0, 0.0), (1, 0.0, 30.0, -2.0)],
)
def test_scans_agree_with_exact_ray_casting(beams, fov, max_range, yaw):
    grid = random_grid(3, origin=(-3.0, 2.0, yaw))
    lidar = Lidar(beams=beams, fov=fov, max_range=max_range)
    poses = free_poses(grid, 24, seed=1)
    got = traced(map_bank([grid]), poses, lidar)
    want = np.array(
        [[cast(grid, pose, pose[2] + angle, max_range) for angle in lidar.angles] for pose in poses]
    )
    assert got.shape == (24, beams)
    assert got.min() >= 0 and got.max() <= np.float32(max_range)
    # A step may run past a corner that the ray clips, never ends ahead of a cell that it enters.
    assert (got - want).min() > -0.01
    close = np.abs(got - want) < 1.5 * grid.resolution
    assert close.mean() > 0.985


def test_beams_run_from_right_to_left():
    grid = OccupancyMap("room", np.zeros((40, 100), bool), 0.1, (0.0, 0.0, 0.0))
    ranges = traced(map_bank([grid]), (3.0, 1.0, 0.0), Lidar(beams=3, fov=np.pi))
    np.testing.assert_allclose(ranges, [1.0, 7.0, 3.0], atol=0.1)


def test_angle_bins_move_beams_by_less_than_a_bin():
    grid = OccupancyMap("room", np.zeros((200, 200), bool), 0.05, (-5.0, -5.0, 0.0))
    bank = map_bank([grid])
    poses = free_poses(grid, 16, seed=2, margin=2.0)
    exact, binned = (traced(bank, poses, Lidar(beams=60, angle_bins=bins)) for bins in (0, 20000))
    np.testing.assert_allclose(binned, exact, atol=0.11)


def test_vmap_over_cars_environments_and_maps_is_a_loop():
    grids = [random_grid(seed, shape) for seed, shape in enumerate([(80, 60), (50, 90), (90, 90)])]
    bank, lidar = map_bank(grids), Lidar(beams=41, max_range=4.0)
    poses = np.array([free_poses(grid, 8, seed=4).reshape(4, 2, 3) for grid in grids])
    maps = np.arange(3)

    @jax.jit
    def both(bank, maps, poses):
        over_cars = jax.vmap(scan_walls, (None, None, 0, None))
        over_maps = jax.vmap(jax.vmap(over_cars, (None, None, 0, None)), (None, 0, 0, None))
        return over_maps(bank, maps, poses, lidar), scan_walls(bank, maps[:, None, None], poses, lidar)

    together, batch = both(bank, maps, poses)
    for m, grid in enumerate(grids):
        bank_alone = map_bank([grid])
        alone = np.stack([traced(bank_alone, pose, lidar) for pose in poses[m].reshape(-1, 3)])
        np.testing.assert_allclose(np.asarray(together[m]).reshape(-1, 41), alone, atol=1e-3)
    np.testing.assert_array_equal(batch, together)


def test_vmap_over_banks():
    grids = [random_grid(seed) for seed in (1, 2)]
    banks = [map_bank([grid]) for grid in grids]
    fields = np.stack([bank.field for bank in banks])
    poses = np.array([free_poses(grid, 3, seed=5) for grid in grids])
    lidar = Lidar(beams=20)
    over_banks = jax.vmap(lambda field, pose: scan_walls(banks[0].replace(field=field), 0, pose, lidar))
    got = jax.jit(over_banks)(fields, poses)
    for bank, pose, ranges in zip(banks, poses, got, strict=True):
        np.testing.assert_allclose(ranges, traced(bank, pose, lidar), atol=1e-3)


@pytest.mark.parametrize(
    ("fov", "stages"),
    [
        (4.7, {"_STAGES": module._STAGES}),
        (4.7, {"_STAGES": ((1, 0.05), (1, 0.05), (2, 0.1))}),
        (0.4, {"_WIDE_STAGES": ((1, 0.05), *module._WIDE_STAGES)}),
    ],
)
def test_results_do_not_depend_on_the_room_for_unfinished_rays(monkeypatch, fov, stages):
    grid, lidar = random_grid(7), Lidar(beams=23, fov=fov)
    bank, poses = map_bank([grid]), free_poses(grid, 17, seed=6)
    usual = traced(bank, poses, lidar)
    for name, value in (stages | {"_SMALL": 0}).items():
        monkeypatch.setattr(module, name, value)
    # Compiled anew: what `traced` has compiled holds the usual stages.
    patched = jax.jit(lambda bank, poses: scan_walls(bank, 0, poses, lidar))
    np.testing.assert_array_equal(patched(bank, poses), usual)


def test_a_rotated_map_gives_the_scans_of_rotated_poses():
    plain, turned = (random_grid(5, origin=(1.0, -2.0, yaw)) for yaw in (0.0, 1.1))
    poses = free_poses(plain, 32, seed=8)
    offset = poses[:, :2] - plain.origin[:2]
    rotation = np.array([[np.cos(1.1), -np.sin(1.1)], [np.sin(1.1), np.cos(1.1)]])
    moved = np.concatenate([offset @ rotation.T + plain.origin[:2], poses[:, 2:] + 1.1], axis=-1)
    gap = np.abs(traced(map_bank([plain]), poses, Lidar()) - traced(map_bank([turned]), moved, Lidar()))
    # Rounding may move a sample across a cell's border, which a grazing ray turns into a longer way.
    assert (gap < 1e-3).mean() > 0.995


def test_outside_the_map_and_inside_walls_there_is_nothing_to_see():
    grid = random_grid(9)
    bank = map_bank([grid])
    row, col = np.argwhere(grid.occupied)[0]
    wall = np.append(grid.world(row, col), 0.3)
    far = [[-500.0, 3.0, 0.1], [900.0, 900.0, 2.0], [grid.world(0, -7)[0], 8.0, 0.0]]
    np.testing.assert_array_equal(traced(bank, np.array([wall, *far]), Lidar(beams=30)), 0.0)


def test_recorded_opponent_ranges():
    lidar = Lidar(beams=54)
    others, sizes = np.float32([[1.2, 0.3, 0.2]]), np.float32([[0.32, 0.225]])
    with jax.enable_x64(True):
        got = shortened(np.full(54, 30.0), np.zeros(3), others, sizes, np.array([True]), lidar=lidar)
    want = np.full(54, 30.0)
    want[[29, 30]] = 1.075933962, 1.082266717
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_opponents_hide_only_what_is_behind_them():
    lidar, pose = Lidar(beams=61, fov=2.0), np.float32([2.0, 1.0, 0.5])
    others = np.float32([[2 + d * np.cos(0.5), 1 + d * np.sin(0.5), 0.5] for d in (1.5, 4.0)])
    sizes = np.float32([[0.4, 0.2], [0.4, 2.0]])
    ranges = np.full(61, 3.0, np.float32)
    got = np.asarray(shortened(ranges, pose, others, sizes, np.array([True, True]), lidar=lidar))
    np.testing.assert_allclose(got[30], 1.3, rtol=1e-5)
    np.testing.assert_array_equal(got[np.abs(lidar.angles) > 0.1], 3.0)
    np.testing.assert_array_equal(
        shortened(ranges, pose, others, sizes, np.array([False, True]), lidar=lidar), ranges
    )
    none = shortened(ranges, pose, others[:0], sizes[:0], np.zeros(0, bool), lidar=lidar)
    np.testing.assert_array_equal(none, ranges)


def test_noise_is_reproducible_independent_and_of_the_given_size():
    lidar, ranges = Lidar(noise=0.02), jnp.full((4000, 10), 5.0)
    noise = np.asarray(add_range_noise(jax.random.key(0), ranges, lidar)) - 5.0
    np.testing.assert_array_equal(noise, np.asarray(add_range_noise(jax.random.key(0), ranges, lidar)) - 5.0)
    assert not np.array_equal(noise, np.asarray(add_range_noise(jax.random.key(1), ranges, lidar)) - 5.0)
    np.testing.assert_allclose(noise.mean(0), 0.0, atol=4.5 * 0.02 / np.sqrt(4000))
    np.testing.assert_allclose(noise.std(0), 0.02, rtol=0.06)
    assert np.abs(np.corrcoef(noise.T) - np.eye(10)).max() < 0.08
    np.testing.assert_array_equal(add_range_noise(jax.random.key(0), ranges, lidar, 0.0), ranges)


def test_noisy_ranges_stay_within_the_range():
    lidar = Lidar(noise=1.0, max_range=3.0)
    got = add_range_noise(jax.random.key(3), jnp.linspace(0.0, 3.0, 500), lidar)
    assert got.min() >= 0 and got.max() <= 3.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"beams": 0},
        {"fov": 7.0},
        {"fov": -1.0},
        {"max_range": 0.0},
        {"noise": -0.1},
        {"angle_bins": 1},
        {"angle_bins": -2},
    ],
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Lidar(**wrong)
