"""Polylines: thinning against golden indices, cutting, resampling, signs of distances."""

import numpy as np
import pytest

from physics import polylines


def _circle(radius, angles):
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


_I = np.arange(12.0)
THINNED = {
    "line": (np.stack([_I, 0 * _I], 1), [0, 11]),
    "bend": (np.stack([_I, np.maximum(0, _I - 5)], 1), [0, 5, 11]),
    "circle of 20 m": (_circle(20, 0.05 * np.arange(21)), list(range(0, 21, 2))),
    "circle of 10 m": (_circle(10, np.pi / 22 * _I), list(range(12))),
    "zigzag": (np.stack([_I[:11], 0.3 * (_I[:11] % 2)], 1), list(range(11))),
    "ten points": (np.stack([_I[:10], 0 * _I[:10]], 1), list(range(10))),
}


@pytest.mark.parametrize("name", THINNED)
def test_thinning_keeps_golden_indices(name):
    points, kept = THINNED[name]
    assert polylines.thin_polyline(points).tolist() == kept


def test_cut_makes_equal_pieces_and_drops_points_that_repeat():
    points = np.array([[0.0, 0], [25, 0], [25, 0], [25, 10]])
    segments = polylines.cut_polyline(points, 10.0)
    np.testing.assert_allclose(
        segments,
        [[0, 0, 25 / 3, 0], [25 / 3, 0, 50 / 3, 0], [50 / 3, 0, 25, 0], [25, 0, 25, 10]],
    )


def test_resampled_points_are_equally_far_apart():
    points = polylines.resample_polyline(np.array([[0.0, 0], [3, 0], [3, 4]]), 2.0)
    np.testing.assert_allclose(points, [[0, 0], [1.75, 0], [3, 0.5], [3, 2.25], [3, 4]])
    np.testing.assert_allclose(polylines.arc_lengths(np.array([[0.0, 0], [3, 0], [3, 4]])), [0, 3, 7])


def test_left_is_positive():
    line = np.array([[0.0, 0, 10, 0]])
    points = np.array([[3.0, 2], [3, -2], [13, 4], [-3, -4]])
    np.testing.assert_allclose(polylines.signed_segment_distance(points, line), [2, -2, 5, -5])
    np.testing.assert_allclose(polylines.offset_polyline(line.reshape(2, 2), 1.5), [[0, 1.5], [10, 1.5]])


def test_headings_do_not_jump_at_pi():
    points = _circle(10, np.linspace(0, 2 * np.pi, 50))
    assert np.abs(np.diff(polylines.point_headings(points))).max() < 0.2


def test_a_segment_without_length_is_a_point():
    assert polylines.segment_distance(np.array([3.0, 4]), np.zeros(4)) == 5
