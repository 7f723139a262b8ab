"""Arrays of one scene, not yet padded, and their stacking into banks.

Reference: docs/reference/drive.md 4.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxmarl_echelon.envs.drive import codes
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.scenes import learners
from jaxmarl_echelon.envs.drive.scenes.gates import make_light_gates, make_sign_gates
from jaxmarl_echelon.envs.drive.scenes.lanes import SceneSegments, make_segments, make_uncut_segments
from jaxmarl_echelon.envs.drive.scenes.learners import SlotAssignment, SlotSettings
from jaxmarl_echelon.envs.drive.scenes.raw_scene import NO_LIMIT, RawScene, Route
from physics.polylines import arc_lengths, drop_repeated_points, point_headings, segment_distance
from physics.segment_tables import (
    Grid,
    grid_over,
    list_nearest_candidates,
    list_nearest_segments,
    list_segments_in_reach,
)

VERSION = 5  # of the construction of arrays; part of the cache key of banks
Arrays = dict[str, np.ndarray]
_ROUNDING = 1e-3  # m by which reaches are enlarged, as the simulation computes in float32
_ROUND = 64  # segments and lanes of a bank are padded to multiples of this


def build_scene_arrays(
    scene: RawScene, casting: SlotSettings, max_segments: int = 8192
) -> tuple[Arrays, SlotAssignment]:
    """Builds the unpadded arrays of `bank.SceneBank` for one scene, and its assignment of bodies to slots.

    Raises:
      ValueError: one line, for more segments than allowed.
    """
    who = learners.assign_slots(scene, casting)
    middle = scene.middle
    roads = make_segments(scene.roads, middle)
    if len(roads.segment) > max_segments:
        raise ValueError(f"{len(roads.segment)} segments, env.max_segments={max_segments}")
    slots = np.full(casting.bodies, -1)
    slots[: len(who.learners)] = who.learners
    slots[casting.agents : casting.agents + len(who.scripted)] = who.scripted
    size = np.concatenate([scene.size[:, :2] * casting.body_scale, np.zeros((1, 2))])[slots]
    reach = np.hypot(*size.T).max() / 2
    return {
        **_bodies(scene, who, slots, middle, casting),
        "learner": np.arange(casting.agents) < len(who.learners),
        "size": size,
        **_routes(scene, who, slots, middle),
        **_lights(scene, roads, middle),
        **_roads(roads),
        **dict(zip(("whole", "whole_kind"), make_uncut_segments(scene.roads, middle), strict=True)),
        **_tables(roads, reach),
        "sign": np.concatenate(
            [
                np.zeros((0, 2)),
                *(road.points[:1] - middle for road in scene.roads if road.kind == "stop_sign"),
            ]
        ),
    }, who


def _bodies(
    scene: RawScene, who: SlotAssignment, slots: np.ndarray, middle: np.ndarray, casting: SlotSettings
) -> Arrays:
    position, heading, speed = scene.position - middle, scene.heading, scene.speed
    recording = np.stack([*np.moveaxis(position, -1, 0), heading, speed], axis=-1)
    recording[who.stands] = _standing(recording[who.stands], scene.valid[who.stands], casting.init_step)
    goal = learners.find_goals(scene, casting)
    recording = np.where(scene.valid[..., None], recording, 0.0)
    filled = slots >= 0
    return {
        "recording": np.where(filled[:, None, None], recording[slots], 0.0).swapaxes(0, 1),
        "recorded": (scene.valid[slots] & filled[:, None]).T,
        "type": np.where(filled, scene.type[slots], 0),
        "predict": np.isin(slots, scene.predict) & filled,
        "goal": np.where(filled[:, None], (goal - middle)[slots], 0.0),
    }


def _standing(recording: np.ndarray, valid: np.ndarray, start: int) -> np.ndarray:
    """Recordings `[n, T, 4]` of bodies that stand where they are first recorded from sample `start` on."""
    first = learners.find_first_samples(valid, start)
    pose = np.take_along_axis(recording, first[:, None, None], axis=1)
    return np.broadcast_to(pose * [1, 1, 1, 0], recording.shape)


def _routes(scene: RawScene, who: SlotAssignment, slots: np.ndarray, middle: np.ndarray) -> Arrays:
    can = learners.is_driven(scene, who)
    known = scene.routes or (None,) * len(scene.type)
    found = {
        slot: known[body] or _make_recorded_route(scene, body)
        for slot, body in enumerate(slots)
        if body >= 0 and can[body]
    }
    gates = {
        slot: sorted([*route.gates, *make_light_gates(scene, route)], key=lambda gate: gate.arc)
        for slot, route in found.items()
    }
    most = max([1, *map(len, gates.values())])
    count = len(slots)
    route, spacing = np.zeros((count, codes.ROUTE_POINTS, 4)), np.zeros(count)
    arc, end = np.full((2, count, most), np.inf)
    junction, light = np.full((2, count, most), -1)
    stop, main = np.zeros((2, count, most), bool)
    for slot, way in found.items():
        route[slot], spacing[slot] = _evenly(way, middle)
        for nth, gate in enumerate(gates[slot]):
            arc[slot, nth], end[slot, nth], junction[slot, nth] = gate.arc, gate.end, gate.junction
            stop[slot, nth], main[slot, nth], light[slot, nth] = gate.stop, gate.main, gate.light
    conflict = np.zeros((len(scene.type),) * 2, bool) if scene.conflict is None else scene.conflict
    filled = slots >= 0
    return {
        "driven": spacing > 0,
        "route": route,
        "route_spacing": spacing,
        "gate_arc": arc,
        "gate_end": end,
        "gate_junction": junction,
        "gate_stop": stop,
        "gate_main": main,
        "gate_light": light,
        "junction": scene.junctions - np.array([*middle, 0.0]),
        "conflict": conflict[slots][:, slots] & filled & filled[:, None],
    }


def _make_recorded_route(scene: RawScene, body: int) -> Route:
    """Returns the recorded path of a body as a route, with the stop signs on it.

    Points less than 0.5 m from the previous kept point are dropped, as their direction is uncertain.
    """
    points = scene.position[body, scene.valid[body]]
    kept = [0]
    for nth, point in enumerate(points):
        if np.hypot(*(point - points[kept[-1]])) >= 0.5:
            kept.append(nth)
    points = points[kept]
    if len(points) == 1:
        first = scene.heading[body, scene.valid[body].argmax()]
        points = np.stack([points[0], points[0] + [np.cos(first), np.sin(first)]])
    way = Route(points, _find_desired_speeds(scene, body, points))
    return replace(way, gates=tuple(make_sign_gates(scene, way)))


def _find_desired_speeds(scene: RawScene, body: int, points: np.ndarray) -> np.ndarray:
    """Desired speeds `[P]` of a driver at points of a recorded path, m/s.

    The speed limit of the lane at the point if the file gives one; else the highest speed of the body's
    recording, at least `NO_LIMIT`, because the body may have waited throughout.
    """
    own = max(NO_LIMIT, float(np.abs(scene.speed[body])[scene.valid[body]].max()))
    lanes = [road for road in scene.roads if road.kind == "lane" and road.limit is not None]
    if not lanes:
        return np.full(len(points), own)
    segments = np.concatenate([np.concatenate([r.points[:-1], r.points[1:]], axis=1) for r in lanes])
    limit = np.repeat([road.limit for road in lanes], [len(road.points) - 1 for road in lanes])
    turn = point_headings(points)[:, None] - np.arctan2(*(segments[:, 2:] - segments[:, :2]).T[::-1])
    beside = segment_distance(points[:, None], segments)
    beside = np.where((np.cos(turn) > 0.5) & (beside <= codes.LANE_REACH), beside, np.inf)
    return np.where(np.isfinite(beside).any(1), limit[beside.argmin(1)], own)


def _evenly(way: Route, middle: np.ndarray) -> tuple[np.ndarray, float]:
    """Resamples a route at `codes.ROUTE_POINTS` equal distances: `[R, 4]`, and the distance."""
    points = drop_repeated_points(way.points)
    along = arc_lengths(points)
    at = np.linspace(0.0, along[-1], codes.ROUTE_POINTS)
    columns = (
        *(points - middle).T,
        point_headings(points),
        np.interp(along, arc_lengths(way.points), way.limit),
    )
    return np.stack([np.interp(at, along, column) for column in columns], axis=1), at[1]


def _lights(scene: RawScene, roads: SceneSegments, middle: np.ndarray) -> Arrays:
    samples = scene.valid.shape[1]
    lanes = [road.id for road in roads.roads]
    return {
        "light": np.array([one.state for one in scene.lights], int).reshape(-1, samples).T,
        "light_lane": np.array([lanes.index(x.lane) if x.lane in lanes else -1 for x in scene.lights], int),
        "light_point": np.array([one.point - middle for one in scene.lights]).reshape(-1, 2),
    }


def _roads(roads: SceneSegments) -> Arrays:
    most = max([1, *map(len, roads.next)])
    following = np.full((len(roads.next), most), -1)
    for lane, to in enumerate(roads.next):
        following[lane, : len(to)] = to
    return {
        "segment": roads.segment,
        "segment_kind": roads.kind,
        "segment_lane": roads.lane,
        "segment_arc": roads.arc,
        "lane_next": following,
        "lane_first": roads.first,
        "lane_last": roads.last,
        "lane_length": roads.length,
        "lane_limit": roads.limit,
    }


def _tables(roads: SceneSegments, reach: float) -> Arrays:
    # In float32, as in the simulation.
    segment = roads.segment.astype(np.float32).astype(float)
    bounding = np.isin(roads.kind, (codes.LANE, codes.BIKE_LANE, codes.EDGE, codes.LINE))
    grid = grid_over(segment[bounding], codes.CELL)
    view = Grid(grid.origin, -(-grid.columns // 2), -(-grid.rows // 2), codes.VIEW_CELL)
    return {
        "near_edges": _of(list_segments_in_reach, roads, segment, (codes.EDGE,), grid, reach + _ROUNDING),
        "near_lanes": _of(
            list_segments_in_reach,
            roads,
            segment,
            (codes.LANE, codes.BIKE_LANE),
            grid,
            codes.LANE_REACH + _ROUNDING,
        ),
        "view_edges": _of(
            list_nearest_segments, roads, segment, (codes.EDGE,), view, codes.VIEW_EDGES, codes.VIEW_REACH
        ),
        "view_lanes": _of(
            list_nearest_segments, roads, segment, (codes.LANE,), view, codes.VIEW_LANES, codes.VIEW_REACH
        ),
        "origin": grid.origin,
        "cells": np.array([grid.columns, grid.rows]),
    }


def _of(
    table, roads: SceneSegments, segment: np.ndarray, kinds: tuple[int, ...], grid: Grid, *how
) -> np.ndarray:
    """A table of the segments of some kinds, with ids among all segments."""
    ids = np.flatnonzero(np.isin(roads.kind, kinds))
    found = table(grid, segment[ids], *how)
    return np.where(found >= 0, np.append(ids, -1)[found], -1)


def make_nearest_edge_tables(bank: SceneBank) -> np.ndarray:
    """Tables `bank.nearest_edges` of all scenes, `[S, Y, X, E]` int16, -1 for padding."""
    tables = []
    for scene in range(len(bank.kind)):
        segment, origin, size = (np.asarray(x[scene], float) for x in (bank.segment, bank.origin, bank.size))
        columns, rows = np.asarray(bank.cells[scene]).tolist()
        ids = np.flatnonzero(np.asarray(bank.segment_kind[scene]) == codes.EDGE)
        reach = np.hypot(*size.T).max() / 2 + _ROUNDING
        found = list_nearest_candidates(Grid(origin, columns, rows, codes.CELL), segment[ids], reach)
        tables.append(np.where(found >= 0, np.append(ids, -1)[found], -1))
    result = np.full((len(tables), *np.max([one.shape for one in tables], axis=0)), -1, np.int16)
    for scene, one in enumerate(tables):
        result[(scene, *map(slice, one.shape))] = one
    return result


# Name -> type and padding of an array; the axes in _ROUNDED are padded to multiples of _ROUND.
ARRAYS: dict[str, tuple[type, float]] = {
    **dict.fromkeys(("recording", "size", "goal", "route", "route_spacing", "junction"), (np.float32, 0)),
    **dict.fromkeys(("recorded", "learner", "driven", "predict", "gate_stop", "gate_main"), (bool, False)),
    **dict.fromkeys(("gate_arc", "gate_end"), (np.float32, np.inf)),
    **dict.fromkeys(("gate_junction", "gate_light", "light_lane", "segment_lane"), (np.int16, -1)),
    **dict.fromkeys(("lane_next", "lane_first", "lane_last"), (np.int16, -1)),
    **dict.fromkeys(("near_edges", "near_lanes", "view_edges", "view_lanes"), (np.int16, -1)),
    **dict.fromkeys(("light_point", "segment", "segment_arc", "lane_length", "lane_limit"), (np.float32, 0)),
    **dict.fromkeys(("type", "light"), (np.int8, 0)),
    **dict.fromkeys(("segment_kind", "whole_kind"), (np.int8, -1)),
    "whole": (np.float32, 0),
    "conflict": (bool, False),
    "origin": (np.float32, 0),
    "cells": (np.int32, 1),
    "sign": (np.float32, np.nan),
}
_ROUNDED = ("segment", "segment_kind", "segment_lane", "segment_arc", "whole", "whole_kind")
_ROUNDED_LANES = ("lane_next", "lane_first", "lane_last", "lane_length", "lane_limit")
_AT_LEAST_ONE = ("junction", "light_lane", "light_point", "sign")


def stack_scenes(scenes: Sequence[Arrays]) -> Arrays:
    """Pads the arrays of scenes to the largest size of each axis and stacks them."""
    return {name: _stacked(name, [scene[name] for scene in scenes]) for name in ARRAYS}


def _stacked(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    kind, filler = ARRAYS[name]
    shape = np.max([array.shape for array in arrays], axis=0)
    if name in (*_ROUNDED, *_ROUNDED_LANES):
        shape[0] = max(1, -(-shape[0] // _ROUND)) * _ROUND
    if name in _AT_LEAST_ONE:
        shape[0] = max(1, shape[0])
    if name == "light":
        shape[1] = max(1, shape[1])
    result = np.full((len(arrays), *shape), filler, kind)
    for index, array in enumerate(arrays):
        result[(index, *map(slice, array.shape))] = array
    return result
