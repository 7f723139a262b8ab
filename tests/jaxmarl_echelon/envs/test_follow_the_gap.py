"""The follow-the-gap driver against recorded vectors and a loop-by-loop NumPy reference."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked import mark_after

from jaxmarl_echelon.envs.f110.scripts.follow_the_gap import (
    FTGOptions,
    FTGParams,
    check_ftg,
    follow_gap,
    initial_ftg_state,
)

LOW, HIGH = np.array([-0.46, -1.0]), np.array([0.46, 1.0])
STILL = np.zeros(2)
# The driver of the original; the task's has smaller ones.
ORIGINAL = FTGParams(bubble_radius=3.0, steering_gain=0.35)

# Noise-free scan of 54 beams from the defender's spawn on the default map.
SPAWN_SCAN = np.array(
    [1.9, 1.75, 1.65, 1.55, 1.5, 1.45, 1.4, 1.35, 1.35, 1.35, 1.35, 1.4, 1.4, 1.45, 1.5, 1.6, 1.7, 1.8]
    + [1.95, 2.2, 2.45, 2.85, 3.45, 4.4, 6.1, 10.1, 30, 29, 9.7, 5.85, 4.25, 3.3, 2.75, 2.35, 2.1, 1.9]
    + [1.75, 1.6, 1.5, 1.45, 1.4, 1.35, 1.35, 1.3, 1.3, 1.3, 1.3, 1.35, 1.35, 1.4, 1.5, 1.55, 1.7, 1.8]
)


JITTED = jax.jit(follow_gap, static_argnames="options")


def decide(scan, params=None, options=None, velocity=STILL, state=None):
    """One decision with a fresh memory, as NumPy."""
    params, options = params or ORIGINAL, options or FTGOptions()
    scan, velocity = jnp.asarray(scan), jnp.asarray(velocity)
    state, action = JITTED(state or initial_ftg_state(), scan, velocity, params, options, LOW, HIGH)
    return state, np.asarray(action)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    ("gain", "bubble", "farthest", "steer"),
    [
        (0.25, 2.0, False, -0.01424889),
        (0.35, 3.0, False, -0.01860444),
        (0.60, 3.5, False, -0.02949333),
        (0.25, 2.0, True, -0.00647111),
        (0.35, 3.0, True, -0.00771556),
        (0.60, 3.5, True, -0.01082667),
    ],
)
def test_recorded_decisions_at_the_spawn(gain, bubble, farthest, steer, double):
    with jax.enable_x64(double):
        params = FTGParams(steering_gain=gain, bubble_radius=bubble, farthest=farthest)
        _, action = decide(SPAWN_SCAN, params, velocity=np.array([0.4, 0.0]))
        np.testing.assert_allclose(action, [steer, 0.48], atol=6e-9 if double else 2e-8)


def test_recorded_smoothing_over_two_decisions():
    scan = np.full(108, 3.0)
    scan[40:60], scan[70:80] = 0.3, 6.0
    with jax.enable_x64(True):
        state, first = decide(scan)
        _, second = decide(scan, state=state)
    np.testing.assert_allclose(first, [0.03157777711749077, 0.4], atol=2e-9)
    np.testing.assert_allclose(second, [0.05052444338798523, 0.4], atol=2e-9)


def reference(scan, velocity, last, hold, p, o):
    """One decision, written with loops. `hold` is (side, decisions left)."""
    s = np.array([p.max_distance if not math.isfinite(r) or r == 0.0 else r for r in scan])
    s = np.clip(s, 0.0, p.max_distance)
    n, c, nearest = len(s), len(s) // 2, s.min()
    ratio = min(max(nearest / p.max_distance, 0.2), 1.0)
    width = max(1, round(o.window_size * ratio))
    width = width if width % 2 else max(1, width - 1)
    h = width // 2
    smooth = np.array([sum(s[j] for j in range(i - h, i + h + 1) if 0 <= j < n) / width for i in range(n)])
    ranked = s
    if o.use_disparity_extender:
        ranked = s.copy()
        half, step = p.vehicle_width / 2 + p.safety_margin, o.fov / (n - 1)
        for i in range(n - 1):
            near, way = (i, 1) if s[i + 1] > s[i] else (i + 1, -1)
            if abs(s[i + 1] - s[i]) > p.disparity_threshold:
                cover = math.ceil(math.asin(min(half / max(s[near], 1e-6), 1.0)) / step)
                for k in range(1, cover + 1):
                    if 0 <= near + way * k < n:
                        ranked[near + way * k] = min(ranked[near + way * k], s[near])
        smooth = np.minimum(smooth, ranked)
    base = max(round(p.bubble_radius), 0)
    radius = max(1, round(base * ratio)) if base else 0
    centre = int(np.argmin(smooth))
    free = [smooth[i] > p.gap_min_range and abs(i - centre) > radius for i in range(n)]

    gaps, start = [], None
    for i in range(n + 1):
        if i < n and free[i] and start is None:
            start = i
        if start is not None and (i == n or not free[i]):
            gaps.append((start, i - 1))
            start = None

    def score(gap):
        a, b = gap
        if not o.enhanced_gap_scoring:
            return b - a
        bend = 0.0
        if a > 0 and b < n - 1:
            bend = abs((ranked[a] - ranked[a - 1]) - (ranked[b + 1] - ranked[b]))
        value = p.gap_width_weight * (b - a + 1) + p.gap_clearance_weight * min(ranked[a : b + 1])
        return value - p.gap_center_weight * abs((a + b) / 2 - c) / c - p.gap_curvature_weight * bend

    a, b = max(gaps, key=score) if gaps else (0, n - 1)
    best = (a + b) // 2
    if o.target_mode == "weighted":
        best = round(float(np.dot(ranked[a : b + 1], range(a, b + 1)) / ranked[a : b + 1].sum()))
    if p.farthest or o.target_mode == "farthest":
        best = a + int(np.argmax(ranked[a : b + 1]))
    steer = (best - c) / c * p.steering_gain * p.max_steer

    def beam(share):
        return min(max(int(c + share * c), 0), n - 1)

    if nearest >= 1.5 and s[beam(0.15 * steer / p.max_steer)] < max(1.2, 0.4 * nearest):
        steer *= 0.5
    right, left = s[:c], s[c:]
    lean = min(max((left.mean() - right.mean()) / p.max_distance, -1.0), 1.0)
    if nearest > 3.0:
        steer += p.center_bias_gain * lean * p.max_steer
    if nearest <= 4.0:
        steer -= p.inside_bias_gain * lean * p.max_steer
    if nearest < p.panic_very_near:
        steer *= p.panic_factor_very_near
    elif nearest < p.panic_near:
        steer *= p.panic_factor_near
    if right.min() < left.min():
        steer += p.wall_avoid_kick * p.max_steer
    elif right.min() > left.min():
        steer -= p.wall_avoid_kick * p.max_steer
    if nearest < p.evasive_threshold:
        limit = p.evasive_steer_scale * p.max_steer
        steer = min(max(steer, -limit), limit)
    if o.no_cutback:
        side, remaining = hold
        near_right, near_left = s[: n // 3].min(), s[n - n // 3 :].min()
        if min(near_right, near_left) < p.cutback_clearance and near_right != near_left:
            side, remaining = (-1 if near_right < near_left else 1), p.cutback_hold
        if remaining > 0 and steer * side > 0:
            steer = 0.0
        hold = (side, max(remaining - 1, 0))
    cap = p.steering_speed_scale / (math.hypot(*velocity[:2]) + 1e-6)
    cap = min(max(cap, 0.1 * p.max_steer), p.max_steer)
    steer = p.steer_smooth * last + (1 - p.steer_smooth) * min(max(steer, -cap), cap)

    wide, narrow = max(c // 4, 1), max(c // 12, 1)
    front, front_min = s[c], s[max(c - narrow, 0) : c + narrow + 1].min()
    spread = np.std(s[max(c - wide, 0) : c + wide])
    look = s[beam(np.sign(steer) * max(abs(steer) / p.max_steer, 0.1))]
    if front_min < 1.5 or look < 2.0:
        speed = max(p.min_speed, 0.5 * p.max_speed)
    elif front < 3.0 or spread > 2.0 or look < 3.0 or front_min < 2.5:
        speed = max(p.min_speed, 0.6 * p.max_speed)
    elif front < 6.0 or spread > 1.0:
        speed = 0.8 * p.max_speed
    else:
        speed = p.max_speed
    speed = min(max(speed, p.min_speed), p.max_speed)
    if o.u_shape:
        deepest = max(front, s[c - wide : c].min(), s[c : c + wide].min())
        if deepest < p.u_shape_threshold * p.max_distance:
            speed = min(speed, max(p.min_speed, p.u_shape_crawl * p.max_speed))
    if abs(steer) > p.crawl_steer_ratio * p.max_steer:
        speed = min(speed, max(p.min_speed, 0.4 * p.max_speed))
    return np.clip([steer, speed], LOW, HIGH), steer, hold


def random_scans(rng, count, beams):
    """Piecewise flat scans of every depth, with noise, drop-outs and infinities."""
    depth = 10.0 ** rng.uniform(-0.7, 1.4, (count, beams))
    blocks = np.sort(rng.integers(0, beams, (count, beams)), axis=1)
    coarse = np.take_along_axis(depth, blocks // rng.integers(1, 25, (count, 1)), axis=1)
    floor = 10.0 ** rng.uniform(-0.7, 1.0, (count, 1))
    scans = np.maximum(coarse, floor) + rng.normal(0, 0.01, (count, beams))
    bad = rng.uniform(size=scans.shape)
    scans[bad < 0.01] = np.nan
    scans[(bad > 0.01) & (bad < 0.02)] = np.inf
    scans[(bad > 0.02) & (bad < 0.03)] = 0.0
    return scans


CASES = {
    "defaults": (FTGParams(), FTGOptions(), 54),
    "odd_farthest": (
        FTGParams(farthest=True, steering_gain=0.6, bubble_radius=3.5, panic_factor_near=1.15).replace(
            panic_factor_very_near=1.4, wall_avoid_kick=0.18, evasive_threshold=0.5
        ),
        FTGOptions(window_size=7),
        61,
    ),
    "fast": (
        FTGParams(
            max_distance=30.0, bubble_radius=2.5, min_speed=2.0, max_speed=20.0, gap_min_range=0.65
        ).replace(center_bias_gain=0.3, inside_bias_gain=0.2, steer_smooth=0.4, max_steer=0.32),
        FTGOptions(target_mode="farthest", u_shape=True, window_size=12),
        108,
    ),
    "scored": (FTGParams(gap_min_range=1.2), FTGOptions(enhanced_gap_scoring=True, u_shape=True), 54),
    "extended": (
        FTGParams(gap_min_range=1.0, farthest=True),
        FTGOptions(use_disparity_extender=True, enhanced_gap_scoring=True),
        108,
    ),
    "cautious": (FTGParams(steering_gain=1.0), FTGOptions(target_mode="weighted", no_cutback=True), 40),
}


@pytest.mark.parametrize("case", mark_after(2, CASES))
def test_agrees_with_the_reference(case):
    params, options, beams = CASES[case]
    rng = np.random.default_rng(sorted(CASES).index(case))
    rounds, count = 3, 400
    scans = random_scans(rng, rounds * count, beams).reshape(rounds, count, beams)
    velocity = rng.uniform(-1, 6, (count, 3))
    with jax.enable_x64(True):
        drive = jax.jit(
            lambda state, scan: jax.vmap(follow_gap, (0, 0, 0, None, None, None, None))(
                state, scan, jnp.asarray(velocity), params, options, LOW, HIGH
            ),
        )
        state = jax.tree.map(lambda x: np.repeat(x, count), initial_ftg_state())
        last, hold = np.zeros(count), [(0, 0)] * count
        for scan in scans:
            state, actions = drive(state, scan)
            wanted = np.zeros((count, 2))
            for i in range(count):
                wanted[i], last[i], hold[i] = reference(
                    scan[i], velocity[i], last[i], hold[i], params, options
                )
            np.testing.assert_allclose(actions, wanted, atol=1e-9)


def test_single_precision_decides_like_double():
    scans = random_scans(np.random.default_rng(5), 2000, 108)
    step = jax.jit(
        jax.vmap(
            lambda s: follow_gap(initial_ftg_state(), s, jnp.zeros(2), FTGParams(), FTGOptions(), LOW, HIGH)[
                1
            ]
        )
    )
    single = np.asarray(step(jnp.asarray(scans, jnp.float32)))
    wanted = [reference(s, STILL, 0.0, (0, 0), FTGParams(), FTGOptions())[0] for s in scans]
    assert np.mean(np.abs(single - wanted).max(axis=1) < 1e-6) > 0.998
    assert single.dtype == np.float32


MIRROR_OPTIONS = [
    FTGOptions(window_size=5),
    FTGOptions(target_mode="farthest"),
    FTGOptions(target_mode="weighted", use_disparity_extender=True),
    FTGOptions(preview_samples=9),
    FTGOptions(dwa_samples=7),
]


def two_gap_scan(rng, beams):
    """A scan with one clearly widest gap of an odd number of beams, and a wall between gaps."""
    scan = 2.0 + rng.uniform(0.0, 3.0, beams)
    block = beams // 4 + int(rng.integers(0, 3))
    # The widest gap runs to the last beam: (first + last) // 2 must not round for odd beams.
    block += (beams - (block + 3)) % 2 == 0
    scan[block : block + 3] = 0.35 + 0.01 * rng.uniform(size=3)
    return scan


@pytest.mark.parametrize("options", MIRROR_OPTIONS, ids=["center", "farthest", "weighted", "preview", "dwa"])
def test_mirrored_scan_mirrors_the_steering_with_an_odd_number_of_beams(options):
    rng = np.random.default_rng(1)
    params = FTGParams(max_distance=6.0, preview_horizon=1.0, evasive_threshold=0.2, bubble_radius=0.0)
    drive = jax.jit(
        lambda s: follow_gap(initial_ftg_state(), s, jnp.array([0.5, 0.0]), params, options, LOW, HIGH)[1]
    )
    for _ in range(20):
        scan = two_gap_scan(rng, 55)
        there, back = drive(jnp.asarray(scan)), drive(jnp.asarray(scan[::-1].copy()))
        np.testing.assert_allclose(there[0], -back[0], atol=1e-6)
        assert abs(there[0]) > 1e-4


def test_mirrored_scan_with_an_even_number_of_beams_differs_by_at_most_a_beam():
    """With no middle beam, the zero of steering lies half a beam left of the scan's middle."""
    rng = np.random.default_rng(2)
    params = FTGParams(max_distance=6.0, evasive_threshold=0.2, steer_smooth=0.0)
    beam = params.steering_gain * params.max_steer / 27
    for _ in range(10):
        scan = two_gap_scan(rng, 54)
        _, there = decide(scan, params)
        _, back = decide(scan[::-1].copy(), params)
        assert abs(there[0] + back[0]) <= 2 * beam + 1e-6


