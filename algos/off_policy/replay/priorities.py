"""Prioritised sampling of transitions (Schaul et al. 2016) with a sum tree."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from algos import collectives
from algos.off_policy.replay.rings import Ring, StoredPositions, draw_uniform

# Fastest of 2 to 64 on CPUs for batches of 256: wider nodes have longer sums, narrower ones more levels.
ARITY = 4


class Priorities(struct.PyTreeNode):
    """State of prioritised sampling.

    Attributes:
      tree: sum tree over N * C leaves, transition `[row, slot]` at `row * C + slot`; see `init_tree`.
      largest: scalar, the largest leaf ever set (on other shards, up to the last batch drawn): the initial
        priority of new transitions.
      draws: int32 scalar, batches drawn so far, saturating at the end of the annealing.
    """

    tree: jax.Array
    largest: jax.Array
    draws: jax.Array


class SamplingRule(NamedTuple):
    """Sampling rule as pure functions over an explicit state.

    Attributes:
      init: `() -> state`.
      add: `(state, written) -> state`, after a step has been stored.
      draw: `(state, key, ring) -> (state, row, slot, weight)`, `[B]` each.
      reprioritize: `(state, index, priority) -> state` for `[B]` indices `row * C + slot`; -1 is ignored, and
        so are priorities that are not finite.
    """

    init: Callable
    add: Callable
    draw: Callable
    reprioritize: Callable


def init_tree(leaves: int) -> jax.Array:
    """Returns a complete tree of zeros with room for this many leaves.

    The tree is an array `[G, ARITY]` of groups of siblings: group 0 is the top level, child c of group g
    holds the sum of group `ARITY * g + c + 1`, and the groups of the lowest level hold the leaves.
    """
    depth = 1
    while ARITY**depth < leaves:
        depth += 1
    return jnp.zeros((lowest_level(depth + 1), ARITY))


def lowest_level(depth: int) -> int:
    """Index of the first group of the lowest level in a tree with this many levels."""
    return (ARITY ** (depth - 1) - 1) // (ARITY - 1)


def tree_depth(tree: jax.Array) -> int:
    """Number of levels of a tree."""
    depth = 1
    while lowest_level(depth + 1) < tree.shape[0]:
        depth += 1
    return depth


def tree_total(tree: jax.Array) -> jax.Array:
    """Sum of all leaves."""
    return tree[0].sum()


def set_leaves(tree: jax.Array, index: jax.Array, value: jax.Array) -> jax.Array:
    """Sets leaves and recomputes the sums above them, which therefore do not drift.

    Args:
      tree: the tree.
      index: int32 `[K]`; negative ones are ignored.
      value: `[K]`, not negative; of several values for one leaf the largest is used.
    """
    depth = tree_depth(tree)

    def place(group):
        return jnp.where(index < 0, tree.shape[0], group)

    def ascend(_, carry):
        tree, group = carry
        parent, child = (group - 1) // ARITY, (group - 1) % ARITY
        return tree.at[place(parent), child].set(tree[group].sum(-1), mode="drop"), parent

    group, child = lowest_level(depth) + jnp.maximum(index, 0) // ARITY, index % ARITY
    tree = tree.at[place(group), child].set(0.0, mode="drop").at[place(group), child].max(value, mode="drop")
    return lax.fori_loop(0, depth - 1, ascend, (tree, group))[0]


def find_leaves(tree: jax.Array, query: jax.Array, fine: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Finds the leaves at which the running sum of all leaves first exceeds the queries.

    Args:
      tree: the tree, not all zero.
      query: `[K]` in [0, total).
      fine: `[K]` in [0, 1), further digits of `query`: one float32 does not resolve the leaves of a large
        tree.

    Returns:
      `(index, value)` of the leaves: int32 `[K]`, and `[K]` above 0.
    """
    depth = tree_depth(tree)
    rest = fine * tree_total(tree) * jnp.finfo(query.dtype).epsneg

    def descend(level, carry):
        group, query, _ = carry
        child, before, value = pick_child(tree[group], query)
        query = query - before + jnp.where(level == 0, rest, 0.0)
        return ARITY * group + child + 1, query, value

    group = jnp.zeros(query.shape, jnp.int32)
    group, _, value = lax.fori_loop(0, depth, descend, (group, query, query))
    return group - lowest_level(depth + 1), value


