"""The F110 observations against recorded and hand-computed features."""

from functools import partial

import jax
import numpy as np
import pytest

import jaxmarl_echelon as je
from jaxmarl_echelon.envs.f110.observing.observe import (
    ObservationScales,
    RacingScales,
    gaplock_layout,
    gaplock_observation,
    racing_layout,
    racing_observation,
)

EGO = np.array([1.0, 2.0, 0.5]), np.array([0.6, -0.02, 1.7])
TARGET = np.array([-0.5, 2.4, 0.9]), np.array([0.4, 0.01, -0.3])
RECORDED = [0.6, -0.02, 1.0, 0.4, 0.01, -0.3]
RECORDED += [-0.093716964, 0.089180954, 0.389418334, 0.921060979, 0.129368126]


def observe(scan=None, has_target=True, scales=None, target=TARGET, **kwargs):
    scan = np.full(108, 3.0) if scan is None else scan
    arrays = scan, *EGO, *target, np.bool_(has_target)
    return np.asarray(gaplock(scales or ObservationScales(), arrays, kwargs))


@partial(jax.jit, static_argnums=0)
def gaplock(scales, arrays, named):
    return gaplock_observation(*arrays, scales, **named)


@pytest.mark.parametrize("double", [False, True])
def test_recorded_features(double):
    with jax.enable_x64(double):
        seen = observe()
        far = observe(scales=ObservationScales(position_scale=100.0))
    assert seen.shape == (119,)
    np.testing.assert_allclose(seen[108:], RECORDED, atol=1e-9 if double else 1e-7)
    np.testing.assert_allclose(seen[:108], 0.25)
    wanted = [-0.011246036, 0.010701714, 0.015524175]
    np.testing.assert_allclose(far[[114, 115, 118]], wanted, atol=1e-9 if double else 1e-7)


def test_ranges_are_clipped_to_the_unit_interval():
    seen = observe(np.array([-0.1, 0.0, 6.0, 12.0, 30.0]))
    np.testing.assert_allclose(seen[:5], [0.0, 0.0, 0.5, 1.0, 1.0])


def test_the_target_is_seen_in_the_ego_frame():
    """A target to the left has a positive left coordinate, whatever the world frame."""
    left = np.array([1.0 - np.sin(0.5), 2.0 + np.cos(0.5), 0.5 + np.pi]), np.zeros(3)
    seen = observe(target=left)[gaplock_layout(108)["relative_pose"]]
    np.testing.assert_allclose(seen, [0.0, 1 / 12, 0.0, -1.0, 1 / 12], atol=1e-6)


def test_far_targets_saturate():
    seen = observe(target=(np.array([-900.0, 2.0, 0.5]), np.array([-7.0, 7.0, 0.0])))
    np.testing.assert_allclose(seen[111:114], [-1.0, 1.0, 0.0])
    np.testing.assert_allclose(seen[114:119], [-1.0, 1.0, 0.0, 1.0, 1.0], atol=1e-6)


def test_without_a_target_its_features_are_zero_whatever_it_holds():
    seen = observe(has_target=False, target=(np.full(3, np.nan), np.full(3, np.inf)))
    np.testing.assert_array_equal(seen[111:], np.zeros(8))
    assert np.all(np.isfinite(seen))


@pytest.mark.parametrize("beams", [54, 108])
@pytest.mark.parametrize("observe_time", [False, True])
def test_the_layout_covers_the_vector(beams, observe_time):
    time = {"time_left": np.array(0.25)} if observe_time else {}
    seen = observe(np.full(beams, 3.0), **time)
    parts = gaplock_layout(beams, observe_time)
    np.testing.assert_array_equal(np.concatenate([seen[s] for s in parts.values()]), seen)
    assert list(parts)[:4] == ["lidar", "ego_velocity", "target_velocity", "relative_pose"]
    if observe_time:
        np.testing.assert_allclose(seen[parts["time"]], [0.25])


def test_the_task_is_observed():
    env = je.make("f110", lidar_beams=12, observe_time=True, observe_task=True, spawns=["approach_0.3L"])
    ftg = {"target_mode": "farthest", "steering_gain": 0.6, "bubble_radius": 3.0, "max_speed": 0.75}
    state, begun = jax.jit(env.reset)(jax.random.key(0), env.task_params({"ftg": ftg}))
    points = list(env.spec.tasks)
    chosen = [float(name == "approach_0.3L") for name in points]
    for role in ("attacker", "defender"):
        where, units = env.parts[role]["task"].where, env.parts[role]["task"].units
        assert units[-2:] == ("beams", "m/s"), "a bubble is so many beams to either side of the nearest"
        seen, size = begun.obs[role][0, where], env.spec.role(role).observation.shape[0]
        np.testing.assert_allclose(seen, [*chosen, 1.0, 0.6, 3.0 / 12.0, 0.75], atol=1e-7)
        assert where.stop == size == 12 + 12 + len(points) + 4
    assert points[int(state.spawn)] == "approach_0.3L"
    plain = env.default_params()
    assert (
        float(jax.jit(env.reset)(jax.random.key(0), plain)[1].obs["attacker"][0, where][len(points)]) == 0.0
    )


