"""JSON scenes: written scenes read back the same, and faults raise one line.

docs/reference/drive.md 2.2, 2.3.
"""

import copy
import json
import random

import numpy as np
import pytest
from drive_generated import scenes as generated

from jaxmarl_echelon.envs.drive.scenes.arrays import build_scene_arrays
from jaxmarl_echelon.envs.drive.scenes.files.export import scene_to_json, write_scene
from jaxmarl_echelon.envs.drive.scenes.files.reading import difference_positions, parse_scene, read_scene_file
from jaxmarl_echelon.envs.drive.scenes.generated.generate import KINDS
from jaxmarl_echelon.envs.drive.scenes.learners import SlotSettings, find_goals
from jaxmarl_echelon.envs.drive.scenes.library import load_scenes
from jaxmarl_echelon.envs.drive.scenes.raw_scene import SAMPLES
from jaxmarl_echelon.envs.drive.scenes.settings import SceneSettings

BROKEN = 500


def _object(samples=SAMPLES, **changes):
    """A car that drives along x at 5 m/s."""
    return {
        "position": [{"x": 0.5 * nth, "y": 1.0, "z": 0.0} for nth in range(samples)],
        "heading": [0.0] * samples,
        "velocity": [{"x": 5.0, "y": 0.0}] * samples,
        "valid": [True] * samples,
        "length": 4.5,
        "width": 2.0,
        "height": 1.5,
        "type": "vehicle",
        **changes,
    }


def _road(kind="lane", **changes):
    return {
        "geometry": [{"x": 0.0, "y": 1.0, "z": 0.0}, {"x": 50.0, "y": 1.0, "z": 0.0}],
        "type": kind,
        **changes,
    }


def _file(*objects, roads=None, **more):
    return {"objects": list(objects), "roads": [_road()] if roads is None else roads, **more}


@pytest.mark.parametrize("kind", KINDS)
def test_a_generated_scene_reads_back_to_the_same_arrays(kind, tmp_path):
    for scene in generated(kind):
        write_scene(scene, tmp_path / "scene.json")
        back = read_scene_file(tmp_path / "scene.json")
        assert (back.name, back.kind) == (scene.name, scene.kind)
        ours, who = build_scene_arrays(scene, SlotSettings())
        theirs, again = build_scene_arrays(back, SlotSettings())
        for name, array in ours.items():
            np.testing.assert_array_equal(theirs[name], array, err_msg=name)
        np.testing.assert_array_equal(who.learners, again.learners)


def test_missing_fields_take_their_defaults():
    scene = parse_scene(
        _file({k: v for k, v in _object().items() if k not in ("velocity", "height")}), "alone"
    )
    assert scene.name == "alone" and scene.sdc == -1 and not scene.expert[0]
    np.testing.assert_array_equal(scene.goal[0], [45.0, 1.0])
    np.testing.assert_allclose(scene.velocity[0], [[5.0, 0.0]] * SAMPLES)


def test_invalid_samples_are_not_read_and_leave_the_goal_at_the_last_valid_one():
    one = _object()
    for nth in range(40, SAMPLES):
        one["valid"][nth] = 0
        one["position"][nth] = {"x": float("nan"), "y": -10000.0}
        one["heading"][nth] = -10000.0
    scene = parse_scene(_file(one), "a")
    np.testing.assert_array_equal(scene.goal[0], [19.5, 1.0])
    assert scene.valid[0].sum() == 40 and (scene.position[0, 40:] == 0).all()


def test_velocities_by_differences_use_valid_neighbours_only():
    position = np.array([[0.0, 0], [1, 0], [9, 9], [4, 0], [6, 0]])
    valid = np.array([True, True, False, True, True])
    np.testing.assert_allclose(difference_positions(position, valid)[:, 0], [10, 10, 0, 20, 20])


