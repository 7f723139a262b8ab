"""Text transcripts of recorded games, move by move."""

from typing import Any

import jax
import numpy as np

from jaxmarl_echelon.envs.base import Viewer
from jaxmarl_echelon.envs.textgames.rules import GameRules


class GameViewer(Viewer):
    """Viewer that formats recorded games as text and draws no pictures."""

    draws, tells = False, True

    def __init__(self, rules: GameRules):
        self.rules = rules

    @staticmethod
    def snapshot(state, params, time):
        """Selects the game's state and scores, recorded after every ply."""
        del params
        (scores,) = time.reward.values()
        return {"state": state, "over": time.over, "scores": scores}

    def text(self, evaluation, episode: int) -> str:
        """Formats one recorded game, move by move; see `Viewer.text`."""
        states, scored, scores = self._game(evaluation, episode)
        lines = [f"evaluated: seat {scored}", self.rules.text(states[0].game)]
        for ply, state in enumerate(states[1:], 1):
            seat = (ply - 1) % self.rules.seats
            wrong = ", which is illegal" if state.offender >= 0 else ""
            lines += [f"{ply}. seat {seat} {self._done(state.move)}{wrong}", self.rules.text(state.game)]
        scores = ", ".join(f"seat {seat} {score:+g}" for seat, score in enumerate(scores))
        return "\n".join([*lines, f"scores: {scores}"])

    def row(self, evaluation, episode: int) -> dict[str, str]:
        """Formats one recorded game as a table row; see `Viewer.row`."""
        states, scored, scores = self._game(evaluation, episode)
        moves = (self.rules.answer(state.move) for state in states[1:] if not np.all(state.move < 0))
        return {
            "seat": scored,
            "start": " / ".join(self.rules.text(states[0].game).splitlines()),
            "moves": " ".join(moves),
            "scores": " ".join(f"{score:+g}" for score in scores),
        }

    def _done(self, move: np.ndarray) -> str:
        return "passes" if np.all(move < 0) else f"plays {self.rules.answer(move)}"

    def _game(self, evaluation, episode: int) -> tuple[list[Any], str, np.ndarray]:
        """Extracts a recorded game: its states from the start, the evaluated seats, and the final scores."""
        frames = self._episode(evaluation, episode)
        length = len(frames["over"]) - 1
        states = [jax.tree.map(lambda x, ply=ply: x[ply], frames["state"]) for ply in range(length + 1)]
        (present,) = (np.asarray(flag)[episode] for flag in evaluation.present.values())
        scored = ", ".join(str(seat) for seat in np.flatnonzero(present))
        return states, scored, frames["scores"][length]
