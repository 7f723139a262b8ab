"""The adversarial F110 task: spawns, speed lock, outcomes, rewards and the scripted defender."""

import functools
import itertools
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluation_starts import EPISODES, begins, check_starts_differ
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxmarl_echelon.envs.check_env import check_env, check_traces
from jaxmarl_echelon.envs.f110 import results
from jaxmarl_echelon.envs.f110.observing.observe import gaplock_layout
from jaxmarl_echelon.envs.f110.settings import read_maps
from jaxmarl_echelon.envs.f110.starts import spawns
from jaxmarl_echelon.envs.f110.state import ATTACKER, DEFENDER
from jaxmarl_echelon.training.acting.controllers import find_script
from jaxmarl_echelon.training.program import evaluation
from physics.centerline import centerline_from_points
from physics.gridmap import OccupancyMap

CONF = Path(__file__).resolve().parents[3] / "conf"
load = functools.cache(OmegaConf.load)
BATCH = 12
# Decisions in a row that tests play: as many as one program has.
STRETCH = 120
X, Y, STEER, SPEED, YAW, YAW_RATE = range(6)


evaluation_params = jax.jit(evaluation.evaluation_params, static_argnums=(0, 2))


def start_states(env, params, key=3):
    """The cars' states `[EPISODES, 2, 7]` at the starts of an evaluation's episodes."""
    return np.asarray(begins(env, EPISODES)(jax.random.key(key), params)[0].cars.state)


def build(reward="gaplock_full", **changes):
    """The environment as configured, with some values changed."""
    node = OmegaConf.merge(load(CONF / "env" / "f110.yaml"), changes)
    paid = instantiate(load(CONF / "reward" / f"{reward}.yaml"), _convert_="all")
    return instantiate(node, _partial_=True)(reward=paid)


@pytest.fixture(scope="module")
def env():
    return build(spawns="all", lidar_beams=54)


def tiled(params):
    """The parameters of BATCH environments."""
    return jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], BATCH, axis=0), params)


@pytest.fixture(scope="module")
def batch(env):
    """A standstill start at every batch index, as `(params, reset)` of BATCH environments."""
    params = env.default_params().replace(speed_range=np.zeros(2, np.float32), lock_steps=np.int32(0))
    return tiled(params), jax.jit(jax.vmap(env.reset))


@pytest.fixture(scope="module")
def moves(env):
    """The step, which is traced once for all programs that take it."""
    return jax.jit(env.step)


