"""Scenes as arrays: assignment of slots, tables against brute force, padding.

docs/reference/drive.md 4, 5.
"""

from dataclasses import replace

import numpy as np
import pytest
from drive_generated import all_scenes, scenes
from drive_scenes import MIXED, scene

from jaxmarl_echelon.envs.drive import codes
from jaxmarl_echelon.envs.drive.scenes.arrays import ARRAYS, build_scene_arrays, stack_scenes
from jaxmarl_echelon.envs.drive.scenes.learners import SlotSettings, assign_slots, distance_to_learners
from physics.polylines import segment_distance

FOUR = SlotSettings(agents=4, bodies=8)


def test_vehicles_far_from_their_goals_learn_in_file_order():
    who = assign_slots(scene(MIXED), FOUR)
    assert who.learners.tolist() == [0, 1, 2, 3]
    assert who.scripted.tolist() == [4, 5, 6, 7] and who.left_out == 0
    assert who.stands.tolist() == [False] * 7 + [True]


def test_the_recording_car_comes_first():
    assert assign_slots(replace(scene(MIXED), sdc=4), FOUR).learners.tolist() == [4, 0, 1, 2]
    alone = assign_slots(replace(scene(MIXED), sdc=4), replace(FOUR, control="sdc"))
    # Of those that move, the nearest to the learner on its way; the one that stands is left out first.
    assert alone.learners.tolist() == [4] and alone.scripted.tolist() == [1, 2, 3, 6]
    assert alone.dropped == {"bodies to be predicted": 0, "moving bodies": 2, "standing bodies": 1}


def test_bodies_to_be_predicted_learn_after_the_recording_car_and_before_others():
    who = assign_slots(replace(scene(MIXED), sdc=4, predict=(3, 6, 7)), FOUR)
    assert who.learners.tolist() == [4, 3, 0, 1]


def test_full_scenes_keep_predicted_then_moving_then_nearest_bodies():
    # Ten cars are parked beside the road, before a pedestrian and moving cars in the order of the file.
    parked = [(5.0 + 6 * nth, -9.0, 0.0, 0.0, (4.5, 2.0, 1.5), codes.VEHICLE) for nth in range(10)]
    given = replace(scene((*parked, *MIXED)), predict=(7, 16))
    who = assign_slots(given, SlotSettings(agents=1, bodies=6))
    assert who.learners.tolist() == [10], "the one to be predicted that may learn is no vehicle"
    near = distance_to_learners(given, SlotSettings(), who.learners)
    moves = [nth for nth in (11, 12, 13, 14, 15) if near[nth] <= np.sort(near[11:16])[2]]
    assert who.scripted.tolist() == sorted([7, 16, *moves]) and 11 in moves
    assert who.dropped == {"bodies to be predicted": 0, "moving bodies": 2, "standing bodies": 10}
    assert assign_slots(given, SlotSettings(agents=1, bodies=2)).dropped["bodies to be predicted"] == 1


def test_bodies_absent_from_the_episode_take_no_slot():
    given = scene(MIXED)
    valid = given.valid.copy()
    valid[5, 20:] = False
    who = assign_slots(replace(given, valid=valid), replace(FOUR, init_step=20))
    assert 5 not in who.scripted and who.left_out == 0


@pytest.mark.parametrize(
    "control, learners",
    [("vehicles", [0, 1, 2, 3, 4]), ("agents", [0, 1, 2, 3, 4, 5, 6]), ("all", list(range(8)))],
)
def test_control_selects_the_types_that_learn(control, learners):
    assert assign_slots(scene(MIXED), SlotSettings(8, 8, control)).learners.tolist() == learners


