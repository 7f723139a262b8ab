"""What is recorded of a decision, and one recorded episode on the host."""

from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.drive.bank import SceneBank, scene_at
from jaxmarl_echelon.envs.drive.observing.layout import View
from jaxmarl_echelon.envs.drive.observing.observe import observe
from jaxmarl_echelon.envs.drive.state import DT, DriveState

SCORED, COLLISION, OFFROAD, UNFINISHED = "scored", "collision", "off-road", "unfinished"
OUTCOMES = (SCORED, COLLISION, OFFROAD, UNFINISHED)


@struct.dataclass
class Frame:
    """A moment of an episode: all of its state, from which pages compute observations again."""

    state: DriveState


def snapshot(state: DriveState, params, time) -> Frame:
    """Records a moment."""
    del params, time
    return Frame(state)


@dataclass(frozen=True)
class Episode:
    """One recorded episode; T frames, N bodies, of which the first A are slots of learners.

    Attributes:
      bank: the scenes.
      view: what learners are shown.
      steps: decisions of an episode.
      states: leaves `[T, ...]`.
      kind: name of the scene's kind.
    """

    bank: SceneBank
    view: View
    steps: int
    states: DriveState
    kind: str

    @cached_property
    def scene(self) -> SceneBank:
        """The scene on the host, arrays without the axis S."""
        return jax.tree.map(np.asarray, scene_at(self.bank, int(self.states.scene[0])))

    @property
    def last(self) -> int:
        """Index of the last frame."""
        return len(self.states.step) - 1

    @property
    def agents(self) -> int:
        """Slots of learners."""
        return self.states.alive.shape[1]

    @property
    def learners(self) -> np.ndarray:
        """Slots that learners fill."""
        return np.flatnonzero(self.scene.learner)

    @property
    def pose(self) -> np.ndarray:
        """`[T, N, 3]`."""
        motion = self.states.motion
        return np.stack([motion.x, motion.y, motion.heading], axis=-1)

    @cached_property
    def outcome(self) -> list[str]:
        """How the first attempt of each slot went, one of `OUTCOMES`."""
        record = jax.tree.map(lambda x: x[-1], self.states.record)
        columns = zip(record.collided, record.left_road, record.reached, strict=True)
        return [
            COLLISION if hit else OFFROAD if out else SCORED if there else UNFINISHED
            for hit, out, there in columns
        ]

    @cached_property
    def observations(self) -> np.ndarray:
        """`[T, A, F]`, computed again from the states."""
        see = jax.jit(jax.vmap(lambda bank, state: observe(self.view, bank, state, self.steps), (None, 0)))
        return np.asarray(see(self.bank, self.states))

    @property
    def events(self) -> list[tuple[float, int, str]]:
        """Seconds, slot and what happened: goals, contacts, departures from the road."""
        found = []
        conditions = (
            ("goal", np.diff(self.states.record.goals, axis=0, prepend=0) > 0),
            ("collision", np.diff(self.states.record.collision_events, axis=0, prepend=0) > 0),
            ("off the road", np.diff(self.states.record.offroad_events, axis=0, prepend=0) > 0),
        )
        for what, happened in conditions:
            found += [(round(int(step) * DT, 2), int(slot), what) for step, slot in np.argwhere(happened)]
        return sorted(found)
