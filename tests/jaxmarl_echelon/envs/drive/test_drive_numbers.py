"""Reference values of commands, features, rewards and measures.

docs/reference/drive.md 6.1, 8.6, 9 to 11, 13.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drive_scenes import FOLLOWING, bank_of, scene, small_bank

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import Role
from jaxmarl_echelon.envs.drive import conditioning, goals, rewards
from jaxmarl_echelon.envs.drive.codes import LIGHTS
from jaxmarl_echelon.envs.drive.commands import IDM, POLICY, REPLAY, Actions
from jaxmarl_echelon.envs.drive.measures import realism, record, ride
from jaxmarl_echelon.envs.drive.measures.record import StepOutcome
from jaxmarl_echelon.envs.drive.observing import features
from jaxmarl_echelon.envs.drive.observing.layout import ObservationConfig
from jaxmarl_echelon.envs.drive.results import declare_drive_results, report_drive_results
from jaxmarl_echelon.envs.drive.scenes.raw_scene import Light, Road
from jaxmarl_echelon.envs.drive.scripts.baselines import make_drive_scripts
from jaxmarl_echelon.envs.drive.state import RoadCondition
from jaxmarl_echelon.envs.drive.traffic import signals
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.training.acting.controllers import find_teacher
from physics.bicycle import Motion
from physics.segments import MatchedLane, segments_between


def close(found, expected, **tolerance):
    np.testing.assert_allclose(found, expected, **({"rtol": 1e-5, "atol": 2e-5} | tolerance))


@pytest.mark.parametrize("kind", ["discrete", "factored", "continuous"])
def test_actions_and_delegating_actions(kind):
    actions = Actions(kind, jerk=False)
    given = {
        "discrete": [0, 12, 13, 45, 52, 71, 90],
        "factored": [[0, 0], [0, 12], [1, 0], [3, 6], [4, 0], [5, 6], [6, 12]],
        "continuous": [[-1, -1], [-1, 1], [-2.667 / 4, -1], [0, 0], [1.333 / 4, -1], [2.667 / 4, 0], [1, 1]],
    }[kind]
    read = jax.jit(actions.read)
    commands = read(np.array(given))
    close(commands.first, [-4, -4, -2.667, 0, 1.333, 2.667, 4])
    close(commands.second, [-1, 1, -1, 0, -1, 0, 1])
    assert (np.asarray(commands.mover) == POLICY).all()
    for mover in (REPLAY, IDM):
        assert (np.asarray(read(actions.delegate_to(mover, 3)).mover) == mover).all()
    idle = read(actions.idle(2))
    close(idle.first, 0)
    close(idle.second, 0)


def test_continuous_actions_beyond_the_space_are_clipped_and_delegate_nothing():
    # Samples of a Gaussian policy, say.
    commands = Actions("continuous", jerk=False).read(np.float32([[1.6, 0.2], [2.4, -1.7], [-3.0, 0.0]]))
    assert (np.asarray(commands.mover) == POLICY).all()
    close(commands.first, [4, 4, -4])
    close(commands.second, [0.2, -1, 0])


@pytest.mark.parametrize("kind", ["discrete", "factored", "continuous"])
def test_scripts_that_the_environment_moves_cannot_be_imitated(kind):
    actions = Actions(kind, jerk=False)
    role = Role("vehicle", 2, Box((3,), -1.0, 1.0), actions.space)
    env = SimpleNamespace(
        spec=SimpleNamespace(name="drive", roles=(role,)), scripts=make_drive_scripts(actions, role)
    )
    assert find_teacher(env, "vehicle", "idle").teaches
    for name in ("replay", "idm"):
        with pytest.raises(ValueError) as caught:
            find_teacher(env, "vehicle", name)
        assert str(caught.value) == (
            f"algo.teacher=script:{name}: has no actions of its own to imitate; "
            "allowed: script:idle, script:random"
        )


def test_actions_of_the_jerk_model():
    commands = jax.jit(Actions("discrete", jerk=True).read)(np.array([0, 4, 7, 11]))
    close(commands.first, [-15, -4, 0, 4])
    close(commands.second, [-4, 0, 0, 4])
    continuous = jax.jit(Actions("continuous", jerk=True).read)(np.array([[-1.0, -1.0], [1.0, 1.0]]))
    close(continuous.first, [-15, 4])
    close(continuous.second, [-4, 4])


def one(*numbers) -> Motion:
    return Motion(*(np.array([x], np.float32) for x in numbers))


def no_lane(**changes) -> MatchedLane:
    zero, no = np.zeros(1, np.float32), np.zeros(1, bool)
    return MatchedLane(np.zeros(1, np.int32), no, no, zero, zero, zero).replace(**changes)


def test_observations_match_reference_values():
    ego, size = one(10, 5, 0.5, 8), np.float32([[4.5, 2.0]])
    goal, no = np.float32([[60.0, 20.0]]), np.zeros(1, bool)
    condition = RoadCondition(no, no, no_lane())
    compact = jax.jit(features.compact_ego_features)(ego, goal, size, condition, no)
    close(np.array([x[0] for x in compact[:5]]), [0.510705, -0.108075, 0.4, 0.45, 0.4])
    puffer = jax.jit(features.puffer_ego_features)(ego, goal, size, condition, no)
    close(np.array([x[0] for x in puffer[:5]]), [0.255353, -0.054038, 0.08, 0.133333, 0.15])
    other = jax.tree.map(lambda x: x[None], one(20, 12, 2.0, 3))
    sizes, there, zero = np.float32([[[4.8, 1.9]]]), np.ones((1, 1), bool), np.zeros((1, 1), np.float32)
    row = jax.jit(features.compact_partner_rows)(ego, other, sizes, zero, there)
    close(row[0, 0], [0.242636, 0.026976, 0.070737, 0.997495, 0.15, 0.48, 0.38, 0, 0])
    row = jax.jit(features.puffer_partner_rows)(ego, other, sizes, there)
    close(row[0, 0], [0.242636, 0.026976, 0.126667, 0.16, 0.070737, 0.997495, 0.03])

    @jax.jit
    def road_rows(start, end):
        lane = segments_between(start, end)
        return features.compact_road_rows(ego, lane, there), features.puffer_road_rows(ego, lane, zero, there)

    compact, puffer = road_rows(np.float32([[[15.0, 5]]]), np.float32([[[25.0, 9]]]))
    close(compact[0, 0], [0.194694, -0.060782, 0.538516, 0.992869, -0.119209])
    close(puffer[0, 0, 2], 0.053852)
    edge, _ = road_rows(np.float32([[[8.0, 2]]]), np.float32([[[8.0, 12]]]))
    close(edge[0, 0], [-0.015926, 0.054280, 0.5, 0.479426, 0.877583])


def test_sizes_of_observations():
    assert ObservationConfig().size == 400 and ObservationConfig(layout="puffer").size == 1848
    assert (
        ObservationConfig(jerk=True, time=True, types=True, condition=("goal",)).size == 400 + 3 + 1 + 2 + 1
    )


def pay(name: str, *, angle=0.0, offset=0.0, speed=0.0, **weights) -> float:
    lane = no_lane(found=np.ones(1, bool), angle=np.float32([angle]), offset=np.float32([offset]))
    no, zero = np.zeros(1, bool), np.zeros(1, np.float32)
    situation = rewards.DriveRewardInputs(
        no,
        no,
        RoadCondition(no, no, lane),
        one(0, 0, 0, speed),
        ride.RideDynamics(*[zero] * 6),
        zero,
        zero,
        zero,
        no,
    )
    chosen = rewards.make_reward({name: weights})
    return float(jax.jit(chosen)(chosen.params(), situation, chosen.init())[0][name][0])


@pytest.mark.parametrize(
    "velocity, angle, speed, expected",
    [
        (1.0, 0.4, 6, 4.658451e-6),
        (1.0, 2.5, 6, -0.01402371),
        (1.0, 0.0, 10, 6.25e-6),
        (1.0, 0.2, -3, -0.007345045),
        (0.5, 2.5, -2, -0.002006556),
    ],
)
def test_lane_alignment_reward(velocity, angle, speed, expected):
    found = pay("lane_align", angle=angle, speed=speed, weight=0.025, velocity=velocity)
    close(found, expected, atol=1e-9)


@pytest.mark.parametrize(
    "offset, cos, bias, expected",
    [
        (0.3, 0.99, 0.0, -9.079335e-5),
        (2.0, 0.9, 0.0, -7.557605e-4),
        (0.0, 1.0, 0.0, 3.132570e-5),
        (1.2, 0.4, 0.2, 1.152408e-5),
    ],
)
def test_lane_centre_reward(offset, cos, bias, expected):
    found = pay("lane_center", angle=float(np.arccos(cos)), offset=offset, weight=0.0038, bias=bias)
    close(found, expected, atol=1e-9)


def test_conditioned_weights_are_scaled_and_applied():
    close(conditioning.scale_conditioned_weight("collision", jnp.float32(0.5)), -0.666667)
    close(conditioning.scale_conditioned_weight("reverse", jnp.float32(0.001)), -0.793103)
    assert float(conditioning.scale_conditioned_weight("collision", jnp.float32(4.0))) == 1.0
    weights = {"collision": {"weight": jnp.float32(-0.5)}}
    drawn = conditioning.draw_conditioned_weights(jax.random.key(0), ("collision",), 5)
    close(
        conditioning.replace_conditioned_weights(weights, drawn)["collision"]["weight"], -drawn["collision"]
    )


def test_lights_apply_to_learners_approaching_their_line():
    until = 50
    states = np.where(np.arange(91) < until, LIGHTS.index("arrow_stop"), LIGHTS.index("go"))
    # The lane with this number begins at x = 60 m on the right half of the road.
    lit = replace(scene(FOLLOWING), lights=(Light(1, states, np.array([60.0, -1.75])),))
    bank, zero = bank_of(lit), np.int32(0)
    line, level = np.asarray(bank.light_point)[0, 0]
    x = np.float32([line - 20, line - 20, line - 20, line + 5, line - 60, line - 2.0])
    y = np.float32([level, level, level + 3.5, level, level, level])
    heading = np.float32([0.2, np.pi, 0, 0, 0, 0])
    found = jax.jit(signals.find_next_lights)(bank, zero, zero, Motion(x, y, heading, x), np.full(6, 4.5))
    np.testing.assert_array_equal(found.found, [True, False, False, False, False, True])
    close(found.gap, [17.75, 0, 0, 0, 0, -0.25], atol=1e-4)
    np.testing.assert_array_equal(found.red, found.found)
    before, after = (
        Motion(x[:1] * 0 + place, y[:1], heading[2:3], x[:1]) for place in (line - 2.5, line - 2.0)
    )
    ran = jax.jit(signals.ran_red_light)
    for sample, moves, expected in ((0, (before, after), True), (until, (before, after), False)):
        assert bool(ran(bank, zero, np.int32(sample), *moves, np.full(1, 4.5, np.float32))[0]) is expected
    assert not bool(ran(bank, zero, np.int32(0), after, before, np.full(1, 4.5, np.float32))[0])


def test_comfort():
    speeds, headings = [5, 5.1, 5.22, 5.3, 5.3, 5.0], np.arange(6) * 0.01
    riding, within = ride.start_ride(one(0, 0, 0, 5)), []
    differentiate = jax.jit(ride.differentiate_ride)
    for speed, heading in zip(speeds[1:], headings[1:], strict=True):
        jolt, riding = differentiate(riding, one(0, 0, heading, speed))
        within.append(bool(ride.is_comfortable(jolt)[0]))
    assert within == [True, True, True, False, False]


@partial(jax.jit, static_argnums=1)
def averaged(kept, name: str) -> jax.Array:
    """A declared result, averaged over the learners of a record."""
    declared = declare_drive_results(("straight",), (), new_goals=False)
    reported, one = report_drive_results(kept), results.find_result(declared, name)
    values = {other.name: reported[other.entry] for other in declared if other.role}
    present = {"vehicle": jnp.ones(kept.first.shape, bool)}
    return results.average_result(one, *results.average_terms(declared, values, present, name))


def test_measures_of_six_timelines():
    hits = np.zeros((91, 6), bool)
    outs, goal = np.zeros_like(hits), np.zeros_like(hits)
    for place, first, last in ((1, 10, 13), (3, 60, 61), (4, 25, 25), (5, 15, 15)):
        hits[first : last + 1, place] = True
    for place, first, last in ((0, 50, 52), (3, 20, 20)):
        outs[first : last + 1, place] = True
    for place, step in ((0, 30), (0, 80), (1, 40), (4, 25)):
        goal[step, place] = True
    alive, zero = np.ones(6, bool), np.zeros(6, np.float32)
    kept, before = jax.jit(record.start_learner_record)(alive), None
    lane = jax.tree.map(lambda x: np.broadcast_to(x, (6,)), no_lane())
    update = jax.jit(record.update_learner_record)
    for step in range(1, 91):
        now = RoadCondition(hits[step] & alive, outs[step] & alive, lane)
        before = before or now.replace(colliding=np.zeros(6, bool), offroad=np.zeros(6, bool))
        happening = StepOutcome(
            acted=alive.copy(),
            reached=goal[step],
            before=before,
            condition=now,
            motion=Motion(zero, zero, zero, zero),
            moved=zero + np.float32(400.0 / (5 * 90 + 15)),
            comfortable=np.ones(6, bool),
            error=zero,
            recorded=np.ones(6, bool),
            step=np.int32(step),
        )
        kept, before = update(kept, happening), now
        alive[5] &= step < 15
    found = {name: float(np.mean(x)) for name, x in jax.jit(report_drive_results)(kept).items()}
    expected = {
        "score": 1 / 6, "completion": 1 / 2, "collision": 2 / 3, "offroad": 1 / 6, "dnf": 1 / 6,
        "infraction": 2 / 3, "collision_all": 2 / 3, "offroad_all": 1 / 3, "collision_steps": 4 / 3,
        "collision_events": 2 / 3, "offroad_steps": 2 / 3, "offroad_events": 1 / 3, "goals": 2 / 3,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert float(averaged(kept, "distance_per_infraction")) == pytest.approx(66.667, abs=1e-3)
    assert float(averaged(kept, "time_to_goal")) == pytest.approx(9.5 / 3)


def test_distance_per_infraction_without_infractions_is_the_distance():
    kept = record.start_learner_record(np.ones(3, bool)).replace(distance=np.float32([10.0, 20.0, 30.0]))
    assert float(averaged(kept, "distance_per_infraction")) == 60.0


def test_a_new_goal_lies_ahead_on_the_road():
    bank = small_bank()
    # Lanes 0 and 1 of the straight road follow each other: 60 m and 140 m; lane 2 turns off at 60 m.
    arc, lane = np.float32([20.0, 50.0]), np.array([0, 1])
    walk = jax.jit(goals.walk_lane_graph)
    found = walk(jax.random.key(0), bank, np.int32(0), lane, arc, np.float32([30.0, 300.0]))
    middle = np.asarray(bank.segment)[0, 0, :2]
    close(found[0], middle + [50.0, 0.0], atol=1e-4)
    close(found[1], middle + [200.0, 0.0], atol=1e-3)
    beyond = np.full(64, 10.0), np.full(64, 70.0)
    many = np.asarray(walk(jax.random.key(1), bank, np.int32(0), np.zeros(64, int), *beyond))
    turned = many[:, 1] > middle[1] + 5
    assert 10 < turned.sum() < 54, "successors are drawn"
    close(many[~turned], np.broadcast_to(middle + [80.0, 0.0], many.shape)[~turned], atol=1e-3)


def test_a_new_goal_lies_beyond_two_lanes():
    ends = np.cumsum([0.0, 30.0, 25.0, 40.0])
    lanes = [Road("lane", 2, nth, np.array([[ends[nth], 0.0], [ends[nth + 1], 0.0]])) for nth in range(3)]
    bank = bank_of(replace(scene(FOLLOWING), roads=tuple(lanes)))
    start, ahead = np.array([20.0]), np.array([40.0])
    found = jax.jit(goals.walk_lane_graph)(jax.random.key(0), bank, np.int32(0), np.array([0]), start, ahead)
    first_of_third = np.asarray(bank.segment)[0, np.asarray(bank.lane_first)[0, 2], :2]
    close(found[0], first_of_third + [5.0, 0.0], atol=1e-4)


@pytest.mark.parametrize(
    "other, expected",
    [
        ((10, 0, 0), 5.5),
        ((6, 3, 0), 2.364306),
        ((4.3, 0, 0), -0.2),
        ((3.5, 2.2, np.pi / 4), -0.227639),
        ((4.2, 1.8, 0), 0.227882),
    ],
)
def test_distances_of_rounded_boxes(other, expected):
    size = np.array([4.5, 2.0])
    close(realism.rounded_distance(np.zeros(3), size, np.array(other, float), size), expected)


@pytest.mark.parametrize(
    "speed, other, other_speed, expected",
    [
        (10, (20, 0, 0), 4, 2.583333),
        (10, (20, 1.7, 0), 4, 2.583333),
        (10, (20, 1.7, 0.3), 4, 2.550829),
        (10, (20, 2.1, 0.2), 4, 5),
        (10, (20, 0.5, 0.5), 0, 1.529601),
        (10, (20, 0, 0), 12, 5),
        (20, (60, 0, 1.4), 5, 5),
    ],
)
def test_time_to_collision(speed, other, other_speed, expected):
    size = np.array([4.5, 2.0])
    others, speeds = np.array([other, [np.nan] * 3], float), np.array([other_speed, np.nan])
    sizes = np.array([size, [np.nan] * 2])
    found = realism.time_to_collision(np.zeros(3), np.float64(speed), size, others, speeds, sizes)
    close(found, expected)


def test_likelihoods():
    speeds = np.array([8.2, 9.1, 9.9, 10.4, 11, 12.6, 7.4, 10.1])
    logs = realism.log_likelihood(speeds, np.array([9.5, 12.4, 30, 9.9]), realism.FEATURES["speed"])
    close(logs, [-1.065822, -1.065822, -4.499810, -1.065822])
    close(np.exp(logs.mean()), 0.145975)
    close(np.exp(logs[[0, 1, 3]].mean()), 0.344444)
    flags, feature = np.arange(32) < 3, realism.FEATURES["collision"]
    close(realism.log_likelihood(flags.astype(float), np.array([0.0, 1.0]), feature), [-0.098468, -2.366853])
    close(realism.log_likelihood(np.zeros(32), np.array([1.0]), feature), [-10.373554])


def test_meta_score():
    scores = {
        "speed": 0.4, "acceleration": 0.35, "yaw_rate": 0.5, "yaw_acceleration": 0.6, "nearest_object": 0.3,
        "time_to_collision": 0.8, "collision": 0.95, "road_edge": 0.6, "offroad": 0.9,
    }  # fmt: skip
    found = realism.meta_score(scores)
    close([found["meta"], found["kinematic"], found["interactive"]], [0.725, 0.4625, 0.772222])
    close(found["map"], 0.814286)
    close(realism.meta_score(scores, newest=True)["meta"], 0.731579)


def test_kinematics_of_recordings():
    x, y = np.array([0, 1, 2.1, 3.3, 4.6, 6]), np.array([0, 0, 0.1, 0.3, 0.6, 1])
    found = realism.compute_kinematics(x, y, np.array([3.1, 3.13, -3.12, -3.08, -3.05, -3.03]))
    close(found["speed"][1:5], [10.511898, 11.597414, 12.747549, 13.946326])
    close(found["acceleration"][2:4], [11.178254, 11.744561])
    close(found["yaw_rate"][1:5], [0.315927, 0.365927, 0.35, 0.25])
    close(found["yaw_acceleration"][2:4], [0.170367, -0.579633])
    assert np.isnan(found["speed"][[0, 5]]).all() and np.isnan(found["acceleration"][[1, 4]]).all()
