"""Liar's dice for two or more seats."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import FULL, TERSE, GameRules, one_hot, winner_scores
from jaxmarl_echelon.envs.textgames.wording import (
    join_pieces,
    join_values,
    number_values,
    offer_options,
    spell,
    spell_number,
)
from jaxmarl_echelon.language.prompts import PromptPlace


class State(struct.PyTreeNode):
    """A game.

    Attributes:
      dice: `[N, d]` int32 faces from 0; undefined for lost dice.
      left: `[N]` int32 dice left.
      turn: int32 seat that decides.
      bidder: int32 seat of the last bid.
      bids: `[F * N * d]` bool, bids made in this round, indexed by (quantity - 1) * F + face.
    """

    dice: jax.Array
    left: jax.Array
    turn: jax.Array
    bidder: jax.Array
    bids: jax.Array


@take_defaults_from("env/textgames/liarsdice")
class LiarsDice(GameRules):
    """Liar's dice: seats bid on all dice or call the last bid; each call costs one seat a die.

    The seat that is wrong at a call loses the die; the last seat with dice wins. A bid names a quantity (at
    most the dice in play) and a face; it lowers neither and raises at least one. No face is wild. After a
    call all seats roll again, and the seat that lost a die begins, or the next seat with dice. Actions are
    the bids, then the call. Seats observe their dice as counts per face, the dice left, the bids of the
    round, the seat to move, the last bidder, and their seat.

    Args:
      dice: number d of dice per seat.
      seats: number N of seats.
      faces: number F of faces of a die.
    """

    name = "liarsdice"
    hidden = True

    def __init__(self, dice: int = FROM_FILE, seats: int = FROM_FILE, faces: int = FROM_FILE):
        self.dice = settings.read_whole("dice", dice, 1, 5)
        self.seats = settings.read_whole("seats", seats, 2, 6)
        self.faces = settings.read_whole("faces", faces, 2, 6)
        self.bids = self.faces * self.seats * self.dice
        self.space = Discrete(self.bids + 1)
        self.features = self.faces + self.bids + 4 * self.seats
        total = self.seats * self.dice
        # A round with k dice has at most k + F - 1 bids and a call; the first seat of a round can be up to
        # N - 1 plies away, and the plies of eliminated seats are forced.
        stretch = 1 if self.seats == 2 or self.dice * self.seats == 2 else self.seats - 1
        rounds = [k + self.faces for k in range(2, total + 1)]
        self.plies = stretch * sum(rounds) + (self.seats - 1) * (len(rounds) - 1)

    def init(self, key):
        """See `GameRules`."""
        return State(
            dice=self._roll(key),
            left=jnp.full(self.seats, self.dice, jnp.int32),
            turn=jnp.int32(0),
            bidder=jnp.int32(-1),
            bids=jnp.zeros(self.bids, bool),
        )

    def turn(self, state):
        """See `GameRules`."""
        return state.turn

    def over(self, state):
        """See `GameRules`."""
        return jnp.sum(state.left > 0) == 1

    def scores(self, state):
        """See `GameRules`."""
        return winner_scores(jnp.argmax(state.left), self.seats)

    def legal(self, state):
        """See `GameRules`."""
        quantity, face = jnp.divmod(jnp.arange(self.bids), self.faces)
        last_quantity, last_face = self._last(state)
        raises = (quantity >= last_quantity) & (face >= last_face)
        raises &= (quantity > last_quantity) | (face > last_face)
        possible = raises & (quantity < jnp.sum(state.left))
        return jnp.append(possible, jnp.any(state.bids))

    def apply(self, key, state, action):
        """See `GameRules`."""
        calls = action == self.bids
        quantity, face = self._last(state)
        held = jnp.arange(self.dice) < state.left[:, None]
        enough = jnp.sum(held & (state.dice == face)) > quantity
        loser = jnp.where(enough, state.turn, state.bidder)
        left = state.left.at[loser].add(-1)
        called = State(
            self._roll(key), left, self._living(left, loser), jnp.int32(-1), jnp.zeros_like(state.bids)
        )
        bid = state.replace(
            turn=self._living(state.left, state.turn + 1),
            bidder=state.turn,
            bids=state.bids.at[jnp.minimum(action, self.bids - 1)].set(True),
        )
        return jax.tree.map(lambda a, b: jnp.where(calls, a, b), called, bid)

    def observe(self, state, seat):
        """See `GameRules`."""
        held = jnp.arange(self.dice) < state.left[seat]
        counts = jnp.sum(held[:, None] & (state.dice[seat][:, None] == jnp.arange(self.faces)), axis=0)
        return jnp.concatenate(
            [
                counts / self.dice,
                state.left / self.dice,
                state.bids.astype(jnp.float32),
                one_hot(state.turn, self.seats),
                one_hot(state.bidder, self.seats),
                one_hot(seat, self.seats),
            ]
        )

    def deals(self):
        """See `GameRules`."""
        if self.dice > 1 or self.seats > 2:
            return super().deals()
        faces = np.array(list(product(range(self.faces), repeat=self.seats)), np.int32)[..., None]
        start = jax.tree.map(np.asarray, self.init(jax.random.key(0)))
        several = jax.tree.map(lambda x: np.broadcast_to(x, (len(faces), *x.shape)), start)
        return several.replace(dice=faces), np.full(len(faces), 1 / len(faces))

    def text(self, state):
        """See `GameRules`."""
        hands = [
            "".join(str(face + 1) for face in np.sort(dice[:left])) or "-"
            for dice, left in zip(np.asarray(state.dice), np.asarray(state.left), strict=True)
        ]
        bids = [f"{bid // self.faces + 1}x{bid % self.faces + 1}" for bid in np.flatnonzero(state.bids)]
        return f"dice {' '.join(hands)} | {' '.join(bids)}"

    def answer(self, action):
        """See `GameRules`."""
        bid = int(action)
        return "[!!]" if bid == self.bids else f"[{bid // self.faces + 1}{bid % self.faces + 1}]"

    def phrase(self, style, option):
        """See `GameRules`."""
        if style != FULL:
            return self.answer(option)
        quantity, face = divmod(option, self.faces)
        return "[call]" if option == self.bids else f"[bid: {quantity + 1}, {face + 1}]"

    def values(self, state, seat):
        """See `GameRules`."""
        held = jnp.arange(self.dice) < state.left[seat]
        dice = jnp.sort(jnp.where(held, state.dice[seat], self.faces))
        # A bid is a higher option than the bids before it.
        rank = jnp.where(state.bids, jnp.cumsum(state.bids) - 1, -1)
        here = rank == jnp.arange(self._longest_round)[:, None]
        bids = jnp.where(jnp.any(here, axis=1), jnp.argmax(here, axis=1), self.bids)
        return join_values(seat, dice, state.left, bids, self.own_options(state, seat))

    def template(self, style, show_legal=True):
        """See `GameRules`."""
        total = self.seats * self.dice
        if style == TERSE and total > 9:
            raise ValueError(f"env.dice={self.dice}: terse prompts need at most 9 dice in play, not {total}")
        parts = number_values(1, self.dice, self.seats, self._longest_round, self.space.n)
        (seat,), dice, left, bids, legal = parts
        player = PromptPlace("seat", seat, tuple(map(str, range(self.seats))))
        own = [PromptPlace("die", die, (*map(str, range(1, self.faces + 1)), ".")) for die in dice]
        numbers = [spell_number("left", number, self.dice) for number in left]
        said = [spell("bid", bid, self._bid_texts(style)) for bid in bids]
        if style == TERSE:
            return ("D", player, ":", *own, *sum((*numbers, *said), ()), ">")
        return (
            f"Liar's dice of {self.seats} players with dice of {self.faces} faces. A bid tells how many dice "
            "of one face all players hold together at least; it raises quantity or face and lowers neither. "
            "A call ends the round: the caller loses a die if the last bid is true, else the bidder.\n"
            "You are player ",
            player,
            ". Your dice (. lost): ",
            *own,
            "\nDice left by player: ",
            *join_pieces(numbers, " "),
            "\nBids of this round, quantity x face: ",
            *join_pieces(said, " "),
            "\n",
            *offer_options([answer.text for answer in self.answers(style)], legal, show_legal),
            "Answer with a bid of quantity and face or with a call in brackets, for example [bid: 1, 2] or "
            "[call].\n",
        )

    def _bid_texts(self, style):
        """Returns the text of each bid in a prompt, and of none."""
        width, between = (1, "") if style == TERSE else (len(str(self.seats * self.dice)), "x")
        bids = (divmod(bid, self.faces) for bid in range(self.bids))
        texts = [f"{quantity + 1:0{width}d}{between}{face + 1}" for quantity, face in bids]
        return [*texts, "." * len(texts[0])]

    @property
    def _longest_round(self) -> int:
        """Largest number of bids of a round."""
        return self.seats * self.dice + self.faces - 1

    def _roll(self, key):
        return jax.random.randint(key, (self.seats, self.dice), 0, self.faces)

    def _last(self, state):
        """Returns quantity - 1 and face of the last bid, which is the highest; (-1, 0) before the first."""
        last = jnp.max(jnp.where(state.bids, jnp.arange(self.bids), -1))
        made = last >= 0
        return jnp.where(made, last // self.faces, -1), jnp.where(made, last % self.faces, 0)

    def _living(self, left, first):
        """Returns the first seat with dice, from `first` on."""
        order = (first + jnp.arange(self.seats)) % self.seats
        return order[jnp.argmax(left[order] > 0)].astype(jnp.int32)


@take_defaults_from("env/textgames/liarsdice")
def make(dice: int = FROM_FILE, seats: int = FROM_FILE, faces: int = FROM_FILE, **game) -> TextGame:
    """Builds the game with these dice; `game` is as for `TextGame`."""
    return TextGame(LiarsDice(dice, seats, faces), **game)
