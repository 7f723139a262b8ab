"""Follow the gap: a reactive driver that steers its car into the free space of its scan.

Written for one car; callers vmap it. After V. Sezer and M. Gokasan, "A novel obstacle avoidance
algorithm: Follow the Gap Method", 2012, with additions common in F1TENTH racing. Formulas:
docs/reference/f110.md 10.
"""

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.f110.gap_parameters import TARGET_MODES, FTGOptions, FTGParams, check_ftg

__all__ = [
    "TARGET_MODES",
    "FTGOptions",
    "FTGParams",
    "FTGState",
    "check_ftg",
    "follow_gap",
    "initial_ftg_state",
]


class FTGState(struct.PyTreeNode):
    """Memory of one driver.

    Attributes:
      last_steer: smoothed steering of the previous decision, rad.
      cutback_side: +1 left, -1 right: the side that is barred while `cutback_left` > 0.
      cutback_left: int32 remaining decisions for which it is barred.
    """

    last_steer: jax.Array
    cutback_side: jax.Array
    cutback_left: jax.Array


def initial_ftg_state() -> FTGState:
    """Returns the memory at the start of an episode."""
    return FTGState(jnp.zeros(()), jnp.zeros(()), jnp.zeros((), jnp.int32))


def follow_gap(
    state: FTGState,
    scan: jax.Array,
    velocity: jax.Array,
    params: FTGParams,
    options: FTGOptions,
    low: jax.Array,
    high: jax.Array,
) -> tuple[FTGState, jax.Array]:
    """Computes one decision of one car.

    Args:
      state: memory.
      scan: `[B]` ranges in metres, right-hand beam first; 0 and non-finite values mean no return.
      velocity: `[2]` or more: vx, vy (m/s); further elements are ignored.
      params: gains.
      options: static choices.
      low: `[2]` lower bounds of the action.
      high: `[2]` upper bounds of the action.

    Returns:
      `(state, [2])`: steering angle (rad, positive is left) and speed (m/s).
    """
    scan = _clean(scan, params)
    nearest = jnp.min(scan)
    speed = jnp.hypot(velocity[0], velocity[1])
    ranges, free = _free_ranges(scan, nearest, params, options)
    start, end = _select_gap(free, ranges, params, options)
    best = _aim(start, end, ranges, params, options)
    centre = scan.shape[0] // 2
    steer = (best - centre) / centre * params.steering_gain * params.max_steer
    steer = _guard(steer, scan, nearest, params)
    if options.preview_samples:
        steer = _preview(steer, scan, speed, params, options)
    limit = params.max_speed
    if options.dwa_samples:
        steer, limit = _dynamic_window(steer, scan, params, options)
    steer = _react(steer, scan, nearest, params)
    if options.no_cutback:
        steer, state = _hold_course(steer, scan, state, params)
    cap = params.steering_speed_scale / (speed + 1e-6)
    cap = jnp.clip(cap, 0.1 * params.max_steer, params.max_steer)
    steer = jnp.clip(steer, -cap, cap)
    steer = params.steer_smooth * state.last_steer + (1.0 - params.steer_smooth) * steer
    target = _target_speed(steer, scan, params, options)
    target = jnp.minimum(target, jnp.maximum(limit, params.min_speed))
    action = jnp.clip(jnp.stack([steer, target]), low, high)
    return state.replace(last_steer=steer.astype(state.last_steer.dtype)), action


def _clean(scan: jax.Array, params: FTGParams) -> jax.Array:
    missing = ~jnp.isfinite(scan) | (scan == 0.0)
    return jnp.clip(jnp.where(missing, params.max_distance, scan), 0.0, params.max_distance)


def _free_ranges(
    scan: jax.Array, nearest: jax.Array, params: FTGParams, options: FTGOptions
) -> tuple[jax.Array, jax.Array]:
    """Returns the ranges that rank gaps, and a mask of the free beams.

    Gaps are searched in the smoothed scan without the bubble around its nearest return. They are
    ranked by the raw scan or, if edges are widened, by the widened scan.
    """
    ratio = jnp.clip(nearest / params.max_distance, 0.2, 1.0)
    smooth = _moving_average(scan, ratio, options.window_size)
    if options.use_disparity_extender:
        scan = _extend_disparities(scan, params, options)
        smooth = jnp.minimum(smooth, scan)
    base = jnp.round(params.bubble_radius)
    radius = jnp.where(base > 0, jnp.maximum(jnp.round(base * ratio), 1.0), 0.0)
    beams = jnp.arange(scan.shape[0])
    bubble = jnp.abs(beams - jnp.argmin(smooth)) <= radius
    return scan, ~bubble & (smooth > params.gap_min_range)


