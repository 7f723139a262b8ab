"""Which bodies of a scene learn, which are scripted, and in which order they fill the slots."""

from dataclasses import dataclass

import numpy as np

from jaxmarl_echelon.envs.drive.codes import PEDESTRIAN, VEHICLE
from jaxmarl_echelon.envs.drive.scenes.host import HostScene
from physics.boxes import overlap

CONTROLS = ("vehicles", "agents", "sdc", "all")


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
    """

    agents: int = 16
    bodies: int = 32
    control: str = "vehicles"
    init_step: int = 0
    min_goal_distance: float = 2.0
    body_scale: float = 1.0


@dataclass(frozen=True)
class Cast:
    """Bodies of a scene by their parts: indices of learners, of scripted ones, and who stands, `[n]` bool.

    `left_out` bodies found no slot.
    """

    learners: np.ndarray
    scripted: np.ndarray
    stands: np.ndarray
    left_out: int


def cast(scene: HostScene, casting: Casting) -> Cast:
    """Chooses learners and scripted bodies (spec/drive.md, decisions 1 to 4).

    The recording car comes first, then bodies in the scene's order; scripted bodies beyond the capacity are
    left out, those that are never recorded too.
    """
    start = casting.init_step
    away = np.hypot(*(scene.goal - _pose_at(scene, start)).T)
    stands = away < casting.min_goal_distance
    may = _controlled(scene, casting.control) & scene.valid[:, start]
    if casting.control != "all":
        may &= ~stands & ~scene.expert & ~overlapping(scene, start)
    first = np.argsort(np.arange(len(may)) != scene.sdc, kind="stable")
    learners = first[may[first]][: casting.agents]
    others = np.setdiff1d(np.flatnonzero(scene.valid.any(1)), learners)
    room = casting.bodies - casting.agents
    stands[learners] = False
    return Cast(learners, others[:room], stands, max(0, len(others) - room))


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
