"""Othello (Reversi) on 4 x 4, 6 x 6 or 8 x 8 cells."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.boards import Board
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import winner_scores

DIRECTIONS = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]


@cache
def rays(size: int) -> np.ndarray:
    """Cells in the 8 directions from each cell, nearest first: `[cells, 8, size - 1]`; `cells` outside."""
    cells = size * size
    found = np.full((cells, 8, size - 1), cells, np.int32)
    for cell in range(cells):
        for number, (down, right) in enumerate(DIRECTIONS):
            for step in range(1, size):
                row, column = cell // size + step * down, cell % size + step * right
                if 0 <= row < size and 0 <= column < size:
                    found[cell, number, step - 1] = row * size + column
    return found


@struct.dataclass
class State:
    """`cells [n]` int32, the seat on each cell or -1; `mover` int32, who has the next move; `over` bool."""

    cells: jax.Array
    mover: jax.Array
    over: jax.Array


class Othello(Board):
    """Stones that enclose others turn them; who cannot move passes; more stones win.

    The second player's stones are at first on the corners (m-1, m-1) and (m, m) of the centre. The game ends
    when nobody can move. Actions are cells. Seats see own and other stones, and their seat.

    Args:
      size: cells of a side: 4, 6 or 8.
    """

    name = "othello"

    def __init__(self, size: int = 8):
        if settings.whole("size", size, 4, 8) % 2:
            raise ValueError(f"env.size={size!r}: must be 4, 6 or 8")
        self.size = self.rows = self.columns = size
        self.cells = size * size
        self.space = Discrete(self.cells)
        # No pass follows a pass.
        self.plies = 2 * (self.cells - 4)

    def init(self, key):
        """See `Rules`."""
        del key
        low, high = self.size // 2 - 1, self.size // 2
        cells = np.full((self.size, self.size), -1, np.int32)
        cells[low, low] = cells[high, high] = 1
        cells[low, high] = cells[high, low] = 0
        return State(jnp.asarray(cells.reshape(-1)), jnp.int32(0), jnp.zeros((), bool))

    def turn(self, state):
        """See `Rules`."""
        return state.mover

    def over(self, state):
        """See `Rules`."""
        return state.over

    def scores(self, state):
        """See `Rules`."""
        margin = self.margin(state)
        return winner_scores(jnp.where(margin > 0, 0, jnp.where(margin < 0, 1, -1)))

    def margin(self, state: State) -> jax.Array:
        """int32, stones of the first seat less those of the second."""
        return jnp.sum(state.cells == 0) - jnp.sum(state.cells == 1)

    def legal(self, state):
        """See `Rules`."""
        return self._moves(state.cells, state.mover)

    def apply(self, key, state, action):
        """See `Rules`."""
        del key
        mine = state.mover
        ray = jnp.asarray(rays(self.size))[action]
        turned = jnp.where(self._turned(state.cells, mine, ray), ray, self.cells)
        cells = state.cells.at[turned.reshape(-1)].set(mine, mode="drop").at[action].set(mine)
        reply, again = (jnp.any(self._moves(cells, seat)) for seat in (1 - mine, mine))
        return State(cells, jnp.where(reply, 1 - mine, mine).astype(jnp.int32), ~reply & ~again)

    def answer(self, action):
        """See `Rules`."""
        return f"[{int(action) // self.size}{int(action) % self.size}]"

    def _moves(self, cells, mine):
        turned = self._turned(cells, mine, jnp.asarray(rays(self.size)))
        return (cells < 0) & jnp.any(turned, axis=(1, 2))

    def _turned(self, cells, mine, ray):
        """Which cells of rays `[..., 8, size - 1]` turn, if seat `mine` moves where they begin."""
        seen = jnp.concatenate([cells, jnp.full(1, -1, jnp.int32)])[ray]
        between = jnp.cumprod(seen == 1 - mine, axis=-1)
        length = jnp.sum(between, axis=-1, keepdims=True)
        end = jnp.take_along_axis(seen, jnp.minimum(length, self.size - 2), axis=-1)
        return (between > 0) & (end == mine)


def make(size: int = 8, **game) -> TextGame:
    """The game on a board of this size; `game` is as for `TextGame`."""
    return TextGame(Othello(size), **game)