def test_steers_left_towards_an_opening_on_the_left_and_off_a_wall_on_the_left():
    scan = np.full(55, 0.3)
    scan[38:50] = 5.0
    assert decide(scan)[1][0] > 0.0
    wall = np.full(55, 3.0)
    wall[50] = 0.9
    straight = FTGParams(steering_gain=0.0)
    assert decide(wall, straight)[1][0] == pytest.approx(-0.4 * 0.02 * 0.42)
    assert decide(wall[::-1].copy(), straight)[1][0] == pytest.approx(0.4 * 0.02 * 0.42)


def test_a_blocked_scan_steers_at_its_middle_and_keeps_moving():
    _, action = decide(np.full(55, 0.2))
    np.testing.assert_allclose(action, [0.0, 0.4], atol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0])
def test_beams_without_a_return_read_as_far(bad):
    scan = np.random.default_rng(3).uniform(1.0, 8.0, 54)
    clean = scan.copy()
    scan[[3, 20, 21, 53]], clean[[3, 20, 21, 53]] = bad, 10.0
    np.testing.assert_array_equal(decide(scan)[1], decide(clean)[1])


@pytest.mark.parametrize("bad", [np.nan, 0.0])
def test_a_scan_without_returns_is_open_space(bad):
    _, action = decide(np.full(55, bad))
    np.testing.assert_allclose(action[1], 0.8, atol=1e-7)


