"""Othello (Reversi) on 4 x 4, 6 x 6 or 8 x 8 cells."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.boards import BoardGame
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import FULL, winner_scores

# Directions towards higher cell indices, as (rows, columns); the opposites complete the eight.
DIRECTIONS = np.array([(0, 1), (1, -1), (1, 0), (1, 1)])
WORD = 32

# A set of cells as two words of 32 bits, the lower cells in the first; `[4]` each for one set per direction.
Cells = tuple[jax.Array, jax.Array]


def _pack_cells(cells: jax.Array) -> Cells:
    """Packs `cells [n]` bool, n at most 64, into bits."""
    bits = jnp.pad(cells, (0, 2 * WORD - cells.shape[0])).reshape(2, WORD)
    words = jnp.sum(jnp.where(bits, jnp.uint32(1) << jnp.arange(WORD, dtype=jnp.uint32), 0), axis=1)
    return words[0], words[1]


def _unpack_cells(cells: Cells, number: int) -> jax.Array:
    """Unpacks a set of cells to `[n]` bool."""
    return (jnp.stack(cells)[:, None] >> jnp.arange(WORD, dtype=jnp.uint32) & 1).reshape(-1)[:number] != 0


def _intersect_cells(some: Cells, others: Cells) -> Cells:
    """Returns the intersection of two sets of cells."""
    return some[0] & others[0], some[1] & others[1]


def _unite_cells(some: Cells, others: Cells) -> Cells:
    """Returns the union of two sets of cells."""
    return some[0] | others[0], some[1] | others[1]


@cache
def _stepping(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index offset of each direction `[4]`, and the cells with a neighbour in each direction.

    The latter are sets `[2, 2, 4]`: forward and backward, words, directions.
    """
    column = np.arange(2 * WORD) % size
    has_next = [(column + right >= 0) & (column + right < size) for right in (1, -1, 0, 1, -1, 1, 0, -1)]
    words = np.sum(np.reshape(has_next, (2, 4, 2, WORD)) << np.arange(WORD), axis=-1)
    return (DIRECTIONS @ [size, 1]).astype(np.uint32), words.astype(np.uint32).transpose(0, 2, 1)


def _shift_cells(size: int, cells: Cells, back: bool) -> Cells:
    """Shifts a set of cells by one cell in the four directions, or in the opposite ones if `back`."""
    by, has_next = _stepping(size)
    first, last = _intersect_cells(cells, tuple(has_next[int(back)]))
    rest = WORD - by
    if back:
        return (first >> by) | (last << rest), last >> by
    return first << by, (last << by) | (first >> rest)


def _enclosed_runs(size: int, start: Cells, stones: Cells, back: bool) -> Cells:
    """Returns the unbroken runs of `stones` next to the cells `start`, by direction."""
    run = _intersect_cells(stones, _shift_cells(size, start, back))
    for _ in range(size - 3):
        run = _unite_cells(run, _intersect_cells(stones, _shift_cells(size, run, back)))
    return run


class State(struct.PyTreeNode):
    """A position: `cells [n]` int32 (seat on each cell or -1), `mover` int32 seat to move, `over` bool."""

    cells: jax.Array
    mover: jax.Array
    over: jax.Array


@take_defaults_from("env/textgames/othello")
class Othello(BoardGame):
    """Othello: enclosed stones are flipped; a seat without a move passes; more stones win.

    The second player's stones start on the centre cells (m-1, m-1) and (m, m), with m = size / 2. The game
    ends when neither seat can move. Actions are cells. Seats observe own and other stones, and their seat.

    Args:
      size: side of the board in cells: 4, 6 or 8.
    """

    name = "othello"
    letter = "R"
    answer_text = "Answer with row and column in brackets, for example [2,1]."

    def __init__(self, size: int = FROM_FILE):
        if settings.read_whole("size", size, 4, 8) % 2:
            raise ValueError(f"env.size={size}: must be 4, 6 or 8")
        super().__init__(size, size)
        self.rules_text = (
            f"Othello on {size} rows and {size} columns, both numbered from 0. A new mark must enclose marks "
            "of the other player in a straight line, which then become own marks; more marks at the end win."
        )
        self.size = size
        self.cells = size * size
        self.space = Discrete(self.cells)
        # Two passes in a row end the game, so at most every other ply is a pass.
        self.plies = 2 * (self.cells - 4)

    def init(self, key):
        """See `GameRules`."""
        del key
        low, high = self.size // 2 - 1, self.size // 2
        cells = np.full((self.size, self.size), -1, np.int32)
        cells[low, low] = cells[high, high] = 1
        cells[low, high] = cells[high, low] = 0
        return State(jnp.asarray(cells.reshape(-1)), jnp.int32(0), jnp.zeros((), bool))

    def turn(self, state):
        """See `GameRules`."""
        return state.mover

    def over(self, state):
        """See `GameRules`."""
        return state.over

    def scores(self, state):
        """See `GameRules`."""
        margin = self.margin(state)
        return winner_scores(jnp.where(margin > 0, 0, jnp.where(margin < 0, 1, -1)))

    def margin(self, state: State) -> jax.Array:
        """Number of stones of the first seat minus those of the second, int32."""
        return jnp.sum(state.cells == 0) - jnp.sum(state.cells == 1)

    def legal(self, state):
        """See `GameRules`."""
        return self._moves(state.cells, state.mover)

    def apply(self, key, state, action):
        """See `GameRules`."""
        del key
        mine = state.mover
        place = jnp.arange(self.cells) == action
        turned = self._turned(place, state.cells == mine, state.cells == 1 - mine)
        cells = jnp.where(place | turned, mine, state.cells)
        reply, again = (jnp.any(self._moves(cells, seat)) for seat in (1 - mine, mine))
        return State(cells, jnp.where(reply, 1 - mine, mine).astype(jnp.int32), ~reply & ~again)

    def answer(self, action):
        """See `GameRules`."""
        return f"[{int(action) // self.size}{int(action) % self.size}]"

    def phrase(self, style, option):
        """See `GameRules`."""
        return f"[{option // self.size},{option % self.size}]" if style == FULL else self.answer(option)

    def _moves(self, cells, mine):
        """Masks `[n]` the legal moves: free cells at the end of a run of other stones from an own stone."""
        own, others, free = _pack_cells(cells == mine), _pack_cells(cells == 1 - mine), _pack_cells(cells < 0)
        ends = [
            _intersect_cells(
                free, _shift_cells(self.size, _enclosed_runs(self.size, own, others, back), back)
            )
            for back in (False, True)
        ]
        return _unpack_cells(_any_direction(_unite_cells(*ends)), self.cells)

    def _turned(self, place, own, others):
        """Masks `[n]` the flipped stones: runs of other stones between the cell and own stones."""
        place, own, others = _pack_cells(place), _pack_cells(own), _pack_cells(others)
        turned = []
        for back in (False, True):
            run = _enclosed_runs(self.size, place, others, back)
            first, last = _intersect_cells(own, _shift_cells(self.size, run, back))
            closed = (first | last) != 0
            turned.append(tuple(jnp.where(closed, words, 0) for words in run))
        return _unpack_cells(_any_direction(_unite_cells(*turned)), self.cells)


def _any_direction(cells: Cells) -> Cells:
    return tuple(jnp.bitwise_or.reduce(words) for words in cells)


@take_defaults_from("env/textgames/othello")
def make(size: int = FROM_FILE, **game) -> TextGame:
    """Builds the game on a board of this size; `game` is as for `TextGame`."""
    return TextGame(Othello(size), **game)
