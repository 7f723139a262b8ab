"""Racing: laps, crashes, the time limit and the pure-pursuit driver."""

import functools
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from evaluation_starts import check_starts_differ
from hydra.utils import instantiate
from omegaconf import OmegaConf
from PIL import Image

from jaxmarl_echelon.envs.check_env import check_env, check_traces
from jaxmarl_echelon.envs.f110 import race, settings
from jaxmarl_echelon.envs.f110.scripts.controllers import make_pursuit_driver
from jaxmarl_echelon.envs.f110.starts.spawns import follow_centerline
from jaxmarl_echelon.envs.settings import unflatten_settings

CONF = Path(__file__).resolve().parents[3] / "conf"
load = functools.cache(OmegaConf.load)
CARS, BATCH = 2, 2
X, Y, SPEED, YAW = 0, 1, 3, 4


def build(**changes):
    """The environment as configured, with some values changed."""
    node = OmegaConf.merge(load(CONF / "env" / "f110_race.yaml"), changes)
    reward = instantiate(load(CONF / "reward" / "race_progress.yaml"), _convert_="all")
    return instantiate(node, _partial_=True)(reward=reward)


@pytest.fixture(scope="module")
def env():
    return build(cars=CARS, lidar_beams=16, max_steps=20000)


@pytest.fixture(scope="module")
def params(env):
    return jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], BATCH, axis=0), env.default_params())


@pytest.fixture(scope="module")
def reset(env):
    return jax.jit(jax.vmap(env.reset))


@pytest.fixture(scope="module")
def moves(env):
    """The step, which is traced once for all programs that take it."""
    return jax.jit(env.step)


@pytest.fixture(scope="module")
def step(moves):
    return jax.jit(jax.vmap(moves))


def keys(seed):
    return jax.random.split(jax.random.key(seed), BATCH)


def drive(steer, speed):
    return {"car": np.tile(np.float32([steer, speed]), (BATCH, CARS, 1))}


def put(state, place, speeds):
    """A state with cars `place` metres ahead of the first one's pose, in line, at `speeds`."""
    physical = np.repeat(np.asarray(state.cars.state)[:, :1], CARS, axis=1)
    physical[..., X] += place * np.cos(physical[..., YAW])
    physical[..., Y] += place * np.sin(physical[..., YAW])
    physical[..., SPEED] = speeds
    return state.replace(cars=state.cars.replace(state=physical))


def first_out(state):
    """A state in which the first car has crashed."""
    active = np.tile([False, True], (BATCH, 1))
    outcome = np.where(active, race.RUNNING, race.CRASHED).astype(np.int32)
    return state.replace(cars=state.cars.replace(active=active), outcome=outcome)


def test_no_two_evaluation_episodes_start_alike(env):
    """Without noise: the cars start at different places of the track."""
    check_starts_differ(env, env.task_params({"lidar_noise": 0.0}))


@pytest.mark.thorough
def test_keeps_the_contract():
    check_env(build(max_steps=100, lidar_beams=16), steps=32, plain=False)


def test_is_traced_as_the_contract_says():
    check_traces(build(max_steps=100, lidar_beams=16))


@pytest.mark.thorough
def test_pure_pursuit_drives_laps_that_are_counted(env, params, reset, moves):
    pilot = make_pursuit_driver(env, range(CARS), speed=3.0)
    length = env.maps[0].centerline.length

    def decide(state, key, params):
        _, action = pilot.act(key, (), state, params)
        state, time = moves(key, state, {"car": action}, params)
        return state, (state.cars.state[:, :2], state.track.progress, time)

    @jax.jit
    def play(state, params):
        step = partial(decide, params=params)
        run = partial(jax.lax.scan, lambda state, key: step(state, key))
        return run(state, jax.random.split(jax.random.key(2), 1600))[1]

    state, one = jax.tree.map(lambda x: x[0], (jax.device_get(reset(keys(1), params)[0]), params))
    xy, progress, time = jax.tree.map(np.asarray, play(state, one))
    assert not time.terminated["car"].any()
    assert progress[-1].min() > 1.2 * length

    line = env.maps[0].centerline
    for car in range(CARS):
        nearest = np.linalg.norm(xy[:, car, None] - line.points, axis=-1).argmin(1)
        arc = np.unwrap(line.s[nearest], period=line.length)
        np.testing.assert_allclose(progress[:, car] - progress[0, car], arc - arc[0], atol=0.6)
    # A lap is as long as the line that progress is measured along, whose points lie further apart.
    laps = np.floor(progress.max(1) / np.asarray(env.simulation.bank.centerline_length)[0])
    np.testing.assert_array_equal(time.info["laps"], laps)
    assert set(laps.tolist()) >= {0.0, 1.0}
    np.testing.assert_array_equal(time.info["progress"], progress)
    gained = np.diff(progress, axis=0, prepend=0.0)
    np.testing.assert_allclose(time.info["reward/progress"], gained.mean(1), atol=1e-3)


