"""Successful episodes, stored whole in a separate ring and mixed into every batch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.custom_batching import custom_vmap

from algos.off_policy.replay.rings import (
    Ring,
    Sample,
    StoredPositions,
    draw_uniform,
    make_windows,
    read_samples,
)


class Successes(struct.PyTreeNode):
    """State of the stored successful episodes.

    Attributes:
      ring: one row of consecutive episodes; the oldest may have lost its first steps.
      length: `[N]` int32, stored steps of each row's newest episode.
    """

    ring: Ring
    length: jax.Array


def init_successes(rows: int, ring: Ring) -> Successes:
    """Returns the state without episodes of N rows, with an empty ring of one row."""
    return Successes(ring, jnp.zeros(rows, jnp.int32))


def make_success_collector(longest: int) -> Callable:
    """Builds the function that copies episodes of at most `longest` steps that just ended with a success.

    The cost is proportional to the largest number of such episodes in a run and 0 without any, also under
    `vmap` over runs: all runs share one loop, whose body leaves finished runs unchanged, so that the rings
    are updated in place.

    Returns:
      `(successes, source, written, success) -> successes`, for `[N]` bool `success`.
    """

    def copy_one(source: Ring, target: Ring, waiting, length):
        row = jnp.argmax(waiting)
        count = jnp.where(waiting[row], jnp.minimum(length[row], longest), 0)
        step = jnp.arange(longest)
        taken = (source.cursor[row] - count + step) % source.slots
        placed = jnp.where(step < count, (target.cursor[0] + step) % target.slots, target.slots)

        def copy(there, here):
            return there.at[0, placed].set(here[row, taken], mode="drop")

        target = target.replace(
            obs=copy(target.obs, source.obs),
            action=copy(target.action, source.action),
            reward=copy(target.reward, source.reward),
            discount=copy(target.discount, source.discount),
            next_obs=copy(target.next_obs, source.next_obs),
            context=jax.tree.map(copy, target.context, source.context),
            next_context=jax.tree.map(copy, target.next_context, source.next_context),
            last=copy(target.last, source.last),
            cursor=(target.cursor + count) % target.slots,
            count=jnp.minimum(target.count + count, target.slots),
        )
        return target, waiting.at[row].set(False)

    @custom_vmap
    def copy_all(source: Ring, target: Ring, waiting, length):
        def body(carry: tuple[Ring, jax.Array]):
            return jax.vmap(copy_one)(source, *carry, length)

        return lax.while_loop(lambda carry: carry[1].any(), body, (target, waiting))[0]

    @copy_all.def_vmap
    def copy_all_batched(axis_size, in_batched, *args):
        def merge(x, batched):
            x = x if batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        target = copy_all(*jax.tree.map(merge, args, tuple(in_batched)))
        target = jax.tree.map(lambda x: x.reshape(axis_size, -1, *x.shape[1:]), target)
        return target, jax.tree.map(lambda _x: True, target)

    def collect(
        successes: Successes, source: Ring, written: StoredPositions, success: jax.Array
    ) -> Successes:
        length = jnp.where(written.first, 1, jnp.minimum(successes.length + 1, source.slots))
        length = jnp.where(written.stored, length, successes.length)
        runs = jax.tree.map(lambda x: x[None], (source, successes.ring, success & written.stored, length))
        return Successes(jax.tree.map(lambda x: x[0], copy_all(*runs)), length)

    return collect


def make_success_mixer(count: int, steps: int, between: bool = False) -> Callable:
    """Builds the function that replaces a batch's last `count` samples by samples of successful episodes.

    These have weight 1 and index -1 and span at most `steps` decisions, with intermediate states if the
    batch has them (`between`). Without stored episodes the batch is unchanged.

    Returns:
      `(successes, key, gamma, sample) -> sample`.
    """

    def mix(successes: Successes, key, gamma, sample: Sample) -> Sample:
        ring = successes.ring
        row, slot = draw_uniform(key, ring, count)
        window = make_windows(ring, row, slot, steps, gamma)
        drawn = read_samples(ring, window, jnp.ones(count), jnp.full(count, -1), between=between)
        held = ring.count[0] > 0
        return jax.tree.map(
            lambda old, new: old.at[-count:].set(jnp.where(held, new, old[-count:])), sample, drawn
        )

    return mix
