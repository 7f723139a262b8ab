"""Look-up tables of segments equal brute force over all segments."""

import numpy as np
import pytest

from physics.polylines import segment_distance
from physics.segment_tables import (
    grid_over,
    list_nearest_candidates,
    list_nearest_segments,
    list_segments_in_reach,
)


@pytest.fixture(scope="module")
def segments():
    rng = np.random.default_rng(3)
    start = rng.uniform(-60, 60, (300, 2))
    return np.concatenate([start, start + rng.uniform(-7, 7, (300, 2))], axis=1)


@pytest.mark.parametrize("reach", [0.0, 2.5, 4.0])
def test_near_lists_miss_no_segment_of_any_point(segments, reach):
    grid = grid_over(segments, 5.0)
    table = list_segments_in_reach(grid, segments, reach)
    points = np.random.default_rng(4).uniform(-90, 90, (4000, 2))
    apart = segment_distance(points[:, None], segments)
    cell = ((points - grid.origin) // 5).astype(int)
    column, row = np.clip(cell, 0, [grid.columns - 1, grid.rows - 1]).T
    for point, listed in enumerate(table[row, column]):
        assert set(np.flatnonzero(apart[point] <= reach)) <= set(listed.tolist())


def test_near_lists_hold_nothing_that_is_farther_than_the_reach(segments):
    grid = grid_over(segments, 5.0)
    table = list_segments_in_reach(grid, segments, 3.0)
    inside = np.stack(np.meshgrid(*[np.linspace(-2.5, 2.5, 21)] * 2), -1).reshape(-1, 2)
    for (row, column), centre in zip(np.ndindex(table.shape[:2]), grid.centres().reshape(-1, 2), strict=True):
        listed = table[row, column]
        listed = listed[listed >= 0]
        apart = segment_distance((centre + inside)[:, None], segments[listed]).min(
            0, initial=0.0 if not len(listed) else 99
        )
        assert (apart <= 3.0 + 0.18).all()  # the points inside the square are 0.25 m apart
        assert (np.diff(listed) > 0).all()


def test_nearest_lists_are_sorted_and_complete(segments):
    grid = grid_over(segments, 10.0)
    table = list_nearest_segments(grid, segments, 8, 20.0)
    for listed, centre in zip(table.reshape(-1, 8), grid.centres().reshape(-1, 2), strict=True):
        apart = segment_distance(centre, segments)
        expected = [one for one in np.argsort(apart, kind="stable")[:8] if apart[one] <= 20.0]
        assert listed[listed >= 0].tolist() == expected


@pytest.mark.parametrize("reach", [0.0, 3.5])
def test_candidates_hold_the_nearest_segment_of_any_point(segments, reach):
    # Few segments on one side, so that most squares are far from all of them.
    few = segments[segments[:, 0] < -20][:40]
    grid = grid_over(np.concatenate([few, [[60.0, 60.0, 60.0, 60.0]]]), 5.0)
    table = list_nearest_candidates(grid, few, reach)
    rng = np.random.default_rng(5)
    square = rng.integers(0, [grid.columns, grid.rows], (4000, 2))
    angle = rng.uniform(0, 2 * np.pi, 4000)
    away = reach * rng.uniform(0, 1, (4000, 1)) * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    points = grid.origin + 5.0 * (square + rng.uniform(0, 1, (4000, 2))) + away
    nearest = segment_distance(points[:, None], few).argmin(1)
    listed = table[square[:, 1], square[:, 0]]
    assert (listed == nearest[:, None]).any(1).all()
    assert (listed >= 0).sum(1).mean() < len(few) / 2


def test_no_segments_make_empty_lists():
    grid = grid_over(np.zeros((0, 4)), 5.0)
    assert list_nearest_candidates(grid, np.zeros((0, 4)), 4.0).tolist() == [[[-1]]]
    assert list_segments_in_reach(grid, np.zeros((0, 4)), 4.0).tolist() == [[[-1]]]
    assert list_nearest_segments(grid, np.zeros((0, 4)), 2, 60.0).tolist() == [[[-1, -1]]]