def test_target_laps_finish_and_count_from_the_start(env, params, reset, step):
    state, _ = reset(keys(3), params)
    length = env.maps[0].centerline.length
    nearly = np.tile(np.float32([2 * length - 0.01, 1.5 * length]), (BATCH, 1))
    physical = np.array(state.cars.state)
    physical[..., SPEED] = 3.0
    state = state.replace(track=state.track.replace(progress=nearly))
    state = state.replace(cars=state.cars.replace(state=physical))
    wanted = params.replace(target_laps=np.int32([2, 3]))
    after, time = step(keys(4), state, drive(0.0, 3.0), wanted)
    np.testing.assert_array_equal(time.terminated["car"], [[True, False], [False, False]])
    np.testing.assert_array_equal(time.alive["car"], [[False, True], [True, True]])
    np.testing.assert_array_equal(after.outcome, [[race.FINISHED, race.RUNNING], [race.RUNNING] * 2])
    assert not np.asarray(time.over).any()
    assert np.all(np.asarray(time.info["laps"]) == [2.0, 2.0])


def test_driving_backwards_loses_metres(params, reset, step):
    state, _ = reset(keys(5), params)
    for seed in range(10):
        state, time = step(keys(seed), state, drive(0.0, -1.0), params)
    assert np.all(np.asarray(state.track.progress) < -0.2)
    assert np.all(np.asarray(time.info["laps"]) == 0.0)
    assert np.all(np.asarray(time.reward["car"]) < 0)


def test_steering_is_paid_as_it_is_carried_out(env, params, reset, step):
    """At most to the car's limit, and a command that is no number as none."""
    limit, (still, _) = float(env.default_params().car.s_max), reset(keys(5), params)
    begun, _ = step(keys(0), still, drive(0.0, 1.0), params)

    def paid(steer):
        return np.asarray(step(keys(1), begun, drive(steer, 1.0), params)[1].reward["car"])

    np.testing.assert_array_equal(paid(9.0), paid(limit))
    np.testing.assert_array_equal(paid(np.inf), paid(limit))
    assert (paid(limit) < paid(0.0)).all() and np.isfinite(paid(np.nan)).all()


def test_crashed_cars_are_out_and_the_episode_ends_with_the_last(env, params, reset, step):
    state, time = reset(keys(6), params)
    was_out = np.zeros((BATCH, CARS), bool)
    for seed in range(200):
        before = state
        state, time = step(keys(seed), state, drive(0.0, 4.0), params)
        crashed = np.asarray(time.terminated["car"])
        assert not np.any(crashed & was_out)
        still = np.asarray(state.cars.state)[was_out]
        np.testing.assert_array_equal(still, np.asarray(before.cars.state)[was_out])
        assert np.all(np.asarray(time.reward["car"])[was_out] == 0)
        assert np.all(np.asarray(time.reward["car"])[crashed] < -9)
        was_out |= crashed
        np.testing.assert_array_equal(time.alive["car"], ~was_out)
        np.testing.assert_array_equal(time.over, was_out.all(1))
        if was_out.all():
            break
    assert was_out.all()
    assert np.all(np.asarray(time.info["outcome"]) == race.CRASHED)
    assert np.all(np.asarray(time.info["collisions"]) == CARS)


def test_crashed_car_is_an_obstacle_or_gone(params, reset, step):
    state = put(reset(keys(7), params)[0], (0.0, -0.9), (0.0, 2.0))
    both = state.cars.state
    state = first_out(state)
    params = params.replace(obstacles=np.array([True, False]))
    ended = np.zeros(BATCH, bool)
    for seed in range(6):
        state, time = step(keys(seed), state, drive(0.0, 2.0), params)
        ended |= np.asarray(time.terminated["car"])[:, 1]
        if seed == 0:
            seen = np.asarray(state.cars.scan)[:, 1, 7:9].min(1)
            assert seen[0] < 0.6 < seen[1]
    assert ended.tolist() == [True, False]
    np.testing.assert_array_equal(state.cars.state[:, 0], both[:, 0])


def test_a_car_that_ran_into_another_one_is_a_standing_wreck(params, reset, step):
    state = put(reset(keys(7), params)[0], (0.0, 0.6), (4.0, 0.0))
    after, time = step(keys(0), state, drive(0.0, 4.0), params)
    assert np.asarray(time.terminated["car"]).all()
    np.testing.assert_array_equal(np.asarray(after.cars.state)[:, :, SPEED], 0.0)


