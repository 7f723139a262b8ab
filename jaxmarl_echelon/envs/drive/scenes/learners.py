"""Assignment of a scene's bodies to the slots of learners and scripted bodies.

Reference: docs/reference/drive.md 5.
"""

from dataclasses import dataclass

import numpy as np

from jaxmarl_echelon.envs.drive.codes import PEDESTRIAN, VEHICLE
from jaxmarl_echelon.envs.drive.scenes.raw_scene import SAMPLES, RawScene
from physics.boxes import boxes_overlap

CONTROLS = ("vehicles", "agents", "sdc", "all")
MOVES = 1.0  # m; bodies that never get farther from their start count as standing


@dataclass(frozen=True)
class SlotSettings:
    """Settings of the assignment of bodies to slots.

    Attributes:
      agents: slots of learners A.
      bodies: slots of bodies N, those of learners included.
      control: bodies that may learn, one of `CONTROLS`.
      init_step: sample at which episodes start.
      min_goal_distance: m; bodies nearer to their goals at that sample stand still.
      body_scale: factor on lengths and widths in the bank.
      last: last sample of episodes; goals at the end of a recording are moved to this sample at the latest.
    """

    agents: int = 16
    bodies: int = 32
    control: str = "vehicles"
    init_step: int = 0
    min_goal_distance: float = 2.0
    body_scale: float = 1.0
    last: int = SAMPLES - 1


@dataclass(frozen=True)
class SlotAssignment:
    """Bodies of a scene by their role.

    Attributes:
      learners: indices.
      scripted: indices.
      stands: `[n]` bool, bodies that stand still.
      dropped: numbers of bodies without a slot, by kind.
    """

    learners: np.ndarray
    scripted: np.ndarray
    stands: np.ndarray
    dropped: dict[str, int]

    @property
    def left_out(self) -> int:
        """Number of bodies without a slot."""
        return sum(self.dropped.values())


def assign_slots(scene: RawScene, casting: SlotSettings) -> SlotAssignment:
    """Chooses learners and scripted bodies.

    Candidates for learners are ordered by: the recording car, bodies to be predicted, moving bodies. The
    remaining slots are filled in the same order, and among equals by the distance to the nearest learner. The
    scene's order breaks ties and determines the slots of scripted bodies. Bodies beyond the capacity are
    dropped, as are those not recorded within the episode.
    """
    start = casting.init_step
    away = np.hypot(*(find_goals(scene, casting) - _pose_at(scene, start)).T)
    stands = away < casting.min_goal_distance
    may = _controlled(scene, casting.control) & scene.valid[:, start]
    if casting.control != "all":
        may &= ~stands & ~scene.expert & ~_find_overlapping(scene, start, casting.body_scale)
    bodies = np.arange(len(may))
    predicted, moves = np.isin(bodies, scene.predict), _find_moving(scene, casting)
    order = np.lexsort((~moves, ~predicted, bodies != scene.sdc))
    learners = order[may[order]][: casting.agents]
    others = np.setdiff1d(np.flatnonzero(scene.valid[:, start : casting.last + 1].any(1)), learners)
    keys = distance_to_learners(scene, casting, learners), ~moves, ~predicted, bodies != scene.sdc
    ranked = others[np.lexsort([key[others] for key in keys])]
    room = casting.bodies - casting.agents
    stands[learners] = False
    out = ranked[room:]
    dropped = {
        "bodies to be predicted": int(predicted[out].sum()),
        "moving bodies": int((moves & ~predicted)[out].sum()),
        "standing bodies": int((~moves & ~predicted)[out].sum()),
    }
    return SlotAssignment(learners, np.sort(ranked[:room]), stands, dropped)


def find_goals(scene: RawScene, casting: SlotSettings) -> np.ndarray:
    """Goals `[n, 2]`; those at the end of a recording move to the last valid sample of the episode."""
    if scene.recorded_goal is None:
        return scene.goal
    within = scene.valid[:, : casting.last + 1]
    cut = scene.recorded_goal & within.any(1) & scene.valid[:, casting.last + 1 :].any(1)
    at = casting.last - within[:, ::-1].argmax(1)
    there = np.take_along_axis(scene.position, at[:, None, None], axis=1)[:, 0]
    return np.where(cut[:, None], there, scene.goal)


def _find_moving(scene: RawScene, casting: SlotSettings) -> np.ndarray:
    """Bodies `[n]` that are more than `MOVES` from their start at some sample of the episode, bool."""
    first = _pose_at(scene, casting.init_step)
    inside = slice(casting.init_step, casting.last + 1)
    away = np.hypot(*np.moveaxis(scene.position[:, inside] - first[:, None], -1, 0))
    return ((away > MOVES) & scene.valid[:, inside]).any(1)


def distance_to_learners(scene: RawScene, casting: SlotSettings, learners: np.ndarray) -> np.ndarray:
    """Least distance `[n]` to a learner in the episode, m; inf for bodies never present with a learner."""
    inside = slice(casting.init_step, casting.last + 1)
    position, valid = scene.position[:, inside], scene.valid[:, inside]
    least = np.full(len(valid), np.inf)
    for learner in learners:
        away = np.hypot(*np.moveaxis(position - position[learner], -1, 0))
        least = np.minimum(least, np.where(valid & valid[learner], away, np.inf).min(1))
    return least


def _controlled(scene: RawScene, control: str) -> np.ndarray:
    if control == "sdc":
        return np.arange(len(scene.type)) == scene.sdc
    return scene.type == VEHICLE if control == "vehicles" else np.ones(len(scene.type), bool)


def _pose_at(scene: RawScene, start: int) -> np.ndarray:
    """Positions `[n, 2]` at a sample; for absent bodies where they next appear, else first appear."""
    first = find_first_samples(scene.valid, start)
    return np.take_along_axis(scene.position, first[:, None, None], axis=1)[:, 0]


def find_first_samples(valid: np.ndarray, start: int) -> np.ndarray:
    """First samples `[n]` of `valid` `[n, T]` from `start` on; for bodies without one, the first of all."""
    samples = np.arange(valid.shape[1])
    order = np.where(samples >= start, samples - start, samples + len(samples))
    return np.where(valid, order, np.iinfo(int).max).argmin(1)


def _find_overlapping(scene: RawScene, sample: int, scale: float) -> np.ndarray:
    """Bodies `[n]` whose box, scaled as in the episode, meets another such box at a sample, bool."""
    size = scene.size[:, :2] * scale
    met = boxes_meet(
        scene.position[:, None, sample],
        scene.heading[:, None, sample],
        size[:, None],
        scene.position[None, :, sample],
        scene.heading[None, :, sample],
        size[None],
    )
    there = scene.valid[:, sample]
    np.fill_diagonal(met, False)
    return (met & there).any(1) & there


def boxes_meet(
    here: np.ndarray,
    heading: np.ndarray,
    size: np.ndarray,
    there: np.ndarray,
    heading_there: np.ndarray,
    size_there: np.ndarray,
) -> np.ndarray:
    """Returns whether boxes share a point, in float64.

    Positions and sizes `[..., 2]` and headings `[...]` broadcast.
    """
    pose, pose_there = (
        (*np.moveaxis(at, -1, 0), angle) for at, angle in ((here, heading), (there, heading_there))
    )
    return boxes_overlap(pose, np.moveaxis(size, -1, 0), pose_there, np.moveaxis(size_there, -1, 0), xp=np)


def is_driven(scene: RawScene, who: SlotAssignment) -> np.ndarray:
    """Bodies `[n]` that a driver model may drive: neither standing nor pedestrians; bool."""
    return ~who.stands & (scene.type != PEDESTRIAN)
