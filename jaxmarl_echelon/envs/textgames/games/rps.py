"""Rock, paper, scissors over one or several rounds, with configurable points per win."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import FULL, TERSE, GameRules, one_hot
from jaxmarl_echelon.envs.textgames.wording import join_values, number_values, offer_options, spell_number
from jaxmarl_echelon.language.prompts import PromptPlace

PICKS = ("rock", "paper", "scissors")
LETTERS = "rps"


class State(struct.PyTreeNode):
    """A match.

    Attributes:
      picked: int32 pick of the first seat in this round, hidden from the second; -1 before it.
      last: `[2]` int32 picks of the previous round by seat; -1 in the first.
      points: `[2]` float32 points so far.
      rounds: int32 number of rounds played.
    """

    picked: jax.Array
    last: jax.Array
    points: jax.Array
    rounds: jax.Array


@take_defaults_from("env/textgames/rps")
class RockPaperScissors(GameRules):
    """Rock, paper, scissors: seats pick without seeing each other's pick; the winning pick scores its points.

    More points win the match. Seats observe, own side first, points and picks of the previous round, then the
    rounds played and their seat.

    Args:
      rounds: number of rounds of a match.
      worth: points of a round won with rock, paper and scissors.
      margin: whether scores are differences of points instead of 1, 0, -1.
    """

    name = "rps"
    space = Discrete(3)
    features = 2 + 6 + 1 + 2
    hidden = True

    def __init__(self, rounds: int = FROM_FILE, worth: Sequence[float] = FROM_FILE, margin: bool = FROM_FILE):
        self.rounds = settings.read_whole("rounds", rounds, 1, 1000)
        self.worth = settings.read_numbers("worth", worth, 3, 0.0)
        self.margin = settings.read_switch("margin", margin)
        self.plies = 2 * self.rounds
        self.stakes = (self.rounds * max(self.worth) or 1.0) if self.margin else 0.0

    def init(self, key):
        """See `GameRules`."""
        del key
        return State(jnp.int32(-1), jnp.full(2, -1, jnp.int32), jnp.zeros(2), jnp.int32(0))

    def turn(self, state):
        """See `GameRules`."""
        return (state.picked >= 0).astype(jnp.int32)

    def over(self, state):
        """See `GameRules`."""
        return state.rounds == self.rounds

    def scores(self, state):
        """See `GameRules`."""
        ahead = state.points - state.points[::-1]
        return ahead if self.margin else jnp.sign(ahead)

    def legal(self, state):
        """See `GameRules`."""
        del state
        return jnp.ones(3, bool)

    def apply(self, key, state, action):
        """See `GameRules`."""
        del key
        picks = jnp.stack([state.picked, action])
        beats = (picks - picks[::-1]) % 3 == 1
        second = state.picked >= 0
        points = state.points + jnp.where(second & beats, jnp.asarray(self.worth)[picks], 0.0)
        return State(
            picked=jnp.where(second, -1, action).astype(jnp.int32),
            last=jnp.where(second, picks, state.last).astype(jnp.int32),
            points=points,
            rounds=state.rounds + second,
        )

    def observe(self, state, seat):
        """See `GameRules`."""
        order = jnp.stack([seat, 1 - seat])
        most = self.rounds * max(*self.worth, 1e-6)
        progress = state.rounds[None] / self.rounds
        return jnp.concatenate(
            [state.points[order] / most, one_hot(state.last[order], 3), progress, one_hot(seat, 2)]
        )

    def text(self, state):
        """See `GameRules`."""
        shown = "" if state.last[0] < 0 else " - ".join(PICKS[pick] for pick in np.asarray(state.last))
        return f"{state.points[0]:g} : {state.points[1]:g}  {shown}".rstrip()

    def answer(self, action):
        """See `GameRules`."""
        return f"[{LETTERS[int(action)]}]"

    def phrase(self, style, option):
        """See `GameRules`."""
        return f"[{PICKS[option]}]" if style == FULL else self.answer(option)

    def values(self, state, seat):
        """See `GameRules`."""
        order = jnp.stack([seat, 1 - seat])
        last = jnp.where(state.last < 0, len(LETTERS), state.last)[order]
        points = jnp.round(state.points[order])
        return join_values(seat, points, state.rounds, last, self.own_options(state, seat))

    def template(self, style, show_legal=True):
        """See `GameRules`."""
        self._require_digits(style)
        (seat,), points, (rounds,), last, legal = number_values(1, 2, 1, 2, 3)
        most = int(self.rounds * max(self.worth))
        player = PromptPlace("seat", seat, ("0", "1"))
        own, other = (spell_number("points", index, most) for index in points)
        played = spell_number("rounds", rounds, self.rounds)
        picks = [PromptPlace("pick", index, (*LETTERS, ".")) for index in last]
        if style == TERSE:
            return ("P", player, ":", *own, *other, *played, *picks, ">")
        worth = ", ".join(f"{value:g} with {pick}" for value, pick in zip(self.worth, PICKS, strict=True))
        return (
            f"Rock, paper, scissors, number of rounds {self.rounds}: rock beats scissors, scissors beat "
            f"paper, paper beats rock. A round is won for points ({worth}), and more points win.\n"
            "You are player ",
            player,
            ". Your points: ",
            *own,
            ", the other's: ",
            *other,
            ", rounds played: ",
            *played,
            ". In the last round (r rock, p paper, s scissors, . none) you picked ",
            picks[0],
            ", the other ",
            picks[1],
            ".\n",
            *offer_options([answer.text for answer in self.answers(style)], legal, show_legal),
            "Answer with your pick in brackets, for example [paper].\n",
        )

    def _require_digits(self, style):
        """Raises a one-line ValueError for settings that prompts cannot express."""
        if any(value != int(value) or value > 9 for value in self.worth):
            raise ValueError(f"env.worth={list(self.worth)}: prompts need whole numbers from 0 to 9")
        if style == TERSE and self.rounds > 9:
            raise ValueError(f"env.rounds={self.rounds}: terse prompts need at most 9 rounds")

    def deals(self):
        """See `GameRules`."""
        state = jax.tree.map(lambda x: np.asarray(x)[None], self.init(None))
        return state, np.ones(1)


@take_defaults_from("env/textgames/rps")
def make(
    rounds: int = FROM_FILE, worth: Sequence[float] = FROM_FILE, margin: bool = FROM_FILE, **game
) -> TextGame:
    """Builds the game with these rules; `game` is as for `TextGame`."""
    return TextGame(RockPaperScissors(rounds, worth, margin), **game)