def test_recordings_are_padded_cut_and_counted():
    scene = parse_scene(
        _file(_object(50), _object(120), _object(type="unset"), roads=[_road(), _road("rail")]), "a"
    )
    assert scene.valid.shape == (2, SAMPLES) and scene.valid.sum(1).tolist() == [50, SAMPLES]
    assert dict(scene.notes) == {
        "objects of type unset": 1,
        "objects with fewer than 91 samples": 1,
        "objects with more than 91 samples": 1,
        "roads of unknown type 'rail'": 1,
    }


@pytest.mark.parametrize("kind, points", [("lane", 1), ("road_edge", 0), ("crosswalk", 2), ("stop_sign", 0)])
def test_roads_without_enough_points_are_skipped_and_counted(kind, points):
    short = _road(kind, geometry=_road()["geometry"][:points])
    scene = parse_scene(_file(_object(), roads=[short, _road(), short]), "a")
    assert (
        len(scene.roads) == 1
        and build_scene_arrays(scene, SlotSettings())[0]["segment_kind"].tolist() == [0] * 5
    )
    least = {"stop_sign": 1, "crosswalk": 3}.get(kind, 2)
    assert dict(scene.notes) == {f"roads of type {kind} with fewer than {least} points": 2}


PADDED = {"x": -10000.0, "y": -10000.0, "z": 0.0}


def test_a_goal_at_the_padding_value_counts_as_missing():
    scene = parse_scene(_file(_object(goalPosition=PADDED), _object(goalPosition={"x": 9.0, "y": 1.0})), "a")
    np.testing.assert_array_equal(scene.goal, [[45.0, 1.0], [9.0, 1.0]])
    assert scene.recorded_goal.tolist() == [True, False]
    assert dict(scene.notes) == {"goals at the file's padding": 1}


def test_samples_at_the_padding_value_are_invalid():
    one = _object()
    one["position"][-1] = one["velocity"][-1] = PADDED
    scene = parse_scene(_file(one), "a")
    assert scene.valid[0].sum() == SAMPLES - 1 and scene.goal[0, 0] == 44.5
    assert dict(scene.notes) == {"objects with padding at samples that are called valid": 1}


def test_a_velocity_of_padding_is_that_of_the_positions():
    velocity = [{"x": 4.0, "y": 0.0}] * SAMPLES
    velocity[7], velocity[90] = {"x": -10000.0, "y": -10000.0}, {"x": -10000.0, "y": 0.0}
    scene = parse_scene(_file(_object(velocity=velocity), _object()), "a")
    wanted = np.full((SAMPLES, 2), [4.0, 0.0])
    wanted[[7, 90]] = 5.0, 0.0
    np.testing.assert_allclose(scene.velocity[0], wanted)
    assert scene.valid.all() and dict(scene.notes) == {
        "objects with velocities of padding at valid samples": 1
    }
    velocity[8] = {"x": -9999.0, "y": 0.0}
    with pytest.raises(ValueError, match=r"objects\[0\].velocity: faster than 1000 m/s"):
        parse_scene(_file(_object(velocity=velocity)), "a")


def test_goals_lie_within_the_episode():
    whole = _object(200)
    whole["goalPosition"] = whole["position"][-1]
    scene = parse_scene(_file(whole, _object(goalPosition={"x": 45.0, "y": 1.0}), _object(60)), "a")
    np.testing.assert_array_equal(scene.goal[:, 0], [45.0, 45.0, 29.5])
    assert dict(scene.notes)["goals that lay beyond the first 91 samples"] == 1
    shorter = find_goals(scene, SlotSettings(last=40))
    np.testing.assert_array_equal(shorter[:, 0], [20.0, 20.0, 20.0])
    np.testing.assert_array_equal(find_goals(scene, SlotSettings()), scene.goal)


def test_explicit_goals_do_not_move_in_shorter_episodes():
    scene = parse_scene(_file(_object(goalPosition={"x": 30.0, "y": 4.0})), "a")
    np.testing.assert_array_equal(find_goals(scene, SlotSettings(last=40)), [[30.0, 4.0]])