def test_experts_absent_and_overlapping_bodies_do_not_learn():
    given = scene(MIXED)
    valid, position = given.valid.copy(), given.position.copy()
    valid[1, 0] = False
    position[3, 0] = position[2, 0] + [2.0, 0.0]
    expert = np.arange(8) == 0
    given = replace(given, valid=valid, position=position, expert=expert)
    assert assign_slots(given, FOUR).learners.tolist() == [4]
    # Half a second later everybody is there and nobody touches.
    assert assign_slots(given, replace(FOUR, init_step=5)).learners.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "gap, scale, apart", [(5.3, 0.7, True), (5.3, 1.0, False), (6.5, 1.0, True), (6.5, 1.5, False)]
)
def test_overlaps_are_those_of_the_scaled_bodies(gap, scale, apart):
    given = scene(MIXED[:4])
    position = given.position.copy()
    # Half of the truck and half of the car are 5.75 m together.
    position[3, 0] = position[2, 0] + [gap, 0.0]
    found = assign_slots(replace(given, position=position), replace(FOUR, body_scale=scale))
    assert found.learners.tolist() == ([0, 1, 2, 3] if apart else [0, 1])


def test_goal_distance_is_measured_at_the_start_of_the_episode():
    given = scene(MIXED)
    goal = given.goal.copy()
    goal[0] = given.position[0, 40]
    given = replace(given, goal=goal)
    assert 0 in assign_slots(given, FOUR).learners
    assert 0 not in assign_slots(given, replace(FOUR, init_step=39)).learners


def test_slots_hold_learners_first_and_empty_slots_are_zero():
    given = scene(MIXED[:2] + MIXED[5:])
    arrays, _who = build_scene_arrays(given, FOUR)
    assert arrays["learner"].tolist() == [True, True, False, False]
    assert arrays["recorded"].any(0).tolist() == [True, True, False, False, True, True, True, False]
    assert arrays["type"][4:7].tolist() == [codes.CYCLIST, codes.PEDESTRIAN, codes.VEHICLE]
    assert arrays["driven"].tolist() == [True, True, False, False, True, False, False, False]
    assert (arrays["recording"][:, 2:4] == 0).all() and (arrays["size"][2:4] == 0).all()


def test_standing_bodies_have_one_pose():
    given = scene(MIXED)
    wobbling = given.position.copy()
    wobbling[7] += 0.01 * np.sin(np.arange(wobbling.shape[1]))[:, None]
    arrays, _ = build_scene_arrays(replace(given, position=wobbling, goal=given.position[:, -1]), FOUR)
    assert np.ptp(arrays["recording"][:, 7], axis=0).max() == 0


def test_standing_bodies_stand_where_the_episode_finds_them():
    # Two cars drive for a second and then wait; one of them is not recorded when the episode begins.
    given = scene(MIXED)
    position, valid = given.position.copy(), given.valid.copy()
    position[:2] = position[:2, np.minimum(np.arange(91), 10)]
    valid[1, 10:30] = False
    given = replace(given, position=position, valid=valid, goal=position[:, -1])
    arrays, who = build_scene_arrays(given, replace(FOUR, init_step=10))
    assert who.stands.tolist() == [True, True] + [False] * 5 + [True] and {0, 1} <= set(who.scripted)
    for body in (0, 1):
        slot = 4 + who.scripted.tolist().index(body)
        found = arrays["recording"][arrays["recorded"][:, slot], slot, :2] + given.middle
        np.testing.assert_allclose(found, np.broadcast_to(position[body, 10], found.shape))


def test_sizes_may_be_scaled():
    arrays, _ = build_scene_arrays(scene(MIXED), replace(FOUR, body_scale=0.7))
    np.testing.assert_allclose(arrays["size"][0], [0.7 * 4.5, 0.7 * 2.0])


def test_coordinates_are_relative_to_the_mean_and_precise_far_from_the_origin():
    given = scenes("curve")[0]
    far = np.array([81234.25, -64321.75])
    roads = tuple(replace(road, points=road.points + far) for road in given.roads)
    moved = replace(
        given,
        roads=roads,
        position=given.position + far,
        goal=given.goal + far,
        routes=(),
        junctions=np.zeros((0, 3)),
    )
    here, there = (
        stack_scenes([build_scene_arrays(one, SlotSettings())[0]])
        for one in (replace(given, routes=(), junctions=np.zeros((0, 3))), moved)
    )
    for name in ("recording", "goal", "segment", "origin", "route"):
        np.testing.assert_allclose(there[name], here[name], atol=2e-5, err_msg=name)


