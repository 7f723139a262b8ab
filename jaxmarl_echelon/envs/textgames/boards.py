"""What games with stones on a board share: how seats see it, how people do, placing in turn, lines."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.textgames.rules import Rules, winner_scores

MARKS = "OX."


@struct.dataclass
class Stones:
    """`cells [n]` int32, the seat on each cell or -1; `placed` int32 stones; `winner` int32 seat or -1."""

    cells: jax.Array
    placed: jax.Array
    winner: jax.Array


class Board(Rules):
    """Two seats; states have `cells [rows * columns]`, row by row: the seat on each cell, or -1.

    Seats see own and other stones, and their seat.

    Attributes:
      rows, columns: cells of the sides.
    """

    rows: int
    columns: int

    @property
    def features(self):
        """See `Rules`."""
        return 2 * self.rows * self.columns + 2

    def observe(self, state, seat):
        """See `Rules`."""
        planes = [state.cells == seat, state.cells == 1 - seat, jnp.arange(2) == seat]
        return jnp.concatenate(planes).astype(jnp.float32)

    def text(self, state):
        """See `Rules`."""
        rows = np.asarray(state.cells).reshape(self.rows, self.columns)
        return "\n".join("".join(MARKS[cell] for cell in row) for row in rows)


def in_line(own: jax.Array, length: int) -> jax.Array:
    """bool; somewhere `length` neighbours of `own [rows, columns]` are set, across, down or diagonally.

    By shifted boards: a batch would gather the cells of lines one by one.
    """

    def found(board, down, right):
        rows, columns = (
            size - (length - 1) * step for size, step in zip(board.shape, (down, right), strict=True)
        )
        shifted = (board[k * down : k * down + rows, k * right : k * right + columns] for k in range(length))
        return jnp.any(reduce(jnp.logical_and, shifted))

    return found(own, 0, 1) | found(own, 1, 0) | found(own, 1, 1) | found(own[:, ::-1], 1, 1)


class Placing(Board):
    """Boards on which the seats place a stone each in turn, until one wins or no cell is free: a draw."""

    @property
    def plies(self):
        """See `Rules`."""
        return self.rows * self.columns

    def init(self, key):
        """See `Rules`."""
        del key
        return Stones(jnp.full(self.plies, -1, jnp.int32), jnp.int32(0), jnp.int32(-1))

    def turn(self, state):
        """See `Rules`."""
        return state.placed % 2

    def over(self, state):
        """See `Rules`."""
        return (state.winner >= 0) | (state.placed == self.plies)

    def scores(self, state):
        """See `Rules`."""
        return winner_scores(state.winner)

    def legal(self, state):
        """See `Rules`."""
        return state.cells < 0

    def board(self, own: jax.Array) -> jax.Array:
        """`own [rows * columns]` as `[rows, columns]`."""
        return own.reshape(self.rows, self.columns)
