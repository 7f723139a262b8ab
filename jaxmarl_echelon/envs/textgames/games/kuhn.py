"""Kuhn poker (Kuhn 1950): three cards, one bet."""

from functools import partial
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import FULL, TERSE, GameRules, one_hot, replace_at, select_at
from jaxmarl_echelon.envs.textgames.wording import join_values, number_values, offer_options
from jaxmarl_echelon.language.prompts import PromptPlace

CHECK, BET, CALL, FOLD = range(4)
CARDS = "JQK"
LETTERS, NAMES = "kbcf", ("check", "bet", "call", "fold")
DEALS = np.array(list(permutations(range(3), 2)), np.int32)


class State(struct.PyTreeNode):
    """A hand: `cards [2]` int32 by seat; `acts [3]` int32 actions so far, padded with -1."""

    cards: jax.Array
    acts: jax.Array


class Kuhn(GameRules):
    """Kuhn poker: J < Q < K, antes of 1, one bet of 1; seat 0 opens. Scores are chips won.

    Seats observe their card, their seat and the first two actions.
    """

    name = "kuhn"
    space = Discrete(4)
    features = 3 + 2 + 8
    plies = 3
    hidden = True
    stakes = 2.0

    def init(self, key):
        """See `GameRules`."""
        deal = jax.random.randint(key, (), 0, len(DEALS))
        return State(select_at(jnp.asarray(DEALS), deal), jnp.full(3, -1, jnp.int32))

    def turn(self, state):
        """See `GameRules`."""
        return jnp.sum(state.acts >= 0) % 2

    def over(self, state):
        """See `GameRules`."""
        last = self._last(state)
        return (last == CALL) | (last == FOLD) | (state.acts[1] == CHECK)

    def scores(self, state):
        """See `GameRules`."""
        stake = jnp.where(self._last(state) == CALL, 2.0, 1.0)
        better = jnp.argmax(state.cards)
        # After a fold, the next turn belongs to the seat that stays in.
        winner = jnp.where(self._last(state) == FOLD, self.turn(state), better)
        return jnp.where(jnp.arange(2) == winner, stake, -stake)

    def legal(self, state):
        """See `GameRules`."""
        faces = self._last(state) == BET
        return jnp.stack([~faces, ~faces, faces, faces])

    def apply(self, key, state, action):
        """See `GameRules`."""
        del key
        return state.replace(acts=replace_at(state.acts, jnp.sum(state.acts >= 0), action))

    def observe(self, state, seat):
        """See `GameRules`."""
        return jnp.concatenate(
            [one_hot(select_at(state.cards, seat), 3), one_hot(seat, 2), one_hot(state.acts[:2], 4)]
        )

    def deals(self):
        """See `GameRules`."""
        return State(DEALS, np.full((6, 3), -1, np.int32)), np.full(6, 1 / 6)

    def text(self, state):
        """See `GameRules`."""
        acts = " ".join(NAMES[act] for act in np.asarray(state.acts) if act >= 0)
        return f"{CARDS[state.cards[0]]} {CARDS[state.cards[1]]} | {acts}"

    def answer(self, action):
        """See `GameRules`."""
        return f"[{LETTERS[int(action)]}]"

    def phrase(self, style, option):
        """See `GameRules`."""
        return f"[{NAMES[option]}]" if style == FULL else self.answer(option)

    def values(self, state, seat):
        """See `GameRules`."""
        acts = jnp.where(state.acts[:2] < 0, len(LETTERS), state.acts[:2])
        return join_values(seat, select_at(state.cards, seat), acts, self.own_options(state, seat))

    def template(self, style, show_legal=True):
        """See `GameRules`."""
        (seat,), (card,), acts, legal = number_values(1, 1, 2, self.space.n)
        player, own = PromptPlace("seat", seat, ("0", "1")), PromptPlace("card", card, tuple(CARDS))
        history = [PromptPlace("action", act, (*LETTERS, ".")) for act in acts]
        if style == TERSE:
            return ("K", player, ":", own, *history, ">")
        return (
            "Kuhn poker with the cards J, Q and K, of which K is the highest; each player has put in one "
            "chip and holds one card. A player checks or bets one chip, and after a bet the other calls or "
            "folds; if nobody folds, the higher card wins the chips.\n"
            "You are player ",
            player,
            " and hold ",
            own,
            ". Actions so far (k check, b bet, c call, f fold, . none): ",
            *history,
            "\n",
            *offer_options([answer.text for answer in self.answers(style)], legal, show_legal),
            "Answer with a legal action in brackets, for example [check] or [call].\n",
        )

    def _last(self, state):
        number = jnp.sum(state.acts >= 0)
        return jnp.where(number > 0, select_at(state.acts, number - 1), -1)


def kuhn_equilibrium(bluff: float) -> np.ndarray:
    """Returns equilibrium probabilities `[2, 3, 2]` of betting or calling (Kuhn 1950).

    Axes: seat, card, and whether the seat faces a bet. The probability is that of calling if it faces one,
    else of betting.

    Args:
      bluff: probability in [0, 1/3] that the first seat bets the jack.
    """
    first = [[bluff, 0.0], [0.0, bluff + 1 / 3], [3 * bluff, 1.0]]
    second = [[1 / 3, 0.0], [0.0, 1 / 3], [1.0, 1.0]]
    return np.array([first, second])


def play_kuhn_equilibrium(key: jax.Array, state: State) -> jax.Array:
    """Plays the equilibrium with `bluff` 0, in which the first seat never bets the jack."""
    rules = Kuhn()
    mine, faces = rules.turn(state), rules.legal(state)[CALL]
    chance = jnp.asarray(kuhn_equilibrium(0.0), jnp.float32)[mine, state.cards[mine], faces.astype(jnp.int32)]
    bold = jax.random.bernoulli(key, chance)
    return jnp.where(faces, jnp.where(bold, CALL, FOLD), jnp.where(bold, BET, CHECK))


make = partial(TextGame, Kuhn(), {"perfect": play_kuhn_equilibrium})
