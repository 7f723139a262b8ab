"""Oriented boxes against recorded numbers and brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.ndimage import distance_transform_edt

from physics.boxes import (
    boundary_intervals,
    boundary_points,
    box_clearance,
    boxes_overlap,
    corners_of_box,
    ray_box_distances,
    side_distances,
)

SIZE = np.array([0.32, 0.225])


def to_world(pose, points):
    cos, sin = np.cos(pose[2]), np.sin(pose[2])
    return pose[:2] + points @ np.array([[cos, sin], [-sin, cos]])


def to_box(pose, points):
    cos, sin = np.cos(pose[2]), np.sin(pose[2])
    return (points - pose[:2]) @ np.array([[cos, -sin], [sin, cos]])


def random_pairs(rng, n):
    poses = rng.uniform([-1, -1, -4], [1, 1, 4], (2, n, 3))
    sizes = rng.uniform(0.2, 1.4, (2, n, 2))
    return poses[0], sizes[0], poses[1], sizes[1]


def test_corners_in_order():
    with jax.enable_x64(True):
        found = corners_of_box(jnp.array([2.3, 6.7, 0.8]), 0.32, 0.225)
    expected = [
        (2.107824366, 6.663602530),
        (2.269229487, 6.506843521),
        (2.492175634, 6.736397470),
        (2.330770513, 6.893156479),
    ]
    np.testing.assert_allclose(found, expected, atol=6e-10)


@pytest.mark.parametrize(
    ("pose_a", "pose_b", "expected"),
    [
        ((0, 0, 0), (0.33, 0, 0), False),
        ((0, 0, 0), (0.319, 0, 0), True),
        ((0, 0, 0), (0.3, 0.22, 0), True),
        ((0, 0, 0), (0.3, 0.226, 0), False),
        ((0, 0, 0.6), (0.1, 0, 0), True),
        ((0, 0, 0), (0.32, 0, 0), True),
        ((0, 0, 0), (0.16 + np.hypot(0.16, 0.1125) - 1e-4, 0, np.arctan2(0.1125, 0.16)), True),
        ((0, 0, 0), (0.16 + np.hypot(0.16, 0.1125) + 1e-4, 0, np.arctan2(0.1125, 0.16)), False),
    ],
)
def test_overlap_of_known_pairs(pose_a, pose_b, expected):
    pose_a, pose_b = jnp.array(pose_a, float), jnp.array(pose_b, float)
    assert bool(boxes_overlap(pose_a, SIZE, pose_b, SIZE)) is expected
    assert bool(boxes_overlap(pose_b, SIZE, pose_a, SIZE)) is expected


CAR, WIDE, SMALL, LONG, BIKE = (4.5, 2.0), (4.0, 2.0), (0.6, 0.6), (4.8, 1.9), (1.8, 0.7)
ORIGIN = (0.0, 0.0, 0.0)
CONTACTS = [  # pose and size of both, and whether they touch; the touching ones only just do
    (ORIGIN, CAR, (4.4, 0.0, 0.0), CAR, True),
    (ORIGIN, CAR, (4.6, 0.0, 0.0), CAR, False),
    (ORIGIN, WIDE, (4.0, 0.0, 0.0), WIDE, True),
    (ORIGIN, WIDE, (4.0, 2.0, 0.0), WIDE, True),
    (ORIGIN, CAR, (3.2, 0.0, np.pi / 2), CAR, True),
    (ORIGIN, CAR, (3.3, 0.0, np.pi / 2), CAR, False),
    (ORIGIN, CAR, (3.5, 2.2, np.pi / 4), CAR, True),
    (ORIGIN, CAR, (3.9, 2.6, np.pi / 4), CAR, False),
    (ORIGIN, CAR, (0.5, 0.2, 0.3), SMALL, True),
    ((1.0, 1.0, 0.5), LONG, (3.5, 3.4, 2.2), BIKE, False),
    ((0.0, 0.0, np.pi / 4), CAR, (3.2, -0.9, -np.pi / 4), CAR, True),
    ((10.0, 5.0, 2.0), CAR, (8.0, 9.0, -1.1), CAR, True),
]


def test_overlap_of_recorded_contacts():
    pose, size, other, other_size, expected = (np.array(x, np.float32) for x in zip(*CONTACTS, strict=True))
    meets = jax.vmap(boxes_overlap)
    np.testing.assert_array_equal(meets(pose, size, other, other_size), expected)
    np.testing.assert_array_equal(meets(other, other_size, pose, size), expected)


def test_overlaps_in_a_pile_of_cars_and_of_a_separate_one():
    rng = np.random.default_rng(0)
    poses = jnp.asarray(np.r_[rng.normal(0, 0.01, (6, 3)), [[10, 10, 0]]], jnp.float32)
    pairs = jax.jit(jax.vmap(lambda a: jax.vmap(lambda b: boxes_overlap(a, SIZE, b, SIZE))(poses)))(poses)
    expected = np.zeros((7, 7), bool)
    expected[:6, :6] = expected[6, 6] = True
    np.testing.assert_array_equal(pairs, expected)


def test_overlap_matches_sampling_the_area():
    rng = np.random.default_rng(1)
    pose_a, size_a, pose_b, size_b = random_pairs(rng, 400)
    cells = 60
    axis = (np.arange(cells) + 0.5) / cells - 0.5
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    points = np.stack([to_world(p, grid * s) for p, s in zip(pose_a, size_a, strict=True)])
    inside = np.stack(
        [(np.abs(to_box(p, q)) < s / 2).all(-1).any() for p, q, s in zip(pose_b, points, size_b, strict=True)]
    )
    with jax.enable_x64(True):
        test = jax.jit(jax.vmap(boxes_overlap))
        found = np.asarray(test(pose_a, size_a, pose_b, size_b))
        # Whatever two boxes smaller by three cells share, the grid over the full first box has hit.
        margin = 3 * size_a.max(-1, keepdims=True) / cells
        surely = np.asarray(test(pose_a, size_a * (1 - 3 / cells), pose_b, size_b - margin))
    assert surely.sum() > 50 and found.sum() < 350
    assert found[inside].all()
    assert inside[surely].all()


def test_overlap_ignores_order_and_rigid_motion():
    rng = np.random.default_rng(2)
    pose_a, size_a, pose_b, size_b = random_pairs(rng, 500)
    motion = np.array([3.0, -2.0, 1.1])
    moved = [np.c_[to_world(motion, p[:, :2]), p[:, 2] + motion[2]] for p in (pose_a, pose_b)]
    with jax.enable_x64(True):
        test = jax.jit(jax.vmap(boxes_overlap))
        found = np.asarray(test(pose_a, size_a, pose_b, size_b))
        np.testing.assert_array_equal(found, test(pose_b, size_b, pose_a, size_a))
        np.testing.assert_array_equal(found, test(moved[0], size_a, moved[1], size_b))


def test_boundary_is_even_and_closed():
    pose = jnp.array([1.0, -2.0, 0.7])
    points = np.asarray(boundary_points(pose, jnp.array([0.35, 0.25]), (7, 5)))
    assert points.shape == (24, 2)
    np.testing.assert_allclose(np.linalg.norm(points - np.roll(points, -1, 0), axis=-1), 0.05, atol=1e-6)
    local = np.abs(to_box(np.asarray(pose), points)) / [0.175, 0.125]
    np.testing.assert_allclose(local.max(-1), 1, atol=1e-5)
    for corner in np.asarray(corners_of_box(pose, 0.35, 0.25)):
        assert np.linalg.norm(points - corner, axis=-1).min() < 1e-6


def test_boundary_intervals():
    assert boundary_intervals(0.32, 0.225, 0.05) == (7, 5)
    assert boundary_intervals(0.15, 0.3, 0.05) == (3, 6)
    assert boundary_intervals(0.01, 0.06, 0.05) == (1, 2)
    with pytest.raises(ValueError, match="spacing=0"):
        boundary_intervals(0.3, 0.2, 0)


def field_of(occupied, resolution):
    """Distance at the nearest cell's centre; cell [row, column] starts at (column, row) * resolution."""
    field = jnp.asarray(distance_transform_edt(~occupied) * resolution)

    def distance_at(points):
        cell = jnp.floor(points / resolution).astype(int)
        return field[cell[..., 1], cell[..., 0]]

    return distance_at


