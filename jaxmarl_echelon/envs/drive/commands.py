"""Actions of vehicles: grids of accelerations and steering angles or of jerks, or continuous values.

Scripts may delegate a learner to the environment: actions outside the space, written by `delegate_to`, move
it along its recording or by the intelligent driver model. Reference: docs/reference/drive.md 6.1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.spaces import Box, Discrete, MultiDiscrete, Space

KINDS = ("discrete", "factored", "continuous")
ACCELERATIONS = np.float32([-4.0, -2.667, -1.333, 0.0, 1.333, 2.667, 4.0])
STEERING = np.float32([-1.0, -0.833, -0.667, -0.5, -0.333, -0.167, 0.0, 0.167, 0.333, 0.5, 0.667, 0.833, 1.0])
LONGITUDINAL_JERK = np.float32([-15.0, -4.0, 0.0, 4.0])
LATERAL_JERK = np.float32([-4.0, 0.0, 4.0])
POLICY, REPLAY, IDM = range(3)


class Commands(NamedTuple):
    """Decoded actions of learners in a step.

    Attributes:
      first: `[A]` acceleration, m/s^2, or longitudinal jerk, m/s^3.
      second: `[A]` steering angle, rad, or lateral jerk, m/s^3.
      mover: `[A]` int32; source of the learner's motion: POLICY, REPLAY or IDM.
    """

    first: jax.Array
    second: jax.Array
    mover: jax.Array


class Actions(NamedTuple):
    """Action space of one kind for one kind of dynamics.

    Attributes:
      kind: one of `KINDS`.
      jerk: whether actions are jerks.
    """

    kind: str
    jerk: bool

    @property
    def grids(self) -> tuple[np.ndarray, np.ndarray]:
        """Values of the first and of the second number."""
        return (LONGITUDINAL_JERK, LATERAL_JERK) if self.jerk else (ACCELERATIONS, STEERING)

    @property
    def space(self) -> Space:
        """The action space."""
        sizes = tuple(len(grid) for grid in self.grids)
        if self.kind == "discrete":
            return Discrete(sizes[0] * sizes[1])
        return MultiDiscrete(sizes) if self.kind == "factored" else Box((2,), -1.0, 1.0)

    def read(self, actions: jax.Array) -> Commands:
        """Decodes actions `[A, ...]`, of the space or from `delegate_to`, into commands."""
        first, second = self.grids
        if self.kind == "continuous":
            # Only these very numbers: others beyond the space are commands to be clipped.
            mover = sum(jnp.where(actions[:, 0] == one + 1, one, POLICY) for one in (REPLAY, IDM))
            given = jnp.clip(actions, -1.0, 1.0)
            backward, forward = abs(first[0]), first[-1]
            along = given[:, 0] * jnp.where(given[:, 0] < 0, backward, forward)
            return Commands(along, given[:, 1] * second[-1], mover.astype(jnp.int32))
        if self.kind == "discrete":
            beyond, row, column = (
                len(first) * len(second),
                actions // len(second),
                actions % len(second),
            )
            mover = actions - beyond + 1
        else:
            beyond, row, column = len(first), actions[:, 0], actions[:, 1]
            mover = row - beyond + 1
        mover = jnp.clip(mover, POLICY, IDM)
        given = (mover == POLICY)[..., None] & (row[..., None] == np.arange(len(first)))
        # Sums over the grid: gathers of single numbers are slow on a CPU.
        along = jnp.sum(jnp.where(given, first, 0.0), axis=-1)
        across = jnp.sum(jnp.where(column[..., None] == np.arange(len(second)), second, 0.0), axis=-1)
        return Commands(along, across, mover.astype(jnp.int32))

    def idle(self, agents: int) -> jax.Array:
        """Returns actions that neither accelerate nor steer."""
        first, second = (int(np.flatnonzero(grid == 0)[0]) for grid in self.grids)
        if self.kind == "continuous":
            return jnp.zeros((agents, 2))
        if self.kind == "factored":
            return jnp.broadcast_to(jnp.array([first, second], jnp.int32), (agents, 2))
        return jnp.full(agents, first * len(self.grids[1]) + second, jnp.int32)

    def delegate_to(self, mover: int, agents: int) -> jax.Array:
        """Returns actions outside the space that delegate motion to `mover`, REPLAY or IDM."""
        if self.kind == "continuous":
            return jnp.broadcast_to(jnp.array([mover + 1.0, 0.0]), (agents, 2))
        if self.kind == "factored":
            row = jnp.array([len(self.grids[0]) + mover - 1, 0], jnp.int32)
            return jnp.broadcast_to(row, (agents, 2))
        return jnp.full(agents, self.space.n + mover - 1, jnp.int32)