def test_actions_stay_in_the_box():
    scans = random_scans(np.random.default_rng(4), 500, 54)
    params = FTGParams(max_steer=1.5, steering_gain=1.0, max_speed=9.0, steer_smooth=0.0)
    params = params.replace(evasive_threshold=0.0)
    step = jax.jit(
        jax.vmap(
            lambda s: follow_gap(initial_ftg_state(), s, jnp.zeros(2), params, FTGOptions(), LOW, HIGH)[1]
        )
    )
    actions = np.asarray(step(jnp.asarray(scans)))
    assert np.all(actions >= np.float32(LOW)) and np.all(actions <= np.float32(HIGH))
    assert actions[:, 0].max() == np.float32(0.46) and actions[:, 0].min() == np.float32(-0.46)


def test_memory_is_carried_and_a_fresh_one_forgets():
    first, one = decide(SPAWN_SCAN)
    _, two = decide(SPAWN_SCAN, state=first)
    _, again = decide(SPAWN_SCAN)
    assert two[0] == pytest.approx(1.6 * one[0], rel=1e-5)
    np.testing.assert_array_equal(again, one)


def test_no_cutback_bars_the_near_side_for_its_hold():
    """Something close on the left, then open: steering left stays barred for eight decisions."""
    options = FTGOptions(no_cutback=True)
    params = FTGParams(steer_smooth=0.0, steering_gain=1.0, wall_avoid_kick=0.0)
    close = np.full(55, 3.0)
    close[50] = 0.8
    inviting = np.full(55, 3.0)
    inviting[:25] = np.where(np.arange(25) < 19, 0.95, 0.38)
    state, _ = decide(close, params, options)
    steers = []
    for _ in range(9):
        state, action = decide(inviting, params, options, state=state)
        steers.append(action[0])
    assert steers[:7] == [0.0] * 7
    assert min(steers[7:]) > 0.01
    assert decide(inviting, params, FTGOptions())[1][0] > 0.01


