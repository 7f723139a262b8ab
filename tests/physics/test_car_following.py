"""The intelligent driver model against golden numbers, in NumPy and in JAX."""

import jax.numpy as jnp
import numpy as np
import pytest

from physics.car_following import idm_acceleration

# v, v0, gap, speed of the leader -> acceleration
GOLDEN = np.array(
    [
        [0, 10, np.inf, 0, 1],
        [5, 10, np.inf, 0, 0.9375],
        [10, 10, np.inf, 0, 0],
        [12, 10, np.inf, 0, -1.0736],
        [8, 10, 20, 8, 0.1679],
        [8, 10, 20, 4, -0.645878],
        [8, 10, 40, 12, 0.581553],
        [3, 10, 5, 3, -0.2181],
        [0, 10, 1, 0, 0],
        [10, 10, 15, 0, -6],
    ]
)


@pytest.mark.parametrize("xp", [np, jnp])
def test_golden_accelerations(xp):
    given = idm_acceleration(xp, *(xp.asarray(column) for column in GOLDEN[:, :4].T))
    np.testing.assert_allclose(given, GOLDEN[:, 4], rtol=1e-5, atol=2e-6)


def test_a_gap_below_the_standing_distance_brakes_no_harder_than_that_distance():
    assert idm_acceleration(np, 1.0, 10.0, 0.2, 0.0) == idm_acceleration(np, 1.0, 10.0, 1.0, 0.0)
