"""Car dynamics against recorded numbers of the F1TENTH gym's own tests and of the F110 task."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physics.integrate import rk4
from physics.single_track import (
    CarParams,
    advance_car,
    f1tenth_car,
    f110_gains,
    gym_gains,
    kinematic_derivative,
    limo_car,
    low_level_control,
    push_command,
    single_track_derivative,
)

GRAVITY = 9.81
DT = 0.01
BMW = dict(
    mu=1.0489, C_Sf=21.92 / 1.0489, C_Sr=21.92 / 1.0489, lf=0.3048 * 3.793293, lr=0.3048 * 4.667707,
    h=0.3048 * 2.01355, m=4.4482216152605 / 0.3048 * 74.91452, I=4.4482216152605 * 0.3048 * 1321.416,
    s_min=-1.066, s_max=1.066, sv_min=-0.4, sv_max=0.4, v_switch=7.319, a_max=11.5, v_min=-13.6, v_max=50.8,
    width=1.61, length=4.508,
)  # fmt: skip


def test_kinematic_derivative_of_a_road_car():
    x = [3.9579422297936526, 0.0391650102771405, 0.0378491427211811, 16.3546957860883566, 0.0294717351052816]
    expected = [16.3475935934250209, 0.4819314886013121, 0.15, 5.1464424102339752, 0.2401426578627629]
    with jax.enable_x64(True):
        found = kinematic_derivative(jnp.array(x), jnp.array([0.15, 0.63 * GRAVITY]), CarParams(**BMW))
        np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_single_track_derivative_of_a_road_car():
    x = [
        2.0233348142065677, 0.0041907137716636, 0.0197545248559617, 15.7216236334290116,
        0.0025857914776859, 0.0529001056654038, 0.0033012170610298,
    ]  # fmt: skip
    expected = [
        15.7213512030862397, 0.0925527979719355, 0.15, 5.3536773276413925,
        0.0529001056654038, 0.6435589397748606, 0.0313297971641291,
    ]  # fmt: skip
    with jax.enable_x64(True):
        found = single_track_derivative(jnp.array(x), jnp.array([0.15, 0.63 * GRAVITY]), CarParams(**BMW))
        np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("car", "x", "u", "expected"),
    [
        (
            (f1tenth_car, limo_car), [0, 0, 0.1, 0.3, 0.2, 0.1, 0.05], [0.5, 1],
            [0.29401997335237245, 0.05960079923851836, 0.5, 1, 0.09115809093166313, 0.7627036009958351, 0],
        ),
        (
            (f1tenth_car,), [1, 2, 0.2, 3, 0.3, 0.5, 0.02], [1, 2],
            [2.8477062542473224, 0.9436996818483533, 1, 2, 0.5, 41.026931954573314, 0.7610699254993025],
        ),
        (
            (limo_car,), [1, 2, 0.2, 3, 0.3, 0.5, 0.02], [1, 2],
            [2.8477062542473224, 0.9436996818483533, 1, 0, 0.5, 45.617501353281526, 0.8672603612842769],
        ),
        (
            (f1tenth_car, limo_car), [0, 0, 0.05, 0.8, -0.4, 0.2, -0.01], [-0.5, 0.7],
            [0.7336966582532841, -0.3188874623875384, -0.5, 0.7, 0.2, -13.809952746877556,
             2.2631951823417804],
        ),
        (
            (f1tenth_car,), [0, 0, 0.46, 0.9, 0, 0, 0], [1, 3],
            [0.9, 0, 0, 3, 0, 126.81868217030967, 11.183060440186939],
        ),
        (
            (limo_car,), [0, 0, 0.46, 0.9, 0, 0, 0], [1, 3],
            [0.9, 0, 0, 1.777777777777778, 0, 134.67528383297798, 11.875867286500807],
        ),
    ],
)  # fmt: skip
def test_single_track_derivative_of_small_cars(car, x, u, expected):
    with jax.enable_x64(True):
        for make in car:
            found = single_track_derivative(jnp.array(x, float), jnp.array(u, float), make())
            np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("model", [kinematic_derivative, single_track_derivative])
def test_rollouts_of_a_road_car(model):
    inputs = [[0, 0], [0, -0.7 * GRAVITY], [0.15, 0.63 * GRAVITY], [0.15, 0]]
    expected = np.array([
        [0, 0, 0, 0, 0, 0, 0],
        [-3.4335, 0, 0, -6.867, 0, 0, 0],
        [3.0731976046859715, 0.2869835398304389, 0.15, 6.1803, 0.1097747074946325, 0.3248268063223301,
         0.0697547542798040],
        [0, 0, 0.15, 0, 0, 0, 0],
    ])  # fmt: skip
    if model is kinematic_derivative:
        expected = expected[:, :5]
        expected[2] = [3.0845676868494927, 0.1484249221523042, 0.15, 6.1803, 0.1203664469224163]
    with jax.enable_x64(True):
        car, u = CarParams(**BMW), jnp.array(inputs)

        def step(x, _):
            return rk4(lambda x, u: model(x, u, car), x, u, 1e-3), None

        x, _ = jax.lax.scan(step, jnp.zeros(expected.shape), length=1000)
    np.testing.assert_allclose(x, expected, atol=1e-2)
    np.testing.assert_allclose(x[1], expected[1], atol=1e-10)
    np.testing.assert_array_equal(x[0], 0)
    np.testing.assert_array_equal(np.delete(x[3], 2), 0)


@pytest.mark.parametrize(
    ("v_cmd", "steer_cmd", "v", "delta", "accel", "rate"),
    [
        (0.8, 0.2, 0, 0, 4, 0.4),
        (0.8, 0.2, 0.44, 0.1, 5.4, 0.2),
        (0.2, -0.3, 0.7, 0.4, -6, -1.4),
        (-1, 0, 0.5, 0, -18, 0),
        (1, 0.46, -0.2, 0.46, 6, 0),
        (-1, 0, -0.2, 5e-5, -4, 0),
    ],
)
def test_f110_control(v_cmd, steer_cmd, v, delta, accel, rate):
    with jax.enable_x64(True):
        u = low_level_control(*map(jnp.asarray, (steer_cmd, v_cmd, delta, v)), limo_car(), f110_gains())
        np.testing.assert_allclose(u, [rate, accel], rtol=1e-13, atol=1e-13)


def test_gym_control():
    command = jnp.array([[0.3, 8.0], [-0.3, 2.0], [5e-5, 1.0], [0.2, -3.0]])
    delta, v = jnp.array([0.1, 0.1, 0.0, 0.0]), jnp.array([4.0, 4.0, 0.0, -1.0])
    u = low_level_control(*command.T, delta, v, f1tenth_car(), gym_gains())
    accel = [10 * 9.51 / 20 * 4, 10 * 9.51 / 5 * -2, 2 * 9.51 / 20 * 1, 2 * 9.51 / 5 * -2]
    np.testing.assert_allclose(u, [[3.2, -3.2, 0, 3.2], accel], rtol=1e-6)


def test_closed_loop_with_one_step_of_steering_delay():
    recorded = {
        1: [-46.7689, -0.7, 0, 0.02, 0, 0, 0],
        2: [-46.7686, -0.699999999788, 0.004000000060, 0.04, 2.0189843e-6, 4.8455741e-4, 0],
        10: [-46.75900000051, -0.69999748567, 0.03325044807, 0.2, 6.4938028e-4, 0.02014700624, 0],
        50: [-46.53291113400, -0.68515542150, 0.12567965900, 0.79108986965, 0.06371079394, 0.29596278007,
            0.05958788276],
        100: [-46.14412434784, -0.59664354048, 0.17293478709, 0.79999736469, 0.24712111709, 0.41563471923,
            0.08295549693],
        200: [-45.36329751341, -0.45615393892, -0.23592634809, 0.8, 0.03191987907, -0.56593400854,
            -0.11275365133],
        300: [-44.80642022056, -0.54890178856, -0.03210040400, 0.01602537059, -0.18887965071, -0.00419604946,
            -0.03350460096],
    }  # fmt: skip
    time = np.arange(1, 301)
    # The recording kept its steering commands in float32.
    steer = np.where(time <= 100, 0.2, np.where(time <= 200, -0.3, 0)).astype(np.float32).astype(float)
    commands = np.stack([steer, np.where(time <= 250, 0.8, 0)], -1)
    with jax.enable_x64(True):
        car, gains = limo_car(), f110_gains()

        def step(carry, command):
            state, buffer = carry
            buffer, command = push_command(buffer, command)
            state, _ = advance_car(state, command, car, gains, DT)
            return (state, buffer), state

        start = jnp.array([-46.769, -0.7, 0, 0, 0, 0, 0]), jnp.zeros((1, 2))
        states = np.asarray(jax.lax.scan(step, start, jnp.asarray(commands))[1])
    for t, expected in recorded.items():
        np.testing.assert_allclose(states[t - 1], expected, rtol=1e-10, atol=1e-10)