def _moving_average(scan: jax.Array, ratio: jax.Array, window: int) -> jax.Array:
    """Averages ranges over an odd number of at most `window` beams, fewer near obstacles.

    Beams outside the scan count as 0. Shifted copies are summed instead of differences of
    cumulative sums, whose rounding would break ties between equal ranges.
    """
    width = jnp.maximum(jnp.round(window * ratio), 1.0)
    reach = jnp.maximum(jnp.ceil(width / 2.0) - 1.0, 0.0)
    most = (window - 1) // 2
    shifts = jnp.arange(-most, most + 1)
    padded = jnp.pad(scan, most)
    copies = jnp.stack([padded[k : k + scan.shape[0]] for k in range(2 * most + 1)])
    used = (jnp.abs(shifts) <= reach)[:, None]
    return jnp.sum(jnp.where(used, copies, 0.0), axis=0) / (2.0 * reach + 1.0)


def _extend_disparities(ranges: jax.Array, params: FTGParams, options: FTGOptions) -> jax.Array:
    """Extends the near side of every range jump over the beams that half a car would cover.

    The angle kept free is the one under which half the width plus the margin is seen at the edge's
    range (N. Otterness, "The Disparity Extender Algorithm", 2019).
    """
    beams = jnp.arange(ranges.shape[0])
    half = 0.5 * params.vehicle_width + params.safety_margin
    angle = jnp.arcsin(jnp.minimum(half / jnp.maximum(ranges, 1e-6), 1.0))
    cover = jnp.ceil(angle * (ranges.shape[0] - 1) / options.fov)
    jump = jnp.diff(ranges)
    # A jump up at i hides beams to the left of i; a jump down hides beams to the right of i + 1.
    up = jnp.append(jump > params.disparity_threshold, False)
    down = jnp.insert(jump < -params.disparity_threshold, 0, False)
    ahead = beams[None, :] - beams[:, None]
    hidden = up[:, None] & (ahead > 0) & (ahead <= cover[:, None])
    hidden |= down[:, None] & (ahead < 0) & (-ahead <= cover[:, None])
    return jnp.minimum(ranges, jnp.min(jnp.where(hidden, ranges[:, None], jnp.inf), axis=0))


def _select_gap(
    free: jax.Array, ranges: jax.Array, params: FTGParams, options: FTGOptions
) -> tuple[jax.Array, jax.Array]:
    """Returns the first and the last beam of the best gap, or of the whole scan without a gap."""
    beams = jnp.arange(ranges.shape[0])
    blocked_before = jax.lax.cummax(jnp.where(free, -1, beams))
    width = beams - blocked_before
    last = free & ~jnp.append(free[1:], False)
    score = jnp.where(last, width, 0).astype(ranges.dtype)
    if options.enhanced_gap_scoring:
        score = jnp.where(last, _gap_scores(free, blocked_before + 1, ranges, params), -jnp.inf)
    end = jnp.argmax(score)
    some = jnp.any(free)
    whole = ranges.shape[0] - 1
    return jnp.where(some, blocked_before[end] + 1, 0), jnp.where(some, end, whole)


def _gap_scores(free: jax.Array, start: jax.Array, scan: jax.Array, params: FTGParams) -> jax.Array:
    """Returns, at each beam, the score of the gap that ends there and begins at `start`."""
    count = scan.shape[0]
    centre = count // 2
    end = jnp.arange(count)
    _, clearance = jax.lax.associative_scan(_restarting_minimum, (~free | (start == end), scan))
    start = jnp.minimum(start, count - 1)
    entry = scan[start] - scan[jnp.maximum(start - 1, 0)]
    leave = scan[jnp.minimum(end + 1, count - 1)] - scan
    inside = (start > 0) & (end < count - 1)
    curvature = jnp.where(inside, jnp.abs(entry - leave), 0.0)
    offset = jnp.abs(0.5 * (start + end) - centre) / centre
    score = params.gap_width_weight * (end - start + 1) + params.gap_clearance_weight * clearance
    return score - params.gap_center_weight * offset - params.gap_curvature_weight * curvature


def _restarting_minimum(left: tuple, right: tuple) -> tuple:
    """Combines (restart, minimum) pairs: a restart on the right forgets the left."""
    restart, minimum = right
    return left[0] | restart, jnp.where(restart, minimum, jnp.minimum(left[1], minimum))


