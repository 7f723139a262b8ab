"""Motion and contacts of bodies. docs/reference/drive.md 3.4 to 3.6, 5.3, 7."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drive_runs import Programs, drive, programs, scripted
from drive_scenes import CAR, FOLLOWING, MIXED, bank_of, scene, small_bank

from jaxmarl_echelon.envs.drive.codes import EDGE, LANE, LIGHTS, VEHICLE
from jaxmarl_echelon.envs.drive.measures.rollouts import FIRST, DriveComparison
from jaxmarl_echelon.envs.drive.scenes.arrays import make_nearest_edge_tables
from jaxmarl_echelon.envs.drive.scenes.raw_scene import Gate, Light, Road, Route
from jaxmarl_echelon.envs.drive.state import RouteProgress
from jaxmarl_echelon.envs.drive.traffic import road_contacts, routes, scripted_bodies
from physics.bicycle import Motion
from physics.boxes import corners_of_box
from physics.segments import match_lane, segments_between, segments_meet_box


@pytest.fixture(scope="module")
def shared():
    """The default program on the small scenes."""
    return programs()


def test_the_replayed_log_is_the_recording(shared):
    states, times = shared.play(scripted(shared.env, "replay"))
    recording = np.asarray(small_bank().recording)
    for step, state in enumerate(states):
        poses = np.stack([np.asarray(x) for x in state.motion], axis=-1)
        there = ~np.asarray(state.ghost)  # who has been put back begins again
        np.testing.assert_allclose(poses[:4][there], recording[0, step, :4][there], atol=1e-5)
    assert np.asarray(times[-1].info["ade"]).max() < 1e-5


def test_followers_keep_their_distance_and_stay_on_their_way(shared):
    states, times = shared.play(scripted(shared.env, "idm"), 1)
    last = states[-1].motion
    gap = float(last.x[0] - last.x[1]) - 4.5
    assert 1.0 < gap < 20.0 and float(last.speed[1]) > 3.0
    np.testing.assert_allclose(last.y[:2], states[0].motion.y[:2], atol=1e-4)
    assert not np.asarray(times[-1].info["collision"]).any()


def test_pedestrians_replay_and_scripted_drivers_brake_for_bodies_ahead(shared):
    def actions(step, state):
        return np.full(4, 0 * 13 + 6, np.int32)  # learners brake, and then back

    states, _ = shared.play(actions)
    recording, kinds = np.asarray(small_bank().recording), np.asarray(small_bank().type)[0]
    for slot in np.flatnonzero(kinds == 1):
        poses = np.stack([np.asarray(state.motion.y)[slot] for state in states])
        np.testing.assert_allclose(poses, recording[0, : len(states), slot, 1], atol=1e-5)


def test_learners_that_have_stopped_stay_where_they_are_for_drivers(shared):
    states, _ = shared.play(scripted(shared.env, "replay"), 2, goal_behavior="stop")
    alive, arc = (
        np.stack([np.asarray(x)[:4] for x in one])
        for one in zip(*((state.alive, state.traffic.arc) for state in states), strict=True)
    )
    assert not alive[-2].all() and alive[-2].any(), "some have stopped, others drive on"
    stopped = ~alive[:-1]
    np.testing.assert_allclose(arc[1:][stopped], arc[:-1][stopped], atol=1e-3)
    assert (np.diff(arc, axis=0)[alive[1:]] > 0.1).all()


def test_drivers_that_appear_later_start_where_they_are_recorded():
    # Seen briefly before the episode begins, and again 1 s after that.
    given = scene(
        (FOLLOWING[0], (20.0, 1.75, np.pi, 8.0, CAR, VEHICLE), (30.0, -1.75, 0.0, 8.0, CAR, VEHICLE))
    )
    valid = given.valid.copy()
    valid[2, 5:20] = False
    bank = bank_of(replace(given, valid=valid), agents=1, bodies=3, init_step=FIRST)
    env = drive(bank, others="idm", init_step=FIRST)
    state, _ = jax.jit(env.reset)(jax.random.key(0), env.default_params())
    move = jax.jit(env.simulation.move)
    x = []
    for _ in range(15):
        motion, present, _, traffic = move(state, jnp.full(1, 45))
        state = state.replace(step=state.step + 1, motion=motion, present=present, traffic=traffic)
        x.append(float(motion.x[2]))
    np.testing.assert_allclose(x[9:], bank.recording[0, 20:26, 2, 0], atol=0.3)


@pytest.fixture(scope="module")
def replayed():
    """Programs of rollouts among replayed traffic: a goal that is reached soon, and a junction."""
    settings = DriveComparison(small_bank(), (0, 1)).settings
    oncoming = scene((FOLLOWING[0], (150.0, 1.75, np.pi, 10.0, CAR, VEHICLE)), goal=12.0)
    # A side road meets the lane at x = 72 m; it has priority, and its car is there from 2.3 to 3.9 s.
    crossing = scene(((35.0, -1.75, 0.0, 8.0, CAR, VEHICLE), (72.0, 40.0, -np.pi / 2, 10.0, CAR, VEHICLE)))
    along, down = np.array([[35.0, -1.75], [190.0, -1.75]]), np.array([[72.0, 40.0], [72.0, -90.0]])
    routes_ = tuple(
        Route(points, np.full(2, 10.0), (Gate(arc, arc + 12.0, 0, False, main),))
        for points, arc, main in ((along, 30.0, False), (down, 35.0, True))
    )
    crossing = replace(
        crossing, routes=routes_, junctions=np.array([[72.0, 0.0, 6.0]]), conflict=~np.eye(2, dtype=bool)
    )
    bank = bank_of(oncoming, crossing, agents=1, bodies=2, init_step=FIRST)
    return Programs(drive(bank, others="replay", **settings))


def test_traffic_of_a_comparison_moves_on_when_all_learners_have_stopped(replayed):
    states, times = replayed.play(scripted(replayed.env, "idle"), 0)
    assert not np.asarray(states[-2].alive).any() and len(states) == 91 - FIRST
    found = DriveComparison.snapshot(states[-1], None, None)
    np.testing.assert_array_equal(found.pose[1], np.asarray(replayed.env.bank.recording)[0, 90, 1, :3])
    assert sum(bool(time.over) for time in times) == 1


def test_drivers_let_replayed_bodies_pass_and_then_go(replayed):
    states, _ = replayed.play(scripted(replayed.env, "idm"), 1)
    (line, road), motion = np.asarray(replayed.env.bank.recording)[1, 0, 0, :2], states[-1].motion
    line = float(line) + 30.0
    front = np.array([float(state.motion.x[0]) for state in states]) + 2.25
    other = np.array([float(state.motion.y[1]) for state in states])
    assert (front[other > road] <= line + 0.05).all(), "it waits for the one with priority"
    assert float(motion.x[0]) > line + 5.0 and float(motion.speed[0]) > 3.0, "and goes behind it"


def everywhere(count: int, seed: int) -> Motion:
    rng = np.random.default_rng(seed)
    low, high = np.array([-15.0, -20.0, -np.pi]), np.array([215.0, 75.0, np.pi])
    x, y, heading = (rng.uniform(low, high, (count, 3)) - [MIDDLE[0], MIDDLE[1], 0]).T.astype(np.float32)
    return Motion(x, y, heading, np.zeros(count, np.float32))


MIDDLE = scene().middle
offroad = jax.jit(road_contacts.touches_road_edge, static_argnames="signed")


def test_tables_equal_a_search_of_all_segments():
    bank, motion = small_bank(), everywhere(2000, 0)
    size = np.broadcast_to(np.float32([7.0, 2.4]), (2000, 2))
    segment, kind = np.asarray(bank.segment)[0], np.asarray(bank.segment_kind)[0]
    segments = jax.device_get(jax.jit(segments_between)(segment[:, :2], segment[:, 2:]))
    cos, sin = np.cos(motion.heading), np.sin(motion.heading)
    spread = jax.tree.map(lambda x: x[:, None], (motion.x, motion.y, cos, sin))
    hit = jax.jit(segments_meet_box)(segments, *spread, size[:, None])
    hit = np.asarray(hit) & (kind == EDGE)
    found = offroad(bank, np.int32(0), motion, size, np.zeros(2000, np.int8), signed=False)
    np.testing.assert_array_equal(found, hit.any(-1))
    assert 50 < int(np.asarray(found).sum()) < 1950
    poses = np.stack(motion[:3], axis=-1)
    corners = jax.jit(jax.vmap(corners_of_box))(poses, size[:, 0], size[:, 1])
    side = np.asarray(jax.jit(road_contacts.road_edge_distance)(segments, kind == EDGE, corners))
    signed = bank.replace(nearest_edges=make_nearest_edge_tables(bank))
    found = np.asarray(offroad(signed, np.int32(0), motion, size, np.zeros(2000, np.int8), signed=True))
    ends = segment[kind >= 0].reshape(-1, 2)
    inside = ((poses[:, :2] > ends.min(0)) & (poses[:, :2] < ends.max(0))).all(-1)
    far = inside & (np.abs(side) > 10.0).all(-1)
    np.testing.assert_array_equal(found[inside], (hit.any(-1) | (side > 0).any(-1))[inside])
    assert 100 < far.sum() < inside.sum() < 1900 and found[far].all()
    everything = np.broadcast_to(kind == LANE, (2000, kind.shape[0]))
    wide = jax.tree.map(lambda x: np.broadcast_to(x, (2000, *x.shape)), segments)
    brute = jax.jit(match_lane)(wide, everything, motion.x, motion.y, cos, sin)
    lane = jax.jit(road_contacts.find_lanes)(bank, np.int32(0), motion, None)
    np.testing.assert_array_equal(lane.found, brute.found)
    for name in ("distance", "offset", "angle"):
        there = np.asarray(lane.found)
        np.testing.assert_allclose(
            np.asarray(getattr(lane, name))[there], np.asarray(getattr(brute, name))[there], atol=1e-4
        )


def test_signed_offroad_test_counts_corners_beyond_an_edge():
    bank = small_bank()
    bank = bank.replace(nearest_edges=make_nearest_edge_tables(bank))
    x, y = np.array([100.0, 100.0, 100.0]) - MIDDLE[0], np.array([-1.75, -9.0, 9.0]) - MIDDLE[1]
    motion = Motion(jnp.array(x, jnp.float32), jnp.array(y, jnp.float32), jnp.zeros(3), jnp.zeros(3))
    size, kind = jnp.broadcast_to(jnp.array([4.5, 2.0]), (3, 2)), jnp.zeros(3, jnp.int8)
    plain = offroad(bank, jnp.int32(0), motion, size, kind, signed=False)
    assert not np.asarray(plain).any()
    signed = offroad(bank, jnp.int32(0), motion, size, kind, signed=True)
    np.testing.assert_array_equal(signed, [False, True, True])
    walker = jnp.full(3, 1, jnp.int8)
    assert not np.asarray(offroad(bank, jnp.int32(0), motion, size, walker, signed=True)).any()


def test_the_sign_of_the_distance_to_an_edge_holds_at_bends():
    # A left turn, and then a right turn: the drivable side is on the left.
    points = np.float32([[0, 0], [10, 0], [10, 10], [20, 10]])
    edges, there = jax.jit(segments_between)(points[:-1], points[1:]), np.ones(3, bool)
    inside = np.float32([[5, 1], [9, 0.5], [9.5, 10.5], [15, 11]])
    outside = np.float32([[5, -1], [10.5, -0.5], [11, 9], [15, 9]])
    within, beyond = (
        np.asarray(jax.jit(road_contacts.road_edge_distance)(edges, there, x)) for x in (inside, outside)
    )
    assert (within < 0).all() and (beyond > 0).all()
    np.testing.assert_allclose(beyond[0], 1.0, rtol=1e-6)


def shown(state, time) -> dict[str, np.ndarray]:
    """Returns position, observation, reward and all results of each learner in an episode."""
    reported = {name: np.asarray(x) for name, x in time.info.items() if x.ndim == 1}
    place = {"x": np.asarray(state.motion.x)[:4], "y": np.asarray(state.motion.y)[:4]}
    return (
        reported
        | place
        | {
            "obs": np.asarray(time.obs["vehicle"]),
            "reward": np.asarray(time.reward["vehicle"]),
        }
    )


def test_a_permutation_of_bodies_permutes_results(shared):
    order = [2, 0, 3, 1, 7, 5, 6, 4]
    moved = bank_of(scene([MIXED[i] for i in order]), scene(FOLLOWING), scene(MIXED, goal=25.0))
    rng = np.random.default_rng(3)
    actions = rng.integers(0, 91, (90, 4)).astype(np.int32)
    results = []
    for bank, chosen in ((small_bank(), actions), (moved, actions[:, order[:4]])):
        params, key = shared.in_scene(0), jax.random.key(0)
        state, time = shared._reset(key, params, bank)
        for step in range(45):
            state, time = shared._step(key, state, chosen[step], params, bank)
        results.append(shown(state, time))
    assert results[0]["infractions"].any() and results[0]["infractions"].std() > 0
    for name, values in results[0].items():
        np.testing.assert_allclose(values[order[:4]], results[1][name], atol=1e-4, err_msg=name)


def test_padding_changes_nothing(shared):
    small = small_bank()
    padded = bank_of(scene(), scene(FOLLOWING), scene(MIXED, goal=25.0), bodies=12)
    assert padded.size.shape[1] > small.size.shape[1]
    results = []
    for bank in (small, padded):
        params, key = shared.in_scene(0), jax.random.key(0)
        state, time = shared._reset(key, params, bank)
        for _ in range(20):
            state, time = shared._step(key, state, np.array([40, 50, 60, 70]), params, bank)
        results.append(shown(state, time))
    for name, values in results[0].items():
        np.testing.assert_array_equal(values, results[1][name], err_msg=name)


RED_UNTIL = 70
LINE = 40.0


@pytest.fixture(scope="module")
def controlled():
    """The route of a car at 8 m/s on a free road, towards a light that is red at first, and a stop sign."""
    alone = scene(((10.0, -1.75, 0.0, 8.0, (4.5, 2.0, 1.5), 0),))
    place = np.array([LINE + 10.0, -1.75])
    red = np.where(np.arange(91) < RED_UNTIL, LIGHTS.index("stop"), LIGHTS.index("go"))
    sign = Road("stop_sign", 17, 20, place[None] - [0.0, 3.0])
    gated = (
        alone,
        replace(alone, lights=(Light(1, red, place + [10.0, 0.0]),)),
        replace(alone, roads=(*alone.roads, sign)),
    )
    bank = bank_of(*gated, agents=1, bodies=1)

    @jax.jit
    def drive(chosen):
        motion, present = scripted_bodies.recorded_motion(bank, chosen, jnp.int32(0))
        zero, no = jnp.zeros(1), jnp.zeros(1, bool)

        def step(carry, sample):
            moved = routes.follow_routes(
                bank, chosen, sample, routes.BodyGroup(0, 1), carry[0], present, carry[1]
            )
            return moved, moved

        start = motion, RouteProgress(arc=zero, served=no, seen=~no)
        return jax.lax.scan(step, start, jnp.arange(90))[1]

    return jax.vmap(drive)(jnp.arange(3))


def test_red_lights_and_stop_signs_hold_drivers_until_they_may_go(controlled):
    motion, traffic = controlled
    front, speed = np.asarray(traffic.arc)[..., 0] + 2.25, np.asarray(motion.speed)[..., 0]
    free, light, sign = range(3)
    assert speed[free].min() > 7.5 and front[free, -1] > 70.0
    assert front[light, :RED_UNTIL].max() <= LINE + 10.0 and front[light, -1] > LINE + 10.0
    assert speed[light, :RED_UNTIL].min() < 2.5
    stopped = speed[sign] < 0.5
    assert stopped.any() and LINE - 3.0 < front[sign, stopped.argmax()] <= LINE and front[sign, -1] > LINE