def test_clearance_is_the_least_distance_and_zero_in_contact():
    occupied = np.zeros((60, 60), bool)
    occupied[:, 40:] = True
    with jax.enable_x64(True):
        distance_at = field_of(occupied, 0.05)
        gap = [box_clearance(jnp.array([x, 1.5, 0.0]), SIZE, distance_at) for x in (1.39, 1.8399, 1.8401)]
    np.testing.assert_allclose(gap, [0.5, 0.05, 0.0], atol=1e-12)


def test_wall_is_met_by_a_corner_at_any_angle():
    occupied = np.zeros((60, 60), bool)
    occupied[:, 40:] = True
    with jax.enable_x64(True):
        distance_at = field_of(occupied, 0.05)
        for yaw in np.linspace(-3, 3, 13):
            reach = 0.16 * abs(np.cos(yaw)) + 0.1125 * abs(np.sin(yaw))
            for gap, contact in ((1e-6, False), (-1e-6, True)):
                pose = jnp.array([2.0 - reach - gap, 1.5, yaw])
                assert bool(box_clearance(pose, SIZE, distance_at) <= 0) is contact


def test_contact_has_no_false_alarm_and_misses_less_than_half_a_spacing():
    occupied = np.zeros((60, 60), bool)
    occupied[:30, :30] = True
    rng = np.random.default_rng(3)
    poses = rng.uniform([1.2, 1.2, -3.2], [1.8, 1.8, 3.2], (3000, 3))
    spacing = 0.32 / 7
    with jax.enable_x64(True):
        distance_at = field_of(occupied, 0.05)

        def contact(size, intervals):
            clear = jax.jit(jax.vmap(lambda pose: box_clearance(pose, size, distance_at, intervals)))(poses)
            return np.asarray(clear <= 0)

        coarse, fine = contact(SIZE, (7, 5)), contact(SIZE, (640, 450))
        deep = contact(SIZE - spacing, (640, 450))
    assert not (coarse & ~fine).any()
    assert (fine & ~coarse).any()
    assert coarse[deep].all()


