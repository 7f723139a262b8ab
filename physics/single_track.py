"""F1TENTH car: kinematic and single-track dynamics, actuator limits and low-level control.

A car's state is `[..., 7] = [x, y, delta, v, psi, psi_dot, beta]`: position (m), steering angle (rad), speed
along the body (m/s), yaw (rad), yaw rate (rad/s) and slip angle at the centre of gravity (rad). The model's
input is `[..., 2] = [delta_dot, a]` (rad/s, m/s^2); a driver's command is `[..., 2] = [steering angle,
speed]` (rad, m/s).

The equations are those of Althoff, Koschi, Manzinger, "CommonRoad: Composable benchmarks for motion planning
on roads" (IV 2017), vehicle models KS and ST, with the F1TENTH parameters. Formulas and constants:
docs/reference/f110.md 2.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from physics.angles import wrap_angle_below_pi
from physics.host_arrays import put_array
from physics.integrate import euler, rk4

GRAVITY = 9.81
STEERING_DEADBAND = 1e-4
MAX_YAW_RATE = 100.0
MAX_SLIP = math.pi / 2
INTEGRATORS = {"euler": euler, "rk4": rk4}


class CarParams(struct.PyTreeNode):
    """Physical parameters of a car; every leaf broadcasts against the leading axes of the state.

    Attributes:
      mu: friction coefficient.
      C_Sf, C_Sr: cornering stiffness of the front and rear axle, 1/rad.
      lf, lr: distance from the centre of gravity to the front and rear axle, m.
      h: height of the centre of gravity, m.
      m: mass, kg.
      I: yaw moment of inertia, kg m^2.
      s_min, s_max: limits of the steering angle, rad.
      sv_min, sv_max: limits of the steering rate, rad/s.
      v_switch: speed above which the motor's power limits the acceleration, m/s, positive.
      a_max: largest acceleration and braking, m/s^2.
      v_min, v_max: limits of the speed, m/s, v_min <= 0 < v_max.
      width, length: size of the body, m.
    """

    mu: jax.Array
    C_Sf: jax.Array
    C_Sr: jax.Array
    lf: jax.Array
    lr: jax.Array
    h: jax.Array
    m: jax.Array
    I: jax.Array  # noqa: E741
    s_min: jax.Array
    s_max: jax.Array
    sv_min: jax.Array
    sv_max: jax.Array
    v_switch: jax.Array
    a_max: jax.Array
    v_min: jax.Array
    v_max: jax.Array
    width: jax.Array
    length: jax.Array


class ControlGains(struct.PyTreeNode):
    """Dimensionless gains of the low-level controller.

    Speed gains multiply a_max/v_max to speed up and a_max/(-v_min) to slow down (a_max/v_max for both if the
    car has no reverse gear, v_min = 0).

    Attributes:
      steer_gain: steering rate per radian of error, 1/s; 0 steers at full rate (bang-bang).
      kp_forward_accel, kp_forward_brake: speed gains while v > 0.
      kp_reverse_accel, kp_reverse_brake: speed gains while v <= 0.
    """

    steer_gain: jax.Array
    kp_forward_accel: jax.Array
    kp_forward_brake: jax.Array
    kp_reverse_accel: jax.Array
    kp_reverse_brake: jax.Array


class _State(NamedTuple):
    """State of cars as separate arrays; stacked only at the interface, so that XLA fuses whole steps."""

    x: jax.Array
    y: jax.Array
    delta: jax.Array
    v: jax.Array
    psi: jax.Array
    psi_dot: jax.Array
    beta: jax.Array


def _car(**changes: float) -> CarParams:
    values = dict(
        mu=1.0489, C_Sf=4.718, C_Sr=5.4562, lf=0.15875, lr=0.17145, h=0.074, m=3.74, I=0.04712,
        s_min=-0.4189, s_max=0.4189, sv_min=-3.2, sv_max=3.2, v_switch=7.319, a_max=9.51,
        v_min=-5.0, v_max=20.0, width=0.31, length=0.58,
    )  # fmt: skip
    return CarParams(**{name: put_array(value, float) for name, value in (values | changes).items()})


def f1tenth_car() -> CarParams:
    """Returns the 1:10 racing car of the F1TENTH simulators (up to 20 m/s)."""
    return _car()


def limo_car() -> CarParams:
    """Returns the small robot of the F110 gaplock task: 0.32 m x 0.225 m, 1 m/s either way, 2 m/s^2."""
    return _car(
        s_min=-0.46, s_max=0.46, v_switch=0.8, a_max=2.0, v_min=-1.0, v_max=1.0, width=0.225, length=0.32
    )


def _gains(*values: float) -> ControlGains:
    return ControlGains(*(put_array(value, float) for value in values))


def f110_gains() -> ControlGains:
    """Returns the soft steering (time constant 0.5 s) and speed gains of the F110 gaplock task."""
    return _gains(2.0, 7.5, 6.0, 2.5, 2.5)


def gym_gains() -> ControlGains:
    """Returns the bang-bang steering and speed gains of the F1TENTH gym."""
    return _gains(0.0, 10.0, 10.0, 2.0, 2.0)


def constrain_acceleration(v: jax.Array, a: jax.Array, car: CarParams) -> jax.Array:
    """Limits a commanded acceleration to what the motor can do at speed `v` (CommonRoad, constraint C3).

    Args:
      v: speed [...], m/s.
      a: commanded acceleration [...], m/s^2.
      car: parameters.

    Returns:
      The acceleration [...]: within +-a_max, its upper limit falling as v_switch/v above v_switch, and never
      outwards at a speed limit.
    """
    upper = car.a_max * car.v_switch / jnp.maximum(v, car.v_switch)
    at_stop = ((v <= car.v_min) & (a <= 0)) | ((v >= car.v_max) & (a >= 0))
    return jnp.where(at_stop, 0, jnp.clip(a, -car.a_max, upper))


def constrain_steering_rate(delta: jax.Array, rate: jax.Array, car: CarParams) -> jax.Array:
    """Limits a commanded steering rate: within [sv_min, sv_max], and never outwards at a steering stop.

    Args:
      delta: steering angle [...], rad.
      rate: commanded steering rate [...], rad/s.
      car: parameters.

    Returns:
      The steering rate [...], rad/s.
    """
    at_stop = ((delta <= car.s_min) & (rate <= 0)) | ((delta >= car.s_max) & (rate >= 0))
    return jnp.where(at_stop, 0, jnp.clip(rate, car.sv_min, car.sv_max))


def kinematic_derivative(x: jax.Array, u: jax.Array, car: CarParams) -> jax.Array:
    """Derivative of the kinematic bicycle (no slip), limits included.

    Args:
      x: state [..., 5] = [x, y, delta, v, psi].
      u: input [..., 2] = [delta_dot, a].
      car: parameters.

    Returns:
      dx/dt [..., 5].
    """
    _, _, delta, v, psi = jnp.unstack(x, axis=-1)
    rate = constrain_steering_rate(delta, u[..., 0], car)
    accel = constrain_acceleration(v, u[..., 1], car)
    yaw_rate = v / (car.lf + car.lr) * jnp.tan(delta)
    return _stack(v * jnp.cos(psi), v * jnp.sin(psi), rate, accel, yaw_rate)


def single_track_derivative(
    x: jax.Array, u: jax.Array, car: CarParams, *, switch: float | jax.Array = 0.5
) -> jax.Array:
    """Derivative of the single-track car with linear tyres and load transfer, limits included.

    Below `switch` m/s, and at every reverse speed, the kinematic bicycle takes over: the tyre model divides
    by v and is unstable for v < 0. There `beta` is held and `psi_dot` follows the kinematic yaw rate's
    derivative.

    Args:
      x: state [..., 7].
      u: input [..., 2] = [delta_dot, a].
      car: parameters.
      switch: positive speed of the change-over, m/s; `inf` is the kinematic bicycle at every speed. With a
        step of 0.01 s RK4 is stable down to 0.5 m/s, explicit Euler down to 0.57 m/s.

    Returns:
      dx/dt [..., 7].
    """
    return _stack(*_rates(_unstack(x), jnp.unstack(u, axis=-1), car, switch))


def low_level_control(
    steer: jax.Array, speed: jax.Array, delta: jax.Array, v: jax.Array, car: CarParams, gains: ControlGains
) -> tuple[jax.Array, jax.Array]:
    """Turns targets into the model's input: proportional or bang-bang steering, proportional speed.

    Args:
      steer: target of the steering angle [...], rad.
      speed: target of the speed [...], m/s.
      delta: steering angle [...], rad.
      v: speed [...], m/s.
      car: parameters.
      gains: gains.

    Returns:
      Steering rate and acceleration [...]; the acceleration is not limited yet.
    """
    error = steer - delta
    soft = jnp.clip(gains.steer_gain * error, -car.sv_max, car.sv_max)
    rate = jnp.where(gains.steer_gain > 0, soft, jnp.sign(error) * car.sv_max)
    rate = jnp.where(jnp.abs(error) <= STEERING_DEADBAND, 0, rate)

    dv = speed - v
    forward = v > 0
    accelerate = jnp.where(forward, gains.kp_forward_accel, gains.kp_reverse_accel) * (car.a_max / car.v_max)
    brake_speed = jnp.where(car.v_min < 0, -car.v_min, car.v_max)
    brake = jnp.where(forward, gains.kp_forward_brake, gains.kp_reverse_brake) * (car.a_max / brake_speed)
    return rate, jnp.where(dv > 0, accelerate, brake) * dv


def advance_car(
    state: jax.Array,
    command: jax.Array,
    car: CarParams,
    gains: ControlGains,
    dt: float | jax.Array,
    integrator: str = "rk4",
    *,
    switch: float | jax.Array = 0.5,
) -> tuple[jax.Array, jax.Array]:
    """Advances cars by one physics step: control once, limits in every stage of the integrator, then clamps.

    Afterwards delta, v, psi_dot and beta lie within their limits and psi in [-pi, pi). Below `switch` psi_dot
    is corrected for the part of delta and v that the limits cut off. If the command or the integrated state
    is not finite, the car keeps its old state.

    Args:
      state: state [..., 7].
      command: targets [..., 2] = [steering angle, speed].
      car: parameters.
      gains: gains of the low-level control.
      dt: length of the step, s.
      integrator: "rk4" or "euler".
      switch: see `single_track_derivative`.

    Returns:
      The new state [..., 7], and whether it was reverted, bool [...].

    Raises:
      ValueError: if the integrator is unknown.
    """
    if integrator not in INTEGRATORS:
        raise ValueError(f"integrator={integrator}: must be one of {sorted(INTEGRATORS)}")
    old = _unstack(state)
    steer, speed = command[..., 0], command[..., 1]
    valid = jnp.isfinite(steer + speed)
    # Zeros instead of the bad command keep the gradient of the discarded branch finite.
    steer, speed = jnp.where(valid, steer, 0), jnp.where(valid, speed, 0)
    u = low_level_control(steer, speed, old.delta, old.v, car, gains)
    new = INTEGRATORS[integrator](lambda x, u: _rates(x, u, car, switch), old, u, dt)
    # The sum is finite only if each part is; one test is cheaper than seven.
    valid = valid & jnp.isfinite(sum(new))
    new = _clamped(new, car, switch)
    return _stack(*(jnp.where(valid, after, before) for after, before in zip(new, old, strict=True))), ~valid


def set_speed(
    state: jax.Array, v: jax.Array, car: CarParams, *, switch: float | jax.Array = 0.5
) -> jax.Array:
    """Returns cars at another speed; below `switch` psi_dot changes with it, as where a limit cuts v off.

    Args:
      state: state [..., 7].
      v: speed [...], m/s.
      car: parameters.
      switch: see `single_track_derivative`.
    """
    old = _unstack(state)
    new = old._replace(v=v)
    return _stack(*new._replace(psi_dot=_corrected_yaw_rate(old, new, car, switch)))


def push_command(buffer: jax.Array, command: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Delays the steering by D physics steps; the speed target passes through.

    A buffer of zeros makes the first D steps steer straight ahead.

    Args:
      buffer: pending commands [..., D, 2], oldest first; D may be 0.
      command: newest command [..., 2] = [steering angle, speed].

    Returns:
      The new buffer [..., D, 2] and the command to apply now [..., 2].
    """
    queue = jnp.concatenate([buffer, command[..., None, :]], axis=-2)
    return queue[..., 1:, :], _stack(queue[..., 0, 0], command[..., 1])