@pytest.fixture(scope="module")
def rollout(env, moves):
    """Plays BATCH episodes: constant attackers against the defender's script; `[T, BATCH]` records."""
    ftg = env.scripts["ftg"]

    def decide(carry, key, params, commands):
        state, memory, over = carry
        keys = jax.random.split(key, BATCH)
        memory, action = jax.vmap(ftg.act)(keys, memory, state, params)
        actions = {"attacker": commands[:, None], "defender": action}
        moved, time = jax.vmap(moves)(keys, state, actions, params)
        state = where_batch(over, state, moved)
        record = {"cars": state.cars.state, "step": state.step, "outcome": state.outcome}
        return (state, memory, over | time.over), record

    @jax.jit
    def stretch(keys, carry, params, commands):
        return jax.lax.scan(partial(decide, params=params, commands=commands), carry, keys)

    def play(key, state, params, decisions):
        memory = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], BATCH, axis=0), ftg.init())
        carry, records = (state, memory, np.zeros(BATCH, bool)), []
        commands = np.zeros((BATCH, 2), np.float32)
        for keys in jax.random.split(key, (decisions // STRETCH, STRETCH)):
            carry, record = stretch(keys, carry, params, commands)
            records.append(jax.device_get(record))
        return jax.tree.map(lambda *rows: np.concatenate(rows), *records)

    return play


@pytest.fixture(scope="module")
def step(moves):
    return jax.jit(jax.vmap(moves))


@pytest.fixture(scope="module")
def mixed():
    """The environment on three maps, the second of which is never drawn."""
    return build(map=["line2", "track:0", "track:1"], map_weights=[1.0, 0.0, 1.0], lidar_beams=16)


def put(state, car, rows, **values):
    """Overwrites parts of a car's state in some batch rows."""
    names = {"x": X, "y": Y, "v": SPEED, "psi": YAW}
    physical = np.array(state.cars.state)
    for name, value in values.items():
        physical[rows, car, names[name]] = value
    return state.replace(cars=state.cars.replace(state=physical))


def where_batch(mask, new, old):
    """Selects whole environments of two states by a `[BATCH]` mask."""
    return jax.tree.map(lambda a, b: jax.vmap(jnp.where)(mask, a, b), new, old)


def on_task(params, tasks):
    return params.replace(spawn_weights=np.eye(len(spawns.BUILT_IN), dtype=np.float32)[np.asarray(tasks)])


@pytest.mark.thorough
def test_keeps_the_contract():
    check_env(build(max_steps=60), steps=32)


def test_is_traced_as_the_contract_says():
    check_traces(build(max_steps=60))


def test_observation_is_119_numbers_and_time_is_the_120th():
    for timed, length in ((False, 119), (True, 120)):
        env = build(observe_time=timed)
        _, time = jax.eval_shape(env.reset, jax.random.key(0), env.default_params())
        assert {role: obs.shape for role, obs in time.obs.items()} == {
            "attacker": (1, length),
            "defender": (1, length),
        }


def test_the_target_can_be_hidden():
    """Only the scan still shows the target; the other features are unchanged."""
    shown, hidden = (build(observe_target=visible) for visible in (True, False))
    key = jax.random.key(0)
    (_, seen), (_, rest) = (
        jax.device_get(jax.jit(env.reset)(key, env.default_params())) for env in (shown, hidden)
    )
    target = ("target_velocity", "relative_pose")
    for role in ("attacker", "defender"):
        for name, part in gaplock_layout(108).items():
            wanted = np.zeros(part.stop - part.start) if name in target else seen.obs[role][0, part]
            np.testing.assert_array_equal(rest.obs[role][0, part], wanted)


def test_spawn_points_of_line2_are_the_original_ones(env):
    expected = {
        "pinch_right": (-45.569, -1.0, 0.2),
        "pinch_left": (-45.569, -0.4, -0.2),
        "pinch_ahead": (-45.569, -0.7, 0.0),
        "approach_0.0C": (-45.569, -0.7, 0.0),
        "approach_0.3L": (-45.569, -0.4, 0.0),
        "approach_0.3R": (-45.569, -1.0, 0.0),
    }
    assert env.spec.tasks == tuple(expected)
    table = np.asarray(env.spawns.poses)
    assert table.shape == (1, 1, 6, 2, 3)
    np.testing.assert_allclose(table[0, 0, :, ATTACKER], list(expected.values()), atol=1e-5)
    np.testing.assert_allclose(table[0, 0, :, DEFENDER], [(-46.769, -0.7, 0.0)] * 6, atol=1e-5)


def test_default_is_phase_zero():
    env = build()
    params = env.default_params()
    drawn = dict(zip(env.spec.tasks, np.asarray(params.spawn_weights), strict=True))
    assert {name for name, weight in drawn.items() if weight} == {"pinch_right", "pinch_left"}
    np.testing.assert_allclose(params.speed_range, 0.44)
    assert int(params.lock_steps) == 800
    assert np.asarray(params.locked).tolist() == [False, True]
    assert float(params.ftg.steering_gain) == pytest.approx(0.25)
    assert not bool(params.ftg.farthest)
    assert env.spec.episode_limit == 750
    assert env.spec.decision_period == pytest.approx(0.02)


def test_both_cars_start_at_the_spawn_speed(batch):
    params, reset = batch
    state, time = reset(
        jax.random.split(jax.random.key(1), BATCH),
        params.replace(speed_range=np.tile(np.float32([0.1, 0.4]), (BATCH, 1))),
    )
    speeds = np.asarray(state.cars.state[..., SPEED])
    np.testing.assert_array_equal(speeds[:, ATTACKER], speeds[:, DEFENDER])
    assert len(set(speeds[:, 0].tolist())) == BATCH
    assert speeds.min() >= 0.1
    assert speeds.max() <= 0.4
    np.testing.assert_allclose(time.obs["attacker"][:, 0, 54], speeds[:, 0], atol=1e-6)


def test_lock_holds_the_named_car_for_its_physics_steps(batch, rollout):
    params, reset = batch
    locked = np.array([[False, True], [True, False], [True, True], [False, False]] * 3)
    params = params.replace(
        speed_range=np.full((BATCH, 2), 0.44, np.float32),
        lock_steps=np.full(BATCH, 50, np.int32),
        locked=locked,
    )
    params = on_task(params, [0] * BATCH)
    state, _ = reset(jax.random.split(jax.random.key(2), BATCH), params)
    cars = rollout(jax.random.key(3), state, params, STRETCH)["cars"]
    speeds = cars[..., SPEED]
    held, after = speeds[:25], speeds[25:40]
    # The observed yaw rate is that of the car: it does not sum the accelerations that the lock undoes.
    turning = speeds * np.tan(cars[..., STEER]) / (0.15875 + 0.17145)
    np.testing.assert_allclose(cars[:25, 0, DEFENDER, YAW_RATE], turning[:25, 0, DEFENDER], atol=1e-4)
    assert np.abs(turning[:25, 0, DEFENDER]).max() > 0.01
    for row, named in enumerate(locked):
        for car in (ATTACKER, DEFENDER):
            assert np.all(held[:, row, car] == np.float32(0.44)) == named[car]
    attacker = after[:, 1, ATTACKER]
    assert np.all(np.diff(attacker) < 0)
    assert attacker[0] < 0.44


def test_first_of_the_ranked_outcomes_counts():
    flags = np.array(list(itertools.product([False, True], repeat=5)))
    attacker, defender, finished, idle, late = flags.T
    expected = [
        "target_finish" if f else
        "collision" if a and d else
        "target_crash" if d else
        "self_crash" if a else
        "idle_stop" if i else
        "timeout" if t else None
        for a, d, f, i, t in flags
    ]  # fmt: skip
    codes = results.classify_outcome(*map(jnp.asarray, (attacker, defender, finished, idle, late)))
    named = [None if code < 0 else results.OUTCOMES[code] for code in np.asarray(codes)]
    assert named == expected


def test_every_outcome_from_a_state_built_for_it(env, batch, step):
    params, reset = batch
    rows = dict(running=0, timeout=1, cut=2, self_crash=3, target_crash=4, collision=5, both_walls=6,
                idle_stop=7, target_finish=8, finish_and_crash=9, late_and_crash=10, moving=11)  # fmt: skip
    wall = 0.575 - 0.16
    nearly_late = np.where(np.isin(np.arange(BATCH), (1, 2, 10)), 1498, 0).astype(np.int32)
    params = on_task(params, [0] * BATCH).replace(
        timeout_terminal=np.where(np.arange(BATCH) == rows["cut"], False, params.timeout_terminal),
        idle_decisions=np.where(np.arange(BATCH) == rows["idle_stop"], np.int32(1), params.idle_decisions),
    )
    state, _before = reset(jax.random.split(jax.random.key(4), BATCH), params)
    state = state.replace(step=nearly_late)
    state = put(state, ATTACKER, [3, 6, 9], y=wall, psi=np.pi / 2, v=0.9)
    state = put(state, DEFENDER, [4, 6, 9, 10], y=wall, psi=np.pi / 2, v=0.9)
    state = put(state, ATTACKER, rows["collision"], x=-46.769 + 0.3, y=-0.7, psi=0.0)
    state = put(state, DEFENDER, 8, x=45.735, v=0.9)
    # Over the line in the first of the decision's two steps, into the wall in the second.
    state = put(state, DEFENDER, rows["finish_and_crash"], x=45.7385, y=0.37, psi=1.0)
    ahead = {"attacker": np.tile(np.float32([0.0, 0.9]), (BATCH, 1, 1))}
    actions = ahead | {"defender": ahead["attacker"]}
    _, time = step(jax.random.split(jax.random.key(5), BATCH), state, actions, params)

    names = ["running" if c < 0 else results.OUTCOMES[c] for c in np.asarray(time.info["outcome"])]
    expected = ["running", "timeout", "timeout", "self_crash", "target_crash", "collision", "collision",
                "idle_stop", "target_finish", "target_finish", "target_crash", "running"]  # fmt: skip
    assert names == expected
    cut = np.arange(BATCH) == rows["cut"]
    over = np.array(expected) != "running"
    np.testing.assert_array_equal(time.over, over)
    for role in ("attacker", "defender"):
        np.testing.assert_array_equal(time.terminated[role][:, 0], over & ~cut)
        np.testing.assert_array_equal(time.truncated[role][:, 0], cut)
    terminal = dict(target_crash=200, self_crash=-20, collision=0, timeout=-100, idle_stop=-5,
                    target_finish=-20, running=0)  # fmt: skip
    paid = [0 if row == rows["cut"] else terminal[name] for row, name in enumerate(names)]
    np.testing.assert_allclose(time.info["reward/terminal"], paid)
    np.testing.assert_allclose(time.reward["defender"][:, 0], [-value for value in paid])
    total = sum(np.asarray(time.info[f"reward/{name}"]) for name in env.spec.components)
    np.testing.assert_allclose(time.reward["attacker"][:, 0], total, atol=1e-5)


def test_car_that_touches_a_wall_stops_one_step_before_it(batch, step):
    params, reset = batch
    params = on_task(params, [0] * BATCH)
    state, _ = reset(jax.random.split(jax.random.key(4), BATCH), params)
    state = put(state, ATTACKER, np.arange(BATCH), y=0.575 - 0.1601, psi=np.pi / 2, v=0.9)
    actions = {role: np.tile(np.float32([0.0, 0.9]), (BATCH, 1, 1)) for role in ("attacker", "defender")}
    after, time = step(jax.random.split(jax.random.key(5), BATCH), state, actions, params)
    assert np.all(np.asarray(time.info["outcome"]) == results.SELF_CRASH)
    np.testing.assert_array_equal(after.cars.state[:, ATTACKER, :3], state.cars.state[:, ATTACKER, :3])
    np.testing.assert_array_equal(after.cars.state[:, ATTACKER, SPEED], 0.0)
    np.testing.assert_array_equal(after.step, 1)


def test_scan_contact_is_five_millimetres_or_five_milliseconds():
    env = build(wall_contact="scan", lidar_beams=3, lidar_fov=3.14159265)
    car = env.default_params().car
    side = np.array([0.225 / 2, 0.3302 / 2, 0.225 / 2])
    gaps = np.array([[0.1, 0.006, 0.1], [0.1, 0.006, 0.1], [0.1, 0.006, 0.1], [0.004, 0.1, 0.1]])
    state = np.zeros((4, 7), np.float32)
    state[:, SPEED] = [0.9, 2.0, -2.0, 0.0]
    touched = jax.jit(env.simulation._near_outline)(np.float32(side + gaps), state, car)
    assert np.asarray(touched).tolist() == [False, True, False, True]


def test_defender_alone_keeps_clear_of_the_walls(batch, rollout):
    params, reset = batch
    gains = [0.25, 0.30, 0.35, 0.40, 0.60, 0.60] * 2
    bubbles = [2.0, 2.2, 2.5, 2.8, 3.5, 3.5] * 2
    farthest = [False, False, False, True, True, False] * 2
    params = params.replace(
        ftg=params.ftg.replace(
            steering_gain=np.float32(gains), bubble_radius=np.float32(bubbles), farthest=np.array(farthest)
        )
    )
    state, _ = reset(jax.random.split(jax.random.key(6), BATCH), params)
    state = put(state, ATTACKER, np.arange(BATCH), x=40.0)
    record = rollout(jax.random.key(7), state, params, 5 * STRETCH)
    assert np.all(record["outcome"] == results.RUNNING)
    cars = record["cars"]
    assert np.all(record["step"][-1] == 1200)
    np.testing.assert_allclose(cars[-1, :, DEFENDER, X] + 46.769, 5.6, atol=0.25)
    np.testing.assert_allclose(cars[-100:, :, DEFENDER, SPEED].mean(0), 0.48, atol=0.02)


def test_parked_attacker_dead_ahead_is_rammed(batch, rollout):
    params, reset = batch
    params = on_task(params, [2] * BATCH)
    params = params.replace(
        ftg=params.ftg.replace(
            steering_gain=np.full(BATCH, 0.35, np.float32), bubble_radius=np.full(BATCH, 3.0, np.float32)
        ),
        lidar_noise=np.where(np.arange(BATCH) < 2, 0.0, 0.01).astype(np.float32),
    )
    state, _ = reset(jax.random.split(jax.random.key(8), BATCH), params)
    record = rollout(jax.random.key(9), state, params, STRETCH)
    assert np.all(record["outcome"][-1] == results.COLLISION)
    steps = record["step"][-1]
    assert np.all((steps >= 222) & (steps <= 236)), steps


def test_same_key_same_bits_and_other_key_other_noise(batch, step):
    params, reset = batch
    keys = jax.random.split(jax.random.key(10), BATCH)
    state, _ = reset(keys, params)
    actions = {role: np.full((BATCH, 1, 2), 0.1, np.float32) for role in ("attacker", "defender")}
    first, again = step(keys, state, actions, params), step(keys, state, actions, params)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    other = step(jax.random.split(jax.random.key(11), BATCH), state, actions, params)
    np.testing.assert_array_equal(first[0].cars.state, other[0].cars.state)
    assert np.mean(np.asarray(first[0].cars.scan) != np.asarray(other[0].cars.scan)) > 0.9
    scan = np.asarray(first[0].cars.scan)
    assert np.mean(scan[:, 0, :10] != scan[:, 1, :10]) > 0.9


def test_one_long_decision_is_rewarded_like_two_short_ones(env, batch, step):
    """All environments of the batch play the same."""
    short = build(spawns="all", lidar_beams=54, action_repeat=1)
    params = env.default_params().replace(
        lidar_noise=np.float32(0.0), spawn_weights=np.eye(6, dtype=np.float32)[2]
    )
    key = jax.random.key(12)
    keys = jax.random.wrap_key_data(np.repeat(jax.random.key_data(key)[None], BATCH, axis=0))
    begun, _ = batch[1](keys, tiled(params))
    action = {"attacker": np.float32([[0.3, 0.6]]), "defender": np.float32([[-0.2, 0.5]])}
    moved = step(keys, begun, tiled(action), tiled(params))
    state, long_state, long = jax.tree.map(lambda x: x[0], jax.device_get((begun, *moved)))
    short_step = jax.jit(short.step)
    middle, one = short_step(key, state, action, params)
    short_state, two = short_step(key, middle, action, params)
    np.testing.assert_allclose(long_state.cars.state, short_state.cars.state, atol=1e-6)
    assert int(long_state.step) == int(short_state.step) == 2
    for name in ("step", "heading", "speed", "pinch", "pressure", "distance", "turn"):
        paid = float(one.info[f"reward/{name}"] + two.info[f"reward/{name}"])
        assert float(long.info[f"reward/{name}"]) == pytest.approx(paid, abs=1e-7), name
    assert float(long.info["reward/step"]) == pytest.approx(-0.002)


def test_the_attacker_s_steering_is_paid_as_it_is_carried_out():
    env = build("centerline_racing", lidar_beams=16, lidar_noise=0.0)
    params, limit = env.default_params(), float(env.default_params().car.s_max)
    state, _ = jax.jit(env.reset)(jax.random.key(0), params)
    step = jax.jit(env.step)

    def paid(steer):
        actions = {"attacker": np.float32([[steer, 0.6]]), "defender": np.float32([[9.0, 0.6]])}
        return float(step(jax.random.key(1), state, actions, params)[1].info["reward/steer"])

    assert paid(9.0) == paid(limit) < paid(0.1) < paid(np.nan) == 0.0


def test_random_drivers_draw_from_their_own_role_s_space():
    env = build(attacker_speed=[0.3, 0.5], lidar_beams=16)
    for role in env.spec.roles:
        low, high = (np.asarray(bound) for bound in role.action.bounds())
        for name in ("random", "gaussian"):
            script = find_script(env, role.name, name)
            draw = jax.vmap(lambda key, script=script: script.act(key, script.init(), None, None)[1])
            drawn = np.asarray(jax.jit(draw)(jax.random.split(jax.random.key(0), 64)))[:, 0]
            assert (low <= drawn).all() and (drawn <= high).all(), (role.name, name)
            assert (np.ptp(drawn, axis=0) > 0.5 * (high - low)).all(), (role.name, name)


def test_maps_mix_within_one_batch(mixed):
    reset = jax.jit(jax.vmap(mixed.reset, (0, None)))
    state, time = reset(jax.random.split(jax.random.key(13), 64), mixed.default_params())
    drawn = np.asarray(state.map_index)
    assert set(drawn.tolist()) == {0, 2}
    np.testing.assert_array_equal(time.info["map"], drawn)
    starts = np.asarray(state.cars.state)[:, DEFENDER, :2]
    assert len(np.unique(starts[drawn == 0], axis=0)) == 1
    assert len(np.unique(starts[drawn == 2], axis=0)) > 20
    assert np.all(np.asarray(state.cars.scan) > 0.1)
    gap = np.linalg.norm(np.asarray(state.cars.state)[:, ATTACKER, :2] - starts, axis=-1)
    assert np.all((gap > 0.9) & (gap < 1.5))


def test_spawns_have_room_on_real_maps(maps_folder):
    points = spawns.read_points(None)
    paths = [maps_folder / name for name in ("berlin.yaml", "skirk.yaml", "spielberg/Spielberg.yaml")]
    for grid in read_maps([str(path) for path in paths]):
        table = spawns.spawn_table([grid], points, (0.32, 0.225), {})
        poses = np.asarray(table.poses)[0]
        assert int(table.count[0]) > 50, grid.name
        assert np.all(grid.distance(poses[..., :2]) > 0.225 / 2)
        gap = np.linalg.norm(poses[:, :, 0, :2] - poses[:, :, 1, :2], axis=-1)
        assert np.all((gap > 0.6) & (gap < 1.6))


def test_custom_spawn_points(env):
    points = spawns.read_points(
        {
            "behind": {"offset": [-1.0, 0.0, 0.0]},
            "fixed": {"pose": [-40, -0.7, 0], "defender": [-42, -0.7, 0]},
        }
    )
    table = spawns.spawn_table(env.maps, points, (0.32, 0.225), {"line2": [[-46.769, -0.7, 0.0]]})
    behind, fixed = np.asarray(table.poses)[0, 0, -2:]
    np.testing.assert_allclose(behind, [[-47.769, -0.7, 0], [-46.769, -0.7, 0]], atol=1e-5)
    np.testing.assert_allclose(fixed, [[-40, -0.7, 0], [-42, -0.7, 0]], atol=1e-5)


def test_evaluation_cycles_through_the_spawn_points(env):
    params = env.default_params().replace(
        spawn_weights=np.float32([1.0, 0, 2.0, 0, 0, 1.0]), speed_range=np.float32([0.1, 0.3])
    )
    chosen = jax.jit(jax.vmap(env.evaluation_params, (None, 0)))(params, np.arange(6, dtype=np.int32))
    assert np.asarray(chosen.spawn_weights).argmax(1).tolist() == [0, 2, 5, 0, 2, 5]
    speeds = np.array([0.1, 0.2, 0.3] * 2)
    np.testing.assert_allclose(chosen.speed_range, np.stack([0.95 * speeds, 1.05 * speeds], -1), atol=1e-6)


@pytest.mark.parametrize(("maps", "spawn_points"), [(4, 6), (5, 2), (3, 3), (1, 4)])
def test_evaluation_plays_every_map_at_every_spawn_point(env, maps, spawn_points):
    """Once each in as many episodes as there are pairs, and every map in as many as there are maps."""
    params = env.default_params().replace(
        spawn_weights=np.float32(np.arange(6) < spawn_points), map_weights=np.float32(np.arange(5) < maps)
    )
    number = np.arange(30, dtype=np.int32)
    chosen = jax.jit(jax.vmap(env.evaluation_params, (None, 0)))(params, number)
    place, played = (np.asarray(x).argmax(1) for x in (chosen.spawn_weights, chosen.map_weights))
    assert played[:maps].tolist() == list(range(maps))
    pairs = set(zip(place.tolist(), played.tolist(), strict=True))
    first = set(zip(*(x[: maps * spawn_points].tolist() for x in (place, played)), strict=True))
    assert pairs == first and len(first) == maps * spawn_points


@pytest.mark.parametrize("given", [0, [0.0, 0.0, 0.0]])
def test_evaluation_without_jitter_starts_where_the_original_does(env, given):
    plain, jittered = (env.task_params(change) for change in ({"evaluation_jitter": given}, {}))
    speeds = evaluation_params(env, plain, 12).speed_range
    np.testing.assert_array_equal(speeds, np.float32(0.44))
    fixed, apart = (start_states(env, params) for params in (plain, jittered))
    table = np.asarray(env.spawns.poses)[0, 0]
    for row, state in enumerate(fixed):
        np.testing.assert_array_equal(state[:, [X, Y, YAW]], table[row % 6])
    shift = (apart - fixed)[..., [X, Y, YAW]]
    assert np.all(np.abs(shift) <= 0.0501) and np.abs(shift).max(axis=(0, 1)).min() > 0.03
    assert np.ptp(apart[:, :, SPEED]) > 0.01 and np.all(apart[:, 0, SPEED] == apart[:, 1, SPEED])


@pytest.mark.parametrize("changes", [{}, {"spawns": ["pinch_left"], "spawn_speed": 0.0}])
def test_no_two_evaluation_episodes_start_alike(env, changes):
    """Without noise: starts differ where the original has a single start per spawn point."""
    check_starts_differ(env, env.task_params({"lidar_noise": 0.0} | changes))


def test_an_evaluation_from_standstill_stands_still(env):
    states = start_states(env, env.task_params({"spawn_speed": 0.0}))
    np.testing.assert_array_equal(states[..., SPEED], 0.0)


def test_however_large_the_jitter_no_evaluation_starts_in_a_wall_or_in_a_car(env):
    params = env.task_params({"evaluation_jitter": [1.0, 3.0, 0.0], "spawns": "all"})
    poses = np.concatenate([start_states(env, params, key) for key in range(5)])[..., [X, Y, YAW]]
    clear = jax.jit(jax.vmap(lambda pose: env.simulation.clear(pose, 0, params, 0.0)))
    assert np.all(clear(poses))
    assert len(np.unique(poses[:, ATTACKER], axis=0)) > 100


@pytest.mark.parametrize("jitter", [0, [0.02, 0.03, 0.04]])
def test_training_starts_are_jittered_only_if_configured(env, batch, jitter):
    params = env.task_params({"pose_jitter": jitter, "evaluation_jitter": 0})
    state, _ = batch[1](jax.random.split(jax.random.key(0), BATCH), tiled(params))
    poses = np.asarray(state.cars.state)[..., [X, Y, YAW]]
    points = np.asarray(env.spawns.poses)[0, 0, np.asarray(state.spawn)]
    if jitter == 0:
        np.testing.assert_array_equal(poses, points)
    largest = np.abs(poses - points).max(axis=(0, 1))
    assert (largest <= np.asarray(jitter) + 1e-5).all() and (largest >= np.multiply(jitter, 0.5)).all()
    np.testing.assert_array_equal(evaluation_params(env, params, 12).pose_jitter, 0.0)


def test_by_default_training_starts_at_the_points_themselves(env, batch):
    state, _ = batch[1](jax.random.split(jax.random.key(0), BATCH), tiled(env.default_params()))
    poses = np.asarray(state.cars.state)[..., [X, Y, YAW]]
    np.testing.assert_array_equal(poses, np.asarray(env.spawns.poses)[0, 0, np.asarray(state.spawn)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lidar_beams": 0}, "lidar_beams"),
        ({"lidar_beams": 2.5}, "lidar_beams"),
        ({"map": "nowhere"}, "nowhere"),
        ({"map": []}, "map"),
        ({"reverse": "no"}, "reverse"),
        ({"reverse": [True, False]}, "reverse"),
        ({"reverse": True}, "env.base_poses.line2 starts cars the other way"),
        ({"spawns": ["pinch_up"]}, "pinch_up"),
        ({"spawns": []}, "positive"),
        ({"spawn_points": {"far": {"offset": [1, 2]}}}, "far"),
        ({"spawn_points": {"inside": {"pose": [0, 5, 0]}}}, "inside"),
        ({"spawn_speed": [0.5, 0.1]}, "spawn_speed"),
        ({"spawn_speed": 3.0}, "spawn_speed"),
        ({"wall_contact": "feel"}, "wall_contact"),
        ({"timeout": "never"}, "timeout"),
        ({"locked": ["car_1"]}, "car_1"),
        ({"ftg": {"target_mode": "left"}}, "target_mode"),
        ({"ftg": {"gain": 1.0}}, "gain"),
        ({"car": {"model": "tank"}}, "tank"),
        ({"car": {"v_max": -1.0}}, "v_max"),
        ({"integrator": "midpoint"}, "midpoint"),
        ({"max_steps": 0}, "max_steps"),
        ({"lidar_noise": float("nan")}, "lidar_noise"),
        ({"map_weights": [1.0, 2.0]}, "map_weights"),
        ({"evaluation_jitter": 0.1}, "evaluation_jitter=0.1: must be 3 numbers"),
        ({"evaluation_jitter": [0.1, -0.1, 0.0]}, "evaluation_jitter=-0.1"),
    ],
)
def test_wrong_values_get_one_line(changes, message):
    with pytest.raises(Exception) as caught:
        build(**changes)
    cause = caught.value.__cause__ or caught.value
    assert isinstance(cause, ValueError)
    assert message in str(cause)
    assert "\n" not in str(cause)


def test_maps_of_one_name_are_told_apart():
    names = [grid.name for grid in read_maps(["line2", "track:0", "line2", "line2"])]
    assert names == ["line2", "track:0", "line2_2", "line2_3"]


def test_a_reversed_map_is_driven_the_other_way():
    env = build(map=["track:0", "track:0"], reverse=[False, True], lidar_beams=4, reward="gaplock_simple")
    told = [line.partition(": ")[2] for line in env.describe()]
    assert told == ["counter-clockwise, 60.0 m, generated", "clockwise, 60.0 m, generated, reversed"]
    poses = np.asarray(env.spawns.poses)[:, 0, :, DEFENDER]
    np.testing.assert_allclose(poses[0, :, :2], poses[1, :, :2], atol=1e-5)
    np.testing.assert_allclose(np.cos(poses[0, :, 2] - poses[1, :, 2]), -1.0, atol=1e-3)
    assert all(grid.centerline.course == "clockwise" for grid in read_maps(["track:0", "track:1"], True))
    anywhere = build(reverse=True, base_poses={"line2": None}, finish_lines=None, lidar_beams=4)
    heading = np.asarray(anywhere.spawns.poses)[0, :, :, DEFENDER, 2]
    np.testing.assert_allclose(np.cos(heading), -1.0, atol=1e-3)


def test_the_standing_attacker_is_a_reference_on_other_maps_than_line2(env, mixed):
    assert env.references == {}
    to_goals = build(map=["line2", "track:0"], lidar_beams=4, goal={"low": [0.5, -0.5], "high": [2.0, 0.5]})
    for other, maps in ((mixed, 3), (to_goals, 2)):
        assert other.references == {"attacker": ("standing",)} and len(other.describe()) == maps


def test_cars_never_start_inside_each_other(env):
    beside = (spawns.SpawnPoint("beside", offset=(0.0, 0.8, 0.0)),)
    table = spawns.spawn_table(env.maps, beside, (0.32, 0.225), {"line2": [[-40.0, -0.7, 0.0]]})
    assert float(table.poses[0, 0, 0, ATTACKER, 1]) == pytest.approx(0.1)
    # With the defender by the wall, shrinking the offset until the attacker fits ends on top of it.
    with pytest.raises(ValueError, match="no room for spawn point beside"):
        spawns.spawn_table(env.maps, beside, (0.32, 0.225), {"line2": [[-40.0, 0.3, 0.0]]})


def test_attackers_keep_their_distance_at_the_ends_of_an_open_line():
    line = centerline_from_points(np.array([[5.0, 5.0], [15.0, 5.0]]), closed=False)
    hall = OccupancyMap("hall", np.zeros((100, 200), bool), 0.1, (0.0, 0.0, 0.0), line)
    for offset in (-3.0, 3.0):
        points = (spawns.SpawnPoint("one", offset=(offset, 0.0, 0.0)),)
        poses = np.asarray(spawns.spawn_table([hall], points, (0.32, 0.225), {}).poses)[0, :, 0]
        np.testing.assert_allclose(poses[:, ATTACKER, 0] - poses[:, DEFENDER, 0], offset, atol=1e-4)
        assert np.ptp(poses[:, DEFENDER, 0]) == pytest.approx(5.0)
