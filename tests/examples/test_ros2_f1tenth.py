"""The driver of the ROS example, without ROS: observations, holding, stopping, caps."""

import importlib
import math

import numpy as np
import pytest

import jaxmarl_echelon as je
from jaxmarl_echelon.envs.f110.observing.observe import ObservationScales, gaplock_observation
from jaxmarl_echelon.exporting import contract
from jaxmarl_echelon.exporting.run_policy import ContractPolicy

BEAMS = 12


@pytest.fixture(scope="module")
def modules(repository):
    """The example's modules, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(repository / "examples" / "ros2_f1tenth")
        yield {name: importlib.import_module(name) for name in ("driver", "gym_loop")}


@pytest.fixture(scope="module")
def example(modules):
    """The driver's module."""
    return modules["driver"]


@pytest.fixture(scope="module")
def facts():
    """A contract of an F110 policy that does not see the other car."""
    env = je.make("f110", lidar_beams=BEAMS, observe_target=False)
    role = env.spec.role("attacker")
    parts, units = env.parts[role.name], env.action_units[role.name]
    described = contract.describe_task(env.spec, role, (), parts, units)
    described["environment"]["settings"] = {"lidar_fov": 4.7, "observe_target": False}
    inputs = [
        {"name": "obs", "shape": ["B", *role.observation.shape], "dtype": "float32"},
        {"name": "reset", "shape": ["B"], "dtype": "bool"},
    ]
    return described | {"carry": [], "inputs": inputs}


@pytest.fixture
def calls():
    return []


@pytest.fixture
def driver(example, facts, calls):
    """A driver whose policy counts its decisions, wants 5 m/s and steers by the count."""

    def program(obs, reset):
        calls.append((obs.copy(), bool(reset[0])))
        return [np.array([[0.01 * len(calls), 5.0]], np.float32)]

    return example.Driver(ContractPolicy(facts, program), max_speed=1.5)


def scan(driver, now, ranges=None, beams=1080, fov=4.7):
    """Gives a scan of a car at rest in the open, or with these ranges."""
    ranges = np.full(beams, 3.0) if ranges is None else ranges
    driver.take_scan(now, ranges, -fov / 2, fov / (len(ranges) - 1), 0.05, 30.0)
    driver.show("ego_velocity", [0.0, 0.0, 0.0])


def test_observations_are_those_of_training(driver, facts):
    angles = np.linspace(-2.35, 2.35, BEAMS)
    ranges = np.linspace(0.5, 20.0, BEAMS)  # the last ones are clipped
    scan(driver, 0.0, ranges)
    driver.show("ego_velocity", [0.4, -0.1, 3.0])
    pose, velocity = np.zeros(3), np.array([0.4, -0.1, 3.0])
    expected = gaplock_observation(ranges, pose, velocity, pose, velocity, False, ObservationScales())
    np.testing.assert_allclose(driver.observe(), expected, rtol=1e-6)
    np.testing.assert_allclose(driver.angles, angles)


def test_beams_are_the_nearest_valid_ones(driver):
    angles = np.linspace(-2.35, 2.35, 1080)
    ranges = 5.0 + angles
    scan(driver, 0.0, ranges)
    np.testing.assert_allclose(driver.shown["lidar"], 5.0 + driver.angles, atol=0.003)
    spoilt = ranges.copy()
    spoilt[::2], spoilt[1] = math.nan, 0.0  # not a number, and below the shortest range
    spoilt[-1] = math.inf
    scan(driver, 0.0, spoilt)
    np.testing.assert_allclose(driver.shown["lidar"][:-1], 5.0 + driver.angles[:-1], atol=0.015)
    assert driver.shown["lidar"][-1] == 30.0
    with pytest.raises(ValueError, match="scan from -1.00 to 1.00 rad: must reach from -2.35 to 2.35"):
        scan(driver, 0.0, fov=2.0)


def test_decisions_are_held_and_speeds_capped(driver, calls):
    scan(driver, 0.0)
    first = driver.decide(0.0)
    assert first == (pytest.approx(0.01), 1.5)
    assert [driver.decide(now) for now in (0.005, 0.015)] == [first, first] and len(calls) == 1
    assert driver.decide(0.02).steering == pytest.approx(0.02) and len(calls) == 2
    assert [reset for _, reset in calls] == [True, False]


def test_decisions_are_as_frequent_as_in_training_by_a_timer_with_jitter(driver, calls):
    late = np.random.default_rng(0).uniform(0.0, 0.001, 1_000)  # s, of a timer of 100 Hz
    for now in 0.01 * np.arange(1_000) + late:
        scan(driver, now, beams=20)
        driver.decide(now)
    assert len(calls) == 500


@pytest.mark.parametrize("period", [0.015, 0.025])
def test_decisions_are_as_frequent_as_in_training_where_calls_do_not_divide_the_period(driver, calls, period):
    driver.period = period
    for now in 0.01 * np.arange(600):
        scan(driver, now, beams=20)
        driver.decide(now)
    assert len(calls) == pytest.approx(6.0 / period, abs=1)


