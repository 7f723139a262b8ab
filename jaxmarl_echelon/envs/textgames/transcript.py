"""Games as text: what was played, move by move."""

import jax
import numpy as np

from jaxmarl_echelon.envs.base import Viewer
from jaxmarl_echelon.envs.textgames.rules import Rules


class GameViewer(Viewer):
    """Prints recorded games; draws no pictures."""

    draws, tells = False, True

    def __init__(self, rules: Rules):
        self.rules = rules

    @staticmethod
    def snapshot(state, params, time):
        """The state of the game and the scores, recorded after every ply."""
        del params
        (scores,) = time.reward.values()
        return {"state": state, "over": time.over, "scores": scores}

    def text(self, evaluation, episode: int) -> str:
        """One recorded game, move by move; see `Viewer.text`."""
        frames = jax.tree.map(lambda x: np.asarray(x)[:, episode], evaluation.frames)
        length = int(evaluation.length[episode])
        state = [jax.tree.map(lambda x, ply=ply: x[ply], frames["state"]) for ply in range(length + 1)]
        (present,) = (np.asarray(flag)[episode] for flag in evaluation.present.values())
        scored = ", ".join(str(seat) for seat in np.flatnonzero(present))
        lines = [f"evaluated: seat {scored}", self.rules.text(state[0].game)]
        for ply in range(1, length + 1):
            seat, move = (ply - 1) % self.rules.seats, state[ply].move
            done = "passes" if np.all(move < 0) else f"plays {self.rules.answer(move)}"
            wrong = ", which is illegal" if state[ply].offender >= 0 else ""
            lines += [f"{ply}. seat {seat} {done}{wrong}", self.rules.text(state[ply].game)]
        scores = ", ".join(f"seat {seat} {score:+g}" for seat, score in enumerate(frames["scores"][length]))
        return "\n".join([*lines, f"scores: {scores}"])
