"""Word chain with secret words: each word begins with the last letter of the previous one."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import TERSE, GameRules, one_hot, winner_scores
from jaxmarl_echelon.envs.textgames.wording import (
    FILL,
    join_values,
    list_options,
    number_values,
    offer_options,
    spell,
)
from jaxmarl_echelon.language.prompts import PromptPlace

BANK = tuple(
    [
        "able",
        "acid",
        "acorn",
        "agent",
        "alarm",
        "angel",
        "apple",
        "arena",
        "atlas",
        "badge",
        "bread",
        "cabin",
        "cedar",
        "dance",
        "delta",
        "dream",
        "eagle",
        "earth",
        "ember",
        "event",
        "extra",
        "green",
        "grain",
        "honey",
        "human",
        "idea",
        "inlet",
        "label",
        "ladle",
        "lemon",
        "level",
        "maple",
        "medal",
        "metal",
        "nail",
        "night",
        "noble",
        "north",
        "nurse",
        "ocean",
        "olive",
        "onion",
        "opera",
        "otter",
        "rapid",
        "river",
        "robot",
        "scale",
        "seal",
        "stone",
        "sugar",
        "table",
        "tiger",
        "total",
        "trade",
        "under",
        "water",
        "yarn",
        "yeast",
        "hotel",
        "glass",
        "store",
        "elbow",
        "wheat",
    ]
)
WORDS = len(BANK)
LETTERS = max(map(len, BANK))
FOLLOWS = np.array([[after[0] == word[-1] for after in BANK] for word in BANK])


class State(struct.PyTreeNode):
    """A game.

    Attributes:
      last: int32 word said last.
      used: `[64]` bool, words said so far.
      secrets: `[N]` int32 secret word of each seat; -1 without secrets.
      out: `[N]` bool, eliminated seats.
      turn: int32 seat that decides.
    """

    last: jax.Array
    used: jax.Array
    secrets: jax.Array
    out: jax.Array
    turn: jax.Array


@take_defaults_from("env/textgames/words")
class Words(GameRules):
    """Word chain: seats say an unused word that begins with the last letter of the previous one.

    A seat that has no such word, or says another seat's secret, is eliminated; the last seat wins. The start
    word and the secrets are distinct. Actions are words of the bank. Seats observe the last word, their own
    secret, the used words, the eliminated seats, the seat to move, and their seat.

    Args:
      seats: number of seats, 2 to 4.
      secrets: whether seats have secrets.
    """

    name = "words"
    space = Discrete(WORDS)

    def __init__(self, seats: int = FROM_FILE, secrets: bool = FROM_FILE):
        self.seats = settings.read_whole("seats", seats, 2, 4)
        self.secrets = self.hidden = settings.read_switch("secrets", secrets)
        self.features = 3 * WORDS + 3 * self.seats
        # The plies of eliminated seats are forced.
        self.plies = (WORDS - 1) * (self.seats - 1)

    def init(self, key):
        """See `GameRules`."""
        drawn = jax.random.permutation(key, WORDS)[: self.seats + 1].astype(jnp.int32)
        return State(
            last=drawn[0],
            used=jnp.arange(WORDS) == drawn[0],
            secrets=drawn[1:] if self.secrets else jnp.full(self.seats, -1, jnp.int32),
            out=jnp.zeros(self.seats, bool),
            turn=jnp.int32(0),
        )

    def turn(self, state):
        """See `GameRules`."""
        return state.turn

    def over(self, state):
        """See `GameRules`."""
        return jnp.sum(~state.out) == 1

    def scores(self, state):
        """See `GameRules`."""
        return winner_scores(jnp.argmin(state.out), self.seats)

    def legal(self, state):
        """See `GameRules`."""
        return jnp.asarray(FOLLOWS)[state.last] & ~state.used

    def apply(self, key, state, action):
        """See `GameRules`."""
        del key
        mine, seats = state.turn, jnp.arange(self.seats)
        out = state.out | ((seats == mine) & jnp.any((state.secrets == action) & (seats != mine)))
        said = state.replace(last=action, used=state.used.at[action].set(True))
        # If no word continues the chain, the seats after the mover are eliminated in turn order, so the last
        # living one wins: the mover, unless it is out itself.
        order = (mine + 1 + seats) % self.seats
        living = ~out[order]
        following = order[jnp.argmax(living)]
        remaining = order[self.seats - 1 - jnp.argmax(living[::-1])]
        ends = ~jnp.any(self.legal(said))
        out = jnp.where(ends, seats != remaining, out)
        return said.replace(out=out, turn=following.astype(jnp.int32))

    def observe(self, state, seat):
        """See `GameRules`."""
        return jnp.concatenate(
            [
                one_hot(state.last, WORDS),
                one_hot(state.secrets[seat], WORDS),
                state.used.astype(jnp.float32),
                state.out.astype(jnp.float32),
                one_hot(state.turn, self.seats),
                one_hot(seat, self.seats),
            ]
        )

    def text(self, state):
        """See `GameRules`."""
        secrets = " ".join(BANK[word] if word >= 0 else "-" for word in np.asarray(state.secrets))
        out = " ".join(str(seat) for seat in np.flatnonzero(state.out))
        return f"{BANK[int(state.last)]} | secrets {secrets}" + (f" | out: {out}" if out else "")

    def answer(self, action):
        """See `GameRules`."""
        return f"[{BANK[int(action)]}]"

    def phrase(self, style, option):
        """See `GameRules`."""
        return f"[{BANK[option].ljust(LETTERS, FILL)}]" if style == TERSE else self.answer(option)

    def values(self, state, seat):
        """See `GameRules`."""
        secret = jnp.where(state.secrets[seat] < 0, WORDS, state.secrets[seat])
        digits = jnp.sum(state.used.reshape(-1, 4) << jnp.arange(4), axis=1)
        return join_values(
            seat, state.last, secret, digits, state.used, state.out, self.own_options(state, seat)
        )

    def template(self, style, show_legal=True):
        """See `GameRules`."""
        sizes = (1, 1, 1, WORDS // 4, WORDS, self.seats, WORDS)
        (seat,), (last,), (secret,), digits, used, out, legal = number_values(*sizes)
        player = PromptPlace("seat", seat, tuple(map(str, range(self.seats))))
        word, own = spell("last word", last, BANK), spell("secret", secret, (*BANK, FILL * LETTERS))
        lost = tuple(PromptPlace("out", index, ("0", "1")) for index in out)
        if style == TERSE:
            hexadecimal = (PromptPlace("used", index, tuple("0123456789abcdef")) for index in digits)
            return ("W", player, ":", *word, *own, *hexadecimal, *(lost if self.seats > 2 else ()), ">")
        return (
            f"Word chain of {self.seats} players: a turn says a word of the list that nobody has said and "
            "that begins with the last letter of the last word. A player without such a word, or who says "
            "another player's secret word, is out, and the last player wins.\n"
            "You are player ",
            player,
            ". The last word: ",
            *word,
            "\nYour secret word, which the others must avoid (..... for none): ",
            *own,
            "\nOut by player (1 out): ",
            *lost,
            "\nWords said so far: ",
            *list_options(BANK, used),
            "\n",
            *offer_options([answer.text for answer in self.answers(style)], legal, show_legal),
            "Answer with a word in brackets, for example [tiger].\n",
        )


@take_defaults_from("env/textgames/words")
def make(seats: int = FROM_FILE, secrets: bool = FROM_FILE, **game) -> TextGame:
    """Builds the game with this number of seats; `game` is as for `TextGame`."""
    return TextGame(Words(seats, secrets), **game)