def _aim(
    start: jax.Array, end: jax.Array, scan: jax.Array, params: FTGParams, options: FTGOptions
) -> jax.Array:
    """Returns the beam of the gap at which to steer."""
    beams = jnp.arange(scan.shape[0])
    inside = (beams >= start) & (beams <= end)
    farthest = jnp.argmax(jnp.where(inside, scan, -1.0))
    if options.target_mode == "farthest":
        return farthest
    point = (start + end) // 2
    if options.target_mode == "weighted":
        mass = jnp.where(inside, scan, 0.0)
        mean = jnp.sum(mass * beams) / jnp.maximum(jnp.sum(mass), 1e-6)
        point = jnp.where(jnp.any(mass > 0.0), jnp.round(mean).astype(beams.dtype), point)
    return jnp.where(params.farthest, farthest, point)


def _beam_towards(share: jax.Array, count: int) -> jax.Array:
    """Returns the beam at `share` of the way from the centre beam to the left end."""
    centre = count // 2
    return jnp.clip(jnp.trunc(centre + share * centre).astype(jnp.int32), 0, count - 1)


def _guard(steer: jax.Array, scan: jax.Array, nearest: jax.Array, params: FTGParams) -> jax.Array:
    """Halves the steering in open space if the range in its direction is short."""
    look = scan[_beam_towards(0.15 * steer / params.max_steer, scan.shape[0])]
    risky = (nearest >= 1.5) & (look < jnp.maximum(1.2, 0.4 * nearest))
    return jnp.where(risky, 0.5 * steer, steer)


