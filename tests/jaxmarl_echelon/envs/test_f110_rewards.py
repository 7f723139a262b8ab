"""Every reward component by hand, the presets, and recorded totals."""

from functools import partial
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from jaxmarl_echelon.envs.f110.results import OUTCOMES
from jaxmarl_echelon.envs.f110.rewards import COMPONENTS, CarRewardInputs, make_reward

PRESETS = Path(__file__).parents[3] / "conf" / "reward"
NAMES = ("gaplock_full", "gaplock_simple", "gaplock_original", "centerline_racing")
NAMES += ("gaplock_centerline_pressure", "race_progress")


def preset(name):
    return hydra.utils.instantiate(OmegaConf.load(PRESETS / f"{name}.yaml"))


def situation(**changes):
    """Standing 5 m behind a target that faces away; no component is rewarded unless changed."""
    given = {
        "ego_pose": [0.0, 0.0, 0.0],
        "ego_velocity": [0.0, 0.0, 0.0],
        "ego_steer": 0.0,
        "target_pose": [5.0, 0.0, 0.0],
        "target_velocity": [0.0, 0.0, 0.0],
        "target_scan_min": 1.0,
        "target_offset": 0.0,
        "target_wall_distance": 9.0,
        "ego_progress": 0.0,
        "ego_offset": 0.0,
        "ego_offset_rate": 0.0,
        "collided": False,
        "outcome": -1,
        "dt": 0.01,
        "scan_fresh": True,
    } | changes
    kinds, real = {"collided": bool, "scan_fresh": bool, "outcome": np.int32}, jnp.result_type(float)
    return CarRewardInputs(**{key: np.asarray(value, kinds.get(key, real)) for key, value in given.items()})


@partial(jax.jit, static_argnums=0)
def one_step(reward, params, situation, memory):
    return reward(params, situation, memory)


def pay(name, *steps, **weights):
    """Returns the reward of one component in each of the steps."""
    reward = make_reward({name: weights})
    params, memory, paid = reward.params(), reward.init(), []
    for changes in steps:
        values, memory = reward(params, situation(**changes), memory)
        paid.append(float(values[name]))
    return paid


def near(actual, wanted):
    np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("name", ["gaplock_full", "gaplock_original"])
def test_terminal_rewards_each_outcome_once(name):
    reward = preset(name)
    for code, wanted in zip(range(-1, 6), (0.0, 200.0, -20.0, 0.0, -100.0, -5.0, -20.0), strict=True):
        values, _ = one_step(reward, reward.params(), situation(outcome=code), reward.init())
        near(values["terminal"], wanted)
    assert OUTCOMES[:4] == ("target_crash", "self_crash", "collision", "timeout")


CHASE = {"target_pose": [1.2, 0.0, 0.0], "ego_velocity": [0.3, 0.0, 0.0]}


def test_pressure_at_the_public_scale_does_not_grow():
    near(pay("pressure", *[CHASE] * 50), [0.001] * 50)


@pytest.mark.parametrize(
    "broken",
    [
        {"target_pose": [1.31, 0.0, 0.0]},
        {"ego_velocity": [0.29, 0.0, 0.0]},
        {"ego_pose": [0.0, 0.0, 1.6]},
        {"ego_pose": [0.0, 0.0, -1.6]},
    ],
)
def test_pressure_needs_all_of_its_conditions(broken):
    near(pay("pressure", CHASE | broken), [0.0])


def test_pressure_streaks_of_the_original():
    weights = {"bonus": 0.12, "interval": 5.0, "streak_bonus": 0.10}
    away = CHASE | {"ego_velocity": [0.0, 0.0, 0.0]}
    growth = [0.0] + [0.10 * min(n, 40) / 40 for n in range(2, 46)]
    wanted = [g + 0.12 * (n % 5 == 0) for n, g in enumerate(growth, 1)]
    near(pay("pressure", *[CHASE] * 45, away, CHASE, CHASE, **weights), [*wanted, 0.0, 0.0, 0.005])


