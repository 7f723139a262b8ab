"""Realism measures in the manner of the Waymo sim agents challenge (arXiv:2305.12032), on the host.

Arrays are NumPy with time as the last axis, `[..., T]`; undefined values are nan. Reference:
docs/reference/drive.md 13.4.
"""

from typing import NamedTuple

import numpy as np

from jaxmarl_echelon.envs.drive.state import DT
from physics.angles import wrap_angle_by_remainder
from physics.boxes import box_corners

ROUNDING = 0.7
MOST_TIME = 5.0
AHEAD = np.deg2rad(75.0)
ALIGNED = np.deg2rad(10.0)
ENOUGH_OVERLAP = -0.5
PSEUDO_COUNT, FLAG_COUNT = 0.1, 0.001


class Feature(NamedTuple):
    """One feature of the score.

    Attributes:
      low, high, bins: of its histogram; 2 bins for a flag.
      weight, weight_2025: in the meta score.
      group: "kinematic", "interactive" or "map".
    """

    low: float
    high: float
    bins: int
    weight: float
    weight_2025: float
    group: str


FEATURES = {
    "speed": Feature(0.0, 25.0, 10, 0.05, 0.05, "kinematic"),
    "acceleration": Feature(-12.0, 12.0, 11, 0.05, 0.05, "kinematic"),
    "yaw_rate": Feature(-0.628, 0.628, 11, 0.05, 0.05, "kinematic"),
    "yaw_acceleration": Feature(-3.14, 3.14, 11, 0.05, 0.05, "kinematic"),
    "nearest_object": Feature(-5.0, 40.0, 10, 0.10, 0.10, "interactive"),
    "time_to_collision": Feature(0.0, 5.0, 10, 0.10, 0.10, "interactive"),
    "collision": Feature(0.0, 1.0, 2, 0.25, 0.25, "interactive"),
    "road_edge": Feature(-20.0, 40.0, 10, 0.10, 0.05, "map"),
    "offroad": Feature(0.0, 1.0, 2, 0.25, 0.25, "map"),
}


def _difference_centrally(values: np.ndarray) -> np.ndarray:
    """Differences `values[i + 1] - values[i - 1]`, nan at both ends."""
    result = np.full_like(values, np.nan)
    result[..., 1:-1] = values[..., 2:] - values[..., :-2]
    return result


def compute_kinematics(x: np.ndarray, y: np.ndarray, heading: np.ndarray) -> dict[str, np.ndarray]:
    """Speed, acceleration, yaw rate and yaw acceleration; nan where a neighbouring sample is missing."""
    speed = np.hypot(_difference_centrally(x), _difference_centrally(y)) / (2 * DT)
    yaw_rate = wrap_angle_by_remainder(_difference_centrally(heading)) / (2 * DT)
    return {
        "speed": speed,
        "acceleration": _difference_centrally(speed) / (2 * DT),
        "yaw_rate": yaw_rate,
        "yaw_acceleration": wrap_angle_by_remainder(_difference_centrally(yaw_rate)) / (2 * DT),
    }


def rounded_distance(
    pose: np.ndarray, size: np.ndarray, other: np.ndarray, other_size: np.ndarray
) -> np.ndarray:
    """Signed distances between boxes with rounded corners, m; negative where they overlap.

    Args:
      pose, other: `[..., 3]` x, y, heading.
      size, other_size: `[..., 2]` length and width.
    """
    radius, other_radius = (ROUNDING * np.min(s, axis=-1) / 2 for s in (size, other_size))
    inner, outer = size - 2 * radius[..., None], other_size - 2 * other_radius[..., None]
    pose, other = np.broadcast_arrays(pose, other)
    first, second = box_corners(pose, inner), box_corners(other, outer)
    depth = np.max(np.stack([_separation(pose, first, second), _separation(other, second, first)]), axis=0)
    apart = np.minimum(_to_sides(first, second), _to_sides(second, first))
    return np.where(depth > 0, apart, depth) - radius - other_radius


