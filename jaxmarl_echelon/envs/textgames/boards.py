"""Common parts of board games with stones: observations, text, placing stones in turn, lines."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.textgames.rules import TERSE, GameRules, winner_scores
from jaxmarl_echelon.envs.textgames.wording import join_values, mark_cells, number_values, offer_options
from jaxmarl_echelon.language.prompts import PromptPlace

MARKS = "OX."


class Stones(struct.PyTreeNode):
    """Board with `cells [n]` int32 (seat on each cell or -1), int32 number of stones `placed`, and `winner`.

    `winner` is an int32 seat, or -1.
    """

    cells: jax.Array
    placed: jax.Array
    winner: jax.Array


class BoardGame(GameRules):
    """Board game of two seats whose state has `cells [rows * columns]`, row by row: a seat, or -1.

    Seats observe own and other stones, and their seat.

    Attributes:
      rows, columns: size of the board in cells.
      letter: first letter of terse prompts.
      rules_text: the rules, as in full prompts.
      answer_text: how to answer, as in full prompts.
    """

    letter: str
    rules_text: str
    answer_text: str

    def __init__(self, rows: int, columns: int):
        """Sets the size of the board, and the length of an observation."""
        self.rows, self.columns = rows, columns
        self.features = 2 * rows * columns + 2

    def observe(self, state, seat):
        """See `GameRules`."""
        planes = [state.cells == seat, state.cells == 1 - seat, jnp.arange(2) == seat]
        return jnp.concatenate(planes).astype(jnp.float32)

    def values(self, state, seat):
        """See `GameRules`."""
        cells = jnp.where(state.cells < 0, MARKS.index("."), state.cells)
        return join_values(seat, cells, self.own_options(state, seat))

    def template(self, style, show_legal=True):
        """See `GameRules`."""
        (seat,), cells, legal = number_values(1, self.rows * self.columns, self.space.n)
        mark = PromptPlace("mark", seat, ("O", "X"))
        if style == TERSE:
            return (self.letter, mark, ":", *mark_cells(cells, MARKS), ">")
        return (
            f"{self.rules_text}\nYou are player ",
            PromptPlace("seat", seat, ("0", "1")),
            " and place the mark ",
            mark,
            ". The board, with . for a free cell:\n",
            *mark_cells(cells, MARKS, self.columns),
            *offer_options([answer.text for answer in self.answers(style)], legal, show_legal),
            f"{self.answer_text}\n",
        )

    def text(self, state):
        """See `GameRules`."""
        rows = np.asarray(state.cells).reshape(self.rows, self.columns)
        return "\n".join("".join(MARKS[cell] for cell in row) for row in rows)


def in_line(own: jax.Array, length: int) -> jax.Array:
    """Whether `length` adjacent cells of `own [rows, columns]` are set in a row, column or diagonal; bool.

    Computed with shifted boards, because a batched gather would read the cells of each line one by one.
    """

    def found(board, down, right):
        rows, columns = (
            size - (length - 1) * step for size, step in zip(board.shape, (down, right), strict=True)
        )
        shifted = (board[k * down : k * down + rows, k * right : k * right + columns] for k in range(length))
        return jnp.any(reduce(jnp.logical_and, shifted))

    return found(own, 0, 1) | found(own, 1, 0) | found(own, 1, 1) | found(own[:, ::-1], 1, 1)


class PlacingGame(BoardGame):
    """Board game in which seats alternately place a stone until one wins; a full board is a draw."""

    def __init__(self, rows: int, columns: int):
        """Sets the size of the board, whose cells are as many as the plies of a game."""
        super().__init__(rows, columns)
        self.plies = rows * columns

    def init(self, key):
        """See `GameRules`."""
        del key
        return Stones(jnp.full(self.plies, -1, jnp.int32), jnp.int32(0), jnp.int32(-1))

    def turn(self, state):
        """See `GameRules`."""
        return state.placed % 2

    def over(self, state):
        """See `GameRules`."""
        return (state.winner >= 0) | (state.placed == self.plies)

    def scores(self, state):
        """See `GameRules`."""
        return winner_scores(state.winner)

    def legal(self, state):
        """See `GameRules`."""
        return state.cells < 0

    def board(self, own: jax.Array) -> jax.Array:
        """Reshapes `own [rows * columns]` to `[rows, columns]`."""
        return own.reshape(self.rows, self.columns)
