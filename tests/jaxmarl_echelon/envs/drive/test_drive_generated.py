"""Properties of all generated scenes, for any seed. docs/reference/drive.md 12."""

import json

import numpy as np
import pytest
from drive_generated import scenes

from jaxmarl_echelon.envs.drive.codes import EDGE, LANE, TYPES, VEHICLE
from jaxmarl_echelon.envs.drive.scenes.files.export import scene_to_json
from jaxmarl_echelon.envs.drive.scenes.generated import generate as generator
from jaxmarl_echelon.envs.drive.scenes.generated.bodies import boxes_meet_segments
from jaxmarl_echelon.envs.drive.scenes.generated.generate import KINDS, find_contacts, generate_scene
from jaxmarl_echelon.envs.drive.scenes.lanes import make_segments
from jaxmarl_echelon.envs.drive.scenes.learners import SlotSettings, assign_slots
from jaxmarl_echelon.envs.drive.scenes.raw_scene import STEP
from jaxmarl_echelon.envs.workers import run_jobs
from physics.polylines import arc_lengths, point_headings, resample_polyline, segment_distance

CAR = np.array([4.5, 1.9])


@pytest.fixture(params=KINDS)
def some(request):
    """Scenes of one kind."""
    return scenes(request.param)


def _lanes(scene):
    return [road.points for road in scene.roads if road.kind == "lane"]


def _edges(scene):
    segments = make_segments(scene.roads, np.zeros(2))
    return segments.segment[segments.kind == EDGE]


def _poses(points):
    points = resample_polyline(points, 1.0)
    return np.concatenate([points, point_headings(points)[:, None]], axis=1)


def test_same_inputs_give_the_same_bytes_in_another_process():
    jobs = [(3, 1, kind) for kind in ("curve", "tee")]
    here, there = (run_jobs(generate_scene, jobs, label="", per_worker=1, workers=count) for count in (1, 2))
    for one, other in zip(here, there, strict=True):
        assert json.dumps(scene_to_json(one)) == json.dumps(scene_to_json(other))


def test_different_seeds_and_indices_differ():
    made = [
        scene_to_json(generate_scene(*which, "curve"))["roads"][0]["geometry"]
        for which in ((3, 1), (3, 2), (4, 1))
    ]
    assert made[0] != made[1] and made[0] != made[2]


def test_successive_lanes_join_smoothly(some):
    for scene in some:
        lanes = _lanes(scene)
        graph = make_segments(scene.roads, np.zeros(2)).next
        assert len(graph) == len(lanes)
        for lane, after in zip(lanes, graph, strict=True):
            for one in after:
                assert np.hypot(*(lane[-1] - lanes[one][0])) < 0.01
                turn = point_headings(lane)[-1] - point_headings(lanes[one])[0]
                assert abs(np.arctan2(np.sin(turn), np.cos(turn))) < 0.1


@pytest.mark.parametrize("kind", ["crossing", "tee", "roundabout", "parking", "merge"])
def test_junctions_connect_every_incoming_lane(kind):
    for scene in scenes(kind):
        graph = make_segments(scene.roads, np.zeros(2)).next
        leads = {lane for lane, after in enumerate(graph) if after}
        reached = {one for after in graph for one in after}
        assert leads | reached >= set(range(len(graph))) - ({0} if kind == "merge" else set())


def test_vertices_are_close_on_curves(some):
    for lane in (lane for scene in some for lane in _lanes(scene)):
        along = np.diff(lane, axis=0)
        bends = np.abs(np.diff(np.unwrap(np.arctan2(along[:, 1], along[:, 0])))) > 0.01
        both = bends[1:] & bends[:-1]
        assert np.diff(arc_lengths(lane))[1:-1][both].max(initial=0) <= 2.7  # 2 m in the middle, more outside


def test_a_car_on_any_lane_meets_no_edge(some):
    for scene in some:
        edges = _edges(scene)
        for lane in _lanes(scene):
            assert not boxes_meet_segments(_poses(lane), CAR, edges).any()


