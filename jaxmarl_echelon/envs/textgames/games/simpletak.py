"""SimpleTak: a stone per ply; a path between opposite sides wins."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames import scripts
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import Rules, winner_scores

MARKS = "OX."


@struct.dataclass
class State:
    """`cells [n]` int32, the seat on each cell or -1; `placed` int32 stones; `winner` int32 seat or -1."""

    cells: jax.Array
    placed: jax.Array
    winner: jax.Array


class SimpleTak(Rules):
    """An orthogonally connected own path between opposite sides wins; a full board draws. Actions are cells.

    Seats see own and other stones, and their seat.

    Args:
      size: cells of a side, 3 to 5.
    """

    name = "simpletak"

    def __init__(self, size: int = 4):
        self.size = settings.whole("size", size, 3, 5)
        self.plies = self.size**2
        self.space = Discrete(self.plies)
        self.features = 2 * self.plies + 2

    def init(self, key):
        """See `Rules`."""
        del key
        return State(jnp.full(self.plies, -1, jnp.int32), jnp.int32(0), jnp.int32(-1))

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

    def apply(self, key, state, action):
        """See `Rules`."""
        del key
        mine = self.turn(state)
        cells = state.cells.at[action].set(mine)
        own = (cells == mine).reshape(self.size, self.size)
        won = self._crosses(own) | self._crosses(own.T)
        return State(cells, state.placed + 1, jnp.where(won, mine, -1).astype(jnp.int32))

    def observe(self, state, seat):
        """See `Rules`."""
        planes = [state.cells == seat, state.cells == 1 - seat, jnp.arange(2) == seat]
        return jnp.concatenate(planes).astype(jnp.float32)

    def text(self, state):
        """See `Rules`."""
        rows = np.asarray(state.cells).reshape(self.size, self.size)
        return "\n".join("".join(MARKS[cell] for cell in row) for row in rows)

    def answer(self, action):
        """See `Rules`."""
        return f"[{int(action):02d}]"

    def _crosses(self, own):
        """bool; cells `own [m, m]` connect the first row with the last. Sets of cells are bits."""
        size, cells = self.size, self.plies
        bits = jnp.sum(jnp.where(own.reshape(-1), 1 << jnp.arange(cells), 0))
        first = (1 << size) - 1
        left = sum(1 << (row * size) for row in range(size))
        right = left << (size - 1)

        def grow(_, reached):
            sideways = ((reached & ~right) << 1) | ((reached & ~left) >> 1)
            return bits & (reached | sideways | (reached << size) | (reached >> size))

        # A shortest path takes at most every other row and the cells between: half of them, and one more.
        reached = jax.lax.fori_loop(0, cells // 2 + 2, grow, bits & first, unroll=True)
        return (reached & (first << (cells - size))) != 0


def make(size: int = 4, **game) -> TextGame:
    """The game on a board of this size; `game` is as for `TextGame`."""
    rules = SimpleTak(size)
    return TextGame(rules, {"greedy_win": scripts.greedy_win(rules)}, **game)
