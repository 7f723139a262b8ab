"""Viewer of cars: a picture of several episodes, an animation and a replay of one."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from jaxmarl_echelon.envs import base
from jaxmarl_echelon.envs.f110.view.animation import save_car_gif
from jaxmarl_echelon.envs.f110.view.frames import RecordedDrive, take_car_snapshot
from jaxmarl_echelon.envs.f110.view.picture import save_chase_picture, save_race_picture
from jaxmarl_echelon.envs.f110.view.replay import save_car_replay
from jaxmarl_echelon.envs.viewing.panels import choose_panels
from physics.gridmap import OccupancyMap


class F110Viewer(base.Viewer):
    """Renderer of one environment's evaluations; see `jaxmarl_echelon.training.program.evaluation`.

    Attributes:
      snapshot: the function to record with.
    """

    snapshot = staticmethod(take_car_snapshot)

    def __init__(
        self, maps: Sequence[OccupancyMap], outcomes: Sequence[str], simulation, roles: Sequence[str] = ()
    ):
        """Stores the static data that recordings do not contain.

        Args:
          maps: the maps, as loaded.
          outcomes: names of the outcome codes.
          simulation: the cars' physics and sensing.
          roles: names of the cars; empty for a race, in which cars have numbers and laps are counted.
        """
        self.maps, self.outcomes, self.simulation = maps, tuple(outcomes), simulation
        self.roles = tuple(roles)

    def picture(self, path: Path, evaluation) -> None:
        """Draws the episodes of an evaluation."""
        self.picture_with(path, evaluation, None)

    def picture_with(self, path: Path, evaluation, episode: int | None) -> None:
        """Draws episodes with one of them among those shown; of a chase, those on the same map as it."""
        numbers = np.arange(len(evaluation.length))
        if self.roles:
            maps = np.asarray(evaluation.frames.map_index[0])
            numbers = np.flatnonzero(maps == maps[episode or 0])
        episodes = [self._episode(evaluation, int(number)) for number in numbers]
        chosen = None if episode is None else int(np.flatnonzero(numbers == episode)[0])
        save = save_chase_picture if self.roles else save_race_picture
        save(path, episodes, choose_panels(len(episodes), chosen), chosen)

    def animation(self, path: Path, evaluation, episode: int) -> None:
        """Draws one episode of an evaluation, as a GIF."""
        save_car_gif(path, self._episode(evaluation, episode), self.simulation.lidar.angles)

    def replay(self, path: Path, evaluation, episode: int) -> None:
        """Writes one episode of an evaluation as an interactive page for any browser."""
        save_car_replay(path, self._episode(evaluation, episode), self.simulation.lidar.angles)

    def _episode(self, evaluation, index: int) -> RecordedDrive:
        frames = super()._episode(evaluation, index)
        place, outcome = int(frames.map_index[0]), int(evaluation.results["outcome"][index])
        race = not self.roles
        return RecordedDrive(
            number=index,
            frames=jax.tree.map(np.asarray, frames),
            grid=self.maps[place],
            outcome=self.outcomes[outcome] if outcome >= 0 else "running",
            names=tuple(f"car {car}" for car in range(frames.pose.shape[1])) if race else self.roles,
            dt=self.simulation.dt,
            lap=float(self.simulation.bank.centerline_length[place]) if race else 0.0,
        )