def test_the_car_stops_without_scans(driver, calls):
    assert driver.decide(0.0).speed == 0.0 and not calls
    scan(driver, 1.0)
    driver.decide(1.0)
    assert driver.decide(1.19).speed == 1.5
    assert driver.decide(1.21).speed == 0.0
    scan(driver, 1.3, np.full(100, math.nan))  # worth nothing
    assert driver.decide(1.31).speed == 0.0
    scan(driver, 1.4)
    assert driver.decide(1.4).speed == 1.5 and calls[-1][1]  # its memory is cleared


def test_parts_that_need_localisation_are_asked_for(example, facts):
    seeing = {**facts["environment"], "settings": {"lidar_fov": 4.7, "observe_target": True}}
    driver = example.Driver(
        ContractPolicy(facts | {"environment": seeing}, lambda *_: [np.ones((1, 2))]), 1.0
    )
    scan(driver, 0.0)
    assert driver.missing() == ["target_velocity", "relative_pose"] and driver.decide(0.0).speed == 0.0
    driver.show("target_velocity", np.zeros(3))
    driver.show("relative_pose", [1.0, 0.0, 0.0, 1.0, 1.0])
    assert driver.decide(0.0).speed == 1.0
    with pytest.raises(ValueError, match="offset: not observed by this policy; allowed: lidar, ego_velocity"):
        driver.show("offset", [0.0])
    with pytest.raises(ValueError, match="relative_pose of 3 values: must have 5"):
        driver.show("relative_pose", np.zeros(3))


def test_other_policies_are_refused(example, facts):
    blind = facts | {"observation": facts["observation"] | {"slices": []}}
    with pytest.raises(ValueError, match="policy of f110: needs a lidar, and actions in"):
        example.Driver(ContractPolicy(blind, None), 1.0)
    with pytest.raises(ValueError, match="max_speed=0: must be above 0"):
        example.Driver(ContractPolicy(facts, None), 0)


class Room:
    """Stands in for f1tenth_gym: a car that moves as it is told, in a room of 20 m by 8 m."""

    HALF, STEP = np.array([10.0, 4.0]), 0.01

    def reset(self, poses):
        self.pose, self.speed, self.rate = poses[0], 0.0, 0.0
        return self.shown()

    def step(self, action):
        (steering, self.speed), heading = action[0], self.pose[2]
        self.rate = self.speed * np.tan(steering) / 0.33
        ahead = np.array([np.cos(heading), np.sin(heading), 0.0]) * self.speed
        self.pose = self.pose + self.STEP * (ahead + [0.0, 0.0, self.rate])
        return self.shown()

    def shown(self):
        angles = self.pose[2] + np.linspace(-2.35, 2.35, 1080)
        way = np.stack([np.cos(angles), np.sin(angles)], 1)
        ranges = ((np.sign(way) * self.HALF - self.pose[:2]) / way).min(1)
        hit = bool((np.abs(self.pose[:2]) > self.HALF - 0.3).any())
        seen = dict(zip(("poses_x", "poses_y", "poses_theta"), self.pose[:, None], strict=True))
        seen |= {"linear_vels_x": [self.speed], "linear_vels_y": [0.0], "ang_vels_z": [self.rate]}
        return seen | {"scans": [ranges], "collisions": np.array([float(hit)])}, self.STEP, hit, {}


def follower(example, facts, seen):
    """A driver whose policy steers to the side on which the walls are farther, at 3 m/s."""

    def program(obs, reset):
        seen.append(obs[0].copy())
        left, right = obs[0][6:9].sum(), obs[0][3:6].sum()
        return [np.array([[0.4 * (left - right), 3.0]], np.float32)]

    return example.Driver(ContractPolicy(facts, program), max_speed=0.8)


def test_the_loop_of_f1tenth_gym_is_driven(modules, example, facts):
    seen = []
    course, collided = modules["gym_loop"].drive_gym(
        Room(), follower(example, facts, seen), (-8.0, 2.0, 0.0), 3.995
    )
    times = [moment.time for moment in course]
    np.testing.assert_allclose(times, 0.01 * np.arange(400), atol=1e-9)
    assert not collided and len(seen) == 200, "a decision every two steps"
    # The wall on the left is nearer, so that the car turns right first; its speed is the cap.
    assert course[0].command.steering < 0
    np.testing.assert_allclose([moment.command.speed for moment in course], 0.8, rtol=1e-6)
    assert -5.6 < course[-1].pose[0] < -4.8
    slices = {part["name"]: part for part in facts["observation"]["slices"]}
    own = slices["ego_velocity"]
    measured = seen[10][own["start"] : own["stop"]] * np.asarray(own["scales"])
    np.testing.assert_allclose(measured[:2], [0.8, 0.0], atol=1e-5)
    end = modules["gym_loop"].drive_gym(Room(), follower(example, facts, []), (9.0, 0.0, 0.0), 4.0)
    assert end[1] and 0.8 < end[0][-1].time < 1.0


@pytest.mark.needs("f110_gym")
def test_f1tenth_gym_itself_is_driven(modules, example, facts):
    import gym

    env = gym.make("f110_gym:f110-v0", num_agents=1)
    seen = []
    course, _ = modules["gym_loop"].drive_gym(env, follower(example, facts, seen), (0.0, 0.0, 0.0), 1.0)
    assert len(course) > 20 and abs(len(seen) - len(course) / 2) <= 1
    assert np.hypot(*np.subtract(course[-1].pose[:2], course[0].pose[:2])) > 0.1