def test_the_drivable_side_of_edges_is_on_their_left(some):
    for scene in some:
        edges, found = _edges(scene), make_segments(scene.roads, np.zeros(2))
        lanes = found.segment[found.kind == LANE]
        step = edges[:, 2:] - edges[:, :2]
        normal = np.stack([-step[:, 1], step[:, 0]], axis=1) / np.hypot(*step.T)[:, None]
        middle = (edges[:, :2] + edges[:, 2:]) / 2
        left, right = (
            np.min([segment_distance(middle + side * normal, lane) for lane in lanes], axis=0)
            for side in (0.5, -0.5)
        )
        long = np.hypot(*step.T) > 0.5
        bays = 0 if scene.kind != "parking" else 0.6
        assert (left < right)[long].mean() > 0.98 - bays


def test_no_boxes_touch(some):
    for scene in some:
        margin = generator.MARGIN
        assert not find_contacts(scene.position, scene.heading, scene.size[:, :2], scene.valid, margin).any()


def test_at_least_four_learners_whose_recording_stays_on_the_road(some):
    for scene in some:
        who, edges = assign_slots(scene, SlotSettings()), _edges(scene)
        assert len(who.learners) >= generator.LEARNERS
        for body in who.learners:
            pose = np.concatenate([scene.position[body], scene.heading[body, :, None]], axis=1)
            assert not boxes_meet_segments(pose[scene.valid[body]], scene.size[body, :2], edges).any()


def test_goals_lie_late_on_the_recording_and_on_a_lane(some):
    for scene in some:
        lanes = np.concatenate([np.concatenate([lane[:-1], lane[1:]], axis=1) for lane in _lanes(scene)])
        for body in assign_slots(scene, SlotSettings()).learners:
            goal = scene.goal[body]
            reached = (scene.position[body] == goal).all(1) & scene.valid[body]
            assert reached[60:91].any()
            assert np.hypot(*(goal - scene.position[body, 0])) >= 10.0
            assert segment_distance(goal, lanes).min() < 0.05


def test_recordings_follow_their_routes_at_their_speeds(some):
    for scene in some:
        speed = scene.speed
        for body, route in enumerate(scene.routes):
            valid = scene.valid[body]
            if route is None:
                continue
            driven = np.hypot(*np.diff(scene.position[body, valid], axis=0).T)
            mean = (speed[body, valid][1:] + speed[body, valid][:-1]) / 2
            np.testing.assert_allclose(driven, mean * STEP, atol=0.02)
            segments = np.concatenate([route.points[:-1], route.points[1:]], axis=1)
            assert segment_distance(scene.position[body, valid][:, None], segments).min(1).max() < 0.01
            assert (np.diff(speed[body, valid]) / STEP).min(initial=0) >= -6.0 - 1e-9


def test_bodies_stop_at_stop_signs():
    passed = 0
    for scene in (*scenes("crossing"), *scenes("tee")):
        for body, route in enumerate(scene.routes):
            gates = () if route is None else [gate for gate in route.gates if gate.stop]
            valid = scene.valid[body]
            along = np.hypot(*np.diff(scene.position[body, valid], axis=0).T).cumsum()
            front = np.concatenate([[0.0], along]) + scene.size[body, 0] / 2
            for gate in gates:
                if front[-1] > gate.arc + 1.0:
                    waits = (front > gate.arc - 3.0) & (front <= gate.arc)
                    assert scene.speed[body, valid][waits].min() < 0.5
                    passed += 1
    assert passed > 0


def test_sizes_match_body_types(some):
    bounds = {
        "vehicle": ([4.2, 1.7], [9.0, 2.6]),
        "pedestrian": ([0.5] * 2, [0.8] * 2),
        "cyclist": ([1.6, 0.6], [1.9, 0.8]),
    }
    for scene in some:
        for size, kind in zip(scene.size[:, :2], scene.type, strict=True):
            low, high = bounds[TYPES[kind]]
            assert (size >= low).all() and (size <= high).all()
        assert (scene.type == VEHICLE).sum() >= 4


def test_a_failing_generator_raises_an_error_with_its_seed(monkeypatch):
    monkeypatch.setattr(generator, "_find_fault", lambda scene: "no good")
    monkeypatch.setattr(generator, "_SUB_SEEDS", 2)
    with pytest.raises(ValueError, match=r"env.map_seed=5: no straight scene 2 in 2 attempts: no good"):
        generate_scene(5, 2, "straight")
