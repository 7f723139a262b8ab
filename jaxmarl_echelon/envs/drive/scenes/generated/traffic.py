"""Reference trajectories: bodies follow their ways by the driver model, in float64 on the host.

A gate holds a body until its stop sign is served, while a body on a conflicting way is within the junction,
and while a body with priority, or a nearer one of equal priority, approaches. Reference:
docs/reference/drive.md 7.4, 12.5.
"""

from dataclasses import dataclass

import numpy as np

from jaxmarl_echelon.envs.drive.scenes.generated.ways import SPACING, Way
from jaxmarl_echelon.envs.drive.scenes.learners import boxes_meet
from jaxmarl_echelon.envs.drive.scenes.raw_scene import SAMPLES, STEP
from physics.car_following import idm_acceleration

WIDER = 0.1  # m, total increase of a leader's length and width
_LOOK = 40  # m
_SERVED_SPEED, _SERVED_WITHIN = 0.5, 3.0
_CLEARANCE = 4.0  # s; bodies with priority go first even if they arrive up to this much later
_SOON = 8.0  # s; bodies that arrive later are ignored


@dataclass(frozen=True)
class PlannedTraffic:
    """Bodies before they move: n bodies with a way first, then others, N in total.

    Attributes:
      ways: `n` of them.
      speed: `[n]` m/s at the start.
      size: `[N, 2]` m.
      conflict: `[n, n]` bool.
      given: `[N - n, T, 3]` poses of the others.
    """

    ways: list[Way]
    speed: np.ndarray
    size: np.ndarray
    conflict: np.ndarray
    given: np.ndarray


@dataclass
class _Table:
    """Ways and gates as padded arrays."""

    points: np.ndarray
    heading: np.ndarray
    limit: np.ndarray
    length: np.ndarray
    arc: np.ndarray
    end: np.ndarray
    junction: np.ndarray
    stop: np.ndarray
    main: np.ndarray


def simulate_traffic(traffic: PlannedTraffic) -> tuple[np.ndarray, np.ndarray]:
    """Drives all bodies for `SAMPLES` samples.

    Returns:
      `[N, T, 4]` x, y, heading (unwrapped) and speed, and `[N, T]` bool whether the body is still on its way.
    """
    if not traffic.ways:
        standing = np.zeros((len(traffic.size), SAMPLES, 1))
        return np.concatenate([traffic.given, standing], axis=-1), np.ones(standing.shape[:2], bool)
    table = _table(traffic.ways)
    driven, total = len(traffic.ways), len(traffic.size)
    log, there = np.zeros((total, SAMPLES, 4)), np.ones((total, SAMPLES), bool)
    log[driven:, :, :3] = traffic.given
    arc, speed = np.zeros(driven), traffic.speed.copy()
    served = np.zeros(table.arc.shape, bool)
    half = traffic.size[:driven, 0] / 2
    for step in range(SAMPLES):
        pose = _look_up_poses(table, arc)
        there[:driven, step] = arc + half <= table.length
        log[:driven, step] = np.concatenate([pose, speed[:, None]], axis=1)
        on = there[:, step]
        held = _gate_gaps(table, traffic, arc, speed, served, on[:driven])
        gap, leader = _leaders(table, traffic, arc, log[:, step], speed, on)
        wished = _lookup(table.limit, arc)
        given = np.minimum(
            idm_acceleration(np, speed, wished, gap, leader), idm_acceleration(np, speed, wished, held, 0.0)
        )
        new = np.maximum(0.0, speed + given * STEP)
        arc, speed = arc + (speed + new) / 2 * STEP, new
    log[~there] = 0.0
    return log, there


def _table(ways: list[Way]) -> _Table:
    points = max(len(way.points) for way in ways)
    gates = max([1, *(len(way.gates) for way in ways)])

    def padded(rows: list, size: int, filler) -> np.ndarray:
        # Repeats the last point, so that reads beyond it are valid.
        filled = [list(row) + [row[-1] if filler is None else filler] * (size - len(row)) for row in rows]
        return np.array(filled)

    def of_gates(name: str, filler) -> np.ndarray:
        return padded([[getattr(gate, name) for gate in way.gates] for way in ways], gates, filler)

    return _Table(
        padded([way.points for way in ways], points, None),
        padded([way.heading for way in ways], points, None),
        padded([way.limit for way in ways], points, None),
        np.array([way.length for way in ways]),
        of_gates("arc", np.inf),
        of_gates("end", np.inf),
        of_gates("junction", -1),
        of_gates("stop", False),
        of_gates("main", True),
    )


def _lookup(column: np.ndarray, arc: np.ndarray) -> np.ndarray:
    """Interpolates values of `[n, P, ...]` linearly at arcs `[n, ...]`."""
    nth = np.clip(arc / SPACING, 0, column.shape[1] - 1.001)
    low = nth.astype(int)
    share = nth - low
    rows = np.arange(len(column)).reshape(-1, *[1] * (arc.ndim - 1))
    a, b = column[rows, low], column[rows, low + 1]
    return a + share.reshape(share.shape + (1,) * (a.ndim - share.ndim)) * (b - a)