def _unstack(x: jax.Array) -> _State:
    return _State(*jnp.unstack(x, axis=-1))


def _stack(*parts: jax.Array) -> jax.Array:
    return jnp.stack(jnp.broadcast_arrays(*parts), axis=-1)


def _clamped(s: _State, car: CarParams, switch: float | jax.Array) -> _State:
    cut = s._replace(delta=jnp.clip(s.delta, car.s_min, car.s_max), v=jnp.clip(s.v, car.v_min, car.v_max))
    return cut._replace(
        psi=wrap_angle_below_pi(s.psi),
        psi_dot=jnp.clip(_corrected_yaw_rate(s, cut, car, switch), -MAX_YAW_RATE, MAX_YAW_RATE),
        beta=jnp.clip(s.beta, -MAX_SLIP, MAX_SLIP),
    )


def _corrected_yaw_rate(old: _State, new: _State, car: CarParams, switch: float | jax.Array) -> jax.Array:
    """Returns psi_dot after delta and v have been set to those of `new` from outside the model.

    Below the switch psi_dot sums the changes of v/L tan(delta): without this change it would drift away from
    the car's yaw rate whenever the steering reaches its stop, or while a speed is locked.
    """
    change = (new.v * jnp.tan(new.delta) - old.v * jnp.tan(old.delta)) / (car.lf + car.lr)
    return old.psi_dot + jnp.where(old.v < switch, change, 0)


