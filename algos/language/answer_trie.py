"""Trie of a game's answers as arrays, and the children of a node that lead to legal answers."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class AnswerTrie(NamedTuple):
    """Trie of M token sequences, behind the beginning that all of them share.

    Node 0 is the root. The answers below a node are consecutive. The only child of a complete answer is the
    node itself, with token 0, so that shorter answers wait for longer ones. Missing children are node N,
    below which there is no answer.

    Attributes:
      prefix: tokens that all answers begin with; they belong to the prompt.
      width: number of tokens of the longest answer, without `prefix`.
      choices: number of tokens, without `prefix`, after which every answer is determined.
      branching: for each of these tokens, whether some node before it has several children.
      most_choices: largest number of nodes with several children on the way to an answer.
      lo, hi: `[N + 1]` int32; below a node are the answers lo to hi - 1.
      depth: `[N + 1]` int32 number of tokens from the root.
      token: `[N + 1, C]` int32 tokens of the children; 0 for missing ones.
      next: `[N + 1, C]` int32 nodes of the children.
      tokens: `[M, width]` int32 tokens of each answer without `prefix`, then zeros.
      lengths: `[M]` int32 number of these tokens.
    """

    prefix: tuple[int, ...]
    width: int
    choices: int
    branching: tuple[bool, ...]
    most_choices: int
    lo: np.ndarray
    hi: np.ndarray
    depth: np.ndarray
    token: np.ndarray
    next: np.ndarray
    tokens: np.ndarray
    lengths: np.ndarray


class _Node(NamedTuple):
    """A node while the trie is built: answers lo to hi - 1, tokens from the root, node by token."""

    lo: int
    hi: int
    depth: int
    children: dict[int, int]


def build_answer_trie(sequences: Sequence[Sequence[int]]) -> AnswerTrie:
    """Builds the trie of sorted, distinct token sequences, none of which begins another.

    Raises:
      ValueError: one line, for sequences that are not sorted, or of which one begins another.
    """
    for before, after in itertools.pairwise(sequences):
        if tuple(before) >= tuple(after) or tuple(after[: len(before)]) == tuple(before):
            raise ValueError(
                f"answers {list(before)}, {list(after)}: must be sorted, and none may begin another"
            )
    prefix = _common_beginning(sequences)
    rests = [tuple(sequence[len(prefix) :]) for sequence in sequences]
    nodes = _grow(rests)
    children = max(len(node.children) for node in nodes)
    token = np.zeros((len(nodes) + 1, children), np.int32)
    following = np.full((len(nodes) + 1, children), len(nodes), np.int32)
    for number, node in enumerate(nodes):
        count = len(node.children)
        token[number, :count], following[number, :count] = list(node.children), list(node.children.values())
    lo, hi, depth = np.array([*(node[:3] for node in nodes), (0, 0, 0)], np.int32).T
    several = np.array([len(node.children) > 1 for node in nodes])
    choices = int(depth[:-1][several].max(initial=-1)) + 1
    branching = tuple(bool(several[depth[:-1] == token].any()) for token in range(choices))
    width = max(map(len, rests))
    tokens = np.array([rest + (0,) * (width - len(rest)) for rest in rests], np.int32)
    lengths = np.array([len(rest) for rest in rests], np.int32)
    sizes = width, choices, branching, _most_choices(nodes)
    return AnswerTrie(prefix, *sizes, lo, hi, depth, token, following, tokens, lengths)


def _common_beginning(sequences: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the longest common beginning; of sorted sequences it is that of the first and the last."""
    first, last = sequences[0], sequences[-1]
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return tuple(first[:length])


def _grow(rests: Sequence[tuple[int, ...]]) -> list[_Node]:
    """Returns the nodes of a trie in breadth-first order."""
    nodes = [_Node(0, len(rests), 0, {})]
    for number, node in enumerate(nodes):  # which grows meanwhile
        if len(rests[node.lo]) == node.depth:
            node.children[0] = number
            continue
        lo = node.lo
        while lo < node.hi:
            token, hi = rests[lo][node.depth], lo
            while hi < node.hi and rests[hi][node.depth] == token:
                hi += 1
            node.children[token] = len(nodes)
            nodes.append(_Node(lo, hi, node.depth + 1, {}))
            lo = hi
    return nodes


def _most_choices(nodes: Sequence[_Node]) -> int:
    """Returns the largest number of nodes with several children on a path from the root."""
    passed = [0] * len(nodes)
    for number, node in enumerate(nodes):
        for child in node.children.values():
            if child != number:
                passed[child] = passed[number] + (len(node.children) > 1)
    return max(passed)


def count_legal(ok: jax.Array) -> jax.Array:
    """Counts the legal answers before each index, int32 `[..., M + 1]`, from `ok [..., M]` bool."""
    counts = jnp.cumsum(ok.astype(jnp.int32), axis=-1)
    return jnp.concatenate([jnp.zeros_like(counts[..., :1]), counts], axis=-1)


def live_children_of_counts(trie: AnswerTrie, counts: jax.Array, node: jax.Array) -> jax.Array:
    """Tells which children lead to legal answers, bool `[..., C]`; `counts` is of `count_legal`."""
    child = jnp.asarray(trie.next)[node]
    first, last = (jnp.asarray(bound)[child] for bound in (trie.lo, trie.hi))
    below = jnp.take_along_axis(counts, last, axis=-1) - jnp.take_along_axis(counts, first, axis=-1)
    return below > 0


def live_children(trie: AnswerTrie, ok: jax.Array, node: jax.Array) -> jax.Array:
    """Tells which children of nodes `[...]` lead to legal answers `ok [..., M]`; bool `[..., C]`."""
    return live_children_of_counts(trie, count_legal(ok), node)
