"""Tic-tac-toe."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames import scripts
from jaxmarl_echelon.envs.textgames.boards import PlacingGame, Stones, in_line
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import replace_at

LINES = np.array(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]], np.int32
)
POWERS = 3 ** np.arange(9)


class TicTacToe(PlacingGame):
    """Tic-tac-toe on 3 x 3 cells; actions are cells, row by row.

    Seats observe own and other stones, and their seat.
    """

    name = "tictactoe"
    letter = "T"
    rules_text = (
        "Tic-tac-toe on nine cells, numbered from 0 to 8 row by row. Players mark one free cell per turn, "
        "and three own marks in a row, column or diagonal win."
    )
    answer_text = "Answer with a free cell in brackets, for example [4]."
    space = Discrete(9)

    def __init__(self):
        super().__init__(3, 3)

    def apply(self, key, state, action):
        """See `GameRules`."""
        del key
        mine = self.turn(state)
        cells = replace_at(state.cells, action, mine)
        won = in_line(self.board(cells == mine), 3)
        return Stones(cells, state.placed + 1, jnp.where(won, mine, -1).astype(jnp.int32))

    def answer(self, action):
        """See `GameRules`."""
        return f"[{int(action)}]"


@cache
def optimal_tictactoe_moves() -> np.ndarray:
    """Computes the optimal moves of every position: `[3**9, 9]` bool by the position's code.

    A code has one ternary digit per cell: 0 free, 1 first seat, 2 second seat.
    """
    best, values = np.zeros((3**9, 9), bool), {}

    def value(cells, mover):
        """Value of a position for the seat to move: 1, 0 or -1."""
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


def play_optimal_tictactoe(key: jax.Array, state: Stones) -> jax.Array:
    """Plays a random optimal move."""
    wanted = jnp.asarray(optimal_tictactoe_moves())[(state.cells + 1) @ jnp.asarray(POWERS)]
    return scripts.sample_option(key, wanted | (~jnp.any(wanted) & (state.cells < 0)))


make = partial(
    TextGame, TicTacToe(), {"greedy_win": scripts.greedy_win(TicTacToe()), "perfect": play_optimal_tictactoe}
)