def pick_child(children: jax.Array, query: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Finds the children `[K]` of `[K, ARITY]` that hold the queries, with the sums before them and values.

    Never returns a child of value 0, even for queries that rounding has moved to the total or beyond it.
    """
    sums = jnp.cumsum(children, -1)
    passed = (sums <= query[:, None]) & (sums < sums[:, -1:])
    child = passed.sum(-1)
    return child, jnp.where(passed, sums, 0.0).max(-1), children[jnp.arange(child.size), child]


def make_uniform(size: int) -> SamplingRule:
    """Builds uniform sampling of batches of `size`; its state is None."""

    def draw(state, key, ring):
        row, slot = draw_uniform(key, ring, size)
        return state, row, slot, jnp.ones(size)

    return SamplingRule(
        init=lambda: None,
        add=lambda state, _written: state,
        draw=draw,
        reprioritize=lambda state, _index, _priority: state,
    )


def make_prioritized(
    *,
    rows: int,
    slots: int,
    size: int,
    exponent: float,
    epsilon: float,
    importance: tuple[float, float],
    annealing: int,
) -> SamplingRule:
    """Builds sampling with probabilities proportional to `(|priority| + epsilon)^exponent`.

    A batch of `size` takes one transition from each of `size` equal parts of the total (stratified
    sampling). Weights are `(held * probability)^-beta` divided by their maximum in the batch; beta goes
    linearly from the first to the second number of `importance` over `annealing` batches. With several shards
    each has its own tree and draws its part of a batch; the maxima are then over all shards.

    Args:
      rows: N.
      slots: C.
      size: B.
      exponent: 0 for uniform, 1 for proportional.
      epsilon: gives transitions of priority 0 a positive probability.
      importance: first and final beta.
      annealing: batches from the first to the final beta.
    """

    def init():
        return Priorities(init_tree(rows * slots), jnp.ones(()), jnp.zeros((), jnp.int32))

    def add(state: Priorities, written: StoredPositions):
        index = jnp.where(written.stored, written.row * slots + written.slot, -1)
        return state.replace(tree=set_leaves(state.tree, index, jnp.full(rows, state.largest)))

    def draw(state: Priorities, key, ring: Ring):
        order_key, coarse_key, fine_key = jax.random.split(key, 3)
        total = tree_total(state.tree)
        part = jax.random.permutation(order_key, size) + jax.random.uniform(coarse_key, (size,))
        index, leaf = find_leaves(state.tree, part / size * total, jax.random.uniform(fine_key, (size,)))
        index = jnp.minimum(index, rows * slots - 1)
        expected = ring.count.sum() * leaf / jnp.maximum(total, 1e-30)
        beta = importance[0] + (importance[1] - importance[0]) * state.draws / annealing
        weight = jnp.maximum(expected, 1e-30) ** -beta
        highest, largest = collectives.max_over_shards((weight.max(), state.largest))
        state = state.replace(draws=jnp.minimum(state.draws + 1, annealing), largest=largest)
        return state, index // slots, index % slots, weight / highest

    def reprioritize(state: Priorities, index, priority):
        value = (jnp.abs(priority) + epsilon) ** exponent
        # A learner that has diverged leaves no priorities: in a population another one draws by them.
        index = jnp.where(jnp.isfinite(value), index, -1)
        largest = jnp.maximum(state.largest, jnp.where(index < 0, 0.0, value).max())
        return state.replace(tree=set_leaves(state.tree, index, value), largest=largest)

    return SamplingRule(init, add, draw, reprioritize)
