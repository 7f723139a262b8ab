"""Games of PGX (Koyamada et al. 2023; version 2.6) as turn games with two or more seats."""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos.types import PyTree
from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.adapters.inward.conversions import (
    cast_array,
    require_known_name,
    restore_types,
    unbounded_box,
)
from jaxmarl_echelon.envs.spaces import Box, Discrete
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import GameRules
from jaxmarl_echelon.envs.trees import strip_weak_types


class Facts(NamedTuple):
    """Facts about a game that PGX does not provide.

    Attributes:
      moves: the most decisions of a game; backgammon, which has no limit, is a draw then.
      alternate: whether seats decide strictly one after another.
      hidden: whether seats have private information.
      stakes: the most that a seat can win or lose, where scores are amounts.
    """

    moves: int
    alternate: bool = True
    hidden: bool = False
    stakes: float = 0.0


FACTS = {
    "animal_shogi": Facts(256),
    "backgammon": Facts(2000, alternate=False, stakes=3.0),
    "chess": Facts(512),
    "connect_four": Facts(42),
    "gardner_chess": Facts(256),
    "go_9x9": Facts(162),
    "go_19x19": Facts(722),
    "hex": Facts(122),
    "kuhn_poker": Facts(3, hidden=True, stakes=2.0),
    "leduc_holdem": Facts(8, alternate=False, hidden=True, stakes=13.0),
    "othello": Facts(128),
    "shogi": Facts(512),
    "tic_tac_toe": Facts(9),
}


class PgxState(struct.PyTreeNode):
    """A game in progress.

    Attributes:
      own: PGX's state.
      first: int32 player that decides first, PGX's number: seat 0.
      paid: `[N]` float32 rewards so far, by PGX's number of the player.
      moves: int32 decisions so far.
    """

    own: PyTree
    first: jax.Array
    paid: jax.Array
    moves: jax.Array


class PgxRules(GameRules):
    """Rules of one game of PGX; see `GameRules`.

    PGX draws which player begins. Seats are numbered from that player, so that seat 0 decides first.
    Observations have PGX's shapes, planes of a board for most games.
    """

    def __init__(self, name: str, env: Any, facts: Facts, moves: int):
        self._env, self.most_moves = env, moves
        self.name, self.seats, self.space = name, env.num_players, Discrete(env.num_actions)
        self.plies = moves if facts.alternate else moves * env.num_players
        self.hidden, self.stakes = facts.hidden, facts.stakes
        self.features = int(np.prod(env.observation_shape))

    @property
    def observation(self) -> Box:
        """Space of an observation, with PGX's shape."""
        return unbounded_box(self._env.observation_shape)

    def init(self, key: jax.Array) -> PgxState:
        """Returns the state before the first decision."""
        own = strip_weak_types(self._env.init(key))
        first = cast_array(own.current_player, jnp.int32)
        return PgxState(own, first, jnp.zeros(self.seats), jnp.int32(0))

    def turn(self, state: PgxState) -> jax.Array:
        """Returns the seat that decides next."""
        return (cast_array(state.own.current_player, jnp.int32) - state.first) % self.seats

    def over(self, state: PgxState) -> jax.Array:
        """Whether the game has ended."""
        return state.own.terminated | state.own.truncated | (state.moves >= self.most_moves)

    def scores(self, state: PgxState) -> jax.Array:
        """Returns the sums of rewards by seat `[N]`."""
        return jnp.roll(state.paid, -state.first)

    def legal(self, state: PgxState) -> jax.Array:
        """Masks `[n]` the legal actions of the deciding seat."""
        return cast_array(state.own.legal_action_mask, bool)

    def apply(self, key: jax.Array, state: PgxState, action: jax.Array) -> PgxState:
        """Returns the state after a legal action of the deciding seat."""
        own = restore_types(self._env.step(state.own, action, key), state.own)
        return PgxState(own, state.first, state.paid + own.rewards, state.moves + 1)

    def observe(self, state: PgxState, seat: jax.Array) -> jax.Array:
        """Returns a seat's observation, float32."""
        with warnings.catch_warnings():
            # PGX wants to observe only for the player who decides, but others wait and watch.
            warnings.simplefilter("ignore", DeprecationWarning)
            seen = self._env.observe(state.own, (state.first + seat) % self.seats)
        return cast_array(seen, jnp.float32)

    def text(self, state: PgxState) -> str:
        """Formats a state as one line; PGX has pictures of games, but no text."""
        if bool(self.over(state)):
            return "over"
        legal = np.flatnonzero(np.asarray(self.legal(state)))
        return f"seat {int(self.turn(state))} decides among {' '.join(map(str, legal))}"

    def answer(self, action: Any) -> str:
        """Formats an action as its number in brackets."""
        return f"[{int(action)}]"


def make(
    name: str,
    moves: int | None = None,
    opponent: str | None = "random",
    invalid_reward: float = -1.0,
    invalid_other: float = 1.0,
) -> TextGame:
    """Builds a game of PGX, with the script `random`.

    Args:
      name: PGX's name, e.g. "connect_four".
      moves: decisions after which a game is a draw; None for the most that the game can have.
      opponent, invalid_reward, invalid_other: see `TextGame`.

    Raises:
      ValueError: one line, for an invalid setting.
    """
    # Imported here because it takes seconds and most runs do not need it.
    import pgx

    require_known_name("PGX", name, tuple(FACTS))
    facts = FACTS[name]
    most = facts.moves if moves is None else settings.read_whole("moves", moves, 1, facts.moves)
    rules = PgxRules(name, pgx.make(name), facts, most)
    return TextGame(rules, opponent=opponent, invalid_reward=invalid_reward, invalid_other=invalid_other)
