"""Parametrised attackers for `feasibility.py`: scripts, open-loop plans, a feedback law."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.f110.cars.simulation import SPEED, YAW, X, Y

KNOTS = 15


class View(NamedTuple):
    """Input of an attacker: `time` (s), car states `me` and `target` [7], the target's wall `room` (m)."""

    time: jax.Array
    me: jax.Array
    target: jax.Array
    room: jax.Array


class Family(NamedTuple):
    """A parametrised family of attackers.

    Attributes:
      names: names of the D parameters.
      low, high: their ranges.
      act: `(parameters [D], View) -> [2]`, steering angle (rad) and speed (m/s).
    """

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    act: Callable[[jax.Array, View], jax.Array]


def _family(act: Callable, **ranges: tuple[float, float]) -> Family:
    """Builds a family from the ranges of its parameters, in the order of `act`."""
    low, high = zip(*ranges.values(), strict=True)
    return Family(tuple(ranges), low, high, act)


def _wrap(angle):
    """Wraps an angle to [-pi, pi)."""
    return (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi


def _towards(me, heading, speed, gain=2.0):
    """Steers towards a heading at a speed; steering is inverted in reverse."""
    return jnp.stack([jnp.where(speed < 0, -1.0, 1.0) * gain * _wrap(heading - me[YAW]), speed])


def park(p, view):
    """Drives to lateral position `y` for `until` s, then turns to a heading at speed `creep`."""
    y, heading, until, speed, creep = p
    course = jnp.clip(2.0 * (y - view.me[Y]), -0.7, 0.7)
    going = _towards(view.me, course, speed)
    return jnp.where(view.time < until, going, _towards(view.me, heading, creep))


def weave(p, view):
    """Oscillates its heading about the corridor's direction."""
    swing, period, phase, speed, lean = p
    course = lean + swing * jnp.sin(2 * jnp.pi * (view.time / period + phase))
    return _towards(view.me, course, speed)


def brake(p, view):
    """Drives ahead of the target at a distance, then brakes with turned wheels."""
    y, ahead, until, steer, speed = p
    course = jnp.clip(2.0 * (y - view.me[Y]), -0.7, 0.7)
    pace = view.target[SPEED] + (ahead - (view.me[X] - view.target[X]))
    return jnp.where(view.time < until, _towards(view.me, course, pace), jnp.stack([steer, speed]))


def block(p, view):
    """Holds two commands in sequence, then stops: block a side, yaw, wait."""
    steer, speed, until, steer_2, speed_2, until_2 = p
    first, second = jnp.stack([steer, speed]), jnp.stack([steer_2, speed_2])
    late = jnp.where(view.time < until + until_2, second, jnp.stack([steer_2, 0.0 * speed_2]))
    return jnp.where(view.time < until, first, late)


def reverse(p, view):
    """Drives off, returns in reverse, then stops."""
    y, until, speed, steer, length = p
    course = jnp.clip(2.0 * (y - view.me[Y]), -0.7, 0.7)
    back = jnp.stack([steer, -jnp.abs(speed)])
    late = jnp.where(view.time < until + length, back, 0.0 * back)
    return jnp.where(view.time < until, _towards(view.me, course, 0.8), late)


def plan(p, view, duration=15.0):
    """Open-loop plan: a piecewise constant sequence of KNOTS commands."""
    knot = jnp.clip((view.time * KNOTS / duration).astype(jnp.int32), 0, KNOTS - 1)
    return p.reshape(KNOTS, 2)[knot]


def law(p, view):
    """Tracks one of three poses relative to the defender by proportional feedback.

    Pose: `a` m ahead and `b` m to the left in the defender's frame, at angle `c` to its heading. The second
    pose applies after `after` s, the third while the defender's wall distance is below `near` or its
    heading deviates from the corridor's by more than `off`.
    """
    poses, (kx, ky, kp, after, near, off) = p[:9].reshape(3, 3), p[9:]
    yaw = view.target[YAW]
    done = (view.room < near) | (jnp.abs(yaw) > off)
    ahead, left, turn = poses[jnp.where(done, 2, jnp.where(view.time < after, 0, 1))]
    dx, dy = view.me[X] - view.target[X], view.me[Y] - view.target[Y]
    forward = jnp.cos(yaw) * dx + jnp.sin(yaw) * dy
    sideways = jnp.cos(yaw) * dy - jnp.sin(yaw) * dx
    speed = view.target[SPEED] + kx * (ahead - forward)
    course = yaw + turn + jnp.clip(ky * (left - sideways), -1.0, 1.0) * jnp.where(speed < 0, -1.0, 1.0)
    return _towards(view.me, course, speed, kp)


def _numbered(count: int, **ranges: tuple[float, float]) -> dict[str, tuple[float, float]]:
    """Returns `count` copies of the ranges, with names suffixed by 0, 1, ..."""
    return {f"{name}{i}": pair for i in range(count) for name, pair in ranges.items()}


STEER, PACE = (-0.46, 0.46), (-1.0, 1.0)
Y_RANGE = (-1.85, 0.4)
FAMILIES = {
    "park": _family(park, y=Y_RANGE, heading=(-3.1, 3.1), until=(0, 8), speed=(0.1, 0.9), creep=(-0.3, 0.3)),
    "weave": _family(weave, swing=(0, 1.5), period=(1, 15), phase=(0, 1), speed=(0, 0.7), lean=(-0.5, 0.5)),
    "brake": _family(brake, y=Y_RANGE, ahead=(0.4, 1.5), until=(0, 14), steer=STEER, speed=(-0.6, 0.4)),
    "block": _family(
        block, steer=STEER, speed=PACE, until=(0, 8), steer_2=STEER, speed_2=PACE, until_2=(0, 8)
    ),
    "reverse": _family(reverse, y=Y_RANGE, until=(0, 8), speed=(0, 1), steer=STEER, length=(0, 8)),
    "plan": _family(plan, **_numbered(KNOTS, s=STEER, v=(-0.5, 1.0))),
    "law": _family(
        law,
        **_numbered(3, a=(-0.6, 1.4), b=(-0.8, 0.8), c=(-1.3, 1.3)),
        kx=(0.3, 4), ky=(0.3, 4), kp=(0.5, 4), after=(0, 10), near=(0, 1.1), off=(0.1, 1.5),
    ),
    # Close in front of the defender, then away: a mechanism found with "law".
    "nose": _family(
        law,
        **_numbered(2, a=(0.33, 0.6), b=(-0.25, 0.25), c=(-0.5, 0.5)),
        a2=(0.4, 1.4), b2=(-0.8, 0.8), c2=(-0.6, 0.6),
        kx=(1, 5), ky=(0.5, 4), kp=(1, 4), after=(1, 8), near=(0.3, 1.1), off=(0.1, 0.9),
    ),
}  # fmt: skip