def _react(steer: jax.Array, scan: jax.Array, nearest: jax.Array, params: FTGParams) -> jax.Array:
    """Applies the biases, the panic factors, the kick away from the nearer side and the evasive limit."""
    right, left = scan[: scan.shape[0] // 2], scan[scan.shape[0] // 2 :]
    open_left = jnp.clip((jnp.mean(left) - jnp.mean(right)) / params.max_distance, -1.0, 1.0)
    centring = jnp.where(nearest > 3.0, params.center_bias_gain, 0.0)
    hugging = jnp.where(nearest <= 4.0, params.inside_bias_gain, 0.0)
    steer = steer + (centring - hugging) * open_left * params.max_steer
    factor = jnp.where(nearest < params.panic_near, params.panic_factor_near, 1.0)
    factor = jnp.where(nearest < params.panic_very_near, params.panic_factor_very_near, factor)
    away = jnp.sign(jnp.min(left) - jnp.min(right))
    steer = steer * factor + away * params.wall_avoid_kick * params.max_steer
    limit = params.evasive_steer_scale * params.max_steer
    return jnp.where(nearest < params.evasive_threshold, jnp.clip(steer, -limit, limit), steer)


def _hold_course(
    steer: jax.Array, scan: jax.Array, state: FTGState, params: FTGParams
) -> tuple[jax.Array, FTGState]:
    """Bars steering towards a side with a near obstacle for some decisions.

    The outer thirds of the scan are the sides. The nearer one is barred for `cutback_hold`
    decisions, beginning with this one, each time its range is below `cutback_clearance`.
    """
    third = scan.shape[0] // 3
    right, left = jnp.min(scan[:third]), jnp.min(scan[scan.shape[0] - third :])
    near = (jnp.minimum(right, left) < params.cutback_clearance) & (right != left)
    side = jnp.where(near, jnp.sign(right - left), state.cutback_side)
    hold = jnp.asarray(params.cutback_hold, jnp.int32)
    remaining = jnp.where(near, hold, state.cutback_left)
    barred = (remaining > 0) & (steer * side > 0.0)
    side = side.astype(state.cutback_side.dtype)
    state = state.replace(cutback_side=side, cutback_left=jnp.maximum(remaining - 1, 0))
    return jnp.where(barred, 0.0, steer), state


def _clearance(
    steer: jax.Array,
    speed: jax.Array,
    horizon: jax.Array,
    scan: jax.Array,
    params: FTGParams,
    options: FTGOptions,
) -> jax.Array:
    """Returns the distance in metres between an arc of constant steering and speed and all returns.

    It is negative if the arc runs behind a return.
    """
    steps = jnp.arange(1, options.rollout_steps + 1) / options.rollout_steps
    length = speed * horizon * steps
    turned = length * jnp.tan(steer) / params.wheelbase
    # The chord of an arc has length * sin(turned / 2) / (turned / 2), at half the turn.
    chord = length * jnp.sinc(turned / (2.0 * jnp.pi))
    bearing = 0.5 * turned
    angles = jnp.linspace(-0.5 * options.fov, 0.5 * options.fov, scan.shape[0])
    # Law of cosines between the point and every return, both seen from the sensor.
    cosine = jnp.cos(bearing[:, None] - angles)
    apart = chord[:, None] ** 2 + scan**2 - 2.0 * chord[:, None] * scan * cosine
    beam = jnp.round((bearing / options.fov + 0.5) * (scan.shape[0] - 1)).astype(jnp.int32)
    beyond = scan[jnp.clip(beam, 0, scan.shape[0] - 1)] - chord
    return jnp.minimum(jnp.sqrt(jnp.maximum(jnp.min(apart), 0.0)), jnp.min(beyond))


def _preview(
    steer: jax.Array, scan: jax.Array, speed: jax.Array, params: FTGParams, options: FTGOptions
) -> jax.Array:
    """Replaces the steering by the sampled one whose arc keeps the most clearance.

    Ties go to the sample nearest to the gap's steering.
    """
    samples = jnp.linspace(-1.0, 1.0, options.preview_samples) * params.max_steer
    horizon = params.preview_horizon
    margins = jax.vmap(lambda s: _clearance(s, speed, horizon, scan, params, options))(samples)
    detour = jnp.abs(samples - steer)
    best = jnp.argmin(jnp.where(margins >= jnp.max(margins) - 1e-4, detour, jnp.inf))
    return jnp.where(horizon > 0.0, samples[best], steer)


def _dynamic_window(
    steer: jax.Array, scan: jax.Array, params: FTGParams, options: FTGOptions
) -> tuple[jax.Array, jax.Array]:
    """Picks the sampled steering and speed with the best sum of clearance, speed and heading.

    An arc is admissible if it keeps half the car's width plus the margin; the clearest arc is
    taken if none is (Fox, Burgard and Thrun, "The Dynamic Window Approach", 1997).
    """
    count = options.dwa_samples
    steers = jnp.linspace(-1.0, 1.0, count) * params.max_steer
    share = jnp.linspace(0.0, 1.0, count)
    speeds = params.min_speed + share * (params.max_speed - params.min_speed)
    steers, speeds = (grid.ravel() for grid in jnp.meshgrid(steers, speeds, indexing="ij"))
    horizon = params.dwa_horizon
    margins = jax.vmap(lambda s, v: _clearance(s, v, horizon, scan, params, options))(steers, speeds)
    heading = params.dwa_heading_weight * jnp.abs(steers - steer) / params.max_steer
    clear = margins / params.max_distance
    score = clear + speeds / jnp.maximum(params.max_speed, 1e-6) - heading
    admissible = margins > 0.5 * params.vehicle_width + params.safety_margin
    score = jnp.where(jnp.any(admissible), jnp.where(admissible, score, -jnp.inf), clear)
    best = jnp.argmax(score)
    return steers[best], speeds[best]


def _target_speed(steer: jax.Array, scan: jax.Array, params: FTGParams, options: FTGOptions) -> jax.Array:
    """Returns the speed for the ranges ahead and in the direction of steering."""
    centre = scan.shape[0] // 2
    wide, narrow = max(centre // 4, 1), max(centre // 12, 1)
    front = scan[centre]
    front_min = jnp.min(scan[max(centre - narrow, 0) : centre + narrow + 1])
    spread = jnp.std(scan[max(centre - wide, 0) : centre + wide])
    turn = jnp.sign(steer) * jnp.maximum(jnp.abs(steer) / params.max_steer, 0.1)
    look = scan[_beam_towards(turn, scan.shape[0])]
    slow = (front < 3.0) | (spread > 2.0) | (look < 3.0) | (front_min < 2.5)
    share = jnp.where((front < 6.0) | (spread > 1.0), 0.8, 1.0)
    share = jnp.where(slow, 0.6, share)
    share = jnp.where((front_min < 1.5) | (look < 2.0), 0.5, share)
    speed = jnp.clip(share * params.max_speed, params.min_speed, params.max_speed)
    if options.u_shape:
        reach = params.u_shape_threshold * params.max_distance
        pocket = jnp.max(jnp.stack([front, *_band_minima(scan, wide)])) < reach
        crawl = jnp.maximum(params.u_shape_crawl * params.max_speed, params.min_speed)
        speed = jnp.where(pocket, jnp.minimum(speed, crawl), speed)
    sharp = jnp.abs(steer) > params.crawl_steer_ratio * params.max_steer
    crawl = jnp.maximum(0.4 * params.max_speed, params.min_speed)
    return jnp.where(sharp, jnp.minimum(speed, crawl), speed)


def _band_minima(scan: jax.Array, wide: int) -> tuple[jax.Array, jax.Array]:
    """Returns the shortest ranges just right and just left of the centre beam."""
    centre = scan.shape[0] // 2
    return jnp.min(scan[max(centre - wide, 0) : centre]), jnp.min(scan[centre : centre + wide])
