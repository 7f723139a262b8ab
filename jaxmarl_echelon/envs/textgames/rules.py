"""Interface of turn games: rules as pure functions of one game's state; batch them with `jax.vmap`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algos.masks import expand_mask
from jaxmarl_echelon.envs.spaces import Box, Discrete, MultiDiscrete
from jaxmarl_echelon.language.language import Answer
from jaxmarl_echelon.language.prompts import Piece

State = Any
TERSE, FULL = STYLES = ("terse", "full")


class GameRules:
    """Rules of a game whose N seats decide one after another (docs/reference/selfplay.md 6.1).

    All randomness comes from the keys. A subclass sets the attributes and defines the methods.

    Attributes:
      name: name of the game.
      seats: number N of seats, at least 2. Seat 0 decides first.
      space: action space.
      features: length F of a seat's observation, with entries in [0, 1].
      plies: maximum number of plies of a game, including forced ones (see `env.TextGame`).
      hidden: whether seats have private information, so that deterministic policies can be exploited.
      stakes: the most that a seat can win or lose, if scores are amounts (chips, margins); 0 if they only
        tell the winner.
    """

    name: str
    seats: int = 2
    space: Discrete | MultiDiscrete
    features: int
    plies: int
    hidden: bool = False
    stakes: float = 0.0

    @property
    def observation(self) -> Box:
        """Space of a seat's observation: by default `features` numbers in [0, 1]."""
        return Box((self.features,), 0.0, 1.0)

    def init(self, key: jax.Array) -> State:
        """Returns the state before the first decision."""
        raise NotImplementedError

    def turn(self, state: State) -> jax.Array:
        """Returns the seat that decides next, int32; any seat once the game is over."""
        raise NotImplementedError

    def over(self, state: State) -> jax.Array:
        """Whether the game has ended; bool."""
        raise NotImplementedError

    def scores(self, state: State) -> jax.Array:
        """Returns the final scores `[N]`, float32 with sum 0; used only once the game is over."""
        raise NotImplementedError

    def legal(self, state: State) -> jax.Array:
        """Masks `[n]` the options of the deciding seat: at least one per choice while the game runs."""
        raise NotImplementedError

    def apply(self, key: jax.Array, state: State, action: jax.Array) -> State:
        """Returns the state after a legal action of the deciding seat."""
        raise NotImplementedError

    def observe(self, state: State, seat: jax.Array) -> jax.Array:
        """Returns a seat's observation `[F]`, float32, without information hidden from it."""
        raise NotImplementedError

    def allows(self, state: State, action: jax.Array) -> jax.Array:
        """Whether an action is legal, i.e. each of its choices is; bool."""
        options = jnp.split(self.legal(state), np.cumsum(self.sizes)[:-1])
        chosen = jnp.atleast_1d(action)
        allowed = [
            jnp.any(legal & (jnp.arange(legal.shape[0]) == option))
            for legal, option in zip(options, chosen, strict=True)
        ]
        return jnp.all(jnp.stack(allowed))

    def deals(self) -> tuple[State, np.ndarray]:
        """Returns all initial states `[D]` and their probabilities `[D]`, for games with a single deal.

        Raises:
          NotImplementedError: for games with chance later on, or with too many deals.
        """
        raise NotImplementedError(f"{self.name}: cannot enumerate the deals")

    def text(self, state: State) -> str:
        """Formats a state, including hidden information, as lines of text. Runs on the host."""
        raise NotImplementedError

    def answer(self, action: Any) -> str:
        """Formats an action as text in brackets (docs/reference/selfplay.md 6.3). Runs on the host."""
        raise NotImplementedError

    def values(self, state: State, seat: jax.Array) -> jax.Array:
        """Returns the integers `[R]` int32 that select the symbols of a seat's prompt, in any state.

        They contain what `observe` shows to the seat, and the legal options of a seat that decides.
        """
        raise NotImplementedError(f"{self.name}: has no prompts")

    def template(self, style: str, show_legal: bool = True) -> tuple[Piece, ...]:
        """Returns the pieces of the prompt in one of `STYLES`; `full` ends in a newline.

        Args:
          style: `terse`, one symbol per fact, or `full`, sentences with the rules.
          show_legal: whether `full` lists the legal options.

        Raises:
          ValueError: one line, for settings of the game that the style cannot express.
        """
        raise NotImplementedError(f"{self.name}: has no prompts")

    def answers(self, style: str) -> tuple[Answer, ...]:
        """Returns all answers in one of `STYLES`: by default one per option, in the words of `phrase`."""
        options = range(self.space.mask_size)
        return tuple(
            Answer(self.phrase(style, option), (option,), self.synonyms(style, option)) for option in options
        )

    def phrase(self, style: str, option: int) -> str:
        """Returns the text of an answer with a single choice: by default that of `answer`."""
        del style
        return self.answer(option)

    def synonyms(self, style: str, option: int) -> tuple[str, ...]:
        """Returns other texts of an answer with a single choice: by default none."""
        del style, option
        return ()

    def own_options(self, state: State, seat: jax.Array) -> jax.Array:
        """Masks `[n]` the legal options if `seat` decides; none otherwise."""
        return self.legal(state) & (self.turn(state) == seat) & ~self.over(state)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of options of each choice of an action."""
        return (self.space.n,) if isinstance(self.space, Discrete) else tuple(self.space.sizes)


def select_at(x: jax.Array, index: jax.Array) -> jax.Array:
    """Returns `x[index]`, zeros if out of range; by comparison, because batched gathers read row by row."""
    here = expand_mask(jnp.arange(x.shape[0]) == index, x.ndim)
    return jnp.sum(jnp.where(here, x, 0), axis=0, dtype=x.dtype)


def replace_at(x: jax.Array, index: jax.Array, value: jax.Array) -> jax.Array:
    """Replaces `x[index]` of `x [n]` by comparison, as `select_at`; returns `x` unchanged if out of range."""
    return jnp.where(jnp.arange(x.shape[0]) == index, value, x).astype(x.dtype)


def one_hot(index: jax.Array, size: int) -> jax.Array:
    """Returns flattened float32 one-hot rows of `index [...]`; zeros for an index outside 0..size-1."""
    return (jnp.asarray(index)[..., None] == jnp.arange(size)).astype(jnp.float32).reshape(-1)


def winner_scores(winner: jax.Array, seats: int = 2) -> jax.Array:
    """Returns scores `[N]`: 1 for the winner, -1 / (N - 1) for all others; zeros for a draw (`winner` -1)."""
    scores = jnp.where(jnp.arange(seats) == winner, 1.0, -1.0 / (seats - 1))
    return jnp.where(winner >= 0, scores, 0.0).astype(jnp.float32)