def test_routes_follow_the_recording_and_extend_beyond_it():
    for given in all_scenes():
        arrays, _who = build_scene_arrays(given, SlotSettings())
        for slot in np.flatnonzero(arrays["driven"]):
            route = arrays["route"][slot]
            steps = np.hypot(*np.diff(route[:, :2], axis=0).T)
            assert (
                np.abs(steps - arrays["route_spacing"][slot]) < 0.05 * arrays["route_spacing"][slot]
            ).all()
            segments = np.concatenate([route[:-1, :2], route[1:, :2]], axis=1)
            path = arrays["recording"][arrays["recorded"][:, slot], slot]
            assert segment_distance(path[:, None, :2], segments).min(1).max() < 0.15
            turn = np.diff(route[:, 2])
            assert np.abs(turn).max() < 0.6 and (route[:, 3] > 0).all()


@pytest.mark.parametrize("kind", ["crossing", "merge", "parking"])
def test_tables_list_every_segment_in_reach(kind):
    arrays = {
        name: array[0]
        for name, array in stack_scenes([build_scene_arrays(scenes(kind)[0], SlotSettings())[0]]).items()
    }
    rng = np.random.default_rng(0)
    ends = arrays["segment"][arrays["segment_kind"] >= 0].reshape(-1, 2)
    points = rng.uniform(ends.min(0) - 30, ends.max(0) + 30, (1500, 2)).astype(np.float32)
    cell = np.clip(np.floor((points - arrays["origin"]) / codes.CELL).astype(int), 0, arrays["cells"] - 1)
    apart = segment_distance(points[:, None].astype(float), arrays["segment"].astype(float))
    reach = np.hypot(*arrays["size"].T).max() / 2
    for name, kinds, far in (
        ("near_edges", [codes.EDGE], reach),
        ("near_lanes", [codes.LANE, codes.BIKE_LANE], codes.LANE_REACH),
    ):
        listed = arrays[name][cell[:, 1], cell[:, 0]]
        for nth in range(len(points)):
            close = np.flatnonzero((apart[nth] <= far) & np.isin(arrays["segment_kind"], kinds))
            assert set(close) <= set(listed[nth].tolist())


def test_view_tables_hold_the_nearest_segments_in_order():
    arrays = {
        name: array[0]
        for name, array in stack_scenes([build_scene_arrays(scenes("tee")[0], SlotSettings())[0]]).items()
    }
    rows, columns = arrays["view_lanes"].shape[:2]
    assert (columns, rows) == tuple(-(-arrays["cells"] // 2))
    lanes = np.flatnonzero(arrays["segment_kind"] == codes.LANE)
    for row, column in ((0, 0), (rows // 2, columns // 2), (rows - 1, 1)):
        centre = arrays["origin"] + (np.array([column, row]) + 0.5) * codes.VIEW_CELL
        apart = segment_distance(centre.astype(float), arrays["segment"][lanes].astype(float))
        order = lanes[np.argsort(apart, kind="stable")][: codes.VIEW_LANES]
        order = order[np.sort(apart)[: codes.VIEW_LANES] <= codes.VIEW_REACH]
        listed = arrays["view_lanes"][row, column]
        assert listed[listed >= 0].tolist() == order.tolist()


def test_stacking_with_a_larger_scene_changes_only_padding():
    made = [
        build_scene_arrays(given, SlotSettings())[0]
        for given in (scenes("straight")[0], scenes("crossing")[0])
    ]
    alone, beside = stack_scenes(made[:1]), stack_scenes(made)
    for name, (kind, filler) in ARRAYS.items():
        own = tuple(map(slice, alone[name].shape[1:]))
        np.testing.assert_array_equal(beside[name][0][own], alone[name][0], err_msg=name)
        rest = beside[name][0].astype(float)
        rest[own] = filler
        assert ((rest == filler) | (np.isnan(rest) & np.isnan(filler))).all() and beside[name].dtype == kind
    assert beside["segment"].shape[1] % 64 == 0 and beside["lane_next"].shape[1] % 64 == 0