def test_disparity_extender_keeps_the_aim_off_an_edge():
    """A far beam next to a near edge is rejected in favour of one that the car's width clears."""
    scan = np.full(109, 1.0)
    scan[60:80] = 4.0
    scan[60] = 4.5
    params = FTGParams(farthest=True, steer_smooth=0.0, wall_avoid_kick=0.0, steering_gain=1.0)
    beam = 0.42 / 54
    plain = decide(scan, params)[1][0]
    wide = decide(scan, params, FTGOptions(use_disparity_extender=True))[1][0]
    assert plain == pytest.approx(6 * beam, abs=1e-6)
    # asin(0.1925 / 1.0) = 0.1937 rad covers 5 beams of 4.7 / 108 rad beyond beam 59.
    assert wide == pytest.approx(11 * beam, abs=1e-6)


def test_scoring_may_prefer_a_deep_gap_to_a_wide_one():
    scan = np.full(55, 0.3)
    scan[2:19], scan[30:45] = 1.0, 9.0
    params = FTGParams(bubble_radius=0.0)
    assert decide(scan, params)[1][0] < 0.0
    assert decide(scan, params, FTGOptions(enhanced_gap_scoring=True))[1][0] > 0.0


@pytest.mark.parametrize(
    "options", [FTGOptions(preview_samples=11), FTGOptions(dwa_samples=11)], ids=["preview", "window"]
)
def test_rollouts_steer_around_obstacles_ahead(options):
    """A post ahead, a little to the right: the clear arc bends left, and right for its mirror."""
    scan = np.full(109, 4.0)
    scan[44:56] = 0.6
    params = FTGParams(preview_horizon=1.5, dwa_horizon=1.5, steer_smooth=0.0, evasive_threshold=0.0)
    params = params.replace(steering_gain=0.0, wall_avoid_kick=0.0, max_speed=0.8)
    velocity = np.array([0.6, 0.0])
    assert decide(scan, params, options, velocity)[1][0] > 0.1
    assert decide(scan[::-1].copy(), params, options, velocity)[1][0] < -0.1


