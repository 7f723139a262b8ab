"""Car dynamics: steering delay, limits, closed forms, invariants and robustness."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physics.integrate import rk4
from physics.single_track import (
    advance_car,
    constrain_acceleration,
    constrain_steering_rate,
    f1tenth_car,
    f110_gains,
    gym_gains,
    kinematic_derivative,
    limo_car,
    push_command,
    single_track_derivative,
)

GRAVITY = 9.81
DT = 0.01


@functools.cache
def driver(integrator="rk4", gym=False):
    """Jitted `(state [..., 7], commands [T, ..., 2]) -> states [T, ..., 7]`."""
    car, gains = (f1tenth_car, gym_gains) if gym else (limo_car, f110_gains)

    @jax.jit
    def drive(state, commands):
        params = car(), gains()

        def step(state, command):
            state, _ = advance_car(state, command, *params, DT, integrator)
            return state, state

        return jax.lax.scan(step, state, commands)[1]

    return drive


derivative, rolling_derivative = jax.jit(single_track_derivative), jax.jit(kinematic_derivative)


@jax.jit
def moved(state, command, car, gains):
    return advance_car(state, command, car, gains, DT)


def random_states(rng, n, car=None):
    car = car or limo_car()
    high = np.array([5, 5, float(car.s_max), float(car.v_max), 3, 4, 0.5])
    low = np.array([-5, -5, float(car.s_min), float(car.v_min), -3, -4, -0.5])
    return rng.uniform(low, high, (n, 7))


def random_commands(rng, steps, n, hold=20, scale=(0.46, 1.0)):
    few = rng.uniform(-1, 1, (-(-steps // hold), n, 2)) * scale
    return np.repeat(few, hold, axis=0)[:steps]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_only_the_steering_is_delayed(depth):
    commands = jnp.arange(1.0, 13.0).reshape(6, 2)
    _, applied = jax.lax.scan(push_command, jnp.zeros((depth, 2)), commands)
    np.testing.assert_array_equal(applied[:, 1], commands[:, 1])
    np.testing.assert_array_equal(applied[:, 0], np.r_[np.zeros(depth), commands[: 6 - depth, 0]])


def test_delay_of_a_batch_is_the_delay_of_each():
    buffer = np.arange(24, dtype=np.float32).reshape(3, 2, 2, 2)
    command = -np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    one_by_one = jax.jit(jax.vmap(jax.vmap(push_command)))(buffer, command)
    for batch, single in zip(jax.jit(push_command)(buffer, command), one_by_one, strict=True):
        np.testing.assert_array_equal(batch, single)


@pytest.mark.parametrize(
    ("v", "a", "expected"),
    [(1, 20, 10), (10, 20, 5), (0, -1, 0), (-1, -1, 0), (-1, 1, 1), (20, 1, 0), (20, -1, -1), (5, -20, -10)],
)
def test_acceleration_limits(v, a, expected):
    car = f1tenth_car().replace(v_switch=5.0, a_max=10.0, v_min=0.0, v_max=20.0)
    found = jax.jit(constrain_acceleration)(np.float32(v), np.float32(a), car)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("delta", "rate", "expected"),
    [(0, 5, 3.2), (0, -5, -3.2), (0.4189, 1, 0), (0.4189, -1, -1), (-0.4189, -1, 0), (-0.5, 5, 3.2)],
)
def test_steering_rate_limits(delta, rate, expected):
    found = jax.jit(constrain_steering_rate)(np.float32(delta), np.float32(rate), f1tenth_car())
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_limits_hold_inside_every_stage():
    car, a = limo_car(), 1.0
    x = jnp.zeros(7).at[3].set(car.v_max - a * DT / 4)
    moved = rk4(lambda x, u: single_track_derivative(x, u, car), x, jnp.array([0.0, a]), DT)
    # Stages two and four stand beyond v_max and do not accelerate: 1/6 + 2/6 of the step remain.
    np.testing.assert_allclose(moved[3] - x[3], a * DT / 2, rtol=1e-3)


@pytest.mark.parametrize("integrator", ["rk4", "euler"])
@pytest.mark.parametrize("gym", [False, True])
def test_limits_are_never_violated(integrator, gym):
    rng = np.random.default_rng(0)
    car = f1tenth_car() if gym else limo_car()
    start = random_states(rng, 256, car).astype(np.float32)
    commands = random_commands(rng, 200, 256, hold=10, scale=(2.0, 40.0)).astype(np.float32)
    states = np.asarray(driver(integrator, gym)(start, commands))
    assert np.isfinite(states).all()
    _, _, delta, v, psi, psi_dot, beta = np.moveaxis(states, -1, 0)
    assert (delta >= car.s_min).all() and (delta <= car.s_max).all()
    assert (v >= car.v_min).all() and (v <= car.v_max).all()
    assert (psi >= np.float32(-np.pi)).all() and (psi < np.float32(np.pi)).all()
    assert (np.abs(psi_dot) <= 100).all() and (np.abs(beta) <= np.float32(np.pi / 2)).all()
    before = np.concatenate([start[None], states[:-1]])
    slack = 1e-5
    assert (np.abs(delta - before[..., 2]) <= car.sv_max * DT + slack).all()
    assert (v - before[..., 3] >= -car.a_max * DT - slack).all()
    upper = car.a_max * np.minimum(1, car.v_switch / np.maximum(before[..., 3], 1e-3))
    assert (v - before[..., 3] <= upper * DT + slack).all()


def test_switch_speed_and_every_reverse_speed_are_kinematic():
    car, u = limo_car(), np.float32([0.3, 0.5])
    turn_rate = jax.jit(partial(jax.jvp, lambda v, d: v / 0.3302 * jnp.tan(d)))
    for v in (-1.0, -0.7, -0.5, -0.2, 0.0, 0.3, 0.4999):
        x = np.float32([0.4, -0.2, 0.2, v, 0.7, 0.6, 0.1])
        dx = np.asarray(derivative(x, u, car))
        np.testing.assert_allclose(dx[:5], rolling_derivative(x[:5], u, car), rtol=1e-6)
        # The yaw rate follows v/L tan(delta) by the chain rule.
        _, slope = turn_rate((x[3], x[2]), (dx[3], dx[2]))
        np.testing.assert_allclose(dx[5:], [slope, 0], rtol=1e-5, atol=1e-7)
    x = np.float32([0.4, -0.2, 0.2, 0.5, 0.7, 0.6, 0.1])
    np.testing.assert_allclose(np.asarray(derivative(x, u, car))[4], 0.6)
    rolling = np.asarray(derivative(x, u, car, switch=np.float32(np.inf)))
    np.testing.assert_allclose(rolling[:5], rolling_derivative(x[:5], u, car), rtol=1e-6)


def test_steady_cornering_has_the_closed_form_of_a_linear_bicycle():
    with jax.enable_x64(True):
        car = jax.device_get(f1tenth_car())
        for v, delta in ((0.8, 0.1), (2.5, -0.05), (6.0, 0.03)):
            understeer = (1 / car.C_Sf - 1 / car.C_Sr) / (car.mu * GRAVITY)
            yaw_rate = v * delta / (car.lf + car.lr + understeer * v**2)
            beta = car.lr * yaw_rate / v - v * yaw_rate / (car.mu * GRAVITY * car.C_Sr)
            x = np.array([0, 0, delta, v, 0.3, yaw_rate, beta])
            np.testing.assert_allclose(np.asarray(derivative(x, np.zeros(2), car))[5:], 0, atol=1e-11)


def test_models_agree_at_tiny_steering():
    with jax.enable_x64(True):
        car, gains, command = limo_car(), f110_gains(), jnp.array([2e-3, 0.9])

        @jax.jit
        def after(switch):
            def step(state, _):
                return advance_car(state, command, car, gains, DT, switch=switch)[0], None

            return jax.lax.scan(step, np.zeros(7), length=200)[0]

        slipping, rolling = (np.asarray(after(switch)) for switch in (0.5, np.inf))
    assert rolling[0] > 1.4 and rolling[4] > 5e-3
    np.testing.assert_allclose(slipping[[0, 2, 3]], rolling[[0, 2, 3]], rtol=1e-4)
    np.testing.assert_allclose(slipping[[4, 5]], rolling[[4, 5]], rtol=0.02)
    # The kinematic path is that of the rear axle, the other one that of the centre of gravity.
    np.testing.assert_allclose(slipping[1], rolling[1], atol=2e-3)


@pytest.mark.parametrize(("integrator", "gym"), [("rk4", False), ("euler", False), ("rk4", True)])
def test_reversing_does_not_spin(integrator, gym):
    rng = np.random.default_rng(1)
    n, steps = 256, 500
    car = f1tenth_car() if gym else limo_car()
    speed = -rng.uniform(0.1, -car.v_min, n)
    # Targets beyond the stops: the steering runs into them again and again.
    commands = random_commands(rng, steps, n, hold=25, scale=(1.2 * car.s_max, 0))
    commands[..., 1] = speed
    start = np.zeros((n, 7))
    start[n // 2 :, 3] = speed[n // 2 :]
    states = np.asarray(driver(integrator, gym)(start.astype(np.float32), commands.astype(np.float32)))
    assert np.isfinite(states).all()
    _, _, delta, v, psi, psi_dot, beta = np.moveaxis(states, -1, 0)
    rolling = v / 0.3302 * np.tan(delta)
    assert (np.abs(rolling).max(0) > 0.05).all()
    np.testing.assert_allclose(psi_dot, rolling, atol=0.06 if gym else 0.03)
    turned = np.diff(np.unwrap(psi, axis=0), axis=0) / DT
    between = np.sort([rolling[1:], rolling[:-1]], axis=0)
    # Bang-bang steering runs past its stop within a step, by up to 0.03 rad at up to 15 rad/s per radian.
    slack = 0.6 if gym else 0.03
    assert (turned > between[0] - slack).all() and (turned < between[1] + slack).all()
    np.testing.assert_array_equal(beta, 0)
    np.testing.assert_allclose(v[-1], speed, atol=2e-3)


def test_reversing_out_of_a_drift_recovers():
    rng = np.random.default_rng(2)
    start = random_states(rng, 128)
    start[:, 3] = rng.uniform(0.5, 1.0, 128)
    commands = np.zeros((600, 128, 2))
    commands[:300, :, 0], commands[:300, :, 1] = rng.uniform(-0.46, 0.46, 128), -0.9
    commands[300:, :, 1] = 0.9
    states = np.asarray(driver()(start.astype(np.float32), commands.astype(np.float32)))
    delta, v, psi = states[..., 2], states[..., 3], states[..., 4]
    turned = np.diff(np.unwrap(psi, axis=0), axis=0)[150:299] / DT
    np.testing.assert_allclose(turned, (v / 0.3302 * np.tan(delta))[150:299], atol=0.03)
    # Driving straight on afterwards leaves neither slip nor yaw rate.
    np.testing.assert_allclose(states[-1][:, 5:], 0, atol=2e-2)


@pytest.mark.parametrize(("integrator", "order"), [("rk4", 4), ("euler", 1)])
def test_order_of_convergence_of_a_slipping_car(integrator, order):
    with jax.enable_x64(True):
        car, gains, command = f1tenth_car(), f110_gains(), jnp.array([0.2, 3.2])

        @functools.partial(jax.jit, static_argnames="integrator")
        def after(steps, integrator):
            def step(_, state):
                # Control is sampled once per step, so it must not change for the integrator's order to show.
                return advance_car(state, command, car, gains, 0.32 / steps, integrator)[0]

            return jax.lax.fori_loop(0, steps, step, np.array([0, 0, 0.2, 3.2, 0, 0.5, 0.05]))

        exact = after(2560, "rk4")
        errors = [np.abs(after(steps, integrator) - exact).max() for steps in (80, 160, 320)]
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), order, atol=0.15)


@pytest.mark.parametrize("gym", [False, True])
def test_mirrored_steering_mirrors_the_path(gym):
    rng = np.random.default_rng(3)
    start = random_states(rng, 64)
    commands = random_commands(rng, 150, 64)
    flip = np.array([1, -1, -1, 1, -1, -1, -1])
    with jax.enable_x64(True):
        one = np.asarray(driver(gym=gym)(start, commands))
        other = np.asarray(driver(gym=gym)(start * flip, commands * [-1, 1])) * flip
    turn = np.abs(one - other)[..., 4]
    np.testing.assert_allclose(np.minimum(turn, 2 * np.pi - turn), 0, atol=1e-9)
    np.testing.assert_allclose(np.delete(one, 4, -1), np.delete(other, 4, -1), atol=1e-9)


def test_left_is_left():
    states = np.asarray(driver()(jnp.zeros(7), jnp.tile(jnp.array([0.3, 0.8]), (150, 1))))
    assert states[-1, 1] > 0.1 and states[-1, 4] > 0.3 and states[-1, 5] > 0.5


def test_float32_stays_close_to_float64():
    rng = np.random.default_rng(4)
    start = random_states(rng, 64).astype(np.float32)
    commands = random_commands(rng, 300, 64).astype(np.float32)
    single = np.asarray(driver()(start, commands))
    with jax.enable_x64(True):
        double = np.asarray(driver()(start.astype(float), commands.astype(float)))
    assert single.dtype == np.float32 and double.dtype == np.float64
    error = np.abs(single - double)
    error[..., 4] = np.minimum(error[..., 4], 2 * np.pi - error[..., 4])
    assert np.quantile(error.max((0, 2)), 0.9) < 1e-4
    assert error.max() < 0.02


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_input_is_reverted_and_flagged(bad):
    good = np.array([0.3, -0.2, 0.1, 0.7, 0.4, 0.3, 0.05], np.float32)
    states, commands = np.tile(good, (10, 1)), np.tile(np.float32([0.2, 0.9]), (10, 1))
    commands[1, 0] = commands[2, 1] = bad
    for i in range(7):
        states[3 + i, i] = bad
    after, reverted = jax.device_get(moved(states, commands, limo_car(), f110_gains()))
    np.testing.assert_array_equal(reverted, np.arange(10) > 0)
    np.testing.assert_array_equal(after[1:], states[1:])
    alone, _ = moved(good, commands[0], limo_car(), f110_gains())
    np.testing.assert_allclose(after[0], alone, rtol=1e-6)


@pytest.mark.parametrize("integrator", ["rk4", "euler"])
def test_gradients_are_finite_and_right(integrator):
    with jax.enable_x64(True):
        car, gains, weights = limo_car(), f110_gains(), jnp.arange(1.0, 8.0)

        @jax.jit
        def outcome(state, command, car, gains):
            def step(state, _):
                return advance_car(state, command, car, gains, DT, integrator)[0], None

            return weights @ jax.lax.scan(step, state, length=5)[0]

        slopes = jax.jit(jax.grad(outcome, argnums=(0, 1, 2, 3)))
        for v in (-1.0, -0.5, 0.0, 1e-8, 0.3, 0.5, 0.9, 1.0):
            for steer in (0.0, 0.46):
                gradient = slopes(v * np.eye(7)[3], np.array([steer, 0.0]), car, gains)
                assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
        bad = slopes(np.zeros(7), np.array([np.nan, 0.5]), car, gains)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(bad))

        x, command = np.array([0.1, 0.2, 0.1, 0.8, 0.3, 0.2, 0.02]), np.array([0.2, 0.9])
        found = np.asarray(slopes(x, command, car, gains)[0])
        steps = 1e-6 * np.eye(7)
        expected = [
            (outcome(x + h, command, car, gains) - outcome(x - h, command, car, gains)) / 2e-6 for h in steps
        ]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_every_car_may_have_its_own_parameters():
    rng = np.random.default_rng(5)
    states = random_states(rng, 4).astype(np.float32)
    commands = rng.uniform(-1, 1, (4, 2)).astype(np.float32)
    pairs = (limo_car(), f1tenth_car()), (f110_gains(), gym_gains())
    cars, gains = (jax.tree.map(lambda *leaves: np.stack(leaves * 2), *pair) for pair in pairs)
    mapped, _ = jax.device_get(jax.jit(jax.vmap(moved))(states, commands, cars, gains))
    broadcast, _ = moved(states, commands, cars, gains)
    np.testing.assert_allclose(mapped, broadcast, rtol=1e-6, atol=1e-6)
    for i, (car, gain) in enumerate(zip(*pairs, strict=True)):
        alone, _ = moved(states[i], commands[i], car, gain)
        np.testing.assert_allclose(mapped[i], alone, rtol=1e-6, atol=1e-6)


def test_car_without_reverse_gear_stands_still_on_command():
    car = limo_car().replace(v_min=jnp.zeros(()))

    @jax.jit
    def stop(states):
        def step(states, _):
            return advance_car(states, jnp.zeros((2, 2)), car, f110_gains(), DT)

        return jax.lax.scan(step, states, length=100)

    states, reverted = stop(jnp.zeros((2, 7)).at[1, 3].set(0.6))
    assert not reverted.any()
    np.testing.assert_allclose(states[:, 3], 0, atol=1e-3)


def test_unknown_integrator_is_named():
    with pytest.raises(ValueError, match="integrator=rk5.*euler.*rk4"):
        advance_car(jnp.zeros(7), jnp.zeros(2), limo_car(), f110_gains(), DT, "rk5")


def test_a_step_is_plain_arithmetic():
    step = jax.vmap(lambda state, command: advance_car(state, command, limo_car(), f110_gains(), DT))
    text = str(jax.make_jaxpr(step)(jnp.zeros((4, 7)), jnp.zeros((4, 2))))
    assert not any(name in text for name in ("gather", "scatter", "dot_general", "cond["))


def test_yaw_wraps_to_a_half_open_interval():
    psi = np.float32([np.pi, -np.pi, 3.5, -3.5, 40.0, np.nextafter(np.float32(-np.pi), np.float32(-4)), 1.25])
    state = np.zeros((7, 7), np.float32)
    state[:, 4] = psi
    command = np.zeros((7, 2), np.float32)
    wrapped = np.asarray(moved(state, command, limo_car(), f110_gains())[0])[:, 4]
    assert (wrapped >= np.float32(-np.pi)).all() and (wrapped < np.float32(np.pi)).all()
    np.testing.assert_allclose(np.cos(wrapped), np.cos(psi), atol=1e-5)
    np.testing.assert_allclose(np.sin(wrapped), np.sin(psi), atol=1e-5)
    assert wrapped[-1] == 1.25
