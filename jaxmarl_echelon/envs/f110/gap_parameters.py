"""Gains and options of the follow-the-gap driver, and their readers; see docs/reference/f110.md 10.6."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import jax
import numpy as np
from flax import struct

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.envs.settings import read_choice, read_mapping
from physics.host_arrays import put_array

TARGET_MODES = ("center", "farthest", "weighted")

_SIGNED = ("wall_avoid_kick", "center_bias_gain", "inside_bias_gain", "dwa_heading_weight")
_SIGNED += ("gap_width_weight", "gap_clearance_weight", "gap_center_weight", "gap_curvature_weight")


@take_defaults_from("env/f110:ftg")
class FTGParams(struct.PyTreeNode):
    """Gains of the driver: scalars (numbers or arrays) that may change without recompiling.

    Attributes:
      farthest: bool; aim at the farthest beam of the gap instead of the point of `target_mode`.
      max_distance: ranges are clipped to this, metres.
      bubble_radius: beams cleared on either side of the nearest return (rounded half to even).
      max_steer: rad.
      min_speed: m/s.
      max_speed: m/s.
      steering_gain: steering per unit of normalised beam offset, in [0, 1].
      steer_smooth: share of the previous steering that is kept, in [0, 1].
      gap_min_range: a beam is free beyond this range, metres.
      wall_avoid_kick: share of `max_steer` added away from the nearer side.
      panic_near, panic_very_near: shortest range below which a panic factor applies, metres.
      panic_factor_near, panic_factor_very_near: factors on the steering.
      evasive_threshold: shortest range below which steering is limited, metres.
      evasive_steer_scale: that limit, as a share of `max_steer`.
      crawl_steer_ratio: share of `max_steer` beyond which the car crawls.
      steering_speed_scale: steering is limited to this over the speed, rad m/s.
      center_bias_gain: steering towards the more open side, in open space.
      inside_bias_gain: steering towards the less open side, near obstacles.
      gap_width_weight, gap_clearance_weight, gap_center_weight, gap_curvature_weight: weights of
        the gap score, per beam, per metre, per normalised offset, per metre.
      disparity_threshold: jump between neighbouring beams that counts as an edge, metres.
      vehicle_width, safety_margin: metres; half the width plus the margin is kept off edges.
      cutback_clearance: range at the side below which turning to it is barred, metres.
      cutback_hold: decisions for which it stays barred.
      preview_horizon: seconds; 0 turns the preview off.
      dwa_horizon: seconds.
      dwa_heading_weight: cost of leaving the gap's direction.
      u_shape_threshold: share of `max_distance` within which all of the front is a pocket.
      u_shape_crawl: share of `max_speed` allowed in a pocket.
      wheelbase: metres, of the arcs that the preview and the dynamic window follow.
    """

    farthest: jax.Array | bool = False
    max_distance: jax.Array | float = FROM_FILE
    bubble_radius: jax.Array | float = FROM_FILE
    max_steer: jax.Array | float = FROM_FILE
    min_speed: jax.Array | float = FROM_FILE
    max_speed: jax.Array | float = FROM_FILE
    steering_gain: jax.Array | float = FROM_FILE
    steer_smooth: jax.Array | float = FROM_FILE
    gap_min_range: jax.Array | float = FROM_FILE
    wall_avoid_kick: jax.Array | float = FROM_FILE
    panic_near: jax.Array | float = FROM_FILE
    panic_very_near: jax.Array | float = FROM_FILE
    panic_factor_near: jax.Array | float = FROM_FILE
    panic_factor_very_near: jax.Array | float = FROM_FILE
    evasive_threshold: jax.Array | float = FROM_FILE
    evasive_steer_scale: jax.Array | float = FROM_FILE
    crawl_steer_ratio: jax.Array | float = FROM_FILE
    steering_speed_scale: jax.Array | float = FROM_FILE
    center_bias_gain: jax.Array | float = FROM_FILE
    inside_bias_gain: jax.Array | float = FROM_FILE
    gap_width_weight: jax.Array | float = FROM_FILE
    gap_clearance_weight: jax.Array | float = FROM_FILE
    gap_center_weight: jax.Array | float = FROM_FILE
    gap_curvature_weight: jax.Array | float = FROM_FILE
    disparity_threshold: jax.Array | float = FROM_FILE
    vehicle_width: jax.Array | float = FROM_FILE
    safety_margin: jax.Array | float = FROM_FILE
    cutback_clearance: jax.Array | float = FROM_FILE
    cutback_hold: jax.Array | int = FROM_FILE
    preview_horizon: jax.Array | float = FROM_FILE
    dwa_horizon: jax.Array | float = FROM_FILE
    dwa_heading_weight: jax.Array | float = FROM_FILE
    u_shape_threshold: jax.Array | float = FROM_FILE
    u_shape_crawl: jax.Array | float = FROM_FILE
    wheelbase: jax.Array | float = FROM_FILE


@take_defaults_from("env/f110:ftg")
@dataclass(frozen=True)
class FTGOptions:
    """Static choices of the driver, each of which needs its own program.

    Attributes:
      target_mode: the point of the gap to aim at: its middle ("center"), its farthest beam
        ("farthest"), or its range-weighted mean ("weighted"). `FTGParams.farthest` overrides it.
      window_size: widest moving average over the scan, beams.
      preview_samples: steering angles that the preview compares; 0 for no preview.
      dwa_samples: numbers of steering angles and of speeds in the dynamic window; 0 for no window.
      use_disparity_extender: widen obstacles by half a car at range jumps.
      no_cutback: bar steering back towards an obstacle at the side.
      enhanced_gap_scoring: rank gaps by a score instead of by width.
      u_shape: crawl in pockets.
      fov: field of view of the scan, rad.
      rollout_steps: points on each arc of the preview and of the dynamic window.

    Raises:
      ValueError: if a value is not allowed.
    """

    target_mode: str = FROM_FILE
    window_size: int = FROM_FILE
    preview_samples: int = FROM_FILE
    dwa_samples: int = FROM_FILE
    use_disparity_extender: bool = FROM_FILE
    no_cutback: bool = FROM_FILE
    enhanced_gap_scoring: bool = FROM_FILE
    u_shape: bool = FROM_FILE
    fov: float = 4.7
    rollout_steps: int = FROM_FILE

    def __post_init__(self):
        if self.target_mode not in TARGET_MODES:
            raise ValueError(f"ftg target_mode is {self.target_mode!r}; allowed: {', '.join(TARGET_MODES)}")
        if not 0.0 < self.fov <= 2.0 * np.pi:
            raise ValueError(f"ftg fov is {self.fov}; it must be greater than 0 and at most 2 pi")
        for name in ("use_disparity_extender", "no_cutback", "enhanced_gap_scoring", "u_shape"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValueError(f"ftg {name} is {value!r}; it must be true or false")
        lowest = {"window_size": 1, "preview_samples": 0, "dwa_samples": 0, "rollout_steps": 1}
        for name, least in lowest.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"ftg {name} is {value!r}; it must be a whole number of at least {least}")


def check_ftg(params: FTGParams) -> None:
    """Checks gains on the host.

    Raises:
      ValueError: in one line, for the first gain that is out of bounds.
    """
    shares = ("steering_gain", "steer_smooth", "evasive_steer_scale", "crawl_steer_ratio")
    shares += ("u_shape_threshold", "u_shape_crawl")
    positive = ("max_distance", "max_steer", "steering_speed_scale", "wheelbase")
    for field in fields(FTGParams):
        name, value = field.name, np.asarray(getattr(params, field.name))
        if value.dtype.kind not in ("b" if name == "farthest" else "iuf"):
            kind = "true or false" if name == "farthest" else "a number"
            raise ValueError(f"ftg {name} is {getattr(params, name)!r}; it must be {kind}")
        if not np.all(np.isfinite(value)):
            raise ValueError(f"ftg {name} is {value}; it must be finite")
        if name in shares and not np.all((value >= 0.0) & (value <= 1.0)):
            raise ValueError(f"ftg {name} is {value}; it must be between 0 and 1")
        if name in positive and not np.all(value > 0.0):
            raise ValueError(f"ftg {name} is {value}; it must be greater than 0")
        if name not in _SIGNED and not np.all(value >= 0.0):
            raise ValueError(f"ftg {name} is {value}; it must not be negative")
    if np.any(np.asarray(params.min_speed) > np.asarray(params.max_speed)):
        raise ValueError(f"ftg min_speed is {params.min_speed}; it must not exceed max_speed")


_GAINS = {field.name for field in fields(FTGParams)}
_OPTIONS = {field.name for field in fields(FTGOptions)}


def read_ftg(settings: Mapping | None, fov: float) -> tuple[FTGParams, FTGOptions]:
    """Splits the follow-the-gap settings into gains and static options.

    A `target_mode` of "farthest" becomes the gain of that name, so that curricula may change it.
    """
    given = dict(read_mapping("ftg", settings))
    for name in given:
        read_choice("ftg", name, sorted(_GAINS | _OPTIONS))
    static = {name: value for name, value in given.items() if name in _OPTIONS}
    try:
        options = FTGOptions(**{"fov": fov} | static)
    except ValueError as error:
        raise ValueError(f"env.ftg: {error}") from None
    farthest = options.target_mode == "farthest"
    if farthest:
        options = replace(options, target_mode="center")
    gains = {name: value for name, value in given.items() if name in _GAINS}
    return _gains(FTGParams(farthest=farthest), gains), options


def change_ftg(params: FTGParams, options: FTGOptions, settings: Mapping | None) -> FTGParams:
    """Returns changed gains; a `target_mode` of "farthest" or of the static options sets `farthest`.

    Raises:
      ValueError: one line, for an unknown or static setting or a gain that is out of bounds.
    """
    given = dict(read_mapping("ftg", settings))
    for name in given:
        if name in _OPTIONS - {"target_mode"}:
            raise ValueError(f"env.ftg.{name}={given[name]!r}: is fixed for the whole run")
        read_choice("ftg", name, sorted(_GAINS | {"target_mode"}))
    if "target_mode" in given:
        allowed = (options.target_mode, "farthest")
        mode = read_choice("ftg.target_mode", given.pop("target_mode"), allowed)
        given = {"farthest": mode == "farthest"} | given
    return _gains(params, given)


def _gains(params: FTGParams, changes: Mapping) -> FTGParams:
    changed = replace(params, **changes)
    try:
        check_ftg(changed)
    except ValueError as error:
        raise ValueError(f"env.ftg: {error}") from None
    return _as_arrays(changed)


def _as_arrays(params: FTGParams) -> FTGParams:
    kinds = {"farthest": bool, "cutback_hold": np.int32}
    return FTGParams(
        **{
            field.name: put_array(getattr(params, field.name), kinds.get(field.name, np.float32))
            for field in fields(params)
        }
    )