def _rates(s: _State, u: tuple[jax.Array, jax.Array], car: CarParams, switch: float | jax.Array) -> _State:
    rate = constrain_steering_rate(s.delta, u[0], car)
    accel = constrain_acceleration(s.v, u[1], car)
    low = s.v < switch
    wheelbase = car.lf + car.lr

    tan_delta = jnp.tan(s.delta)
    yaw_rate = s.v / wheelbase * tan_delta
    yaw_accel = (accel * tan_delta + s.v * (1 + tan_delta * tan_delta) * rate) / wheelbase

    # A car that does not use this branch divides by 1; otherwise its gradient would be 0 * inf.
    per_v = 1 / jnp.where(low, 1, s.v)
    turn = s.psi_dot * per_v
    shift = accel * car.h
    front = car.C_Sf * (GRAVITY * car.lr - shift) * (s.delta - s.beta - car.lf * turn)
    rear = car.C_Sr * (GRAVITY * car.lf + shift) * (car.lr * turn - s.beta)
    tyre_yaw_accel = car.mu * car.m / (car.I * wheelbase) * (car.lf * front - car.lr * rear)
    slip_rate = car.mu / wheelbase * per_v * (front + rear) - s.psi_dot

    course = jnp.where(low, s.psi, s.psi + s.beta)
    return _State(
        x=s.v * jnp.cos(course),
        y=s.v * jnp.sin(course),
        delta=rate,
        v=accel,
        psi=jnp.where(low, yaw_rate, s.psi_dot),
        psi_dot=jnp.where(low, yaw_accel, tyre_yaw_accel),
        beta=jnp.where(low, 0, slip_rate),
    )
