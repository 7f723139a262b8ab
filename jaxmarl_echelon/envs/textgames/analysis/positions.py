"""Enumeration of a game's positions, ply by ply, with the game's own rules; for exact values, on the host."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.rules import GameRules

CHUNK = 1024  # positions per call of the compiled rules, which need a fixed shape


class PositionLevel(NamedTuple):
    """Positions after the same number of plies.

    Attributes:
      state: states of the rules, `[M, ...]`.
      legal: `[M, n]` bool; all False if the game is over or the ply is forced.
      turn: `[M]` the seat that is due.
      passes: `[M]` bool; the ply is forced: the seat that is due has no decision.
      over: `[M]` bool; the game has ended.
      scores: `[M, N]` final scores; 0 while the game runs.
      ways: `[M]` float64 number of move sequences that lead to the position.
      parent: `[M]` index in the previous level; the first one if several sequences were merged.
      action: `[M]` action at the parent; -1 for a forced ply.
      child: `[M, n + 1]` index in the next level by action, the last one by a pass; -1 for none.
    """

    state: Any
    legal: np.ndarray
    turn: np.ndarray
    passes: np.ndarray
    over: np.ndarray
    scores: np.ndarray
    ways: np.ndarray
    parent: np.ndarray
    action: np.ndarray
    child: np.ndarray


def enumerate_levels(
    rules: GameRules, start: Any = None, *, depth: int | None = None, merge: bool = True
) -> Iterator[PositionLevel]:
    """Yields the positions after 0, 1, 2, ... plies, counted as in the environment.

    Args:
      rules: a game with one choice per action and no chance after its initial states.
      start: initial states `[M, ...]`; None for the single initial state.
      depth: the last ply; None for all.
      merge: whether to merge equal states of a level; otherwise the levels form a tree.

    Raises:
      ValueError: for a game whose actions consist of several choices.
    """
    if not isinstance(rules.space, Discrete):
        raise ValueError(f"{rules.name}: cannot enumerate actions of several choices")
    look, play = (_in_chunks(jax.jit(jax.vmap(fn))) for fn in (partial(_look, rules), partial(_play, rules)))
    state = jax.tree.map(lambda x: np.asarray(x)[None], rules.init(jax.random.key(0)))
    state = state if start is None else jax.tree.map(np.asarray, start)
    number = len(jax.tree.leaves(state)[0])
    ways, parent, action = np.ones(number), np.full(number, -1), np.full(number, -1)
    ply = 0
    while True:
        legal, turn, over, scores = look(state)
        due = ply % rules.seats
        passes = ~over & (turn != due)
        legal = legal & (~over & ~passes)[:, None]
        row, move = np.nonzero(np.concatenate([legal, passes[:, None]], axis=1))
        child = np.full((number, rules.space.n + 1), -1)
        last = not row.size or ply == depth
        if not last:
            after = play((jax.tree.map(lambda x, row=row: x[row], state), move.astype(np.int32)))
            place = np.arange(row.size)
            first = place
            if merge:
                first, place = _distinct(after)
            child[row, move] = place
        yield PositionLevel(
            state, legal, np.full(number, due), passes, over, scores, ways, parent, action, child
        )
        if last:
            return
        following = np.zeros(first.size)
        np.add.at(following, place, ways[row])
        state = jax.tree.map(lambda x, first=first: x[first], after)
        ways, parent = following, row[first]
        action = np.where(move[first] == rules.space.n, -1, move[first])
        number, ply = first.size, ply + 1


def optimal_values(
    found: list[PositionLevel], margin: Callable[[Any], np.ndarray] | None = None
) -> list[np.ndarray]:
    """Computes the values of all positions for the first of two seats under optimal play, by level.

    Args:
      found: all levels of a game without hidden information.
      margin: `(states) -> [M]` final payoff of the first seat; None for its score.
    """
    result: list[np.ndarray] = []
    for level in reversed(found):
        final = level.scores[:, 0] if margin is None else np.asarray(margin(level.state), np.float64)
        if not result:
            result.append(final)
            continue
        worth = np.where(level.child >= 0, result[-1][level.child], np.nan)
        best = np.where(level.turn == 0, np.nanmax(_filled(worth, level.over), 1), 0)
        best = np.where(level.turn == 1, np.nanmin(_filled(worth, level.over), 1), best)
        result.append(np.where(level.over, final, best))
    return result[::-1]


def optimal_moves(found: list[PositionLevel], worth: list[np.ndarray]) -> list[np.ndarray]:
    """Masks `[M, n]` by level the legal moves that preserve the position's value, i.e. optimal moves.

    Args:
      found: all levels of a game without hidden information.
      worth: their `optimal_values`.
    """
    following = [*worth[1:], np.zeros(1)]
    return [
        level.legal & (after[np.maximum(level.child[:, :-1], 0)] == now[:, None])
        for level, now, after in zip(found, worth, following, strict=True)
    ]


def count_endings(found: list[PositionLevel], moves: list[np.ndarray]) -> np.ndarray:
    """Sums the weights `[3]` of games that the first seat wins, draws and loses.

    Args:
      found: all levels.
      moves: `[M, n]` by level, weights of the moves: probabilities yield outcome probabilities, zeros and
        ones the number of move sequences.
    """
    total, weight = np.zeros(3), np.ones(len(found[0].turn))
    for level, chosen in zip(found, moves, strict=True):
        ended = np.sign(level.scores[level.over, 0]).astype(int)
        np.add.at(total, 1 - ended, weight[level.over])
        everywhere = np.concatenate([np.where(level.legal, chosen, 0), level.passes[:, None]], axis=1)
        row, move = np.nonzero((level.child >= 0) & (everywhere > 0))
        following = np.zeros(level.child.max(initial=-1) + 1)
        np.add.at(following, level.child[row, move], weight[row] * everywhere[row, move])
        weight = following
    return total


def _filled(worth: np.ndarray, over: np.ndarray) -> np.ndarray:
    return np.where(over[:, None], 0.0, worth)


def _look(rules: GameRules, state: Any) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    over = rules.over(state)
    return rules.legal(state), rules.turn(state), over, jnp.where(over, rules.scores(state), 0.0)


def _play(rules: GameRules, inputs: tuple[Any, jax.Array]) -> Any:
    state, action = inputs
    passes = action == rules.space.n
    after = rules.apply(jax.random.key(0), state, jnp.where(passes, 0, action))
    return jax.tree.map(lambda new, old: jnp.where(passes, old, new), after, state)


def _in_chunks(fn: Callable) -> Callable:
    """Wraps a function of arrays `[CHUNK, ...]` for any leading axis; returns NumPy arrays."""

    def call(given):
        number = len(jax.tree.leaves(given)[0])
        parts = []
        for begin in range(0, number, CHUNK):
            index = np.minimum(np.arange(begin, begin + CHUNK), number - 1)
            part = jax.device_get(fn(jax.tree.map(lambda x, index=index: x[index], given)))
            parts.append(jax.tree.map(lambda x, begin=begin: x[: number - begin], part))
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)

    return call


def _distinct(states: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of the first of each group of equal rows, and the group of each row."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(states)]
    rows = np.concatenate([x.reshape(len(x), -1).view(np.uint8).reshape(len(x), -1) for x in leaves], axis=1)
    rows = np.ascontiguousarray(rows)
    keys = rows.view(np.dtype((np.void, rows.shape[1])))[:, 0]
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return first, place.reshape(-1)
