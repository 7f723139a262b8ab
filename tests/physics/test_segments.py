"""Road segments: contact with boxes, lane matching and distances against golden numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from physics.segments import match_lane, segment_offsets, segments_between, segments_meet_box

SIZE = jnp.array([4.5, 2.0])


@pytest.mark.parametrize(
    "pose, start, end, meets",
    [
        ((0, 0, 0), (-5, 0.9), (5, 0.9), True),
        ((0, 0, 0), (-5, 1.1), (5, 1.1), False),
        ((0, 0, 0), (2, 0), (3, 0), True),
        ((0, 0, 0), (-0.5, 0), (0.5, 0.2), True),
        ((0, 0, 0.6), (0, 1.6), (3, 1.6), True),
        ((0, 0, 0.6), (0, 2.2), (0.5, 3), False),
        ((5, 5, 1.2), (4, 8), (8, 6), True),
        ((0, 0, 0), (2.25, 1.0), (2.25, 1.0), True),
        ((0, 0, 0), (2.3, 1.0), (2.3, 1.0), False),
    ],
)
def test_a_solid_box_meets_a_segment(pose, start, end, meets):
    segment = segments_between(jnp.float32(start), jnp.float32(end))
    x, y, heading = pose
    assert bool(segments_meet_box(segment, x, y, np.cos(heading), np.sin(heading), SIZE)) is meets


@pytest.mark.parametrize(
    "pose, start, end, distance, offset, degrees, found, aligned",
    [
        ((3, 1, 0.1), (0, 0), (10, 0), 1, 1, 5.730, True, True),
        ((3, -1.5, 0.4), (0, 0), (10, 0), 1.5, -1.5, 22.918, True, False),
        ((3, 0.8, 0.6), (0, 0), (10, 0), 0.8, 0.8, 34.377, True, False),
        ((12, 3, 0), (0, 0), (10, 0), 3.605551, 3, 0, True, True),
        ((0, 2, 3.1), (5, 2.5), (-5, 2), 0.249688, 0.249688, -5.245, True, True),
        ((0, 4.1, 0.0), (-5, 0), (5, 0), 4.1, 0, 0, False, False),
    ],
)
def test_the_lane_of_a_body(pose, start, end, distance, offset, degrees, found, aligned):
    segments = segments_between(jnp.float32([start, (100, 100)]), jnp.float32([end, (110, 100)]))
    x, y, heading = (jnp.float32(p) for p in pose)
    lane = match_lane(segments, jnp.ones(2, bool), x, y, jnp.cos(heading), jnp.sin(heading))
    assert (bool(lane.found), bool(lane.aligned), int(lane.index)) == (found, aligned, 0)
    np.testing.assert_allclose(lane.offset, offset, rtol=1e-5, atol=2e-5)
    if found:
        np.testing.assert_allclose(lane.distance, distance, rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(np.rad2deg(lane.angle), degrees, atol=1e-3)


def test_a_lane_of_the_own_direction_is_preferred_to_a_nearer_one_of_the_other():
    segments = segments_between(jnp.float32([(10, 1), (0, -3)]), jnp.float32([(0, 1), (10, -3)]))
    body = jnp.float32(5.0), jnp.float32(0.0), jnp.float32(1.0), jnp.float32(0.0)
    assert int(match_lane(segments, jnp.ones(2, bool), *body).index) == 1
    assert int(match_lane(segments, jnp.array([True, False]), *body).index) == 0
    assert not bool(match_lane(segments, jnp.zeros(2, bool), *body).found)


def test_distances_reach_beyond_the_ends():
    distance, left, along = segment_offsets(
        segments_between(jnp.float32([0, 0]), jnp.float32([2, 0])), 5.0, -4.0
    )
    np.testing.assert_allclose([distance, left, along], [np.hypot(3, 4), -4, 4], rtol=1e-6)
