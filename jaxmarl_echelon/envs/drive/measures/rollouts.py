"""Comparison of a scene's rollouts with its recording, on the host. Reference: docs/reference/drive.md 13.4.

Axes: R rollouts, T samples, N bodies, F of them evaluated. Positions are relative to the scene's mean
position.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs import base
from jaxmarl_echelon.envs.drive.bank import SceneBank, scene_at
from jaxmarl_echelon.envs.drive.codes import EDGE
from jaxmarl_echelon.envs.drive.measures import realism
from jaxmarl_echelon.envs.drive.state import DriveState
from jaxmarl_echelon.envs.drive.traffic.road_contacts import road_edge_distance
from physics.boxes import box_corners
from physics.segments import segments_between

FIRST = 10  # sample at which rollouts begin
ROLLOUTS = 32
FARTHEST = 50.0  # m; distances beyond the range of their histogram need not be exact


class Poses(NamedTuple):
    """Poses of bodies.

    Attributes:
      pose: `[..., N, 3]` x, y, heading.
      present: `[..., N]` bool.
    """

    pose: np.ndarray
    present: np.ndarray


class DriveComparison(base.Comparison):
    """Compares rollouts of held-out scenes with their recordings, from sample 10 to the last.

    In these rollouts goals stop learners and infractions have no effect, so that every learner is present to
    the end. The other bodies move on when the last learner has stopped.
    """

    rollouts = ROLLOUTS

    def __init__(self, bank: SceneBank, held_out: tuple[int, int]):
        """Stores the scenes, and the index and number of the held-out ones."""
        self.bank, self.first, self.episodes = bank, *held_out
        ignored = dict.fromkeys(("collision_behavior", "offroad_behavior"), "ignore")
        steps = bank.recording.shape[1] - 1 - FIRST
        whole = {"init_step": FIRST, "steps": steps, "early_end": "never"}
        self.settings = whole | {"goal_behavior": "stop"} | ignored

    @staticmethod
    def snapshot(state: DriveState, _params, _time) -> Poses:
        """Returns the poses to record in a step."""
        motion = state.motion
        return Poses(jnp.stack([motion.x, motion.y, motion.heading], axis=-1), state.present)

    def scores(self, frames: Sequence[Poses]) -> dict[str, float]:
        """Likelihoods of the recordings, as means over scenes; see `score_scene`.

        Args:
          frames: of each rollout, leaves `[T, episodes, ...]`.

        Returns:
          the meta scores `meta` and `meta_2025`, the score of each group and of each feature, `ade` and
            `min_ade` in m, the number of `scenes` with scored bodies, the number of these `bodies`, and the
            number of `bodies_not_driven`, which were to be predicted but replay their recording.
        """
        found = []
        for episode in range(self.episodes):
            scene = jax.tree.map(np.asarray, scene_at(self.bank, self.first + episode))
            played = (jax.tree.map(lambda x, e=episode: np.asarray(x[:, e]), one) for one in frames)
            found.append(score_scene(scene, Poses(*map(np.stack, zip(*played, strict=True)))))
        scored = [one for one in found if one["bodies"]]
        names = [name for name in found[0] if name not in _COUNTS]
        means = {name: _mean([one[name] for one in scored]) for name in names}
        likely = {name: means[name] for name in realism.FEATURES}
        newest = realism.meta_score(likely, newest=True)["meta"]
        counts = {name: float(sum(one[name] for one in found)) for name in _COUNTS}
        return {
            **realism.meta_score(likely),
            "meta_2025": newest,
            **means,
            "scenes": float(len(scored)),
            **counts,
        }


_COUNTS = "bodies", "bodies_not_driven"


def _mean(values: list[float]) -> float:
    """Mean of the finite values; nan without any."""
    defined = [value for value in values if np.isfinite(value)]
    return float(np.mean(defined)) if defined else np.nan


def score_scene(scene: SceneBank, played: Poses) -> dict[str, float]:
    """Scores of a scene: likelihood of each feature, displacements, and numbers of bodies.

    Evaluates the bodies that the scene asks to be predicted, or its learners if it names none. Of the bodies
    to be predicted only those driven by learners are scored: the others repeat their recording, which says
    nothing about a policy.

    Args:
      scene: the scene, NumPy arrays.
      played: `[R, T, N, ...]` from sample `FIRST` on.
    """
    recorded = Poses(scene.recording[FIRST:, :, :3].astype(float), scene.recorded[FIRST:])
    agents = len(scene.learner)
    learners = np.pad(scene.learner, (0, len(scene.predict) - agents))
    asked = scene.predict if scene.predict.any() else learners
    chosen = np.flatnonzero(asked & learners)
    counts = {"bodies": len(chosen), "bodies_not_driven": int((asked & ~learners).sum())}
    if not len(chosen):
        return dict.fromkeys((*realism.FEATURES, "ade", "min_ade"), np.nan) | counts
    simulated = [compute_realism_features(scene, Poses(*one), chosen) for one in zip(*played, strict=True)]
    logged = compute_realism_features(scene, recorded, chosen)
    result = {name: _score(name, simulated, logged) for name in realism.FEATURES}
    away = np.hypot(*np.moveaxis((played.pose - recorded.pose)[:, :, chosen, :2], -1, 0))
    valid = played.present[:, :, chosen] & recorded.present[:, chosen]
    error = np.where(valid, away, 0.0).sum((1, 2)) / np.maximum(valid.sum((1, 2)), 1)
    return {**result, "ade": error.mean(), "min_ade": error.min(), **counts}


def _score(name: str, simulated: list[dict[str, np.ndarray]], logged: dict[str, np.ndarray]) -> float:
    """Likelihood of the recording over all evaluated bodies; nan without a valid sample."""
    logs = [
        realism.log_likelihood(
            np.stack([one[name][body] for one in simulated]).ravel(),
            np.atleast_1d(logged[name][body]),
            realism.FEATURES[name],
        )
        for body in range(len(logged[name]))
    ]
    logs = np.concatenate(logs)
    return float(np.exp(np.nanmean(logs))) if np.isfinite(logs).any() else np.nan


def compute_realism_features(scene: SceneBank, bodies: Poses, chosen: np.ndarray) -> dict[str, np.ndarray]:
    """Features of evaluated bodies, `[F, T]`, flags `[F]`; nan where undefined.

    Args:
      scene: the scene, NumPy arrays.
      bodies: `[T, N, ...]`.
      chosen: `[F]` slots.
    """
    pose = np.where(bodies.present[..., None], bodies.pose, np.nan)
    moving = realism.compute_kinematics(*np.moveaxis(pose, -1, 0).swapaxes(1, 2))
    own = pose[:, chosen]
    others = np.broadcast_to(pose[:, None], (len(pose), len(chosen), *pose.shape[1:])).copy()
    others[:, np.arange(len(chosen)), chosen] = np.nan
    speed = moving["speed"].T
    near = _nearest(own, others, scene.size[chosen].astype(float), scene.size.astype(float))
    sizes = np.broadcast_to(scene.size.astype(float), (*others.shape[:3], 2))
    speeds = np.broadcast_to(speed[:, None], others.shape[:3])
    ahead = realism.time_to_collision(
        own, speed[:, chosen], scene.size[chosen].astype(float), others, speeds, sizes
    )
    edge = _beyond_edges(scene, own, scene.size[chosen])
    return {
        **{name: values[chosen] for name, values in moving.items()},
        "nearest_object": near.T,
        "time_to_collision": np.where(np.isfinite(speed[:, chosen]), ahead, np.nan).T,
        "collision": np.any(near < 0, axis=0).astype(float),
        "road_edge": edge.T,
        "offroad": np.any(edge > 0, axis=0).astype(float),
    }


def _nearest(own: np.ndarray, others: np.ndarray, size: np.ndarray, other_size: np.ndarray) -> np.ndarray:
    """Distances `[T, F]` to the nearest box, at most `FARTHEST`; nan where the body is absent.

    Args:
      own: `[T, F, 3]`.
      others: `[T, F, N, 3]`, nan for the body itself.
      size: `[F, 2]`.
      other_size: `[N, 2]`.
    """
    away = np.hypot(*np.moveaxis(others[..., :2] - own[:, :, None, :2], -1, 0))
    radius = np.hypot(*size.T)[:, None] / 2 + np.hypot(*other_size.T) / 2
    # Lower bound of the distance: along one of two perpendicular axes lies at least this share of it.
    least = np.where(np.isfinite(away), away / np.sqrt(2) - radius, np.inf)

    def exact(pairs: np.ndarray) -> np.ndarray:
        step, body, other = np.nonzero(pairs)
        found = np.full(pairs.shape, FARTHEST)
        found[step, body, other] = realism.rounded_distance(
            own[step, body], size[body], others[step, body, other], other_size[other]
        )
        return found.min(-1)

    likely = (np.arange(least.shape[-1]) == least.argmin(-1)[..., None]) & (least < FARTHEST)
    nearest = exact(likely)
    nearest = np.minimum(nearest, exact((least < nearest[..., None]) & ~likely))
    return np.where(np.isfinite(own[..., 0]), nearest, np.nan)


@jax.jit
def _edge_distances(ends: jax.Array, there: jax.Array, points: jax.Array) -> jax.Array:
    edges = segments_between(ends[:, :2], ends[:, 2:])
    return jax.lax.map(lambda point: road_edge_distance(edges, there, point), points)


def _beyond_edges(scene: SceneBank, pose: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Largest signed distance `[T, F]` of the corners to their nearest road edges; nan for absent bodies."""
    there = np.isfinite(pose[..., 0])
    corners = box_corners(np.where(there[..., None], pose, 0.0), np.broadcast_to(size, (*pose.shape[:2], 2)))
    found = np.asarray(_edge_distances(scene.segment, scene.segment_kind == EDGE, corners.astype(np.float32)))
    return np.where(there, found.max(-1), np.nan)
