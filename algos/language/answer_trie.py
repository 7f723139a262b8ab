"""A trie over the token sequences of all answers, as arrays.

The answers are sorted, so that those below a node are a range. The beginning that all answers share is kept
apart: it joins the prompt, and the root stands after it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class AnswerTrie(NamedTuple):
    """Trie of M answers with N nodes of at most C children; host arrays.

    Attributes:
      low, high: int32 `[N]`; the answers below a node are low .. high - 1.
      tokens: int32 `[N, C]`, the tokens of the children; 0 where there is none.
      children: int32 `[N, C]`, their nodes; the node itself where there is none, so that leaves repeat.
      exists: bool `[N, C]`.
      answers: int32 `[N]`, the answer that ends at a node, or -1.
      prefix: the shared beginning.
      depth: tokens of the longest answer after the beginning.
      choices: per depth whether any node there has more than one child.
    """

    low: np.ndarray
    high: np.ndarray
    tokens: np.ndarray
    children: np.ndarray
    exists: np.ndarray
    answers: np.ndarray
    prefix: tuple[int, ...]
    depth: int
    choices: tuple[bool, ...]

    @property
    def reads(self) -> int:
        """Depths up to the last at which something can be chosen; later tokens are written, not computed."""
        return max((depth + 1 for depth, choice in enumerate(self.choices) if choice), default=0)


def build_answer_trie(sequences: Sequence[Sequence[int]]) -> AnswerTrie:
    """Builds the trie of sorted, distinct sequences, none of which begins another.

    Raises:
      ValueError: one line, for other sequences.
    """
    sequences = [tuple(map(int, one)) for one in sequences]
    for first, second in zip(sequences, sequences[1:], strict=False):
        if not first < second or second[: len(first)] == first:
            raise ValueError(
                f"answers: {first} and {second} must be sorted, distinct, none the other's beginning"
            )
    shared = _shared_beginning(sequences)
    low, high, below, depths = [0], [len(sequences)], [{}], [0]
    answers = [-1]
    for number, sequence in enumerate(sequences):
        node = 0
        for depth, token in enumerate(sequence[len(shared) :], 1):
            if token not in below[node]:
                below[node][token] = len(low)
                low.append(number)
                high.append(number)
                below.append({})
                depths.append(depth)
                answers.append(-1)
            node = below[node][token]
            high[node] = number + 1
        answers[node] = number
    width, depth = max(map(len, below)), max(depths)
    tokens, exists = np.zeros((len(low), width), np.int32), np.zeros((len(low), width), bool)
    children = np.repeat(np.arange(len(low), dtype=np.int32)[:, None], width, axis=1)
    for node, own in enumerate(below):
        tokens[node, : len(own)], children[node, : len(own)] = list(own), list(own.values())
        exists[node, : len(own)] = True
    choices = [
        any(len(own) > 1 for own, at in zip(below, depths, strict=True) if at == one) for one in range(depth)
    ]
    arrays = (np.asarray(x, np.int32) for x in (low, high))
    return AnswerTrie(
        *arrays, tokens, children, exists, np.asarray(answers, np.int32), shared, depth, tuple(choices)
    )


def _shared_beginning(sequences: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The tokens with which all sequences begin, at most all but the last of the shortest."""
    first, last = sequences[0], sequences[-1]
    limit = min(map(len, sequences)) - 1
    same = [a == b for a, b in zip(first, last, strict=False)][:limit]
    return first[: same.index(False) if False in same else len(same)]


def live_children(trie: AnswerTrie, allowed: jax.Array, node: jax.Array) -> jax.Array:
    """Tells which children of nodes still lead to an allowed answer, bool `[..., C]`.

    Args:
      allowed: bool `[..., M]`.
      node: int32 `[...]`.
    """
    before = jnp.cumsum(allowed, axis=-1, dtype=jnp.int32)
    before = jnp.concatenate([jnp.zeros_like(before[..., :1]), before], axis=-1)
    children = jnp.asarray(trie.children)[node]
    low, high = (jnp.asarray(edge)[children] for edge in (trie.low, trie.high))
    counts = (jnp.take_along_axis(before, edge, axis=-1) for edge in (high, low))
    many, few = counts
    return jnp.asarray(trie.exists)[node] & (many > few)
