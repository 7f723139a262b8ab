"""Connect Four on 6 x 7 cells, and a player with full-width lookahead."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames import scripts
from jaxmarl_echelon.envs.textgames.boards import PlacingGame, Stones, in_line
from jaxmarl_echelon.envs.textgames.env import TextGame
from jaxmarl_echelon.envs.textgames.rules import FULL, replace_at

ROWS, COLUMNS = 6, 7
# Heuristic value of a line with 0..4 stones of one side and none of the other; four stones win.
LINE_WORTH = (0.0, 1e-4, 1e-3, 1e-2, 0.0)


def _lines() -> np.ndarray:
    """Incidence matrix of cells and the 69 lines of four, float32 `[42, 69]`; the top row's cells first."""
    found = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + k * down, column + k * right) for k in range(4)]
                if all(0 <= r < ROWS and 0 <= c < COLUMNS for r, c in cells):
                    found.append(np.isin(np.arange(ROWS * COLUMNS), [r * COLUMNS + c for r, c in cells]))
    return np.array(found, np.float32).T


LINES = _lines()


class ConnectFour(PlacingGame):
    """Connect Four: stones drop down a column; four in a line win, a full board is a draw.

    Actions are columns. Seats observe own and other stones, and their seat.
    """

    name = "connect4"
    letter = "C"
    rules_text = (
        "Connect Four on six rows and seven columns, numbered from 0 to 6 from the left. A mark drops to the "
        "lowest free cell of its column, and four own marks in a row, column or diagonal win."
    )
    answer_text = "Answer with a column that is not full in brackets, for example [3]."
    space = Discrete(COLUMNS)

    def __init__(self):
        super().__init__(ROWS, COLUMNS)

    def legal(self, state):
        """See `GameRules`."""
        return state.cells[:COLUMNS] < 0

    def apply(self, key, state, action):
        """See `GameRules`."""
        del key
        mine = self.turn(state)
        free = self.board(state.cells < 0) & (jnp.arange(COLUMNS) == action)
        row = jnp.maximum(jnp.sum(free) - 1, 0)
        cells = replace_at(state.cells, row * COLUMNS + action, mine)
        won = in_line(self.board(cells == mine), 4)
        return Stones(cells, state.placed + 1, jnp.where(won, mine, -1).astype(jnp.int32))

    def answer(self, action):
        """See `GameRules`."""
        return f"[{int(action)}]"

    def synonyms(self, style, option):
        """See `GameRules`."""
        return (f"[col {option}]",) if style == FULL else ()


def line_values(stones: jax.Array) -> jax.Array:
    """Looks up `LINE_WORTH` by the number of stones, elementwise."""
    return sum(jnp.where(stones == number, worth, 0.0) for number, worth in enumerate(LINE_WORTH))


def lookahead_player(rules: ConnectFour, depth: int) -> scripts.ScriptedPlayer:
    """Returns a player that picks a random best move of a minimax search of `depth` plies.

    The search is full-width, with the same values as alpha-beta to that depth; a batch cannot skip branches.
    A win counts 1, minus 1/100 for each ply before it; positions at the search depth are scored by the lines
    open to each side. It visits 7**depth positions.
    """

    def worth(state, mine):
        """Heuristic value of a position for seat `mine`."""
        # A matrix product counts the stones of all lines; a batched gather would read cells one by one.
        sides = jnp.stack([state.cells == mine, state.cells == 1 - mine]).astype(jnp.float32)
        own, other = jnp.matmul(sides, LINES)
        return jnp.sum(
            jnp.where(other == 0, line_values(own), 0.0) - jnp.where(own == 0, line_values(other), 0.0)
        )

    def values(state, left):
        """Values `[7]` of the moves for the seat to move; -inf for illegal ones."""
        mine = rules.turn(state)

        def value(column):
            after = rules.apply(jax.random.key(0), state, column)
            final = rules.scores(after)[mine] * (1.0 - 0.01 * (depth - left))
            going = worth(after, mine) if left == 1 else -jnp.max(values(after, left - 1))
            return jnp.where(rules.over(after), final, going)

        return jnp.where(rules.legal(state), jax.vmap(value)(jnp.arange(COLUMNS)), -jnp.inf)

    def player(key, state):
        found = values(state, depth)
        return scripts.sample_option(key, found >= jnp.max(found) - 1e-6)

    return player


@take_defaults_from("env/textgames/connect4")
def make(depths: tuple[int, ...] = FROM_FILE, **game) -> TextGame:
    """Builds the game with scripts `lookahead_D` of D plies, for D in `depths`.

    `game` is as for `TextGame`.
    """
    rules = ConnectFour()
    searchers: dict[str, Callable] = {
        f"lookahead_{settings.read_whole('depths', depth, 1, 6)}": lookahead_player(rules, depth)
        for depth in depths
    }
    return TextGame(rules, {"greedy_win": scripts.greedy_win(rules)} | searchers, **game)
