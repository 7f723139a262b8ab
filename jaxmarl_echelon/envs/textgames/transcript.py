"""Text transcripts and replay pages of recorded games, move by move."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmarl_echelon.envs.base import Viewer
from jaxmarl_echelon.envs.textgames.rules import GameRules
from jaxmarl_echelon.envs.viewing.pages import PageParts, write_page
from jaxmarl_echelon.language.language import Language

NO_ANSWER = "[?]"
PAGE = PageParts(
    __package__,
    ("recording", "view"),
    stage="""  <p id="move"></p>
  <pre id="position"></pre>""",
    panel='  <h1 id="caption"></h1>',
    help="Click a move: show the position after it.",
)


class GameViewer(Viewer):
    """Viewer that formats recorded games as text and as pages, and draws no pictures."""

    draws, tells = False, True

    def __init__(self, rules: GameRules, observe: Callable | None = None, language: Language | None = None):
        """Builds the viewer.

        Args:
          rules: the game.
          observe: `(game, seat) -> prompt` where observations are prompts.
          language: of the prompts; None where observations are numbers.
        """
        self.rules, self.observe, self.language = rules, observe, language

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
        spoken = self._spoken(evaluation, episode, states, scored)
        for ply, (move, state) in enumerate(zip(self._moves(states), states[1:], strict=True)):
            if ply in spoken:
                prompt, answer = spoken[ply]
                lines += [f"   prompt {prompt!r}", f"   answer {answer!r}"]
            lines += [move, self.rules.text(state.game)]
        return "\n".join([*lines, _scores(scores)])

    def replay(self, path: Path, evaluation, episode: int) -> None:
        """Writes one recorded game as an interactive page for any browser."""
        states, scored, scores = self._game(evaluation, episode)
        moves = ["", *self._moves(states)]
        recording = {
            "period": 1.0,
            "caption": f"{self.rules.name}, evaluated: seat {scored}",
            "positions": [self.rules.text(state.game) for state in states],
            "moves": moves,
            "scores": _scores(scores),
            "events": [[ply, -1, move.split(". ", 1)[1]] for ply, move in enumerate(moves) if ply],
        }
        write_page(path, f"{self.rules.name}: {_scores(scores)}", recording, PAGE)

    def row(self, evaluation, episode: int) -> dict[str, str]:
        """Formats one recorded game as a table row; see `Viewer.row`."""
        states, scored, scores = self._game(evaluation, episode)
        moves = (self._said(state) for state in states[1:] if not _is_forced(state))
        return {
            "seat": scored,
            "start": " / ".join(self.rules.text(states[0].game).splitlines()),
            "moves": " ".join(moves),
            "scores": " ".join(f"{score:+g}" for score in scores),
            **self._columns(self._spoken(evaluation, episode, states, scored)),
        }

    def _columns(self, spoken: dict[int, tuple[str, str]]) -> dict[str, str]:
        """Columns with the prompts and raw answers of the evaluated seats, as JSON lists."""
        if self.language is None:
            return {}
        prompts, answers = zip(*spoken.values(), strict=True) if spoken else ((), ())
        return {"prompts": json.dumps(prompts), "answers": json.dumps(answers)}

    def _spoken(self, evaluation, episode: int, states: list[Any], scored: str) -> dict[int, tuple[str, str]]:
        """Prompt and raw answer of each decision of the evaluated seats, by ply from 0."""
        frames = evaluation.frames
        if self.language is None or self.observe is None or "said" not in frames:
            return {}
        decode, found = self.language.tokenizer.decode, {}
        for ply, state in enumerate(states[1:]):
            seat = ply % self.rules.seats
            if str(seat) in scored.split(", ") and not _is_forced(state):
                prompt = np.asarray(self.observe(states[ply].game, seat))
                said = np.asarray(frames["said"][ply + 1, episode])
                found[ply] = decode(prompt), decode(said[said >= 0])
        return found

    def _moves(self, states: list[Any]) -> list[str]:
        """Returns the moves in words: "3. seat 0 plays 5"."""
        moves = []
        for ply, state in enumerate(states[1:], 1):
            moves.append(f"{ply}. seat {(ply - 1) % self.rules.seats} {self._done(state)}")
        return moves

    def _done(self, state: Any) -> str:
        if _is_forced(state):
            return "passes"
        wrong = ", which is illegal" if state.offender >= 0 else ""
        return f"plays {self._said(state)}{wrong}"

    def _said(self, state: Any) -> str:
        """Returns the last action as text; `NO_ANSWER` if it is none of the game."""
        known = bool(self.rules.space.contains(np.asarray(state.move)))
        return self.rules.answer(state.move) if known else NO_ANSWER

    def _game(self, evaluation, episode: int) -> tuple[list[Any], str, np.ndarray]:
        """Extracts a recorded game: its states from the start, the evaluated seats, and the final scores."""
        frames = self._episode(evaluation, episode)
        length = len(frames["over"]) - 1
        states = [jax.tree.map(lambda x, ply=ply: x[ply], frames["state"]) for ply in range(length + 1)]
        (present,) = (np.asarray(flag)[episode] for flag in evaluation.present.values())
        scored = ", ".join(str(seat) for seat in np.flatnonzero(present))
        return states, scored, frames["scores"][length]


def _is_forced(state: Any) -> bool:
    """Whether no seat decided at the last ply."""
    return bool(np.all(state.move < 0) and state.offender < 0)


def _scores(scores: np.ndarray) -> str:
    return "scores: " + ", ".join(f"seat {seat} {score:+g}" for seat, score in enumerate(scores))
