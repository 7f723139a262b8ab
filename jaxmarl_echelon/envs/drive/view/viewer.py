"""Pictures of recorded evaluations of driving."""

from pathlib import Path

import numpy as np

from jaxmarl_echelon.envs import base
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.observing.layout import ObservationConfig
from jaxmarl_echelon.envs.drive.state import VEHICLE_ROLE
from jaxmarl_echelon.envs.drive.view.animation import save_drive_gif
from jaxmarl_echelon.envs.drive.view.frames import DriveEpisode, take_drive_snapshot
from jaxmarl_echelon.envs.drive.view.picture import save_drive_picture
from jaxmarl_echelon.envs.drive.view.replay import save_drive_replay
from jaxmarl_echelon.envs.viewing.panels import choose_panels

_SHOWN = ("score", "collision", "offroad", "dnf")


class DriveViewer(base.Viewer):
    """Draws evaluations of one environment; see `jaxmarl_echelon.training.program.evaluation`.

    Attributes:
      snapshot: the function to record with.
    """

    snapshot = staticmethod(take_drive_snapshot)

    def __init__(self, bank: SceneBank, view: ObservationConfig, steps: int, kinds: tuple[str, ...]):
        """Stores the data that recordings do not contain.

        Args:
          bank: the scenes.
          view: configuration of the observations.
          steps: decisions of an episode.
          kinds: names of the kinds of scenes.
        """
        self.bank, self.view, self.steps, self.kinds = bank, view, steps, kinds

    def picture(self, path: Path, evaluation) -> None:
        """Draws the first episodes of an evaluation, one panel each, as a PNG."""
        self.picture_with(path, evaluation, None)

    def picture_with(self, path: Path, evaluation, episode: int | None) -> None:
        """Draws the first episodes of an evaluation and the chosen one, one panel each, as a PNG."""
        shown = {i: self._episode(evaluation, i) for i in choose_panels(len(evaluation.length), episode)}
        save_drive_picture(path, shown, describe_rates(evaluation), episode)

    def animation(self, path: Path, evaluation, episode: int) -> None:
        """Draws one episode of an evaluation from above, as a GIF."""
        save_drive_gif(path, self._episode(evaluation, episode))

    def replay(self, path: Path, evaluation, episode: int) -> None:
        """Writes one episode of an evaluation as an interactive page for any browser."""
        save_drive_replay(path, self._episode(evaluation, episode))

    def _episode(self, evaluation, index: int) -> DriveEpisode:
        frames = super()._episode(evaluation, index)
        kind = self.kinds[int(np.asarray(self.bank.kind)[frames.state.scene[0]])]
        return DriveEpisode(self.bank, self.view, self.steps, frames.state, frames.radius, kind)


def describe_rates(evaluation) -> str:
    """Returns the number of counted episodes and their rates over learners, without quarantined ones."""
    counted = ~np.asarray(evaluation.quarantined)
    there = np.asarray(evaluation.present[VEHICLE_ROLE]) & counted[:, None]
    if not there.any():
        return "0 episodes"
    rates = [f"{name} {np.asarray(evaluation.results[name])[there].mean():.2f}" for name in _SHOWN]
    return f"{counted.sum()} episodes: {', '.join(rates)}"
