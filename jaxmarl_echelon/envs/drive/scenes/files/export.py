"""Writes scenes as JSON files that `reading` reads back to the same scene."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxmarl_echelon.envs.drive.codes import LIGHTS, TYPES
from jaxmarl_echelon.envs.drive.scenes.files import extension
from jaxmarl_echelon.envs.drive.scenes.raw_scene import Light, RawScene, Road

INVALID = -10000.0


def write_scene(scene: RawScene, path: Path) -> None:
    """Writes one scene."""
    path.write_text(json.dumps(scene_to_json(scene)), encoding="utf-8")


def scene_to_json(scene: RawScene) -> dict[str, Any]:
    """Converts a scene to JSON values."""
    return {
        "name": scene.name,
        "scenario_id": scene.name,
        "objects": [_object(scene, body) for body in range(len(scene.type))],
        "roads": [_road(road) for road in scene.roads],
        "tl_states": {str(light.lane): _light(light) for light in scene.lights},
        "metadata": {
            "sdc_track_index": scene.sdc,
            "objects_of_interest": [],
            "tracks_to_predict": [{"track_index": int(one), "difficulty": 0} for one in scene.predict],
        },
        extension.KEY: extension.extension_to_json(scene),
    }


def _object(scene: RawScene, body: int) -> dict[str, Any]:
    valid = scene.valid[body]
    position = np.where(valid[:, None], scene.position[body], INVALID).tolist()
    velocity = np.where(valid[:, None], scene.velocity[body], INVALID).tolist()
    length, width, height = scene.size[body].tolist()
    return {
        "position": [{"x": x, "y": y, "z": 0.0} for x, y in position],
        "heading": np.where(valid, scene.heading[body], INVALID).tolist(),
        "velocity": [{"x": x, "y": y} for x, y in velocity],
        "valid": valid.tolist(),
        "length": length,
        "width": width,
        "height": height,
        "type": TYPES[scene.type[body]],
        "goalPosition": _point(scene.goal[body]),
        "id": int(scene.ids[body]),
        "mark_as_expert": bool(scene.expert[body]),
    }


def _point(at: np.ndarray) -> dict[str, float]:
    return {"x": float(at[0]), "y": float(at[1]), "z": 0.0}


def _road(road: Road) -> dict[str, Any]:
    found = {
        "geometry": [_point(point) for point in road.points],
        "type": road.kind,
        "map_element_id": road.element,
        "id": road.id,
    }
    return found if road.limit is None else {**found, "speed_limit": road.limit}


def _light(light: Light) -> dict[str, Any]:
    x, y = light.point.tolist()
    count = len(light.state)
    return {
        "state": [LIGHTS[state] for state in light.state],
        "x": [x] * count,
        "y": [y] * count,
        "z": [0.0] * count,
        "time_index": list(range(count)),
    }