@pytest.mark.parametrize("fastest, wanted", [(5.0, 10.0), (22.0, 22.0)])
def test_loaded_drivers_use_their_recorded_speed_without_a_limit(fastest, wanted):
    one = _object()
    one["velocity"][40] = {"x": fastest, "y": 0.0}
    arrays, _ = build_scene_arrays(parse_scene(_file(one), "a"), SlotSettings())
    assert arrays["route"][0, :, 3].tolist() == [wanted] * 128
    assert arrays["lane_limit"].tolist() == [0.0], "nobody is charged for speeds above a limit not known"


def test_loaded_drivers_use_the_limit_of_their_lane():
    def lane(first, last, y, limit):
        return _road(geometry=[{"x": first, "y": y}, {"x": last, "y": y}], speed_limit=limit)

    roads = [lane(0, 20, 1.0, 7.0), lane(20, 50, 1.0, 12.0), lane(50, 0, 1.5, 30.0), lane(0, 50, 6.0, 40.0)]
    limit = build_scene_arrays(parse_scene(_file(_object(), roads=roads), "a"), SlotSettings())[0]["route"][
        0, :, 3
    ]
    assert limit[:50].tolist() == [7.0] * 50 and limit[60:].tolist() == [12.0] * 68


def test_the_position_of_a_light_ignores_padding():
    light = {"state": ["stop"] * 91, "x": [-10000.0] + [7.0] * 90, "y": [-10000.0] + [1.0] * 90}
    scene = parse_scene(_file(_object(), roads=[_road(id=31)], tl_states={"31": light}), "a")
    np.testing.assert_array_equal(scene.lights[0].point, [7.0, 1.0])


def test_tracks_count_among_all_objects_of_the_file():
    tracks = {"sdc_track_index": 2, "tracks_to_predict": [{"track_index": 1}, {"track_index": 0}]}
    scene = parse_scene(_file(_object(type="other"), _object(), _object(), metadata=tracks), "a")
    assert scene.sdc == 1 and scene.predict == (0,)


def test_lights_lie_at_the_samples_of_their_time_index():
    light = {"state": ["stop"] * 40 + ["go"] * 2, "x": [-10000.0] + [7.0] * 41, "y": [-10000.0] + [1.0] * 41}
    light["time_index"] = [*range(50, 90), 90, 91]
    scene = parse_scene(_file(_object(), roads=[_road(id=31)], tl_states={"31": light}), "a")
    (found,) = scene.lights
    np.testing.assert_array_equal(found.state, [0] * 50 + [1] * 40 + [3])
    np.testing.assert_array_equal(found.point, [7.0, 1.0])
    without = parse_scene(_file(_object(), tl_states={"31": {**light, "time_index": None}}), "a").lights[0]
    np.testing.assert_array_equal(without.state, [1] * 40 + [3] * 2 + [0] * 49)


@pytest.mark.parametrize(
    "given, line",
    [
        ([0, 1], "tl_states.31.time_index has 2 entries, state has 3"),
        ([0, 1, -1], "tl_states.31.time_index[2] is -1, allowed is [0"),
        ([0, 1, 2.5], "tl_states.31.time_index[2]: must be a whole number"),
        (7, "tl_states.31.time_index: must be a list"),
    ],
)
def test_a_faulty_time_index_raises_a_one_line_error(given, line):
    light = {"state": ["stop"] * 3, "x": [7.0] * 3, "y": [1.0] * 3, "time_index": given}
    with pytest.raises(ValueError) as caught:
        parse_scene(_file(_object(), tl_states={"31": light}), "a")
    assert str(caught.value).startswith(line)


