"""Published numbers of positions, and exact values, of games without hidden information."""

import numpy as np
import pytest

from jaxmarl_echelon.envs.textgames.analysis.positions import (
    count_endings,
    enumerate_levels,
    optimal_moves,
    optimal_values,
)
from jaxmarl_echelon.envs.textgames.games import connect4, nim, othello, simpletak, tictactoe


def sequences(rules, depth, start=None):
    """Sequences of 1..depth plies, and distinct positions at 0..depth."""
    found = list(enumerate_levels(rules, start, depth=depth))
    return [int(level.ways.sum()) for level in found[1:]], [len(level.over) for level in found]


@pytest.fixture(scope="module")
def tictactoe_levels():
    return list(enumerate_levels(tictactoe.TicTacToe()))


def test_tictactoe_has_255168_games_5478_states_and_value_0(tictactoe_levels):
    found = tictactoe_levels
    assert sum(level.ways[level.over].sum() for level in found) == 255168
    assert sum(len(level.over) for level in found) == 5478
    ends = np.concatenate([level.scores[level.over, 0] for level in found])
    assert len(ends) == 958
    assert [(ends == score).sum() for score in (1, -1, 0)] == [626, 316, 16]
    assert optimal_values(found)[0] == [0]


def random_moves(level):
    return (level.child >= 0) / np.maximum((level.child >= 0).sum(1, keepdims=True), 1)


def test_tictactoe_played_at_random_and_against_random_has_its_exact_results(tictactoe_levels):
    ends = count_endings(tictactoe_levels, [random_moves(level)[:, :9] for level in tictactoe_levels])
    np.testing.assert_allclose(ends, [737 / 1260, 8 / 63, 121 / 420], rtol=1e-12)
    # Best replies to a random player: backwards, the maximum for one side and the mean for the other.
    for seat, wanted in ((0, 0.994791667), (1, 0.924867725)):
        after = None
        for level in reversed(tictactoe_levels):
            now = level.scores[:, seat]
            if after is not None:
                worth = np.where(level.child >= 0, after[level.child], 0)
                best = np.where(level.child >= 0, worth, -9).max(1)
                mine = level.turn == seat
                now = np.where(level.over, now, np.where(mine, best, (random_moves(level) * worth).sum(1)))
            after = now
        np.testing.assert_allclose(after[0], wanted, atol=1e-9)


def test_tictactoe_perfect_moves_keep_every_value(tictactoe_levels):
    """The table of the script against values worked out by the rules."""
    keeps = optimal_moves(tictactoe_levels, optimal_values(tictactoe_levels))
    for level, keep in zip(tictactoe_levels, keeps, strict=True):
        codes = (np.asarray(level.state.cells) + 1) @ tictactoe.POWERS
        np.testing.assert_array_equal(tictactoe.optimal_tictactoe_moves()[codes], keep)
    # All lines of play in which nobody errs are drawn.
    won, drawn, lost = count_endings(tictactoe_levels, keeps)
    assert (won, lost) == (0, 0) and drawn > 0


def test_connect_four_has_the_published_positions_by_depth():
    wanted = [7, 49, 343, 2401, 16807, 117649, 823536]
    positions = [1, 7, 49, 238, 1120, 4263, 16422, 54859]
    assert sequences(connect4.ConnectFour(), 7) == (wanted, positions)


def test_othello_has_the_published_sequences_by_depth_and_small_board_is_lost_by_8_stones():
    assert sequences(othello.Othello(8), 6)[0] == [4, 12, 56, 244, 1396, 8200]
    small = othello.Othello(4)
    found = list(enumerate_levels(small))
    assert [int(level.ways.sum()) for level in found[1:8]] == [4, 12, 44, 128, 424, 1256, 3624]
    worth = optimal_values(found, lambda s: (s.cells == 0).sum(1) - (s.cells == 1).sum(1))
    assert worth[0] == [-8]


def test_nim_is_lost_exactly_where_the_xor_of_piles_is_0():
    rules = nim.Nim((3, 4, 5))
    found = list(enumerate_levels(rules))
    for level, worth in zip(found, optimal_values(found), strict=True):
        piles = np.asarray(level.state.piles)
        lost = np.bitwise_xor.reduce(piles, axis=1) == 0
        mover = np.where(level.turn == 0, worth, -worth)
        np.testing.assert_array_equal(mover, np.where(lost, -1, 1))
    winning = [
        move
        for move, child in enumerate(found[0].child[0])
        if child >= 0 and optimal_values(found)[1][child] > 0
    ]
    assert [rules.answer(move) for move in winning] == ["[02]"]


def test_simpletak_on_3_by_3_cells_is_won_by_paths_across_it():
    found = list(enumerate_levels(simpletak.SimpleTak(3)))
    for level in found:
        cells = np.asarray(level.state.cells).reshape(-1, 3, 3)
        for seat in range(2):
            own = cells == seat
            won = np.array([crosses(grid) or crosses(grid.T) for grid in own])
            np.testing.assert_array_equal(won, np.asarray(level.state.winner) == seat)
    assert int(found[1].ways.sum()) == 9


def crosses(grid):
    """Whether set cells connect the first row with the last, by a plain search."""
    open_cells, seen = [(0, column) for column in range(3) if grid[0, column]], set()
    while open_cells:
        row, column = open_cells.pop()
        if row == 2:
            return True
        seen.add((row, column))
        around = [(row + a, column + b) for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))]
        inside = [(r, c) for r, c in around if 0 <= r < 3 and 0 <= c < 3]
        open_cells += [cell for cell in inside if cell not in seen and grid[cell]]
    return False
