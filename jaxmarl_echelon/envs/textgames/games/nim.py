"""Nim: taking the last object wins."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames import scripts
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import FULL, TERSE, GameRules, winner_scores
from jaxmarl_echelon.envs.textgames.wording import join_values, number_values, offer_options, spell_number
from jaxmarl_echelon.language.prompts import PromptPlace

MOST = 9  # objects of a pile, so that the number fits one digit of an answer


class State(struct.PyTreeNode):
    """A game: `piles [P]` int32 objects left; `moves` int32 number of moves so far."""

    piles: jax.Array
    moves: jax.Array


@take_defaults_from("env/textgames/nim")
class Nim(GameRules):
    """Nim: seats take any number of objects from one pile; the seat that takes the last one wins.

    Action `pile * M + number - 1`, with M the largest pile. Seats observe each pile as a one-hot number, and
    their seat.

    Args:
      piles: number of objects of each pile at the beginning.
    """

    name = "nim"

    def __init__(self, piles: Sequence[int] = FROM_FILE):
        if isinstance(piles, str) or not isinstance(piles, Sequence) or not 1 <= len(piles) <= 6:
            raise ValueError(f"env.piles={piles}: must be 1 to 6 numbers of objects")
        self.piles = tuple(settings.read_whole("piles", pile, 1, MOST) for pile in piles)
        self.most = max(self.piles)
        self.space = Discrete(len(self.piles) * self.most)
        self.features = len(self.piles) * (self.most + 1) + 2
        self.plies = sum(self.piles)

    def init(self, key):
        """See `GameRules`."""
        del key
        return State(jnp.asarray(self.piles, jnp.int32), jnp.int32(0))

    def turn(self, state):
        """See `GameRules`."""
        return state.moves % 2

    def over(self, state):
        """See `GameRules`."""
        return jnp.all(state.piles == 0)

    def scores(self, state):
        """See `GameRules`."""
        return winner_scores(1 - self.turn(state))

    def legal(self, state):
        """See `GameRules`."""
        return (state.piles[:, None] >= jnp.arange(1, self.most + 1)).reshape(-1)

    def apply(self, key, state, action):
        """See `GameRules`."""
        del key
        taken = jnp.minimum(action % self.most + 1, state.piles[action // self.most])
        return State(state.piles.at[action // self.most].add(-taken), state.moves + 1)

    def observe(self, state, seat):
        """See `GameRules`."""
        numbers = state.piles[:, None] == jnp.arange(self.most + 1)
        return jnp.concatenate([numbers.reshape(-1), jnp.arange(2) == seat]).astype(jnp.float32)

    def text(self, state):
        """See `GameRules`."""
        return "piles " + " ".join(str(pile) for pile in np.asarray(state.piles))

    def answer(self, action):
        """See `GameRules`."""
        return f"[{int(action) // self.most}{int(action) % self.most + 1}]"

    def phrase(self, style, option):
        """See `GameRules`."""
        pile, number = option // self.most, option % self.most + 1
        return f"[{pile} {number}]" if style == FULL else self.answer(option)

    def values(self, state, seat):
        """See `GameRules`."""
        return join_values(seat, state.piles, self.own_options(state, seat))

    def template(self, style, show_legal=True):
        """See `GameRules`."""
        (seat,), piles, legal = number_values(1, len(self.piles), self.space.n)
        player = PromptPlace("seat", seat, ("0", "1"))
        numbers = [spell_number("pile", pile, MOST) for pile in piles]
        if style == TERSE:
            return ("N", player, ":", *sum(numbers, ()), ">")
        return (
            f"Nim with {len(self.piles)} piles of objects, numbered from 0. A turn takes one or more objects "
            "from one pile, and the player who takes the last object of all wins.\n"
            "You are player ",
            player,
            ". Objects left:\n",
            *(piece for pile, size in enumerate(numbers) for piece in (f"pile {pile}: ", *size, "\n")),
            *offer_options([answer.text for answer in self.answers(style)], legal, show_legal),
            "Answer with a pile and the number of objects to take in brackets, for example [0 2].\n",
        )


def optimal_nim_player(rules: Nim) -> scripts.ScriptedPlayer:
    """Returns the optimal player: leaves piles with XOR 0 if possible, else moves at random (Bouton 1901)."""

    def player(key, state):
        left = state.piles[:, None] - jnp.arange(1, rules.most + 1)
        total = jnp.bitwise_xor.reduce(state.piles)
        wins = (total ^ state.piles[:, None] ^ jnp.maximum(left, 0)) == 0
        legal = rules.legal(state)
        wanted = legal & wins.reshape(-1)
        return scripts.sample_option(key, jnp.where(jnp.any(wanted), wanted, legal))

    return player


@take_defaults_from("env/textgames/nim")
def make(piles: Sequence[int] = FROM_FILE, **game) -> TextGame:
    """Builds the game with these piles; `game` is as for `TextGame`."""
    rules = Nim(piles)
    return TextGame(
        rules, {"greedy_win": scripts.greedy_win(rules), "perfect": optimal_nim_player(rules)}, **game
    )