def test_lights_keep_their_stop_position():
    light = {"state": ["unknown", "stop"] + ["go"] * 89, "x": [0.0] + [7.0] * 90, "y": [0.0] + [1.0] * 90}
    scene = parse_scene(_file(_object(), roads=[_road(id=31)], tl_states={"31": light}), "a")
    arrays, _ = build_scene_arrays(scene, SlotSettings())
    assert arrays["gate_light"][0].tolist() == [0]
    np.testing.assert_allclose(arrays["gate_arc"][0], [7.0])
    assert arrays["light"][:3, 0].tolist() == [0, 1, 3] and arrays["light_lane"].tolist() == [0]
    np.testing.assert_allclose(arrays["light_point"][0] + scene.middle, [7.0, 1.0])


@pytest.mark.parametrize("lane", [[(0, 4.5), (50, 4.5)], [(50, 1), (0, 1)], [(0, 1), (7, 1), (20, 14)]])
def test_lights_of_other_lanes_make_no_gates(lane):
    light = {"state": ["stop"] * 91, "x": [7.0] * 91, "y": [1.0] * 91}
    points = [{"x": x, "y": y} for x, y in lane]
    scene = parse_scene(_file(_object(), roads=[_road(id=31, geometry=points)], tl_states={"31": light}), "a")
    assert build_scene_arrays(scene, SlotSettings())[0]["gate_light"][0].tolist() == [-1]


@pytest.mark.parametrize(
    "x, y, gates",
    [(20.0, -2.0, [20.0]), (20.0, -5.0, []), (20.0, 3.0, []), (-1.0, -2.0, []), (46.0, -2.0, [])],
)
def test_stop_signs_right_of_a_recorded_route_make_gates(x, y, gates):
    sign = _road("stop_sign", geometry=[{"x": x, "y": y}])
    arrays, _ = build_scene_arrays(parse_scene(_file(_object(), roads=[_road(), sign]), "a"), SlotSettings())
    found = arrays["gate_arc"][0][arrays["gate_stop"][0]]
    np.testing.assert_allclose(found, gates)
    assert (arrays["gate_junction"] == -1).all() and (arrays["gate_light"] == -1).all()


def _changed(change):
    given = _file(_object(), _object())
    change(given)
    return given


FAULTS = {
    "objects is missing": lambda f: f.pop("objects"),
    "roads is missing": lambda f: f.pop("roads"),
    "objects: must be a list": lambda f: f.update(objects={}),
    "objects[1].heading has 90 entries, position has 91": lambda f: f["objects"][1]["heading"].pop(),
    "objects[0].position[5].x is NaN though valid[5] is true": lambda f: f["objects"][0]["position"][
        5
    ].update(x=float("nan")),
    "objects[0].position[5].y is missing": lambda f: f["objects"][0]["position"][5].pop("y"),
    "objects[0].heading[2] is NaN though valid[2] is true": lambda f: f["objects"][0]["heading"].__setitem__(
        2, float("nan")
    ),
    "objects[0].length is missing": lambda f: f["objects"][0].pop("length"),
    "objects[0].width is 0, allowed is [0.01, 50]": lambda f: f["objects"][0].update(width=0),
    "objects[0].valid[3]: must be true or false": lambda f: f["objects"][0]["valid"].__setitem__(3, 2),
    "objects[0].type is 'tank'; allowed: vehicle, pedestrian, cyclist, other, unset": lambda f: f["objects"][
        0
    ].update(type="tank"),
    "objects[0].goalPosition: must have numbers x and y": lambda f: f["objects"][0].update(
        goalPosition=[1, 2]
    ),
    "roads[0].geometry[0]: must have numbers x and y": lambda f: f["roads"][0]["geometry"].__setitem__(0, {}),
    "roads[0].geometry[0].x is inf, allowed is [-1e+07, 1e+07]": lambda f: f["roads"][0]["geometry"][
        0
    ].update(x=float("inf")),
    "roads: 100000 m from one end to the other, at most 4000 m are allowed": lambda f: f["roads"][0][
        "geometry"
    ][1].update(x=1e5),
    "metadata.sdc_track_index is 2, allowed is [-1, 1]": lambda f: f.update(metadata={"sdc_track_index": 2}),
    "tl_states.5.state is missing": lambda f: f.update(tl_states={"5": {}}),
    "objects and roads are empty": lambda f: f.update(objects=[], roads=[]),
    "jaxmarl_echelon.routes has 1 entries, objects has 2": lambda f: f.update(
        jaxmarl_echelon={"routes": [None]}
    ),
}