def test_recorded_opponent_beams():
    with jax.enable_x64(True):
        ranges = ray_box_distances(
            jnp.zeros(3), jnp.linspace(-2.35, 2.35, 54), jnp.array([1.2, 0.3, 0.2]), 0.32, 0.225
        )
    np.testing.assert_allclose(ranges[29:31], [1.075933962, 1.082266717], atol=6e-10)
    assert np.isinf(np.delete(np.asarray(ranges), [29, 30])).all()


def crossings(origin, angle, quad):
    """Distances at which one ray crosses the edges of a polygon, by Cramer's rule."""
    direction = np.array([np.cos(angle), np.sin(angle)])
    start, edge = quad, np.roll(quad, -1, 0) - quad
    det = edge[:, 0] * direction[1] - edge[:, 1] * direction[0]
    offset = start - origin
    t = (edge[:, 0] * offset[:, 1] - edge[:, 1] * offset[:, 0]) / det
    s = (direction[0] * offset[:, 1] - direction[1] * offset[:, 0]) / det
    return t[(s >= 0) & (s <= 1) & (t >= 0)]


def test_rays_match_edge_crossings():
    rng = np.random.default_rng(4)
    with jax.enable_x64(True):
        cast = jax.jit(ray_box_distances)
        for case in range(60):
            pose, size = rng.uniform([-1, -1, -4], [1, 1, 4]), rng.uniform(0.2, 1, 2)
            origin, heading = rng.uniform(-1.5, 1.5, 2), rng.uniform(-4, 4)
            if case % 4 == 0:
                origin = to_world(pose, rng.uniform(-0.49, 0.49, 2) * size)
            angles = rng.uniform(-7, 7, 30)
            found = np.asarray(cast(np.append(origin, heading), angles - heading, pose, *size))
            quad = np.asarray(corners_of_box(jnp.asarray(pose), *size))
            expected = [np.min(crossings(origin, a, quad), initial=np.inf) for a in angles]
            np.testing.assert_allclose(found, expected, atol=1e-9)


def test_rays_along_the_axes_in_float32():
    angles = jnp.array([0, np.pi / 2, np.pi, -np.pi / 2], jnp.float32)
    box = (jnp.array([2.0, 0.0, 0.0]), 0.4, 0.2)
    miss = np.inf
    for scanner, expected in (
        ([0.0, 0.0, 0.0], [1.8, miss, miss, miss]),
        ([2.0, -1.0, 0.0], [miss, 0.9, miss, miss]),
        ([2.0, 0.0, 0.0], [0.2, 0.1, 0.2, 0.1]),
    ):
        np.testing.assert_allclose(ray_box_distances(jnp.array(scanner), angles, *box), expected, rtol=1e-6)


def test_side_distances():
    with jax.enable_x64(True):
        few = np.asarray(side_distances(jnp.linspace(-2.35, 2.35, 54), 0.1651, 0.1125))
        many = np.asarray(side_distances(jnp.linspace(-2.35, 2.35, 108), 0.1651, 0.1125))
    recorded = [0.158122577, 0.165262427, 0.165262427, 0.112520116, 0.196917570]
    np.testing.assert_allclose([few[0], few[26], few[27], few.min(), few.max()], recorded, atol=6e-10)
    np.testing.assert_allclose(many[53:55], 0.165139827, atol=6e-10)
    axes = jnp.array([0, np.pi / 2, np.pi, -np.pi / 2], jnp.float32)
    np.testing.assert_allclose(side_distances(axes, 0.1651, 0.1125), [0.1651, 0.1125] * 2, rtol=1e-6)


def test_side_distance_is_the_ray_from_the_centre():
    angles = jnp.linspace(-3, 3, 41)
    rays = ray_box_distances(jnp.zeros(3), angles, jnp.zeros(3), 0.32, 0.225)
    np.testing.assert_allclose(side_distances(angles, 0.16, 0.1125), rays, rtol=1e-6)


def test_gradients_are_finite_where_rays_miss_or_run_parallel():
    angles = jnp.array([0.0, 0.3, np.pi / 2, 3.0])

    def total(pose):
        ranges = ray_box_distances(jnp.zeros(3), angles, pose, 0.32, 0.225)
        return jnp.where(jnp.isfinite(ranges), ranges, 0).sum()

    gradient = jax.jit(jax.grad(total))(jnp.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(gradient, [1, 0, 0], atol=1e-5)
