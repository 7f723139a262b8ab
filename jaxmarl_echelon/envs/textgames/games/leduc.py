"""Leduc hold'em (Southey et al. 2005): six cards, two rounds of betting."""

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

FOLD, CALL, RAISE = range(3)
RANKS = "JQK"
LETTERS, NAMES = "fcr", ("fold", "call", "raise")
HISTORY = LETTERS + "/."  # / begins the second round
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
        letters = ["".join(LETTERS[act] for act in acts if act >= 0) for acts in np.asarray(state.acts)]
        board = RANKS[state.cards[2]] if letters[1] or state.round == 1 else "-"
        pot = f"{state.chips[0]:g} : {state.chips[1]:g}"
        return (
            f"{RANKS[state.cards[0]]} {RANKS[state.cards[1]]} board {board} pot {pot} | {'/'.join(letters)}"
        )

    def answer(self, action):
        """See `GameRules`."""
        return f"[{LETTERS[int(action)]}]"

    def phrase(self, style, option):
        """See `GameRules`."""
        return f"[{NAMES[option]}]" if style == FULL else self.answer(option)

    def synonyms(self, style, option):
        """See `GameRules`."""
        return {CALL: ("[check]",), RAISE: ("[bet]",)}.get(option, ()) if style == FULL else ()

    def values(self, state, seat):
        """See `GameRules`."""
        board = jnp.where(state.round > 0, state.cards[2], len(RANKS))
        own = select_at(state.cards, seat)
        return join_values(seat, own, board, self._history(state), self.own_options(state, seat))

    def template(self, style, show_legal=True):
        """See `GameRules`."""
        (seat,), (card,), (board,), acts, legal = number_values(1, 1, 1, 2 * ACTS, self.space.n)
        player, own = PromptPlace("seat", seat, ("0", "1")), PromptPlace("card", card, tuple(RANKS))
        shown, history = (
            PromptPlace("board", board, (*RANKS, ".")),
            [PromptPlace("action", a, tuple(HISTORY)) for a in acts],
        )
        if style == TERSE:
            return ("L", player, ":", own, shown, *history, ">")
        return (
            "Leduc hold'em with two cards each of J, Q and K, of which K is the highest; each player has put "
            "in one chip and holds one card. Raises are two chips in the first round and four in the second, "
            "at most two per round; then a card is shown, and a pair with it beats a higher card.\n"
            "You are player ",
            player,
            " and hold ",
            own,
            ". Card on the board (. before the second round): ",
            shown,
            "\nActions so far (f fold, c call or check, r raise or bet, / second round, . none): ",
            *history,
            "\n",
            *offer_options([answer.text for answer in self.answers(style)], legal, show_legal),
            "Answer with a legal action in brackets, for example [call] or [raise].\n",
        )

    def _history(self, state):
        """Returns the actions of both rounds as indices of `HISTORY`, `[2 * ACTS]`.

        A seat that decides has acted at most three times in the round, so that all actions fit.
        """
        first = jnp.sum(state.acts[0] >= 0)
        place = jnp.arange(2 * ACTS)
        both = jnp.concatenate([state.acts[0], state.acts[1]])
        later = place - first - 1
        act = jax.vmap(lambda at: select_at(both, at))(jnp.where(place < first, place, ACTS + later))
        known = (place < first) | ((later >= 0) & (later < jnp.sum(state.acts[1] >= 0)))
        ends = (place == first) & (state.round > 0)
        rest = jnp.where(ends, HISTORY.index("/"), HISTORY.index("."))
        return jnp.where(known, act, rest)

    def _acts(self, state):
        return select_at(state.acts, jnp.minimum(state.round, 1))

    def _number(self, state):
        return jnp.sum(self._acts(state) >= 0)


make = partial(TextGame, Leduc())
