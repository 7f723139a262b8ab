"""What a turn game is: rules as pure functions of a state, for one game at a time; use `jax.vmap`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.spaces import Discrete, MultiDiscrete

State = Any


class Rules:
    """Rules of a game whose N seats decide one after another (spec/selfplay.md, 5.1).

    Chance comes from the keys alone. A subclass sets the attributes and defines the methods.

    Attributes:
      name: of the game.
      seats: N, at least 2. Seat 0 decides first.
      space: of an action.
      features: F, length of a seat's observation, whose entries lie in [0, 1].
      plies: plies after which every game is over, forced ones included (see `env.TextGame`).
      hidden: whether seats see different things, so that a predictable policy can be exploited.
      stakes: the most that a seat can win or lose, where scores say how much was won (chips, margins);
        0 where they say only who has won.
    """

    name: str
    seats: int = 2
    space: Discrete | MultiDiscrete
    features: int
    plies: int
    hidden: bool = False
    stakes: float = 0.0

    def init(self, key: jax.Array) -> State:
        """The state before the first decision."""
        raise NotImplementedError

    def turn(self, state: State) -> jax.Array:
        """int32, the seat that decides next; any seat once the game is over."""
        raise NotImplementedError

    def over(self, state: State) -> jax.Array:
        """bool, whether the game has ended."""
        raise NotImplementedError

    def scores(self, state: State) -> jax.Array:
        """`[N]` float32 final scores that sum to 0; used only once the game is over."""
        raise NotImplementedError

    def legal(self, state: State) -> jax.Array:
        """`[n]` bool, options of the seat that decides: at least one per choice while the game runs."""
        raise NotImplementedError

    def apply(self, key: jax.Array, state: State, action: jax.Array) -> State:
        """The state after an allowed action of the seat that decides."""
        raise NotImplementedError

    def observe(self, state: State, seat: jax.Array) -> jax.Array:
        """`[F]` float32, what a seat sees: nothing that its player must not know."""
        raise NotImplementedError

    def allows(self, state: State, action: jax.Array) -> jax.Array:
        """bool, whether an action is legal: each of its choices is."""
        options = jnp.split(self.legal(state), np.cumsum(self.sizes)[:-1])
        chosen = jnp.atleast_1d(action)
        allowed = [
            jnp.any(legal & (jnp.arange(legal.shape[0]) == option))
            for legal, option in zip(options, chosen, strict=True)
        ]
        return jnp.all(jnp.stack(allowed))

    def deals(self) -> tuple[State, jax.Array]:
        """All initial states `[D]` and their probabilities `[D]`, where chance deals once, at the beginning.

        Raises:
          NotImplementedError: for games with chance later on, or with too many deals.
        """
        raise NotImplementedError(f"{self.name}: its deals cannot be listed")

    def text(self, state: State) -> str:
        """A state as a person sees it who sees everything; lines of text. Runs on the host."""
        raise NotImplementedError

    def answer(self, action: Any) -> str:
        """An action as text in brackets (spec/selfplay.md, 5.1). Runs on the host."""
        raise NotImplementedError

    @property
    def sizes(self) -> tuple[int, ...]:
        """Options of each choice of an action."""
        return (self.space.n,) if isinstance(self.space, Discrete) else tuple(self.space.sizes)


def at(x: jax.Array, index: jax.Array) -> jax.Array:
    """`x[index]` of numbers `x [n, ...]`, zeros outside; by comparisons, as a batch gathers row by row."""
    here = (jnp.arange(x.shape[0]) == index).reshape((-1,) + (1,) * (x.ndim - 1))
    return jnp.sum(jnp.where(here, x, 0), axis=0, dtype=x.dtype)


def put(x: jax.Array, index: jax.Array, value: jax.Array) -> jax.Array:
    """`x [n]` with another value at an index; unchanged for one outside. By comparisons, as `at`."""
    return jnp.where(jnp.arange(x.shape[0]) == index, value, x).astype(x.dtype)


def one_hot(index: jax.Array, size: int) -> jax.Array:
    """float32 one-hot rows of `index [...]`, flattened; zeros for an index outside 0..size-1."""
    return (jnp.asarray(index)[..., None] == jnp.arange(size)).astype(jnp.float32).reshape(-1)


def winner_scores(winner: jax.Array, seats: int = 2) -> jax.Array:
    """`[N]`: 1 for the winner, -1 / (N - 1) for all others; zeros for a draw, `winner` -1."""
    scores = jnp.where(jnp.arange(seats) == winner, 1.0, -1.0 / (seats - 1))
    return jnp.where(winner >= 0, scores, 0.0).astype(jnp.float32)
