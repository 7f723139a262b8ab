"""The driver of the ROS example, without ROS: observations, holding, stopping, caps."""

import importlib.util
import math

import numpy as np
import pytest

import jaxmarl_echelon as je
from jaxmarl_echelon.envs.f110.observing.observe import ObservationScales, gaplock_observation
from jaxmarl_echelon.exporting import contract
from jaxmarl_echelon.exporting.run_policy import ContractPolicy

BEAMS = 12


@pytest.fixture(scope="module")
def example(repository):
    """The example's module."""
    path = repository / "examples" / "ros2_f1tenth" / "driver.py"
    spec = importlib.util.spec_from_file_location("driver", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
