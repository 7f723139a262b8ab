"""Negotiation: two seats trade five goods that they value differently."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.spaces import MultiDiscrete
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import FULL, TERSE, GameRules, one_hot, select_at
from jaxmarl_echelon.envs.textgames.wording import join_values, list_options, number_values, spell_number
from jaxmarl_echelon.language.language import OPEN, Answer
from jaxmarl_echelon.language.prompts import PromptPlace

OFFER, YES, NO = range(3)
BASE = np.array([5, 10, 15, 25, 40], np.int32)
SPREAD = BASE // 5
LEAST_VALUE, MOST_VALUE = 5, 40
FEWEST, MOST = 5, 25
PLIES = 10
GOODS = "abcde"
NAMES = ("wheat", "wood", "sheep", "brick", "ore")


class State(struct.PyTreeNode):
    """A negotiation.

    Attributes:
      owned: `[2, 5]` int32 goods of each seat.
      start: `[2, 5]` int32 goods at the beginning.
      values: `[2, 5]` int32 value of one unit of each good to each seat.
      offer: `[4]` int32 last offer: good and number given, good and number wanted.
      open: bool; the offer can be accepted.
      clock: int32 number of decisions so far.
    """

    owned: jax.Array
    start: jax.Array
    values: jax.Array
    offer: jax.Array
    open: jax.Array
    clock: jax.Array


class Negotiation(GameRules):
    """Negotiation: trades of one good for another; after ten plies the larger gain by own values wins.

    Actions `[kind, good given, number - 1, good wanted, number - 1]`: an offer, yes or no. Any answer but yes
    clears the open offer. Both seats must own what they give, at offer and at acceptance; an offer that
    cannot be fulfilled, or of a good for itself, is ignored. Seats observe their goods and values, the offer,
    the clock and their seat.
    """

    name = "negotiation"
    space = MultiDiscrete((3, 5, 9, 5, 9))
    features = 5 + 5 + 1 + 5 + 1 + 5 + 1 + 1 + 2
    plies = PLIES
    hidden = True

    def init(self, key):
        """See `GameRules`."""
        key_owned, key_values = jax.random.split(key)
        owned = jax.random.randint(key_owned, (2, 5), FEWEST, MOST + 1)
        values = BASE + jax.random.randint(key_values, (2, 5), -SPREAD, SPREAD + 1)
        return State(
            owned=owned,
            start=owned,
            values=jnp.clip(values, LEAST_VALUE, MOST_VALUE),
            offer=jnp.zeros(4, jnp.int32),
            open=jnp.zeros((), bool),
            clock=jnp.int32(0),
        )

    def turn(self, state):
        """See `GameRules`."""
        return state.clock % 2

    def over(self, state):
        """See `GameRules`."""
        return state.clock >= PLIES

    def scores(self, state):
        """See `GameRules`."""
        gain = jnp.sum(state.values * (state.owned - state.start), axis=1)
        return jnp.sign(gain - gain[::-1]).astype(jnp.float32)

    def legal(self, state):
        """See `GameRules`."""
        mine = self.turn(state)
        gives = state.owned[mine] > 0
        agrees = state.open & self._kept(state, 1 - mine, state.offer)
        kinds = jnp.stack([jnp.any(gives), agrees, jnp.ones((), bool)])
        goods = jnp.where(jnp.any(gives), gives, True)
        rest = [goods, jnp.ones(9, bool), jnp.ones(5, bool), jnp.ones(9, bool)]
        return jnp.concatenate([kinds, *rest])

    def allows(self, state, action):
        """See `GameRules`; yes and no leave all choices but the first open."""
        kind = select_at(self.legal(state)[: NO + 1], action[0])
        return kind & ((action[0] != OFFER) | super().allows(state, action))

    def apply(self, key, state, action):
        """See `GameRules`."""
        del key
        mine = self.turn(state)
        given, number, wanted, price = state.offer
        change = jnp.zeros((2, 5), jnp.int32)
        change = change.at[1 - mine, given].add(-number).at[mine, given].add(number)
        change = change.at[mine, wanted].add(-price).at[1 - mine, wanted].add(price)
        agreed = (action[0] == YES) & state.open & self._kept(state, 1 - mine, state.offer)
        offer = action[1:] + jnp.array([0, 1, 0, 1])
        return state.replace(
            owned=state.owned + jnp.where(agreed, change, 0),
            offer=offer.astype(jnp.int32),
            open=(action[0] == OFFER) & self._kept(state, mine, offer) & (offer[0] != offer[2]),
            clock=state.clock + 1,
        )

    def observe(self, state, seat):
        """See `GameRules`."""
        given, number, wanted, price = jnp.where(state.open, state.offer, jnp.array([-1, 0, -1, 0]))
        numbers = jnp.stack([state.open, state.clock / PLIES])
        return jnp.concatenate(
            [
                state.owned[seat] / (2 * MOST),
                state.values[seat] / MOST_VALUE,
                one_hot(given, 5),
                number[None] / 9,
                one_hot(wanted, 5),
                price[None] / 9,
                numbers,
                one_hot(seat, 2),
            ]
        )

    def text(self, state):
        """See `GameRules`."""
        lines = [
            f"seat {seat}: "
            + " ".join(
                f"{good} {owned} at {value}"
                for good, owned, value in zip(GOODS, state.owned[seat], state.values[seat], strict=True)
            )
            for seat in range(2)
        ]
        return "\n".join([*lines, *(["an offer stands"] if state.open else [])])

    def answer(self, action):
        """See `GameRules`."""
        kind, given, number, wanted, price = (int(x) for x in np.asarray(action))
        offer = f"[{number + 1}{GOODS[given]}{price + 1}{GOODS[wanted]}]"
        return (offer, "[yyyy]", "[nnnn]")[kind]

    def answers(self, style):
        """See `GameRules`."""
        offers = product(*map(range, self.sizes[1:]))
        yes, no = ("[accept]", "[deny]") if style == FULL else ("[yyyy]", "[nnnn]")
        return (
            *(Answer(self._offer(style, *offer), (OFFER, *offer)) for offer in offers),
            Answer(yes, (YES, *[OPEN] * 4)),
            Answer(no, (NO, *[OPEN] * 4)),
        )

    def _offer(self, style, given, number, wanted, price):
        if style == FULL:
            return f"[offer: {number + 1} {NAMES[given]} -> {price + 1} {NAMES[wanted]}]"
        return self.answer([OFFER, given, number, wanted, price])

    def values(self, state, seat):
        """See `GameRules`."""
        given, number, wanted, price = jnp.where(state.open, state.offer, jnp.array([5, 0, 5, 0]))
        offer = jnp.stack([number, given, price, wanted])
        options = self.own_options(state, seat)[: NO + 1 + 5]
        return join_values(seat, state.owned[seat], state.values[seat], offer, state.clock, options)

    def template(self, style, show_legal=True):
        """See `GameRules`."""
        (seat,), owned, values, offer, (clock,), kinds, gives = number_values(1, 5, 5, 4, 1, 3, 5)
        player, time = PromptPlace("seat", seat, ("0", "1")), spell_number("clock", clock, PLIES)
        owned = [spell_number("owned", index, 2 * MOST) for index in owned]
        values = [spell_number("value", index, MOST_VALUE) for index in values]
        symbols = ((".", *"123456789"), (*GOODS, "."))
        offer = [PromptPlace("offer", index, symbols[at % 2]) for at, index in enumerate(offer)]
        if style == TERSE:
            return ("G", player, ":", *sum(owned + values, ()), *offer, *time, ">")
        lines = zip(GOODS, NAMES, owned, values, strict=True)
        legal = (
            "Legal answers: ",
            *list_options(("[offer]", "[accept]", "[deny]"), kinds),
            "\nGoods that you can give: ",
            *list_options(NAMES, gives),
            "\n",
        )
        return (
            "Negotiation: two players trade five goods that they value differently, one good for another. "
            f"After {PLIES} turns the player whose goods have gained more by own values wins.\n"
            "You are player ",
            player,
            ". You own, at your value of one unit:\n",
            *(piece for a, name, n, v in lines for piece in (f"{a} {name}: ", *n, " at ", *v, "\n")),
            "Turns so far: ",
            *time,
            ". Open offer of the other player, units and good given, units and good wanted (.... for none): ",
            *offer,
            "\n",
            *(legal if show_legal else ()),
            "Answer with an offer, an acceptance or a denial in brackets, for example [offer: 3 wheat -> 5 "
            "wood], [accept] or [deny].\n",
        )

    def _kept(self, state, giver, offer):
        """Whether both seats own what they would give for an offer of seat `giver`; bool."""
        given, number, wanted, price = offer
        return (state.owned[giver, given] >= number) & (state.owned[1 - giver, wanted] >= price)


make = partial(TextGame, Negotiation())
