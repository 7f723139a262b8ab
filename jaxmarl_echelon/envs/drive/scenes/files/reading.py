"""Reads JSON files in the format of GPUDrive's converter of Waymo motion data.

Reference: docs/reference/drive.md 2.2, 2.3.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxmarl_echelon.envs.drive.codes import LIGHTS, TYPES
from jaxmarl_echelon.envs.drive.scenes.files import extension, fields
from jaxmarl_echelon.envs.drive.scenes.files.fields import (
    get_json_member,
    join_json_path,
    require_json_member,
)
from jaxmarl_echelon.envs.drive.scenes.raw_scene import ROADS, SAMPLES, STEP, Light, RawScene, Road
from physics.angles import wrap_angle_by_remainder

SKIPPED_TYPES = "other", "unset"
LARGEST = 512_000_000  # bytes of a file
WIDEST = 4000.0  # m from one end of a scene's roads to the other
PADDING = -10000.0  # stands in files for what is not there
SAME = 0.1  # m within which a goal is the last place of a recording
_LEAST_POINTS = {"stop_sign": 1, "crosswalk": 3, "speed_bump": 3, "driveway": 3}
_LARGEST_BODY = 50.0  # m
_FASTEST = 1000.0  # m/s


def read_scene_file(path: Path) -> RawScene:
    """Reads one file.

    Raises:
      ValueError: one line with the file's name, the field and its fault.
    """
    try:
        return parse_scene(_decode_json(path), path.stem)
    except ValueError as error:
        raise ValueError(f"env.scenes: {path.name}: {error}") from None


def _decode_json(path: Path) -> Any:
    """Parses the JSON of a file; raises a one-line ValueError."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"larger than {LARGEST // 1_000_000} MB")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON (line {error.lineno}, column {error.colno})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise ValueError("not JSON that can be read (nested too deeply)") from None
    except ValueError as error:
        if "string conversion" not in str(error):
            raise
        raise ValueError("not JSON that can be read (a number too long)") from None


class _Object(NamedTuple):
    position: np.ndarray
    heading: np.ndarray
    velocity: np.ndarray
    valid: np.ndarray
    size: tuple[float, float, float]
    type: int
    goal: np.ndarray
    recorded_goal: bool
    expert: bool
    id: int


def parse_scene(content: Any, name: str) -> RawScene:
    """Converts a parsed file to a scene.

    Args:
      content: the JSON value.
      name: of the scene, if the file has none.

    Raises:
      ValueError: one line that begins with the field.
    """
    notes: Counter[str] = Counter()
    objects = fields.read_json_list(require_json_member(content, "objects", ""), "objects")
    found = [_object(one, nth, notes) for nth, one in enumerate(objects)]
    place = np.cumsum([one is not None for one in found]) - 1
    place = np.where([one is not None for one in found], place, -1)
    bodies = [one for one in found if one is not None]
    roads = fields.read_json_list(require_json_member(content, "roads", ""), "roads")
    roads = [road for nth, one in enumerate(roads) if (road := _road(one, nth, notes)) is not None]
    _check_width(roads)
    if not bodies and not roads:
        raise ValueError("objects and roads are empty")
    sdc, predict = _metadata(get_json_member(content, "metadata", "", {}), place)
    given = get_json_member(content, "name", "", None) or get_json_member(content, "scenario_id", "", name)
    return extension.add_extension(
        content,
        place,
        RawScene(
            name=fields.read_json_text(given, "name"),
            kind="loaded",
            position=_stacked([one.position for one in bodies], (0, SAMPLES, 2)),
            heading=_stacked([one.heading for one in bodies], (0, SAMPLES)),
            velocity=_stacked([one.velocity for one in bodies], (0, SAMPLES, 2)),
            valid=_stacked([one.valid for one in bodies], (0, SAMPLES)).astype(bool),
            size=_stacked([one.size for one in bodies], (0, 3)),
            type=_stacked([one.type for one in bodies], (0,)).astype(int),
            goal=_stacked([one.goal for one in bodies], (0, 2)),
            recorded_goal=_stacked([one.recorded_goal for one in bodies], (0,)).astype(bool),
            expert=_stacked([one.expert for one in bodies], (0,)).astype(bool),
            ids=_stacked([one.id for one in bodies], (0,)).astype(int),
            roads=tuple(roads),
            sdc=sdc,
            predict=predict,
            lights=_lights(get_json_member(content, "tl_states", "", {})),
            notes=tuple(sorted(notes.items())),
        ),
    )


def _stacked(rows: list, empty: tuple[int, ...]) -> np.ndarray:
    return np.array(rows) if rows else np.zeros(empty)


def _object(one: Any, nth: int, notes: Counter) -> _Object | None:
    """Reads an object; None if its type is skipped or it is never valid."""
    path = f"objects[{nth}]"
    kind = fields.read_json_text(
        require_json_member(one, "type", path), join_json_path(path, "type"), (*TYPES, *SKIPPED_TYPES)
    )
    if kind in SKIPPED_TYPES:
        notes[f"objects of type {kind}"] += 1
        return None
    position = fields.read_json_list(
        require_json_member(one, "position", path), join_json_path(path, "position")
    )
    columns = {
        key: fields.read_json_list(require_json_member(one, key, path), join_json_path(path, key))
        for key in ("heading", "valid")
    }
    if (velocity := get_json_member(one, "velocity", path, None)) is not None:
        columns["velocity"] = fields.read_json_list(velocity, join_json_path(path, "velocity"))
    for key, values in columns.items():
        if len(values) != len(position):
            raise ValueError(f"{path}.{key} has {len(values)} entries, position has {len(position)}")
    valid = fields.read_json_flags(columns["valid"], join_json_path(path, "valid"))
    at = fields.read_valid_samples(position, join_json_path(path, "position"), valid, "xy")
    heading = fields.read_valid_samples(columns["heading"], join_json_path(path, "heading"), valid, "")[:, 0]
    padded = valid & ((at == PADDING).all(1) | (heading == PADDING))
    if padded.any():
        notes["objects with padding at samples that are called valid"] += 1
        valid, at, heading = (
            valid & ~padded,
            np.where(padded[:, None], 0.0, at),
            np.where(padded, 0.0, heading),
        )
    speed = difference_positions(at, valid)
    if velocity is not None:
        given = fields.read_valid_samples(velocity, join_json_path(path, "velocity"), valid, "xy")
        speed = _without_padding(given, speed, notes)
    if (np.abs(speed) > _FASTEST).any():
        raise ValueError(f"{path}.velocity: faster than {_FASTEST:g} m/s")
    return _cast(one, path, nth, kind, notes, (at, _wrapped(heading), speed, valid))


def _without_padding(given: np.ndarray, moved: np.ndarray, notes: Counter) -> np.ndarray:
    """Velocities `[T, 2]` as `given`; those of which a part is padding are replaced by those `moved` with."""
    padded = (given == PADDING).any(1)
    if padded.any():
        notes["objects with velocities of padding at valid samples"] += 1
    return np.where(padded[:, None], moved, given)


def _cast(one: dict, path: str, nth: int, kind: str, notes: Counter, recorded: tuple) -> _Object | None:
    """Reads the other fields of an object, and fits its recording to `SAMPLES` samples."""
    size = (
        *(
            fields.read_json_number(
                require_json_member(one, key, path), join_json_path(path, key), 0.01, _LARGEST_BODY
            )
            for key in _SIDES
        ),
        fields.read_json_number(
            get_json_member(one, "height", path, 0.0), join_json_path(path, "height"), 0.0, _LARGEST_BODY
        ),
    )
    expert = fields.read_json_flag(
        get_json_member(one, "mark_as_expert", path, False), join_json_path(path, "mark_as_expert")
    )
    id_ = fields.read_json_whole(get_json_member(one, "id", path, nth), join_json_path(path, "id"))
    goal = _goal_given(one, path, notes)
    recorded_goal = goal is None or _is_last(goal, recorded[0], recorded[3])
    if recorded[3][SAMPLES:].any():
        recorded_goal = True
        if goal is not None:
            notes[f"goals that lay beyond the first {SAMPLES} samples"] += 1
    if len(recorded[0]) != SAMPLES:
        notes[f"objects with {'more' if len(recorded[0]) > SAMPLES else 'fewer'} than {SAMPLES} samples"] += 1
    position, heading, velocity, valid = (_fitted(column) for column in recorded)
    if not valid.any():
        notes["objects that are never valid"] += 1
        return None
    if goal is None or recorded[3][SAMPLES:].any():
        goal = position[valid][-1]
    return _Object(
        position, heading, velocity, valid, size, TYPES.index(kind), goal, recorded_goal, expert, id_
    )


def _goal_given(one: dict, path: str, notes: Counter) -> np.ndarray | None:
    """Goal `[2]` of an object; None if it is missing or is the file's padding value."""
    given = get_json_member(one, "goalPosition", path, None)
    if given is None:
        return None
    goal = np.array(fields.read_json_point(given, join_json_path(path, "goalPosition")))
    if (goal == PADDING).all():
        notes["goals at the file's padding"] += 1
        return None
    return goal


def _is_last(goal: np.ndarray, position: np.ndarray, valid: np.ndarray) -> bool:
    """Returns whether a goal is at the end of the recording."""
    return bool(valid.any()) and bool(np.hypot(*(position[valid][-1] - goal)) <= SAME)


_SIDES = "length", "width"


def _fitted(column: np.ndarray) -> np.ndarray:
    missing = max(0, SAMPLES - len(column))
    return np.concatenate([column[:SAMPLES], np.zeros((missing, *column.shape[1:]), column.dtype)])


def _wrapped(angle: np.ndarray) -> np.ndarray:
    # Angles in range come back as they are, to the bit.
    return np.where((angle >= -np.pi) & (angle < np.pi), angle, wrap_angle_by_remainder(angle))


def difference_positions(position: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Velocities `[T, 2]` by differences over the valid neighbours of each valid sample; 0 without any."""
    before, after = np.arange(-1, len(valid) - 1), np.arange(1, len(valid) + 1)
    here = np.arange(len(valid))
    before = np.where((before >= 0) & valid[before], before, here)
    after = np.where((after < len(valid)) & valid[np.minimum(after, len(valid) - 1)], after, here)
    span = np.maximum(after - before, 1)[:, None] * STEP
    return np.where(valid[:, None], (position[after] - position[before]) / span, 0.0)


def _road(one: Any, nth: int, notes: Counter) -> Road | None:
    path = f"roads[{nth}]"
    kind = fields.read_json_text(require_json_member(one, "type", path), join_json_path(path, "type"))
    if kind not in ROADS:
        notes[f"roads of unknown type {kind[:40]!r}"] += 1
        return None
    at = join_json_path(path, "geometry")
    points, least = (
        fields.read_json_points(require_json_member(one, "geometry", path), at, 0),
        _LEAST_POINTS.get(kind, 2),
    )
    if len(points) < least:
        notes[f"roads of type {kind} with fewer than {least} points"] += 1
        return None
    element = fields.read_json_whole(
        get_json_member(one, "map_element_id", path, -1), join_json_path(path, "map_element_id"), -1, 1000
    )
    id_ = fields.read_json_whole(get_json_member(one, "id", path, nth), join_json_path(path, "id"))
    limit = get_json_member(one, "speed_limit", path, None)
    if limit is not None:
        limit = fields.read_json_number(limit, join_json_path(path, "speed_limit"), 0.1, _FASTEST)
    return Road(kind, element, id_, points, limit)


def _check_width(roads: list[Road]) -> None:
    if not roads:
        return
    points = np.concatenate([road.points for road in roads])
    width = float((points.max(0) - points.min(0)).max())
    if width > WIDEST:
        raise ValueError(
            f"roads: {width:.0f} m from one end to the other, at most {WIDEST:.0f} m are allowed"
        )


def _metadata(given: Any, place: np.ndarray) -> tuple[int, tuple[int, ...]]:
    """Indices of the recording car and of the bodies to be predicted, among the scene's bodies."""
    last = len(place) - 1
    at = "metadata.sdc_track_index"
    sdc = fields.read_json_whole(get_json_member(given, "sdc_track_index", "metadata", -1), at, -1, last)
    tracks = get_json_member(given, "tracks_to_predict", "metadata", [])
    found = []
    for nth, track in enumerate(fields.read_json_list(tracks, "metadata.tracks_to_predict")):
        path = f"metadata.tracks_to_predict[{nth}]"
        index = require_json_member(track, "track_index", path)
        found.append(int(place[fields.read_json_whole(index, join_json_path(path, "track_index"), 0, last)]))
    return int(place[sdc]) if sdc >= 0 else -1, tuple(one for one in found if one >= 0)


def _lights(given: Any) -> tuple[Light, ...]:
    if not isinstance(given, dict):
        raise ValueError("tl_states: must be an object")
    return tuple(_light(lane, one, f"tl_states.{lane[:20]}") for lane, one in given.items())


def _light(lane: str, one: Any, path: str) -> Light:
    if not lane.lstrip("-").isdecimal() or len(lane) > 18:
        raise ValueError(f"{path}: must be named by a lane's id")
    columns = {
        key: fields.read_json_list(require_json_member(one, key, path), join_json_path(path, key))
        for key in ("state", "x", "y")
    }
    for key, values in columns.items():
        if len(values) != len(columns["state"]) or not values:
            raise ValueError(f"{path}.{key} has {len(values)} entries, state has {len(columns['state'])}")
    samples = _light_samples(one, path, len(columns["state"]))
    states, known = np.zeros(SAMPLES, int), []
    for nth, (sample, state) in enumerate(zip(samples, columns["state"], strict=True)):
        code = LIGHTS.index(fields.read_json_text(state, f"{path}.state[{nth}]", LIGHTS))
        if sample < SAMPLES:
            states[sample] = code
            known += [nth] if code else []
    seen = [nth for nth in known if any(columns[axis][nth] != PADDING for axis in "xy")]
    at = next(iter((*seen, *known)), 0)
    where = (
        fields.read_json_number(columns[axis][at], f"{path}.{axis}[{at}]", -fields.FARTHEST, fields.FARTHEST)
        for axis in "xy"
    )
    return Light(int(lane), states, np.array(tuple(where)))


def _light_samples(one: Any, path: str, count: int) -> list[int]:
    """Samples of a light's `count` entries: converters leave out those at which the light is not recorded."""
    path = join_json_path(path, "time_index")
    given = get_json_member(one, "time_index", path, None)
    if given is None:
        return list(range(count))
    found = fields.read_json_list(given, path)
    if len(found) != count:
        raise ValueError(f"{path} has {len(found)} entries, state has {count}")
    return [fields.read_json_whole(sample, f"{path}[{nth}]", 0) for nth, sample in enumerate(found)]
