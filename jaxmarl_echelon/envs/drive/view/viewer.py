"""Pictures of recorded evaluations of driving."""

from pathlib import Path

import jax
import numpy as np

from jaxmarl_echelon.envs import base
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.observing.layout import View
from jaxmarl_echelon.envs.drive.state import VEHICLE_ROLE
from jaxmarl_echelon.envs.drive.view.animation import save_gif
from jaxmarl_echelon.envs.drive.view.frames import Episode, snapshot
from jaxmarl_echelon.envs.drive.view.picture import save_picture
from jaxmarl_echelon.envs.drive.view.replay import save_replay

_PANELS = 6
_SHOWN = ("score", "collision", "offroad", "dnf")


class Viewer(base.Viewer):
    """Draws evaluations of one environment; see `jaxmarl_echelon.training.program.evaluation`.

    Attributes:
      snapshot: the function to record with.
    """

    snapshot = staticmethod(snapshot)

    def __init__(self, bank: SceneBank, view: View, steps: int, kinds: tuple[str, ...]):
        """Remembers what recordings leave out.

        Args:
          bank: the scenes.
          view: what learners are shown.
          steps: decisions of an episode.
          kinds: names of the kinds of scenes.
        """
        self.bank, self.view, self.steps, self.kinds = bank, view, steps, kinds

    def picture(self, path: Path, evaluation) -> None:
        """Draws the first episodes of an evaluation, one panel each, as a PNG."""
        shown = [self._episode(evaluation, index) for index in range(min(_PANELS, len(evaluation.length)))]
        there = np.asarray(evaluation.present[VEHICLE_ROLE])
        rates = [f"{name} {np.asarray(evaluation.results[name])[there].mean():.2f}" for name in _SHOWN]
        save_picture(path, shown, f"{len(evaluation.length)} episodes: {', '.join(rates)}")

    def animation(self, path: Path, evaluation, episode: int) -> None:
        """Draws one episode of an evaluation from above, as a GIF."""
        save_gif(path, self._episode(evaluation, episode))

    def replay(self, path: Path, evaluation, episode: int) -> None:
        """Writes one episode of an evaluation as a page to scrub, for any browser."""
        save_replay(path, self._episode(evaluation, episode))

    def _episode(self, evaluation, index: int) -> Episode:
        length = int(evaluation.length[index]) + 1
        frames = jax.tree.map(lambda x: np.asarray(x[:length, index]), evaluation.frames)
        kind = self.kinds[int(np.asarray(self.bank.kind)[frames.state.scene[0]])]
        return Episode(self.bank, self.view, self.steps, frames.state, kind)
