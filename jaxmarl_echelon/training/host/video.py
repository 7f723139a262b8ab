"""Animations of evaluations in training: the first episode, played again with its frames recorded."""

from collections.abc import Iterable
from pathlib import Path

import jax

from algos import compiler
from jaxmarl_echelon.envs.viewing.gif import limit_gif
from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host.run_record import RunRecord
from jaxmarl_echelon.training.program.program import Program

FOLDER = "videos"
# Name of the animation in the sinks.
SHOWN = "evaluation/episode_1"
MOST_FRAMES, MOST_PIXELS, MOST_BYTES = 200, 640, 2_000_000


class EpisodeVideos:
    """Writes an animation of the first episode of every N-th evaluation, and hands it to the sinks.

    The episode is played again by a program of its own, which is compiled when the first animation is due, so
    that training and evaluations stay the programs that they are. Without `video_every` nothing happens.

    Args:
      config: the run; of a group, any member.
      program: its program.
    """

    def __init__(self, config: RunConfig, program: Program):
        self._config, self._program = config, program
        self._every = config.video_every
        self._play = compiler.jit_evaluation(self._play_first)

    def _play_first(self, run: RunState, key, world):
        snapshot = self._program.env.viewer.snapshot
        return self._program.evaluate(run, key, record=snapshot, episodes=1, world=world)

    def due(self, updates: int) -> bool:
        """Whether the evaluation after this many updates is shown: the first, every N-th, the last."""
        if self._every is None:
            return False
        return updates % (self._every * self._config.eval_every) == 0 or updates == self._config.updates

    def write(self, runs: Iterable[tuple[RunRecord, RunState]]) -> None:
        """Writes an animation per run to `videos/` in its folder.

        A viewer that fails is reported in one line, and no animation is tried again.

        Args:
          runs: records, and states reduced to their policies (`Program.policy`).
        """
        for record, state in runs:
            key = stream_key(record.config.seed, Stream.EVALUATION)
            played = jax.device_get(self._play(state, key, self._program.world))
            try:
                path = self._draw(record, played)
            except Exception as error:
                self._every = None
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                record.tracker.warn(record.step, f"video_every: disabled, the viewer failed ({reason})")
                return
            record.tracker.media(record.step, SHOWN, path)

    def _draw(self, record: RunRecord, played) -> Path:
        path = record.folder / FOLDER / f"step_{record.step}.gif"
        path.parent.mkdir(exist_ok=True)
        self._program.env.viewer.animation(path, played, 0)
        limit_gif(path, MOST_FRAMES, MOST_PIXELS, MOST_BYTES)
        return path