def test_the_window_slows_down_before_a_wall():
    params = FTGParams(dwa_horizon=2.0, max_speed=1.0)
    scan = np.full(109, 0.9)
    assert decide(scan, params)[1][1] == pytest.approx(0.5)
    assert decide(scan, params, FTGOptions(dwa_samples=9))[1][1] < 0.45


def test_pockets_are_crawled_through():
    params = FTGParams(max_speed=1.0)
    scan = np.full(55, 4.0)
    assert decide(scan, params)[1][1] == pytest.approx(0.8)
    assert decide(scan, params, FTGOptions(u_shape=True))[1][1] == pytest.approx(0.3)


def test_gains_are_traced_and_batch():
    traces = []

    @jax.jit
    def drive(params):
        traces.append(1)
        return follow_gap(
            initial_ftg_state(), jnp.asarray(SPAWN_SCAN), jnp.zeros(2), params, FTGOptions(), LOW, HIGH
        )[1]

    stack = [FTGParams(steering_gain=g, farthest=f) for g, f in ((0.25, False), (0.6, True))]
    single = [drive(jax.tree.map(jnp.asarray, p)) for p in stack]
    assert len(traces) == 1
    batch = jax.vmap(drive)(jax.tree.map(lambda *x: jnp.stack([jnp.asarray(v) for v in x]), *stack))
    np.testing.assert_allclose(batch, single, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steering_gain", 1.2),
        ("steering_gain", -0.1),
        ("steer_smooth", 1.01),
        ("max_distance", 0.0),
        ("max_steer", -0.4),
        ("bubble_radius", -1.0),
        ("min_speed", 0.9),
        ("gap_min_range", math.nan),
    ],
)
def test_bad_gains_are_named(name, value):
    with pytest.raises(ValueError, match=name) as error:
        check_ftg(dataclasses.replace(FTGParams(), **{name: value}))
    assert "\n" not in str(error.value)


def test_the_defaults_are_allowed():
    check_ftg(FTGParams())
    check_ftg(jax.tree.map(lambda x: jnp.full((3,), x), FTGParams()))


@pytest.mark.parametrize(
    ("name", "value"), [("target_mode", "nearest"), ("window_size", 0), ("dwa_samples", -1), ("fov", 7.0)]
)
def test_bad_options_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        FTGOptions(**{name: value})