def test_a_car_that_vanishes_is_gone_within_the_same_decision(env, params, reset, step):
    line = env.maps[0].centerline
    bend = np.abs(np.diff(line.heading))
    straight = int(np.convolve(np.where(bend < 1, bend, 9), np.ones(20), "valid").argmin())
    s, left = line.s[straight + 5], line.left[straight + 5]
    # The car ahead stands in the left wall; the one behind, a hand's breadth off it, is about to run into it.
    poses = follow_centerline(line, np.array([s - 0.65, s]), np.array([left - 0.28, left - 0.12]))
    state, _ = reset(keys(7), params)
    physical = np.zeros_like(state.cars.state)
    physical[..., :2], physical[..., YAW], physical[:, 0, SPEED] = poses[:, :2], poses[:, 2], 4.0
    state = state.replace(cars=state.cars.replace(state=physical))
    params = params.replace(obstacles=np.array([True, False]))
    _, time = step(keys(0), state, drive(0.0, 4.0), params)
    np.testing.assert_array_equal(time.terminated["car"], [[True, True], [False, True]])


def test_time_limit_truncates_those_who_still_drive(params, reset, step):
    state = first_out(reset(keys(8), params)[0])
    late = params.replace(max_steps=np.int32([5, 6]))
    _, time = step(keys(9), state, drive(0.0, 1.0), late)
    np.testing.assert_array_equal(time.truncated["car"], [[False, True], [False, False]])
    np.testing.assert_array_equal(time.terminated["car"], False)
    np.testing.assert_array_equal(time.over, [True, False])
    np.testing.assert_array_equal(time.info["outcome"], [race.TIMEOUT, race.RUNNING])


def test_grid_lines_up_behind_each_other_anywhere_on_the_track():
    env = build(cars=4, lidar_beams=4, grid_gap=2.0)
    many = jax.random.split(jax.random.key(10), 32)
    state, _ = jax.jit(jax.vmap(env.reset, (0, None)))(many, env.default_params())
    arc = np.sort(np.asarray(state.track.arc), axis=1)
    assert np.ptp(arc[:, 0]) > 0.5 * env.maps[0].centerline.length
    xy = np.asarray(state.cars.state)[..., :2]
    gaps = np.linalg.norm(xy[:, :, None] - xy[:, None], axis=-1)[:, *np.triu_indices(4, 1)]
    assert np.all(gaps > 1.2)
    assert np.all(env.maps[0].distance(xy) > 0.2)
    assert len({tuple(np.argsort(row)) for row in np.asarray(state.track.arc)}) > 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cars": 0}, "cars"),
        ({"map": "line2"}, "closed"),
        ({"crashed": "explode"}, "explode"),
        ({"action_speed": [3.0, 1.0]}, "action_speed"),
        ({"start_speed": 100.0}, "start_speed"),
        ({"neighbours": -1}, "neighbours"),
        ({"cars": 60}, "grid_gap"),
        ({"cars": 64, "grid_gap": 0.95}, "grid_gap"),
        ({"cars": 64, "car": {"length": 1.2}, "grid_gap": 1.2}, "cars"),
    ],
)
def test_wrong_values_get_one_line(changes, message):
    with pytest.raises(Exception) as caught:
        build(**changes)
    cause = caught.value.__cause__ or caught.value
    assert isinstance(cause, ValueError)
    assert message in str(cause)
    assert "\n" not in str(cause)


def draw_ring(folder, name="hall"):
    """A corridor of 2 m around a block, open to the outside through a door; all cells but walls are white."""
    cells = np.full((150, 150), 254, np.uint8)
    cells[30:120, 30:120], cells[32:118, 32:118] = 0, 254
    cells[52:98, 52:98] = 0
    cells[60:75, 26:34] = 254
    Image.fromarray(cells).save(folder / f"{name}.png")
    keys = f"image: {name}.png\nresolution: 0.1\norigin: [0.0, 0.0, 0.0]\n"
    (folder / f"{name}.yaml").write_text(keys)
    return str(folder / f"{name}.yaml")


def test_a_given_centreline_replaces_a_refused_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = draw_ring(tmp_path)
    with pytest.raises(ValueError) as refused:
        race_maps(map=path)
    told = str(refused.value)
    assert f"see {tmp_path / 'hall_line.png'}" in told and (tmp_path / "hall_line.png").is_file()
    assert "env.centerline=FILE" in told and "env.unknown=occupied" in told and "\n" not in told
    angle = np.linspace(0, 2 * np.pi, 80, endpoint=False)
    points = 7.5 + 3.6 * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    (tmp_path / "mine.csv").write_text("".join(f"{x},{y}\n" for x, y in points))
    chosen, maps = race_maps(map=[path, "track:1"], centerline=[str(tmp_path / "mine.csv"), None])
    np.testing.assert_allclose(maps[0].centerline.points, points, atol=1e-6)
    image = tmp_path / "hall.png"
    mine = str(tmp_path / "mine.csv")
    assert chosen.files(maps) == {path: (Path(path), image), mine: (Path(mine),)}
    with pytest.raises(ValueError, match="env.centerline=a.csv: must be a file, or a list"):
        race_maps(map=["track:1", "track:2"], centerline="a.csv")


def race_maps(**given):
    """The maps' settings, and the maps, which all have a closed line."""
    chosen = unflatten_settings(settings.RaceSettings, given).maps
    maps = chosen.load()
    settings.require_lines(maps, "racing needs", closed=True)
    return chosen, maps
