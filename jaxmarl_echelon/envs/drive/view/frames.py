"""Recorded states of an evaluation: one decision, and one episode on the host."""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.drive import rules
from jaxmarl_echelon.envs.drive.bank import SceneBank, scene_at
from jaxmarl_echelon.envs.drive.observing.layout import ObservationConfig
from jaxmarl_echelon.envs.drive.observing.observe import observe_learners
from jaxmarl_echelon.envs.drive.state import DT, DriveState

SCORED, COLLISION, OFFROAD, UNFINISHED = "scored", "collision", "off-road", "unfinished"
OUTCOMES = (SCORED, COLLISION, OFFROAD, UNFINISHED)


class DriveFrame(struct.PyTreeNode):
    """State of an episode at one decision; pages recompute observations from it.

    Attributes:
      state: of the environment.
      radius: of the learners' goals, `[A]`, m.
    """

    state: DriveState
    radius: jax.Array


def take_drive_snapshot(state: DriveState, params, time) -> DriveFrame:
    """Records the state of one decision."""
    del time
    return DriveFrame(state, jnp.broadcast_to(rules.select_goal_radius(state, params), state.alive.shape))


@dataclass(frozen=True)
class DriveEpisode:
    """One recorded episode; T frames, N bodies, of which the first A are slots of learners.

    Attributes:
      bank: the scenes.
      view: configuration of the observations.
      steps: decisions of an episode.
      states: leaves `[T, ...]`.
      radius: of the learners' goals, `[T, A]`, m.
      kind: name of the scene's kind.
    """

    bank: SceneBank
    view: ObservationConfig
    steps: int
    states: DriveState
    radius: np.ndarray
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
        """Number of learners' slots."""
        return self.states.alive.shape[1]

    @property
    def learners(self) -> np.ndarray:
        """Slots filled by learners."""
        return np.flatnonzero(self.scene.learner)

    @property
    def pose(self) -> np.ndarray:
        """Poses `[T, N, 3]`."""
        motion = self.states.motion
        return np.stack([motion.x, motion.y, motion.heading], axis=-1)

    @cached_property
    def outcome(self) -> list[str]:
        """Outcome of the first attempt of each slot, one of `OUTCOMES`."""
        record = jax.tree.map(lambda x: x[-1], self.states.record)
        columns = zip(record.collided, record.left_road, record.reached, strict=True)
        return [
            COLLISION if hit else OFFROAD if out else SCORED if there else UNFINISHED
            for hit, out, there in columns
        ]

    @cached_property
    def observations(self) -> np.ndarray:
        """Observations `[T, A, F]`, recomputed from the states."""
        see = jax.jit(
            jax.vmap(lambda bank, state: observe_learners(self.view, bank, state, self.steps), (None, 0))
        )
        return np.asarray(see(self.bank, self.states))

    @property
    def events(self) -> list[tuple[float, int, str]]:
        """Events as time in s, slot and name: goals, collisions, departures from the road."""
        found = []
        conditions = (
            ("goal", np.diff(self.states.record.goals, axis=0, prepend=0) > 0),
            ("collision", np.diff(self.states.record.collision_events, axis=0, prepend=0) > 0),
            ("off the road", np.diff(self.states.record.offroad_events, axis=0, prepend=0) > 0),
        )
        for what, happened in conditions:
            found += [(round(int(step) * DT, 2), int(slot), what) for step, slot in np.argwhere(happened)]
        return sorted(found)
