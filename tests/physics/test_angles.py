import jax.numpy as jnp
import numpy as np
import pytest

from physics import angles

WAYS = [
    angles.wrap_angle,
    angles.wrap_angle_below_pi,
    angles.wrap_angle_by_rounding,
    angles.wrap_angle_by_remainder,
]


@pytest.mark.parametrize("wrap", WAYS)
def test_angles_keep_their_direction_within_the_range(wrap):
    angle = np.linspace(-20.0, 20.0, 4001, dtype=np.float32)
    wrapped = np.asarray(wrap(jnp.asarray(angle)))
    assert np.abs(wrapped).max() <= np.float32(np.pi) + 1e-6
    np.testing.assert_allclose(np.cos(wrapped), np.cos(angle), atol=5e-6)
    np.testing.assert_allclose(np.sin(wrapped), np.sin(angle), atol=5e-6)


def test_intervals_are_half_open():
    for wrap in (angles.wrap_angle, angles.wrap_angle_below_pi):
        assert float(wrap(jnp.float32(np.pi))) < 0
    below = angles.wrap_angle_below_pi(jnp.float32([3 * np.pi, -np.pi, np.nextafter(np.float32(np.pi), 9)]))
    assert (np.asarray(below) < np.float32(np.pi)).all()
    assert angles.wrap_angle_by_remainder(np.pi) == -np.pi


def test_rounding_returns_angles_within_the_range_exactly():
    angle = jnp.linspace(-3.14, 3.14, 1001)
    np.testing.assert_array_equal(angles.wrap_angle_by_rounding(angle), angle)


def test_the_remainder_stays_on_the_host():
    assert type(angles.wrap_angle_by_remainder(np.arange(3.0))) is np.ndarray
    assert isinstance(angles.wrap_angle_by_remainder(7.0), float)