def _separation(pose: np.ndarray, own: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Widest gap between two boxes along the axes of the first; negative values are penetration depths."""
    gaps = []
    for angle in (pose[..., 2], pose[..., 2] + np.pi / 2):
        axis = np.stack([np.cos(angle), np.sin(angle)], axis=-1)[..., None, :]
        mine, other = (own * axis).sum(-1), (points * axis).sum(-1)
        gaps += [other.min(-1) - mine.max(-1), mine.min(-1) - other.max(-1)]
    return np.max(np.stack(gaps), axis=0)


def _to_sides(points: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Least distance of points `[..., 4, 2]` to the sides of a box `[..., 4, 2]`."""
    start, along = box[..., None, :, :], (np.roll(box, -1, axis=-2) - box)[..., None, :, :]
    offset = points[..., :, None, :] - start
    squared = np.maximum((along**2).sum(-1), 1e-12)
    part = np.clip((offset * along).sum(-1) / squared, 0.0, 1.0)[..., None]
    return np.linalg.norm(offset - part * along, axis=-1).min((-1, -2))


def time_to_collision(
    pose: np.ndarray,
    speed: np.ndarray,
    size: np.ndarray,
    others: np.ndarray,
    other_speed: np.ndarray,
    other_size: np.ndarray,
) -> np.ndarray:
    """Time until a body reaches the nearest body that it follows, s, at most 5.

    Args:
      pose, speed, size: of the body, `[..., 3]`, `[...]`, `[..., 2]`.
      others, other_speed, other_size: with an axis of bodies before the last; nan for absent bodies.
    """
    cos, sin = np.cos(pose[..., None, 2]), np.sin(pose[..., None, 2])
    dx, dy = (others[..., i] - pose[..., None, i] for i in range(2))
    ahead, left = dx * cos + dy * sin, dy * cos - dx * sin
    turn = np.abs(wrap_angle_by_remainder(others[..., 2] - pose[..., None, 2]))
    along, across = np.abs(np.cos(turn)), np.abs(np.sin(turn))
    length, width = other_size[..., 0], other_size[..., 1]
    gap = ahead - size[..., None, 0] / 2 - (length * along + width * across) / 2
    overlap = np.abs(left) - size[..., None, 1] / 2 - (length * across + width * along) / 2
    followed = (gap > 0) & (turn <= AHEAD) & (overlap < 0)
    followed &= (overlap < ENOUGH_OVERLAP) | (turn <= ALIGNED)
    distance = np.where(followed, gap, np.inf)
    nearest = np.argmin(distance, axis=-1)[..., None]
    leader = np.take_along_axis(other_speed, nearest, axis=-1)[..., 0]
    distance, closing = np.take_along_axis(distance, nearest, axis=-1)[..., 0], speed - leader
    reaches = np.isfinite(distance) & (closing > 0)
    time = np.where(reaches, distance, MOST_TIME) / np.where(reaches, closing, 1.0)
    return np.minimum(time, MOST_TIME)


def log_likelihood(simulated: np.ndarray, recorded: np.ndarray, feature: Feature) -> np.ndarray:
    """Log likelihoods of recorded values under the histogram of simulated values.

    Args:
      simulated: values of one body, over rollouts and samples; nan is ignored.
      recorded: `[...]`.
      feature: range, bins and kind.
    """
    flag = feature.bins == 2
    samples = simulated[np.isfinite(simulated)]
    counts = np.bincount(_bin(samples, feature), minlength=feature.bins)
    counts = counts + (FLAG_COUNT if flag else PSEUDO_COUNT)
    shares = np.log(counts / counts.sum())
    found = np.isfinite(recorded)
    return np.where(found, shares[_bin(np.where(found, recorded, feature.low), feature)], np.nan)


def _bin(values: np.ndarray, feature: Feature) -> np.ndarray:
    if feature.bins == 2:
        return (values > 0.5).astype(int)
    clipped = np.clip(values, feature.low, feature.high)
    place = (clipped - feature.low) / (feature.high - feature.low) * feature.bins
    return np.minimum(place.astype(int), feature.bins - 1)


def meta_score(scores: dict[str, float], newest: bool = False) -> dict[str, float]:
    """Weighted mean of the features' scores, overall and per group; `newest` selects the weights of 2025."""
    weights = {name: FEATURES[name].weight_2025 if newest else FEATURES[name].weight for name in scores}

    def mean(names: list[str]) -> float:
        return sum(weights[n] * scores[n] for n in names) / sum(weights[n] for n in names)

    groups = dict.fromkeys(FEATURES[name].group for name in scores)
    members = {group: [name for name in scores if FEATURES[name].group == group] for group in groups}
    return {"meta": mean(list(scores)), **{group: mean(names) for group, names in members.items()}}