def _look_up_poses(table: _Table, arc: np.ndarray) -> np.ndarray:
    """Poses `[n, ..., 3]` at arcs `[n, ...]` of the ways."""
    return np.concatenate([_lookup(table.points, arc), _lookup(table.heading, arc)[..., None]], axis=-1)


def _gate_gaps(
    table: _Table,
    traffic: PlannedTraffic,
    arc: np.ndarray,
    speed: np.ndarray,
    served: np.ndarray,
    on: np.ndarray,
) -> np.ndarray:
    """Distance `[n]` to the gate at which a body is held, m; inf if none. Updates `served`."""
    bodies = np.arange(len(arc))
    half = traffic.size[: len(arc), 0] / 2
    to = table.arc - (arc + half)[:, None]
    ahead = to >= -0.05
    coming = ahead.any(1) & on
    gate = ahead.argmax(1)
    gap = np.where(coming, to[bodies, gate], np.inf)
    served[bodies, gate] |= coming & (speed < _SERVED_SPEED) & (gap < _SERVED_WITHIN)
    must_stop = table.stop[bodies, gate] & ~served[bodies, gate] & coming
    junction = np.where(coming, table.junction[bodies, gate], -1)
    inside = ~ahead & ((arc - half)[:, None] < table.end) & on[:, None]
    eta = np.where(must_stop, np.inf, gap / np.maximum(speed, 1.5))
    main = table.main[bodies, gate]
    first = (eta[None] < eta[:, None]) | ((eta[None] == eta[:, None]) & (bodies[None] < bodies[:, None]))
    ranked = np.where(
        main[None] == main[:, None], first, main[None] & (eta[None] < eta[:, None] + _CLEARANCE)
    )
    comes = (junction[None] == junction[:, None]) & ranked & (eta[None] < _SOON)
    within = ((table.junction[None] == junction[:, None, None]) & inside[None]).any(-1)
    blocked = (traffic.conflict & (comes | within)).any(1)
    return np.where(coming & (blocked | must_stop), np.maximum(gap, 0.0), np.inf)


def _leaders(
    table: _Table,
    traffic: PlannedTraffic,
    arc: np.ndarray,
    state: np.ndarray,
    speed: np.ndarray,
    on: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Gap `[n]` to the nearest body in each driver's corridor, inf if none, and its speed along it, m/s."""
    driven, size = len(arc), traffic.size
    half = size[:driven, 0] / 2
    pieces = np.arange(_LOOK) + 0.5
    corridor = _look_up_poses(table, arc[:, None] + half[:, None] + pieces)
    corridor = corridor + _beyond(table, arc[:, None] + half[:, None] + pieces, corridor)
    reach = np.hypot(*size.T) / 2 + WIDER + np.hypot(0.5, size[:driven, 1].max() / 2)
    x, y = (state[:, axis] - corridor[:, :, None, axis] for axis in (0, 1))
    near = x * x + y * y <= reach**2
    near &= on & (pieces < np.clip(5 * speed, 20, 40)[:, None])[..., None]
    near[np.arange(driven), :, np.arange(driven)] = False
    who, piece, other = np.nonzero(near)
    here, there = corridor[who, piece], state[other, :3]
    thin = np.stack([np.ones(len(who)), size[who, 1]], axis=1)
    met = boxes_meet(here[:, :2], here[:, 2], thin, there[:, :2], there[:, 2], size[other] + WIDER)
    who, piece, other, here, there = who[met], piece[met], other[met], here[met], there[met]
    gap = piece + np.clip(_rear(here, there, size[other]) + 0.5, 0.0, 1.0)
    nearest = np.full(driven, np.inf)
    np.minimum.at(nearest, who, gap)
    leads = gap == nearest[who]
    along = state[other, 3] * np.cos(there[:, 2] - _lookup(table.heading, arc)[who])
    leader = np.zeros(driven)
    leader[who[leads]] = np.maximum(along[leads], 0.0)
    return nearest, leader


def _beyond(table: _Table, arc: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """Offsets that continue ways straight beyond their ends."""
    over = np.maximum(arc - table.length[:, None], 0.0)
    return np.stack([over * np.cos(pose[..., 2]), over * np.sin(pose[..., 2]), 0 * over], axis=-1)


def _rear(here: np.ndarray, there: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Position along the corridor, from its piece's centre, at which the other's box begins, m."""
    turn = there[:, 2] - here[:, 2]
    extent = (size[:, 0] * np.abs(np.cos(turn)) + size[:, 1] * np.abs(np.sin(turn))) / 2
    ahead = ((there[:, :2] - here[:, :2]) * np.stack([np.cos(here[:, 2]), np.sin(here[:, 2])], axis=1)).sum(1)
    return ahead - extent
