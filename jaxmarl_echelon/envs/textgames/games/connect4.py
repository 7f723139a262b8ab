"""Connect Four on 6 x 7 cells, and a player that looks a stated number of plies ahead."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames import scripts
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import Rules, winner_scores

ROWS, COLUMNS = 6, 7
CELLS = ROWS * COLUMNS
MARKS = "OX."
# Worth of a line with 0..4 stones of one side and none of the other; four of them are a win.
LINE_WORTH = (0.0, 1e-4, 1e-3, 1e-2, 0.0)


def _lines() -> np.ndarray:
    """The 69 lines of four cells, `[69, 4]`; cells row by row, the top row first."""
    found = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + k * down, column + k * right) for k in range(4)]
                if all(0 <= r < ROWS and 0 <= c < COLUMNS for r, c in cells):
                    found.append([r * COLUMNS + c for r, c in cells])
    return np.array(found, np.int32)


LINES = _lines()


@struct.dataclass
class State:
    """`cells [42]` int32, the seat on each cell or -1; `placed` int32 stones; `winner` int32 seat or -1."""

    cells: jax.Array
    placed: jax.Array
    winner: jax.Array


class ConnectFour(Rules):
    """Stones fall down their column; four in a line win, a full board draws. Actions are columns.

    Seats see own and other stones, and their seat.
    """

    name = "connect4"
    space = Discrete(COLUMNS)
    features = 2 * CELLS + 2
    plies = CELLS

    def init(self, key):
        """See `Rules`."""
        del key
        return State(jnp.full(CELLS, -1, jnp.int32), jnp.int32(0), jnp.int32(-1))

    def turn(self, state):
        """See `Rules`."""
        return state.placed % 2

    def over(self, state):
        """See `Rules`."""
        return (state.winner >= 0) | (state.placed == CELLS)

    def scores(self, state):
        """See `Rules`."""
        return winner_scores(state.winner)

    def legal(self, state):
        """See `Rules`."""
        return state.cells[:COLUMNS] < 0

    def apply(self, key, state, action):
        """See `Rules`."""
        del key
        mine = self.turn(state)
        column = state.cells.reshape(ROWS, COLUMNS)[:, action]
        row = jnp.maximum(jnp.sum(column < 0) - 1, 0)
        cells = state.cells.at[row * COLUMNS + action].set(mine)
        won = jnp.any(jnp.all(cells[LINES] == mine, axis=1))
        return State(cells, state.placed + 1, jnp.where(won, mine, -1).astype(jnp.int32))

    def observe(self, state, seat):
        """See `Rules`."""
        planes = [state.cells == seat, state.cells == 1 - seat, jnp.arange(2) == seat]
        return jnp.concatenate(planes).astype(jnp.float32)

    def text(self, state):
        """See `Rules`."""
        rows = np.asarray(state.cells).reshape(ROWS, COLUMNS)
        return "\n".join("".join(MARKS[cell] for cell in row) for row in rows)

    def answer(self, action):
        """See `Rules`."""
        return f"[{int(action)}]"


def lookahead(rules: ConnectFour, depth: int) -> scripts.Player:
    """The best move by all continuations of `depth` plies, any of equal ones.

    A full-width search: its value is that of alpha-beta to the same depth, without branches that a batch
    could not skip anyway. Wins count 1, less 1 / 100 per ply that they take; positions at the end of the
    search by the lines still open to each side. Costs 7**depth positions.
    """

    def worth(state, mine):
        """Of a position for seat `mine`."""
        stones = state.cells[LINES]
        own, other = jnp.sum(stones == mine, axis=1), jnp.sum(stones == 1 - mine, axis=1)
        table = jnp.asarray(LINE_WORTH)
        return jnp.sum(jnp.where(other == 0, table[own], 0.0) - jnp.where(own == 0, table[other], 0.0))

    def values(state, left):
        """`[7]` values of the moves for the seat that moves; -inf for illegal ones."""
        mine = rules.turn(state)

        def value(column):
            after = rules.apply(jax.random.key(0), state, column)
            final = rules.scores(after)[mine] * (1.0 - 0.01 * (depth - left))
            going = worth(after, mine) if left == 1 else -jnp.max(values(after, left - 1))
            return jnp.where(rules.over(after), final, going)

        return jnp.where(rules.legal(state), jax.vmap(value)(jnp.arange(COLUMNS)), -jnp.inf)

    def player(key, state):
        found = values(state, depth)
        return scripts.pick(key, found >= jnp.max(found) - 1e-6)

    return player


def make(depths: tuple[int, ...] = (2, 4), **game) -> TextGame:
    """The game, with players `lookahead_D` that look D plies ahead, for D in `depths`.

    `game` is as for `TextGame`.
    """
    rules = ConnectFour()
    searchers: dict[str, Callable] = {
        f"lookahead_{settings.whole('depths', depth, 1, 6)}": lookahead(rules, depth) for depth in depths
    }
    return TextGame(rules, {"greedy_win": scripts.greedy_win(rules)} | searchers, **game)
