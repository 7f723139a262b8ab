"""Rock, paper, scissors over one or several rounds, with configurable points per win."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import GameRules, one_hot

PICKS = ("rock", "paper", "scissors")


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

    def __init__(self, rounds: int = 1, worth: Sequence[float] = (1.0, 1.0, 1.0), margin: bool = False):
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
        return f"[{'rps'[int(action)]}]"

    def deals(self):
        """See `GameRules`."""
        state = jax.tree.map(lambda x: np.asarray(x)[None], self.init(None))
        return state, np.ones(1)


def make(rounds: int = 1, worth: Sequence[float] = (1.0, 1.0, 1.0), margin: bool = False, **game) -> TextGame:
    """Builds the game with these rules; `game` is as for `TextGame`."""
    return TextGame(RockPaperScissors(rounds, worth, margin), **game)
