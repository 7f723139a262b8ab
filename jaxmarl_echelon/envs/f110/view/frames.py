"""Recorded states of an evaluation with cars: one decision, and one episode on the host."""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.f110.cars.simulation import STEER, poses_of
from physics.gridmap import OccupancyMap


@struct.dataclass
class CarFrame:
    """Recorded state of an episode of N cars at one decision.

    Attributes:
      pose: `[N, 3]` x, y (m), heading (rad).
      steer: `[N]` steering angles, rad.
      progress: `[N]` distances driven along the centreline, m; zeros where nothing needs them.
      scan: `[B]` float16 ranges of car 0, m.
      size: `[2]` length and width of a car, m.
      map_index: int32.
      step: int32, physics steps since the start.
    """

    pose: jax.Array
    steer: jax.Array
    progress: jax.Array
    scan: jax.Array
    size: jax.Array
    map_index: jax.Array
    step: jax.Array


def take_car_snapshot(state, params, time=None) -> CarFrame:
    """Returns the frame of a state that pictures need; pure, for use inside jit."""
    del time
    return CarFrame(
        pose=poses_of(state.cars.state),
        steer=state.cars.state[:, STEER],
        progress=state.track.progress,
        scan=state.cars.scan[0].astype(jnp.float16),
        size=jnp.stack([params.car.length, params.car.width]),
        map_index=state.map_index,
        step=state.step,
    )


@dataclass(frozen=True)
class RecordedDrive:
    """One recorded episode of N cars, with T frames.

    Attributes:
      number: index of the episode in its evaluation.
      frames: leaves `[T, ...]`, as NumPy arrays.
      grid: the map.
      outcome: name of the outcome.
      names: of the cars.
      dt: seconds per physics step.
      lap: length of a lap, m; 0 where laps are not counted.
    """

    number: int
    frames: CarFrame
    grid: OccupancyMap
    outcome: str
    names: tuple[str, ...]
    dt: float
    lap: float = 0.0

    @property
    def last(self) -> int:
        """Index of the last frame."""
        return len(self.frames.step) - 1

    @property
    def size(self) -> np.ndarray:
        """Length and width of a car, m."""
        return self.frames.size[0]

    @property
    def is_race(self) -> bool:
        """Whether the cars have equal tasks, and laps are counted."""
        return self.lap > 0

    @cached_property
    def seconds(self) -> np.ndarray:
        """Times `[T]`, s."""
        return self.frames.step * self.dt

    @cached_property
    def speed(self) -> np.ndarray:
        """Mean speeds `[T, N]` since the frame before, m/s; those of the first frame equal the second's."""
        if self.last == 0:
            return np.zeros(self.frames.steer.shape)
        distance = np.linalg.norm(np.diff(self.frames.pose[..., :2], axis=0), axis=-1)
        passed = np.maximum(np.diff(self.seconds), 1e-9)
        speed = distance / passed[:, None]
        return np.concatenate([speed[:1], speed])

    @cached_property
    def completed_laps(self) -> np.ndarray:
        """Laps `[T, N]` that each car has completed; zeros without laps."""
        return np.floor(np.maximum(self.frames.progress, 0.0) / (self.lap or np.inf)).astype(int)

    def describe(self) -> str:
        """Returns the outcome, the time, and the laps of a race: "timeout, 30.0 s, 2 laps"."""
        words = [self.outcome.replace("_", " "), f"{self.seconds[-1]:.1f} s"]
        if self.is_race:
            laps = int(self.completed_laps[-1].max())
            words.append(f"{laps} {'lap' if laps == 1 else 'laps'}")
        return ", ".join(words)