def race(others_pose, others_velocity, valid, neighbours=2, **changes):
    given = {
        "scan": np.full(6, 24.0),
        "ego_pose": np.array([1.0, 1.0, np.pi / 2]),
        "ego_velocity": np.array([0.5, 0.1, -1.5]),
        "ego_steer": np.array(-0.23),
        "offset": np.array(0.75),
        "heading_error": np.array(0.3),
        "lookahead": np.array([[1.0, 2.2], [-0.2, 3.4]]),
        "others_pose": np.asarray(others_pose, float),
        "others_velocity": np.asarray(others_velocity, float),
        "others_valid": np.asarray(valid, bool),
    } | changes
    see = jax.jit(partial(racing_observation, scales=RacingScales(), neighbours=neighbours))
    seen = np.asarray(see(**given))
    return {name: seen[part] for name, part in racing_layout(6, 2, neighbours).items()}, seen


POSES = [[1.0, 7.0, np.pi / 2], [2.2, 1.0, 0.0], [1.0, 1.1, 0.0]]
VELOCITIES = [[0.9, 0.0, 0.0], [0.4, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_racing_features_by_hand():
    seen, flat = race(POSES, VELOCITIES, [True, True, False])
    assert flat.shape == (6 + 7 + 4 + 14,)
    np.testing.assert_allclose(seen["lidar"], 1.0)
    np.testing.assert_allclose(seen["ego_velocity"], [0.5, 0.1, -0.5], atol=1e-6)
    np.testing.assert_allclose(seen["steer"], [-0.5], atol=1e-6)
    np.testing.assert_allclose(seen["offset"], [0.5], atol=1e-6)
    np.testing.assert_allclose(seen["heading_error"], [np.sin(0.3), np.cos(0.3)], atol=1e-6)
    np.testing.assert_allclose(seen["lookahead"], [0.1, 0.0, 0.2, 0.1], atol=1e-6)


def test_racing_neighbours_are_sorted_relative_and_masked():
    """The invalid third car is the nearest and must not show; the second is to the right."""
    seen, _ = race(POSES, VELOCITIES, [True, True, False])
    near, far = seen["neighbours"].reshape(2, 7)
    np.testing.assert_allclose(near, [0.0, -0.1, -1.0, 0.0, -0.5, -0.5, 1.0], atol=1e-6)
    np.testing.assert_allclose(far, [0.5, 0.0, 0.0, 1.0, 0.4, -0.1, 1.0], atol=1e-6)


def test_racing_absent_neighbours_are_zero_even_if_not_finite():
    seen, flat = race(np.full((1, 3), np.nan), np.full((1, 3), np.nan), [False], neighbours=3)
    np.testing.assert_array_equal(seen["neighbours"], np.zeros(21))
    assert np.all(np.isfinite(flat))


def test_racing_alone():
    seen, _ = race(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0), neighbours=2)
    np.testing.assert_array_equal(seen["neighbours"], np.zeros(14))


def test_observations_batch():
    scans = np.random.default_rng(0).uniform(0.0, 20.0, (4, 54))
    arrays = *EGO, *TARGET, np.bool_(True)
    batch = jax.vmap(lambda scan: gaplock(ObservationScales(), (scan, *arrays), {}))(scans)
    np.testing.assert_allclose(np.asarray(batch)[2], observe(scans[2]), atol=1e-7)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("f110", {"observe_time": True}),
        ("f110", {"observe_task": True, "goal": {"low": [0.0, -1.0], "high": [2.0, 1.0]}}),
        ("f110", {"goal": {"low": [0.0, -1.0], "high": [2.0, 1.0]}}),
        ("f110_race", {"map": "track:1"}),
    ],
)
def test_parts_have_no_holes_and_one_unit_for_all_or_each(name, settings):
    env = je.make(name, lidar_beams=12, **settings)
    for role in env.spec.roles:
        end = 0
        for part in env.parts[role.name].values():
            size = part.where.stop - end
            assert part.where.start == end and {len(part.units), len(part.scales)} <= {1, size}
            end = part.where.stop
        assert end == role.observation.shape[0] and env.action_units[role.name] == ("rad", "m/s")
