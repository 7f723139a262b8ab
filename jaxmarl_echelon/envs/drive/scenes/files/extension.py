"""Additions of generated scenes to the file format, under one key that other readers ignore.

Reference: docs/reference/drive.md 2.5.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from jaxmarl_echelon.envs.drive.scenes.files import fields
from jaxmarl_echelon.envs.drive.scenes.files.fields import (
    get_json_member,
    join_json_path,
    require_json_member,
)
from jaxmarl_echelon.envs.drive.scenes.raw_scene import Gate, RawScene, Route

KEY = "jaxmarl_echelon"
_FAR = 1e6
_GATE = "arc", "end", "junction", "stop", "main"


def extension_to_json(scene: RawScene) -> dict[str, Any]:
    """Converts kind, junctions, routes and conflicts of a scene to JSON values."""
    return {
        "kind": scene.kind,
        "junctions": scene.junctions.tolist(),
        "routes": [None if route is None else _route_written(route) for route in scene.routes],
        "conflict": [] if scene.conflict is None else np.argwhere(scene.conflict).tolist(),
    }


def _route_written(route: Route) -> dict[str, Any]:
    return {
        "points": [{"x": x, "y": y} for x, y in route.points.tolist()],
        "limit": route.limit.tolist(),
        "gates": [{key: vars(gate)[key] for key in _GATE} for gate in route.gates],
    }


def add_extension(content: dict, place: np.ndarray, scene: RawScene) -> RawScene:
    """Adds the extension of a file, if present, to its scene.

    Args:
      content: the file.
      place: `[objects]` index of each object among the scene's bodies, -1 for skipped objects.
      scene: without the extension.

    Raises:
      ValueError: one line that begins with the field.
    """
    given = get_json_member(content, KEY, "", None)
    if given is None:
        return scene
    junctions = fields.read_json_list(get_json_member(given, "junctions", KEY, []), f"{KEY}.junctions")
    circles = np.array([_circle(one, f"{KEY}.junctions[{nth}]") for nth, one in enumerate(junctions)])
    routes = fields.read_json_list(get_json_member(given, "routes", KEY, []), f"{KEY}.routes")
    if routes and len(routes) != len(place):
        raise ValueError(f"{KEY}.routes has {len(routes)} entries, objects has {len(place)}")
    read = [
        None if one is None else _route(one, f"{KEY}.routes[{nth}]", len(circles))
        for nth, one in enumerate(routes)
    ]
    return replace(
        scene,
        kind=fields.read_json_text(get_json_member(given, "kind", KEY, "loaded"), f"{KEY}.kind"),
        junctions=circles.reshape(-1, 3),
        routes=tuple(route for nth, route in enumerate(read) if place[nth] >= 0),
        conflict=_conflict(get_json_member(given, "conflict", KEY, []), place, len(scene.type)),
    )


def _circle(one: Any, path: str) -> list[float]:
    if len(fields.read_json_list(one, path)) != 3:
        raise ValueError(f"{path}: must be x, y and radius")
    return [
        fields.read_json_number(value, f"{path}[{nth}]", -fields.FARTHEST, fields.FARTHEST)
        for nth, value in enumerate(one)
    ]


def _route(one: Any, path: str, junctions: int) -> Route:
    points = fields.read_json_points(
        require_json_member(one, "points", path), join_json_path(path, "points"), 2
    )
    if not (np.diff(points, axis=0) != 0).any():
        raise ValueError(f"{path}.points: must not all be the same")
    limits = fields.read_json_list(require_json_member(one, "limit", path), join_json_path(path, "limit"))
    if len(limits) != len(points):
        raise ValueError(f"{path}.limit has {len(limits)} entries, points has {len(points)}")
    values = [
        fields.read_json_number(value, f"{path}.limit[{nth}]", 0.01, 1000) for nth, value in enumerate(limits)
    ]
    gates = fields.read_json_list(get_json_member(one, "gates", path, []), join_json_path(path, "gates"))
    read = tuple(_gate(gate, f"{path}.gates[{nth}]", junctions) for nth, gate in enumerate(gates))
    return Route(points, np.array(values), read)


def _gate(one: Any, path: str, junctions: int) -> Gate:
    arc, end = (
        fields.read_json_number(require_json_member(one, key, path), join_json_path(path, key), -_FAR, _FAR)
        for key in ("arc", "end")
    )
    stop, main = (
        fields.read_json_flag(require_json_member(one, key, path), join_json_path(path, key))
        for key in ("stop", "main")
    )
    junction = fields.read_json_whole(
        require_json_member(one, "junction", path), join_json_path(path, "junction"), 0, junctions - 1
    )
    return Gate(arc, end, junction, stop, main)


def _conflict(pairs: Any, place: np.ndarray, count: int) -> np.ndarray:
    met = np.zeros((count, count), bool)
    for nth, pair in enumerate(fields.read_json_list(pairs, f"{KEY}.conflict")):
        path = f"{KEY}.conflict[{nth}]"
        if len(fields.read_json_list(pair, path)) != 2:
            raise ValueError(f"{path}: must be two indices of objects")
        a, b = (place[fields.read_json_whole(one, path, 0, len(place) - 1)] for one in pair)
        if a >= 0 and b >= 0:
            met[a, b] = met[b, a] = True
    return met
