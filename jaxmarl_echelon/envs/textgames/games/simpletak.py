"""SimpleTak: seats place one stone per ply; a path between opposite sides wins."""

import jax
import jax.numpy as jnp

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames import scripts
from jaxmarl_echelon.envs.textgames.boards import PlacingGame, Stones
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import FULL, replace_at


@take_defaults_from("env/textgames/simpletak")
class SimpleTak(PlacingGame):
    """SimpleTak: an orthogonally connected path of own stones between opposite sides wins.

    A full board is a draw. Actions are cells. Seats observe own and other stones, and their seat.

    Args:
      size: side of the board in cells, 3 to 5.
    """

    name = "simpletak"
    letter = "S"
    answer_text = "Answer with a free cell in brackets, for example [5]."

    def __init__(self, size: int = FROM_FILE):
        self.size = settings.read_whole("size", size, 3, 5)
        super().__init__(self.size, self.size)
        self.rules_text = (
            f"SimpleTak on {size} rows of {size} cells, numbered from 0 row by row. Players mark one free "
            "cell per turn, and own marks that connect two opposite sides of the board, edge to edge, win."
        )
        self.space = Discrete(self.plies)

    def apply(self, key, state, action):
        """See `GameRules`."""
        del key
        mine = self.turn(state)
        cells = replace_at(state.cells, action, mine)
        own = self.board(cells == mine)
        won = self._crosses(own) | self._crosses(own.T)
        return Stones(cells, state.placed + 1, jnp.where(won, mine, -1).astype(jnp.int32))

    def answer(self, action):
        """See `GameRules`."""
        return f"[{int(action):02d}]"

    def phrase(self, style, option):
        """See `GameRules`."""
        return f"[{option}]" if style == FULL else self.answer(option)

    def _crosses(self, own):
        """Whether the cells `own [m, m]` connect the first row with the last; bool, computed on bit sets."""
        size, cells = self.size, self.plies
        bits = jnp.sum(jnp.where(own.reshape(-1), 1 << jnp.arange(cells), 0))
        first = (1 << size) - 1
        left = sum(1 << (row * size) for row in range(size))
        right = left << (size - 1)

        def grow(_, reached):
            sideways = ((reached & ~right) << 1) | ((reached & ~left) >> 1)
            return bits & (reached | sideways | (reached << size) | (reached >> size))

        # A shortest path has at most about half of all cells: every other row and the cells between.
        reached = jax.lax.fori_loop(0, cells // 2 + 2, grow, bits & first, unroll=True)
        return (reached & (first << (cells - size))) != 0


@take_defaults_from("env/textgames/simpletak")
def make(size: int = FROM_FILE, **game) -> TextGame:
    """Builds the game on a board of this size; `game` is as for `TextGame`."""
    rules = SimpleTak(size)
    return TextGame(rules, {"greedy_win": scripts.greedy_win(rules)}, **game)