def test_distance_rewards_near_and_penalises_far():
    steps = [{"target_pose": [x, 0.0, 0.0]} for x in (0.9, 1.1, 2.4, 2.6)]
    near(pay("distance", *steps), [0.002, 0.0, 0.0, -0.002])


def test_distance_gradient_is_piecewise_linear_and_limited():
    steps = [{"target_pose": [0.0, x, 0.0]} for x in (0.1, 0.25, 0.375, 0.75, 1.25, 2.25, 3.0, 9.0)]
    shape = np.array([-1.0, -1.0, -0.75, 0.0, 0.4, 0.1, -0.15, -0.3])
    alone = {"near": 0.0, "far": 0.0, "gradient": 0.2}
    near(pay("distance", *steps, **alone, gradient_limit=0.2, time_scaled=True), 0.002 * shape)
    near(pay("distance", *steps, **alone, gradient_limit=0.05), np.clip(0.2 * shape, -0.05, 0.05))


@pytest.mark.parametrize(("yaw", "share"), [(0.0, 1.0), (np.pi / 2, 0.5), (-np.pi / 2, 0.5), (np.pi, 0.0)])
def test_heading_rewards_facing_the_target(yaw, share):
    near(pay("heading", {"ego_pose": [0.0, 0.0, yaw]}), [0.001 * share])


def test_heading_is_zero_at_the_target():
    near(pay("heading", {"target_pose": [0.0, 0.0, 1.0]}), [0.0])


def test_heading_wraps():
    error = np.pi - 3.0 + np.arctan(0.1)
    step = {"ego_pose": [0.0, 0.0, 3.0], "target_pose": [-1.0, -0.1, 0.0]}
    near(pay("heading", step), [0.001 * (1 - error / np.pi)])


def test_speed_is_rewarded_up_to_its_limit_in_any_direction():
    steps = [{"ego_velocity": v} for v in ([0.3, 0.4, 9.0], [-0.5, 0.0, 0.0], [0.9, 0.0, 0.0])]
    near(pay("speed", *steps), [0.00025, 0.00025, 0.0003])


POCKET = {"ego_pose": [1.2, 0.35, 0.0], "target_pose": [0.0, 0.0, 0.0]}


def test_pinch_potential():
    """In a pocket, its mirror, one sigma ahead of it, and far behind; the frame is the target's."""
    steps = [
        POCKET,
        POCKET | {"ego_pose": [1.2, -0.35, 0.0]},
        POCKET | {"ego_pose": [1.75, 0.35, 0.0]},
        POCKET | {"ego_pose": [-9.0, 0.35, 0.0]},
        {"ego_pose": [2.0 - 0.35, 1.0 + 1.2, 0.0], "target_pose": [2.0, 1.0, np.pi / 2]},
    ]
    well = 0.004 * (-0.5 + 1.5 * np.exp(-0.5))
    near(pay("pinch", *steps), [0.004, 0.004, well, -0.002, 0.004])


def test_pinch_power_sharpens_the_well():
    step = POCKET | {"ego_pose": [1.2 + 2 * 0.55, 0.35, 0.0]}
    near(pay("pinch", step, power=4.0), [0.004 * (-0.5 + 1.5 * np.exp(-8.0))])


def test_pinch_simple_sums_both_bumps():
    weights = {"potential": False, "amplitude": 0.3, "lateral": 0.7, "sigma": 0.5}
    bumps = np.exp(-0.5 * (0.35 / 0.5) ** 2) + np.exp(-0.5 * (1.05 / 0.5) ** 2)
    near(pay("pinch", POCKET, **weights), [0.3 * bumps])


