"""Settings that a curriculum changes: the same numbers and the same errors as in `make`."""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxmarl_echelon.envs.f110.make import make
from jaxmarl_echelon.envs.f110.rewards import make_reward

CONF = Path(__file__).resolve().parents[3] / "conf"
load = functools.cache(OmegaConf.load)


def build(name="f110", reward="gaplock_full", **changes):
    """The environment as configured, with some values changed."""
    small = {"lidar_beams": 12} | changes
    node = OmegaConf.merge(load(CONF / "env" / f"{name}.yaml"), small)
    paid = instantiate(load(CONF / "reward" / f"{reward}.yaml"), _convert_="all")
    return instantiate(node, _partial_=True, _convert_="all")(reward=paid)


@pytest.fixture(scope="module")
def env():
    return build()


@pytest.fixture(scope="module")
def race():
    return build("f110_race", "race_progress")


def same(params, others):
    jax.tree.map(np.testing.assert_array_equal, params, others)
    kinds = [[(np.shape(x), np.asarray(x).dtype) for x in jax.tree.leaves(p)] for p in (params, others)]
    assert kinds[0] == kinds[1]


CHANGES = {
    "spawns": "all",
    "spawn_speed": [0.0, 0.1],
    "spawn_jitter": [0.1, 0.2, 0.3],
    "pose_jitter": [0.3, 0.2, 0.1],
    "evaluation_jitter": [0.1, 0.2, 0.3],
    "lock_steps": 300,
    "locked": ["attacker", "defender"],
    "lidar_noise": 0.02,
    "max_steps": 900,
    "timeout": "truncation",
    "idle_speed": 0.1,
    "idle_decisions": 40,
    "map_weights": [2.0],
    "ftg": {"steering_gain": 0.6, "bubble_radius": 3.5, "max_speed": 1.0, "target_mode": "farthest"},
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_setting_does_what_it_does_in_make(env, key):
    change = {key: CHANGES[key]}
    changed = env.task_params(change)
    same(changed, build(**change).default_params())
    before, after = jax.tree.leaves(env.default_params()), jax.tree.leaves(changed)
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_all_settings_or_none_can_be_changed(env):
    same(env.task_params(CHANGES), build(**CHANGES).default_params())
    same(env.task_params({}), env.default_params())
    same(env.task_params({"ftg": None, "reward": None}), env.default_params())


def test_spawns_by_name_and_by_weight(env):
    weights = env.task_params({"spawns": {"pinch_left": 3.0, "approach_0.3R": 1}}).spawn_weights
    np.testing.assert_array_equal(weights, [0, 3, 0, 0, 0, 1])
    np.testing.assert_array_equal(
        env.task_params({"spawns": "pinch_ahead"}).spawn_weights, [0, 0, 1, 0, 0, 0]
    )


def test_the_target_mode_switches_in_both_directions(env):
    hard = build(ftg={"target_mode": "farthest"})
    assert bool(hard.default_params().ftg.farthest)
    assert not bool(hard.task_params({"ftg": {"target_mode": "center"}}).ftg.farthest)
    assert bool(env.task_params({"ftg": {"target_mode": "farthest"}}).ftg.farthest)
    state, _ = jax.jit(env.reset)(jax.random.key(0), env.default_params())
    params = {mode: env.task_params({"ftg": {"target_mode": mode}}) for mode in ("center", "farthest")}
    steer = {}
    for name, made in (("soft", env), ("hard", hard)):
        script = made.scripts["ftg"]
        for mode in params:
            _, action = jax.jit(script.act)(jax.random.key(1), script.init(), state, params[mode])
            steer[name, mode] = float(action[0, 0])
    assert steer["soft", "center"] == steer["hard", "center"] != steer["soft", "farthest"]
    assert steer["soft", "farthest"] == steer["hard", "farthest"]


def test_a_weighted_driver_keeps_its_mode():
    env = build(ftg={"target_mode": "weighted"})
    assert not bool(env.task_params({"ftg": {"target_mode": "weighted"}}).ftg.farthest)
    assert bool(env.task_params({"ftg": {"target_mode": "farthest"}}).ftg.farthest)
    with pytest.raises(ValueError, match="allowed: weighted, farthest"):
        env.task_params({"ftg": {"target_mode": "center"}})


def test_reward_weights_change_one_by_one(env):
    changed = env.task_params({"reward": {"terminal": {"timeout": -50}, "heading": {"weight": 0.0}}})
    before = env.default_params().reward
    assert float(changed.reward["terminal"]["timeout"]) == -50.0
    assert float(changed.reward["heading"]["weight"]) == 0.0
    for name, weights in before.items():
        for key, value in weights.items():
            if (name, key) not in {("terminal", "timeout"), ("heading", "weight")}:
                np.testing.assert_array_equal(changed.reward[name][key], value)
    jax.tree.map(lambda a, b: np.testing.assert_equal(a.dtype, b.dtype), changed.reward, before)


def test_tasks_share_one_program(env):
    traces = []

    @jax.jit
    def reset(key, params):
        traces.append(1)
        return env.reset(key, params)[1].obs

    for given in ({}, CHANGES, {"spawn_speed": 0}, {"reward": {"terminal": {"timeout": 0}}}):
        reset(jax.random.key(0), env.task_params(given))
    assert len(traces) == 1


REFUSED = [
    ({"spawns": ["pinch_up"]}, ["pinch_up", "pinch_left"]),
    ({"spawns": 3}, ["spawns=3"]),
    ({"spawns": {"pinch_left": "often"}}, ["spawns.pinch_left=often"]),
    ({"spawns": []}, ["positive"]),
    ({"spawn_speed": 3.0}, ["spawn_speed=3.0", "from -1 to 1"]),
    ({"spawn_speed": [0.5, 0.1]}, ["spawn_speed"]),
    ({"spawn_speed": None}, ["spawn_speed=None"]),
    ({"spawn_speed": "fast"}, ["spawn_speed=fast"]),
    ({"spawn_jitter": [0.1, 0.1]}, ["spawn_jitter", "3 numbers"]),
    ({"spawn_jitter": 0.1}, ["spawn_jitter", "3 numbers"]),
    ({"lock_steps": -1}, ["lock_steps=-1"]),
    ({"lock_steps": 1.5}, ["lock_steps=1.5", "whole"]),
    ({"locked": ["car_1"]}, ["car_1", "attacker, defender"]),
    ({"locked": 1}, ["locked=1", "attacker, defender"]),
    ({"lidar_noise": -0.1}, ["lidar_noise=-0.1"]),
    ({"map_weights": [1.0, 1.0]}, ["map_weights"]),
    ({"map_weights": 1.0}, ["map_weights=1.0"]),
    ({"max_steps": 0}, ["max_steps=0"]),
    ({"timeout": "never"}, ["never", "terminal, truncation"]),
    ({"idle_decisions": 0.5}, ["idle_decisions=0.5"]),
    ({"ftg": {"steering_gain": 1.4}}, ["ftg steering_gain is 1.4; it must be between 0 and 1"]),
    ({"ftg": {"steering_gain": "strong"}}, ["ftg steering_gain is 'strong'", "a number"]),
    ({"ftg": {"farthest": 0.5}}, ["ftg farthest is 0.5", "true or false"]),
    ({"ftg": {"min_speed": 0.9}}, ["min_speed", "must not exceed max_speed"]),
    ({"ftg": {"target_mode": "left"}}, ["left", "center"]),
    ({"ftg": {"gain": 1.0}}, ["gain", "steering_gain"]),
    ({"ftg": 3}, ["ftg=3", "mapping"]),
]


def refusal(call, given):
    with pytest.raises(ValueError) as caught:
        call(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_invalid_settings_raise_one_line(env, given, words):
    line = refusal(env.task_params, given)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("index", [0, 4, 9, 13, 18, 20])
def test_make_raises_the_same_errors(env, index):
    given, _ = REFUSED[index]
    reward = make_reward({"terminal": None})
    assert refusal(env.task_params, given) == refusal(lambda g: make(reward, **g), given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lidar_beams": 20}, ["env.lidar_beams", "spawn_speed", "ftg, reward"]),
        ({"spawn": "all"}, ["env.spawn:", "spawns"]),
        ({"car": {"mu": 1.0}}, ["env.car"]),
        ({"max_steps": 1501}, ["max_steps=1501", "from 1 to 1500"]),
        ({"ftg": {"window_size": 5}}, ["ftg.window_size=5", "fixed for the whole run"]),
        ({"reward": {"terminals": {"timeout": 0}}}, ["terminals", "terminal"]),
        ({"reward": {"progress": {"weight": 0}}}, ["progress", "terminal"]),
        ({"reward": {"terminal": {"crash": 0}}}, ["terminal.crash", "target_crash"]),
        ({"reward": {"terminal": {"timeout": "none"}}}, ["terminal.timeout", "a finite number"]),
        ({"reward": {"terminal": 5}}, ["reward.terminal=5", "mapping"]),
        ({"reward": [1]}, ["reward=[1]", "mapping"]),
    ],
)
def test_fixed_settings_raise_one_line(env, given, words):
    line = refusal(env.task_params, given)
    assert all(word in line for word in words), line


def test_races_have_tasks_too(race):
    changes = {
        "start_speed": [0.5, 1.0], "grid_gap": 2.0, "grid_offset": 0.1, "target_laps": 2,
        "crashed": "removed", "max_steps": 600, "lidar_noise": 0.0, "ftg": {"max_speed": 2.5},
    }  # fmt: skip
    same(race.task_params(changes), build("f110_race", "race_progress", **changes).default_params())
    assert (
        float(race.task_params({"reward": {"progress": {"weight": 3.0}}}).reward["progress"]["weight"]) == 3.0
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"spawn_speed": 0.0}, ["env.spawn_speed", "start_speed"]),
        ({"cars": 2}, ["env.cars"]),
        ({"grid_gap": 0.0}, ["grid_gap=0.0"]),
        ({"crashed": "gone"}, ["gone", "obstacle, removed"]),
        ({"max_steps": 10**6}, ["max_steps=1000000"]),
    ],
)
def test_invalid_settings_of_races_raise_one_line(race, given, words):
    line = refusal(race.task_params, given)
    assert all(word in line for word in words), line
