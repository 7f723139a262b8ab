"""Golden numbers of the kinematic bicycle models (docs/reference/f110.md 16.2)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physics.bicycle import (
    JerkState,
    Motion,
    step_classic_bicycle,
    step_jerk_bicycle,
    step_puffer_bicycle,
)

DT = 0.1


def close(found, expected):
    np.testing.assert_allclose(np.stack([np.asarray(x) for x in found]), expected, rtol=1e-5, atol=2e-5)


CLASSIC = [
    ([0, 0, 0, 10], 2.667, 0.167, 4.5, [1.0097547, 0.0851072, 0.0378254, 10.2667]),
    ([3, -2, 1.2, 8], -4, -0.5, 4.5, [3.4642111, -1.3731763, 1.1086540, 7.6]),
    ([0, 0, 3.1, 6], 1.333, 0.667, 4.0, [-0.5732465, -0.1985722, -3.0720671, 6.1333]),
    ([5, 5, -0.7, 0.2], -4, 0.333, 4.8, [5.0086344, 4.9949554, -0.6992900, 0]),
    ([0, 0, 0, 0], -4, 0, 4.5, [-0.02, 0, 0, -0.4]),
    ([0, 0, 0.5, -3], 4, -0.333, 4.5, [-0.2650047, -0.0904018, 0.5212066, -2.6]),
    ([0, 0, 0, 39.9], 4, 0, 4.5, [3.995, 0, 0, 40]),
    ([2, 1, -2, 15], 0, 1, 5.2, [2.3454942, -0.4596691, -1.6455409, 15]),
]


def test_one_step_of_the_classic_model():
    before, acceleration, steering, wheelbase, after = (
        np.array(c, np.float32) for c in zip(*CLASSIC, strict=True)
    )
    moved = jax.jit(step_classic_bicycle, static_argnums=4)(
        Motion(*before.T), acceleration, steering, wheelbase, DT
    )
    close(moved, after.T)


def test_ten_steps_of_the_classic_model_and_the_way_to_a_goal():
    motion = Motion(*np.float32([0, 0, 0, 5]))
    for _ in range(10):
        motion = step_classic_bicycle(motion, 1.333, 0.167, 4.5, DT)
    close(motion, [5.5656958, 1.0083073, 0.2115171, 6.333])
    motion = Motion(*np.zeros(4, np.float32))
    reached = []
    for _ in range(52):
        motion = step_classic_bicycle(motion, 1.333, 0.0, 4.5, DT)
        reached.append(20 - float(motion.x) < 2.0)
    assert reached.index(True) == 51 and float(motion.x) == pytest.approx(18.02216, rel=1e-5)


@pytest.mark.parametrize(
    "gain, first, second, braked",
    [
        (
            1.0,
            [1.0230426, 0.0862269, 0.0383232, 10.2304263, 0.8622686],
            [3.4522521, -1.3892070, 1.1109940, 4.5225211, 6.1079295],
            -0.4,
        ),
        (
            0.5,
            [1.0097547, 0.0851069, 0.0378254, 10.0975474, 0.8510689],
            [3.4641535, -1.3731335, 1.1086517, 4.6415348, 6.2686645],
            -0.2,
        ),
    ],
)
def test_puffer_steps_match_recorded_numbers(gain, first, second, braked):
    cases = [([0, 0, 0, 10], 2.667, 0.167, first), ([3, -2, 1.2, 8], -4.0, -0.5, second)]
    for (x, y, heading, speed), acceleration, steering, after in cases:
        velocity = speed * jnp.array([jnp.cos(heading), jnp.sin(heading)])
        motion, velocity = step_puffer_bicycle(
            Motion(x, y, heading, speed), velocity, acceleration, steering, 4.5, DT, gain
        )
        close([*motion[:3], *velocity], after)
    _, velocity = step_puffer_bicycle(Motion(0.0, 0.0, 0.0, 0.0), jnp.zeros(2), -4.0, 0.0, 4.5, DT, gain)
    close(velocity, [braked, 0.0])


JERK = [
    ([0, 0, 0, 10, 0, 0, 0], 4, 4, 2.7, [1.0009973, 0.0019960, 0.0039880, 10.02, 0.4, 0.4, 0.0107565]),
    (
        [0, 0, 0.5, 12, 1, -0.5, -0.01], -15, -4, 2.7,
        [1.0574317, 0.5725711, 0.4925466, 12.05, 0, -0.9, -0.0167337],
    ),
    ([1, 2, -1, 0.3, -0.2, 0, 0], -15, 0, 3.0, [1.0136426, 1.9787529, -1, 0.205, -1.7, 0, 0]),
    (
        [0, 0, 0, 15, 2.4, 3, 0.03], 4, 4, 2.7,
        [1.5121266, 0.0167272, 0.0221232, 15.245, 2.5, 3.4, 0.0394786],
    ),
    ([0, 0, 0, -1, -0.5, 0.1, 0.05], 4, -4, 2.7, [-0.1015, 0, 0, -1.03, -0.1, 0, 0]),
]  # fmt: skip


def test_one_step_of_the_jerk_model():
    before, along, across, wheelbase, after = (np.array(c, np.float32) for c in zip(*JERK, strict=True))
    motion, drive = jax.jit(step_jerk_bicycle, static_argnums=5)(
        Motion(*before.T[:4]), JerkState(*before.T[4:]), along, across, wheelbase, DT
    )
    close([*motion, *drive], after.T)


def test_ten_steps_of_the_jerk_model():
    motion, drive = Motion(*np.float32([0, 0, 0, 8])), JerkState(*np.zeros(3, np.float32))
    for step in range(10):
        along, across = (4.0 if step < 5 else -4.0), (4.0 if step < 3 else 0.0)
        motion, drive = step_jerk_bicycle(motion, drive, along, across, 2.7, DT)
    close([*motion, *drive], [8.4786980, 0.5053225, 0.1248891, 9, 0, 1.2, 0.0399787])