def test_clearance_rewards_shrinking_only():
    ranges = (1.0, 0.9, 0.95, 0.945, 0.25, 0.29, 0.2)
    steps = [{"target_scan_min": r} for r in ranges]
    near(pay("clearance", *steps), [0.0, 0.0003, 0.0, 0.000015, 0.0, 0.0, 0.0])
    near(pay("clearance", *steps[:2], time_scaled=True), [0.0, 3e-6])
    near(pay("clearance", {"target_scan_min": 9.0}, {"target_scan_min": 1.0}), [0.0, 0.015])


def test_clearance_waits_for_a_fresh_scan():
    stale = {"target_scan_min": np.nan, "scan_fresh": False}
    steps = [stale, {"target_scan_min": 1.0}, stale, {"target_scan_min": 0.9}]
    near(pay("clearance", *steps), [0.0, 0.0, 0.0, 0.0003])


def test_turn_rewards_both_directions_across_the_seam():
    steps = [{"target_pose": [5.0, 0.0, yaw]} for yaw in (3.1, 3.14, -3.13, 3.14, 0.0)]
    seam = 0.006 * (2 * np.pi - 6.27)
    np.testing.assert_allclose(pay("turn", *steps), [0.0, 0.00024, seam, seam, 0.015], rtol=1e-4)


def test_idle_starts_at_its_patience_and_restarts():
    still, moving = {"ego_velocity": [0.11, 0.0, 0.0]}, {"ego_velocity": [0.13, 0.0, 0.0]}
    steps = [still] * 26 + [moving] + [still] * 25
    near(pay("idle", *steps, penalty=0.05), [0.0] * 24 + [-0.05] * 2 + [0.0] * 25 + [-0.05])


def test_reverse_penalises_backward_driving():
    steps = [{"ego_velocity": [v, 0.0, 0.0]} for v in (0.5, -0.01, -0.03)]
    near(pay("reverse", *steps), [0.0, 0.0, -0.001])


def test_brake_penalises_sudden_stops_but_never_the_first_step():
    steps = [{"ego_velocity": [v, 0.0, 0.0]} for v in (0.0, 0.8, 0.5, 0.3, 0.0, 0.39, 0.0)]
    near(pay("brake", *steps), [0.0, 0.0, -0.0005, 0.0, 0.0, 0.0, 0.0])


def test_step_is_constant():
    near(pay("step", {}, {}), [-0.001, -0.001])


def test_racing_terms():
    step = {"ego_progress": 0.02, "ego_offset": -0.5, "ego_offset_rate": -0.3, "ego_steer": -0.2}
    near(pay("progress", step, {"ego_progress": -0.01}), [0.02, -0.01])
    near(pay("track_speed", step), [2.0])
    near(pay("lateral_rate", step), [-0.0003])
    near(pay("offset", step), [-0.01])
    near(pay("steer", step), [-0.02])
    near(pay("steer_rate", step, {"ego_steer": 0.1}, {"ego_steer": 0.0}), [0.0, -0.003, -0.001])
    near(pay("collision", {}, {"collided": True}), [0.0, -10.0])


def test_target_terms_saturate():
    steps = [{"target_offset": d} for d in (0.0, -0.4, 1.7)]
    near(pay("target_offset", *steps), [0.0, 0.4, 1.0])
    steps = [{"target_wall_distance": d} for d in (0.0, 0.25, 3.0)]
    near(pay("target_wall", *steps), [1.0, 0.75, 0.0])


