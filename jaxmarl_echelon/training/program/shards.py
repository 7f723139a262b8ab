"""Execution of a function of one shard for all shards that a device holds.

State of environments has a leading axis of shards. A device holds all shards, or under `jax.shard_map` over
the axis `algos.collectives.DEVICES` its part of them. See docs/reference/trainer.md 16.1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from algos import collectives
from algos.types import PyTree


@dataclass(frozen=True)
class Shards:
    """Mapping of functions of one shard over all shards that a device holds.

    Attributes:
      total: S, on all devices.
    """

    total: int

    @property
    def here(self) -> int:
        """Number of shards on this device; evaluated during tracing."""
        return self.total // collectives.num_devices()

    def map_shards(self, fn: Callable, given: tuple[PyTree, ...], found: PyTree) -> Callable:
        """Runs `fn` for every shard; results that are not local must be the same on all shards.

        Args:
          fn: a function of one shard, traced under its axes.
          given: per argument a tree of bools, or one bool for all of its leaves: whether it is local.
          found: the same for the result.
        """
        if self.total == 1:
            return fn
        if self.here == 1:
            return lambda *arguments: _mapped(
                lambda x: x[None], found, fn(*_mapped(lambda x: x[0], given, arguments))
            )
        ins, outs = (jax.tree.map(lambda one: 0 if one else None, marks) for marks in (given, found))
        return jax.vmap(fn, ins, outs, axis_size=self.here, axis_name=collectives.HERE)

    def begin(self, fn: Callable, local: Callable) -> Callable:
        """Runs `fn`, whose arguments are not local, for every shard; `local` marks its result."""
        if self.total == 1:
            return fn
        if self.here == 1:

            def alone(*arguments):
                result = fn(*arguments)
                return _mapped(lambda x: x[None], local(result), result)

            return alone

        def together(*arguments):
            everything = jax.vmap(fn, None, 0, axis_size=self.here, axis_name=collectives.HERE)(*arguments)
            return jax.tree.map(lambda one, x: x if one else x[0], local(everything), everything)

        return together


def _mapped(change: Callable, marks: PyTree, tree: PyTree) -> PyTree:
    """Applies `change` to the leaves of a tree below every mark that is True."""
    return jax.tree.map(lambda one, part: jax.tree.map(change, part) if one else part, marks, tree)
