"""Which bodies of a scene learn, which are scripted, and in which order they fill the slots."""

from dataclasses import dataclass

import numpy as np

from jaxmarl_echelon.envs.drive.codes import PEDESTRIAN, VEHICLE
from jaxmarl_echelon.envs.drive.scenes.raw_scene import SAMPLES, HostScene
from physics.boxes import overlap

CONTROLS = ("vehicles", "agents", "sdc", "all")
MOVES = 1.0  # m; who is never farther from where it starts counts as standing


@dataclass(frozen=True)
class Casting:
    """How bodies get their parts.

    Attributes:
      agents: slots of learners A.
      bodies: slots of bodies N, the learners' among them.
      control: one of `CONTROLS`, who may learn.
      init_step: sample at which episodes start.
      min_goal_distance: m; who is nearer to its goal at that sample stands still.
      body_scale: factor on lengths and widths in the bank.
      last: last sample of episodes; goals that are the end of a recording lie there at the latest.
    """

    agents: int = 16
    bodies: int = 32
    control: str = "vehicles"
    init_step: int = 0
    min_goal_distance: float = 2.0
    body_scale: float = 1.0
    last: int = SAMPLES - 1


@dataclass(frozen=True)
class Cast:
    """Bodies of a scene by their parts.

    Attributes:
      learners: indices.
      scripted: indices.
      stands: `[n]` bool, who stands still.
      dropped: names of kinds of bodies that found no slot, and their numbers.
    """

    learners: np.ndarray
    scripted: np.ndarray
    stands: np.ndarray
    dropped: dict[str, int]

    @property
    def left_out(self) -> int:
        """Number of bodies that found no slot."""
        return sum(self.dropped.values())


def cast(scene: HostScene, casting: Casting) -> Cast:
    """Chooses learners and scripted bodies.

    Of those that may learn, the recording car comes first, then bodies to be predicted, then those that move.
    The other slots go to the others in this order, too, and among equals to those that come nearest to a
    learner. The scene's order decides what is left, and in which slots scripted bodies are. Bodies beyond
    the capacity are left out, those that are not recorded within the episode too.
    """
    start = casting.init_step
    away = np.hypot(*(goals(scene, casting) - _pose_at(scene, start)).T)
    stands = away < casting.min_goal_distance
    may = _controlled(scene, casting.control) & scene.valid[:, start]
    if casting.control != "all":
        may &= ~stands & ~scene.expert & ~overlapping(scene, start)
    bodies = np.arange(len(may))
    predicted, moves = np.isin(bodies, scene.predict), moving(scene, casting)
    order = np.lexsort((~moves, ~predicted, bodies != scene.sdc))
    learners = order[may[order]][: casting.agents]
    others = np.setdiff1d(np.flatnonzero(scene.valid[:, start : casting.last + 1].any(1)), learners)
    keys = nearness(scene, casting, learners), ~moves, ~predicted, bodies != scene.sdc
    ranked = others[np.lexsort([key[others] for key in keys])]
    room = casting.bodies - casting.agents
    stands[learners] = False
    out = ranked[room:]
    dropped = {
        "bodies to be predicted": int(predicted[out].sum()),
        "moving bodies": int((moves & ~predicted)[out].sum()),
        "standing bodies": int((~moves & ~predicted)[out].sum()),
    }
    return Cast(learners, np.sort(ranked[:room]), stands, dropped)


def goals(scene: HostScene, casting: Casting) -> np.ndarray:
    """`[n, 2]` goals; those that are the end of a recording, at the last valid sample of the episode."""
    if scene.recorded_goal is None:
        return scene.goal
    within = scene.valid[:, : casting.last + 1]
    cut = scene.recorded_goal & within.any(1) & scene.valid[:, casting.last + 1 :].any(1)
    at = casting.last - within[:, ::-1].argmax(1)
    there = np.take_along_axis(scene.position, at[:, None, None], axis=1)[:, 0]
    return np.where(cut[:, None], there, scene.goal)


def moving(scene: HostScene, casting: Casting) -> np.ndarray:
    """`[n]` bool: who is more than `MOVES` from where it starts at some sample of the episode."""
    first = _pose_at(scene, casting.init_step)
    inside = slice(casting.init_step, casting.last + 1)
    away = np.hypot(*np.moveaxis(scene.position[:, inside] - first[:, None], -1, 0))
    return ((away > MOVES) & scene.valid[:, inside]).any(1)


def nearness(scene: HostScene, casting: Casting, learners: np.ndarray) -> np.ndarray:
    """`[n]` least distance to a learner in the episode, m; inf for who is never there with one."""
    inside = slice(casting.init_step, casting.last + 1)
    position, valid = scene.position[:, inside], scene.valid[:, inside]
    least = np.full(len(valid), np.inf)
    for learner in learners:
        away = np.hypot(*np.moveaxis(position - position[learner], -1, 0))
        least = np.minimum(least, np.where(valid & valid[learner], away, np.inf).min(1))
    return least


def _controlled(scene: HostScene, control: str) -> np.ndarray:
    if control == "sdc":
        return np.arange(len(scene.type)) == scene.sdc
    return scene.type == VEHICLE if control == "vehicles" else np.ones(len(scene.type), bool)


def _pose_at(scene: HostScene, start: int) -> np.ndarray:
    """`[n, 2]` positions at a sample, of absent bodies where they next appear, or first."""
    samples = np.arange(scene.valid.shape[1])
    order = np.where(samples >= start, samples - start, samples + len(samples))
    first = np.where(scene.valid, order, np.iinfo(int).max).argmin(1)
    return np.take_along_axis(scene.position, first[:, None, None], axis=1)[:, 0]


def overlapping(scene: HostScene, sample: int, margin: float = 0.0) -> np.ndarray:
    """`[n]` bool: whose box, widened by `margin` in all, meets another's at a sample."""
    met = boxes_meet(
        scene.position[:, None, sample],
        scene.heading[:, None, sample],
        scene.size[:, None, :2] + margin,
        scene.position[None, :, sample],
        scene.heading[None, :, sample],
        scene.size[None, :, :2] + margin,
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
    """Whether boxes share a point; positions, sizes `[..., 2]` and headings `[...]` broadcast, in float64."""
    pose, pose_there = (
        (*np.moveaxis(at, -1, 0), angle) for at, angle in ((here, heading), (there, heading_there))
    )
    return overlap(pose, np.moveaxis(size, -1, 0), pose_there, np.moveaxis(size_there, -1, 0), xp=np)


def is_driven(scene: HostScene, who: Cast) -> np.ndarray:
    """`[n]` bool: bodies that a driver model may drive, those that neither stand nor walk."""
    return ~who.stands & (scene.type != PEDESTRIAN)