@pytest.mark.parametrize("line", FAULTS)
def test_a_fault_names_its_field(line):
    with pytest.raises(ValueError) as caught:
        parse_scene(_changed(FAULTS[line]), "a")
    assert str(caught.value) == line


@pytest.mark.parametrize(
    "text, line",
    [
        (b'{\n\n "a": }', "a.json: not JSON (line 3, column 7)"),
        (b"", "a.json: not JSON (line 1, column 1)"),
        (b"\xff\xfe{}", "a.json: not UTF-8 (byte 0)"),
        (b"[" * 100_000, "a.json: not JSON that can be read (nested too deeply)"),
        (b"[1, 2]", "a.json: the file: must be an object"),
        (
            b'{"objects": [], "roads": ' + b"9" * 5000 + b"}",
            "a.json: not JSON that can be read (a number too long)",
        ),
    ],
)
def test_files_that_are_not_scenes_raise_a_one_line_error(text, line, tmp_path):
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(ValueError) as caught:
        read_scene_file(tmp_path / "a.json")
    assert str(caught.value) == f"env.scenes: {line}"


def _places(value, path=()):
    """Paths of all values in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from _places(one, (*path, key))


WRONG = (None, True, -1, 0, 3.5, 1e30, float("nan"), float("inf"), "", "x", [], {}, [[]], [{}], {"x": 1})


def _mutated(rng: random.Random, whole: dict, places: list[tuple]) -> bytes:
    """The file with one fault: a value removed, replaced or repeated, or its text truncated."""
    if rng.random() < 0.1:
        text = json.dumps(whole).encode()
        return text[: rng.randrange(len(text))]
    broken = holder = copy.copy(whole)
    *path, last = rng.choice(places)
    for key in path:  # what is not on the way to the place is shared with the whole file
        holder[key] = copy.copy(holder[key])
        holder = holder[key]
    how = rng.random()
    if how < 0.3:
        del holder[last]
    elif how < 0.9:
        holder[last] = rng.choice(WRONG)
    else:
        holder[last] = [holder[last]] * 3000
    return json.dumps(broken).encode()


def test_broken_files_get_one_line_each_and_nothing_is_written(tmp_path):
    whole = scene_to_json(generated("crossing")[0])
    for one in whole["objects"]:
        for key in ("position", "heading", "velocity", "valid"):
            one[key] = one[key][:6]
    whole["objects"], whole["roads"] = whole["objects"][:3], whole["roads"][:12]
    whole["jaxmarl_echelon"]["routes"] = whole["jaxmarl_echelon"]["routes"][:3]
    whole["jaxmarl_echelon"]["conflict"] = [[0, 1]]
    places = [path for path in _places(whole) if path]
    rng = random.Random(0)
    path, refused = tmp_path / "broken.json", 0
    chosen = SceneSettings(scenes=str(tmp_path), cache=str(tmp_path / "cache"))
    while refused < BROKEN:
        path.write_bytes(_mutated(rng, whole, places))
        try:
            build_scene_arrays(read_scene_file(path), SlotSettings())
        except ValueError as error:
            line = str(error)
            assert line.startswith("env.scenes: broken.json: ") and "\n" not in line and len(line) < 300
            refused += 1
            if refused % 50 == 0:
                with pytest.raises(ValueError, match=r"env.scenes: broken.json: "):
                    load_scenes(chosen, progress=False)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["broken.json"]