@pytest.mark.parametrize("double", [False, True])
def test_recorded_totals_of_the_original(double):
    with jax.enable_x64(double):
        reward = preset("gaplock_original")
        params, memory = reward.params(), reward.init()
        start = POCKET | {"ego_velocity": [0.44, 0.0, 0.0]}
        first, memory = one_step(reward, params, situation(**start), memory)
        tolerance = {"atol": 1e-12} if double else {"atol": 5e-9}
        np.testing.assert_allclose(sum(map(float, first.values())), 0.0033103344706, **tolerance)
        np.testing.assert_allclose(first["heading"], 9.03344706e-5, **tolerance)
        moved = start | {"target_pose": [0.0, 0.0, 0.001], "target_scan_min": 0.999}
        second, memory = one_step(reward, params, situation(**moved), memory)
        np.testing.assert_allclose(second["clearance"], 3e-8, rtol=1e-4)
        np.testing.assert_allclose(second["turn"], 6e-8, rtol=1e-4)
        behind = {"target_pose": [3.0, 0.0, 0.0], "ego_velocity": [0.44, 0.0, 0.0]}
        values, _ = one_step(reward, params, situation(**behind), reward.init())
        np.testing.assert_allclose(sum(map(float, values.values())), -0.00178, **tolerance)
        np.testing.assert_allclose(values["pinch"], -0.0019999999999989, **tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_presets_load_and_stay_finite(name):
    reward = preset(name)
    values, memory = reward(reward.params(), situation(outcome=0, collided=True), reward.init())
    assert tuple(values) == reward.names
    assert all(value.shape == () and value.dtype == jnp.float32 for value in values.values())
    assert jax.tree.structure(memory) == jax.tree.structure(reward.init())
    before, after = jax.tree.leaves(reward.init()), jax.tree.leaves(memory)
    assert [x.dtype for x in before] == [x.dtype for x in after]
    hash(reward)


def test_shaping_of_the_public_preset_cannot_compete_with_success():
    """The best imaginable 1500 steps of shaping stay far below one success."""
    reward = preset("gaplock_full")
    best = situation(**CHASE | {"ego_velocity": [0.6, 0.0, 0.0], "target_pose": [0.9, 0.0, np.pi]})
    values, _ = jax.device_get(one_step(reward, reward.params(), best, reward.init()))
    total = float(sum(values.values()))
    assert 0.0 < total < 0.015
    near(values["pressure"] + values["distance"] + values["heading"] + values["speed"], 0.0043)


def test_every_component_has_a_weight_that_switches_it_off():
    reward = make_reward({name: None for name in COMPONENTS})
    params = reward.params()
    step = situation(
        **POCKET | {"outcome": 0, "collided": True, "ego_velocity": [-0.5, 0.0, 0.0], "ego_progress": 0.1},
    )
    memory = reward.init()
    plain, _ = jax.device_get(one_step(reward, params, step, memory))
    for name in COMPONENTS:
        off, twice = (params | {name: params[name] | {"weight": np.float32(x)}} for x in (0.0, 2.0))
        values, _ = jax.device_get(one_step(reward, off, step, memory))
        assert values[name] == 0.0
        assert all(values[other] == plain[other] for other in COMPONENTS if other != name)
        doubled, _ = one_step(reward, twice, step, memory)
        near(doubled[name], 2.0 * plain[name])


def test_weights_are_traced_and_batch():
    reward, traces = preset("gaplock_full"), []

    @jax.jit
    def total(params):
        traces.append(1)
        values, _ = reward(params, situation(**POCKET), reward.init())
        return sum(values.values())

    scales = (0.0, 1.0, 3.0)
    sets = [reward.params() | {"pinch": reward.params()["pinch"] | {"weight": jnp.array(s)}} for s in scales]
    single = [total(params) for params in sets]
    assert len(traces) == 1
    near(np.diff(single), [0.004, 0.008])
    batch = jax.vmap(total)(jax.tree.map(lambda *x: jnp.stack(x), *sets))
    np.testing.assert_allclose(batch, single, atol=1e-8)


@pytest.mark.parametrize(
    ("components", "words"),
    [
        ({"presure": None}, ("presure", "pressure")),
        ({"heading": {"amonut": 1.0}}, ("heading.amonut", "amount", "weight")),
        ({"pinch": {"potential": 1.0}}, ("pinch.potential", "true or false")),
        ({"step": {"amount": "much"}}, ("step.amount", "much", "number")),
        ({"step": {"weight": True}}, ("step.weight", "number")),
    ],
)
def test_mistakes_are_named_in_one_line(components, words):
    with pytest.raises(ValueError) as error:
        make_reward(components)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words)
