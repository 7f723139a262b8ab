"""Leduc hold'em (Southey et al. 2005): six cards, two rounds of betting."""

from functools import partial
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import GameRules, one_hot, replace_at, select_at

FOLD, CALL, RAISE = range(3)
RANKS = "JQK"
RAISES = 2  # at most, in a round
ACTS = 4  # at most, in a round
DEALS = np.array(list(permutations(range(6), 3)), np.int32) // 2


class State(struct.PyTreeNode):
    """A hand.

    Attributes:
      cards: `[3]` int32 ranks of seat 0, seat 1, and the board, hidden until the second round.
      acts: `[2, 4]` int32 actions by round, padded with -1.
      round: int32, 0 or 1; 2 once the hand is over.
      chips: `[2]` float32 chips in the pot by seat.
    """

    cards: jax.Array
    acts: jax.Array
    round: jax.Array
    chips: jax.Array


class Leduc(GameRules):
    """Leduc hold'em: J Q K twice, antes of 1, raises of 2, then of 4, at most two per round.

    Seat 0 opens both rounds. A pair with the board beats a high card; equal ranks split. Scores are chips
    won. Actions are fold (only when facing a raise), check or call, raise. Seats observe their card, the
    board once it is dealt, their seat and all actions.
    """

    name = "leduc"
    space = Discrete(3)
    features = 2 + 3 + 3 + 2 * ACTS * 3
    plies = 2 * ACTS
    hidden = True
    stakes = 13.0  # the ante, two raises of 2 and two of 4

    def init(self, key):
        """See `GameRules`."""
        deal = jax.random.randint(key, (), 0, len(DEALS))
        return State(jnp.asarray(DEALS)[deal], jnp.full((2, ACTS), -1, jnp.int32), jnp.int32(0), jnp.ones(2))

    def turn(self, state):
        """See `GameRules`."""
        return self._number(state) % 2

    def over(self, state):
        """See `GameRules`."""
        return state.round >= 2

    def scores(self, state):
        """See `GameRules`."""
        own, board = state.cards[:2], state.cards[2]
        strength = own + 3 * (own == board)
        ahead = jnp.sign(strength - strength[::-1])
        folds = state.acts == FOLD
        folder = jnp.argmax(jnp.any(folds, axis=0)) % 2
        ahead = jnp.where(jnp.any(folds), jnp.where(jnp.arange(2) == folder, -1, 1), ahead)
        return jnp.where(ahead > 0, state.chips[::-1], jnp.where(ahead < 0, -state.chips, 0.0))

    def legal(self, state):
        """See `GameRules`."""
        acts = self._acts(state)
        faces = jnp.any(acts == RAISE)
        return jnp.stack([faces, jnp.ones((), bool), jnp.sum(acts == RAISE) < RAISES])

    def apply(self, key, state, action):
        """See `GameRules`."""
        del key
        mine, number, acts = self.turn(state), self._number(state), self._acts(state)
        faces = jnp.any(acts == RAISE)
        size = 2.0 * (1 + jnp.minimum(state.round, 1))
        bet = jnp.where(action == RAISE, size, 0.0)
        paid = jnp.where(action == FOLD, select_at(state.chips, mine), jnp.max(state.chips) + bet)
        closes = (action == CALL) & (faces | (number > 0))
        here = jnp.minimum(state.round, 1) * ACTS + number
        return state.replace(
            acts=replace_at(state.acts.ravel(), here, action).reshape(2, ACTS),
            round=jnp.where(action == FOLD, 2, state.round + closes).astype(jnp.int32),
            chips=replace_at(state.chips, mine, paid),
        )

    def observe(self, state, seat):
        """See `GameRules`."""
        board = jnp.where(state.round > 0, state.cards[2], -1)
        return jnp.concatenate(
            [
                one_hot(seat, 2),
                one_hot(select_at(state.cards, seat), 3),
                one_hot(board, 3),
                one_hot(state.acts, 3),
            ]
        )

    def deals(self):
        """See `GameRules`."""
        cards, count = np.unique(DEALS, axis=0, return_counts=True)
        start = jax.tree.map(np.asarray, self.init(jax.random.key(0)))
        several = jax.tree.map(lambda x: np.broadcast_to(x, (len(cards), *x.shape)), start)
        return several.replace(cards=cards), count / count.sum()

    def text(self, state):
        """See `GameRules`."""
        letters = ["".join("fcr"[act] for act in acts if act >= 0) for acts in np.asarray(state.acts)]
        board = RANKS[state.cards[2]] if letters[1] or state.round == 1 else "-"
        pot = f"{state.chips[0]:g} : {state.chips[1]:g}"
        return (
            f"{RANKS[state.cards[0]]} {RANKS[state.cards[1]]} board {board} pot {pot} | {'/'.join(letters)}"
        )

    def answer(self, action):
        """See `GameRules`."""
        return f"[{'fcr'[int(action)]}]"

    def _acts(self, state):
        return select_at(state.acts, jnp.minimum(state.round, 1))

    def _number(self, state):
        return jnp.sum(self._acts(state) >= 0)


make = partial(TextGame, Leduc())
