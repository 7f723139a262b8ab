"""Tic-tac-toe."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames import scripts
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import Rules, winner_scores

LINES = np.array(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]], np.int32
)
MARKS = "OX."
POWERS = 3 ** np.arange(9)


@struct.dataclass
class State:
    """`cells [9]` int32, the seat on each cell or -1; `placed` int32 stones; `winner` int32 seat or -1."""

    cells: jax.Array
    placed: jax.Array
    winner: jax.Array


class TicTacToe(Rules):
    """Three in a row on 3 x 3 cells; actions are cells, row by row. Seats see own and other stones, seat."""

    name = "tictactoe"
    space = Discrete(9)
    features = 20
    plies = 9

    def init(self, key):
        """See `Rules`."""
        del key
        return State(jnp.full(9, -1, jnp.int32), jnp.int32(0), jnp.int32(-1))

    def turn(self, state):
        """See `Rules`."""
        return state.placed % 2

    def over(self, state):
        """See `Rules`."""
        return (state.winner >= 0) | (state.placed == 9)

    def scores(self, state):
        """See `Rules`."""
        return winner_scores(state.winner)

    def legal(self, state):
        """See `Rules`."""
        return state.cells < 0

    def apply(self, key, state, action):
        """See `Rules`."""
        del key
        mine = self.turn(state)
        cells = state.cells.at[action].set(mine)
        won = jnp.any(jnp.all(cells[LINES] == mine, axis=1))
        return State(cells, state.placed + 1, jnp.where(won, mine, -1).astype(jnp.int32))

    def observe(self, state, seat):
        """See `Rules`."""
        planes = [state.cells == seat, state.cells == 1 - seat, jnp.arange(2) == seat]
        return jnp.concatenate(planes).astype(jnp.float32)

    def text(self, state):
        """See `Rules`."""
        rows = np.asarray(state.cells).reshape(3, 3)
        return "\n".join("".join(MARKS[cell] for cell in row) for row in rows)

    def answer(self, action):
        """See `Rules`."""
        return f"[{int(action)}]"


@cache
def best_moves() -> np.ndarray:
    """Moves that keep the value of every position: `[3**9, 9]` bool by the position's code.

    A code has a digit per cell: 0 free, 1 the first seat's, 2 the second's.
    """
    best, values = np.zeros((3**9, 9), bool), {}

    def value(cells, mover):
        """Of the seat that moves: 1, 0 or -1."""
        code = int((cells + 1) @ POWERS)
        if code not in values:
            if np.any(np.all(cells[LINES] == 1 - mover, axis=1)):
                values[code] = -1
            elif (cells >= 0).all():
                values[code] = 0
            else:
                found = {}
                for cell in np.flatnonzero(cells < 0):
                    after = cells.copy()
                    after[cell] = mover
                    found[cell] = -value(after, 1 - mover)
                values[code] = max(found.values())
                best[code, [cell for cell, worth in found.items() if worth == values[code]]] = True
        return values[code]

    value(np.full(9, -1), 0)
    return best


def perfect(key: jax.Array, state: State) -> jax.Array:
    """Any move that keeps the position's value."""
    wanted = jnp.asarray(best_moves())[(state.cells + 1) @ jnp.asarray(POWERS)]
    return scripts.pick(key, wanted | (~jnp.any(wanted) & (state.cells < 0)))


make = partial(TextGame, TicTacToe(), {"greedy_win": scripts.greedy_win(TicTacToe()), "perfect": perfect})
