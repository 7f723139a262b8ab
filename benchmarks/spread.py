"""Environments spread over the devices that the machine is told to have, each simulating its own."""

from collections.abc import Callable

import jax


def spread(run: Callable, start: Callable, devices: int):
    """A function that plays on several devices, none of which waits for another, and its arguments.

    Args:
      run: `(running [E / devices], key) -> running`, on one device.
      start: `(key) -> running [E]`.
      devices: how many.

    Returns:
      the function `(running [E], key) -> running`, to be compiled, and what to call it with.
    """
    mesh = jax.make_mesh((devices,), ("env",), devices=jax.devices()[:devices])
    shard, all_of_it = jax.sharding.PartitionSpec("env"), jax.sharding.PartitionSpec()

    def on_one(running, key):
        return run(running, jax.random.fold_in(key, jax.lax.axis_index("env")))

    everywhere = jax.shard_map(
        on_one, mesh=mesh, in_specs=(shard, all_of_it), out_specs=shard, check_vma=False
    )
    running = jax.device_put(jax.jit(start)(jax.random.key(0)), jax.sharding.NamedSharding(mesh, shard))
    key = jax.device_put(jax.random.key(1), jax.sharding.NamedSharding(mesh, all_of_it))
    return jax.jit(everywhere), (running, key)


def bytes_per_environment(running, num_envs: int) -> float:
    """Bytes of carried state per environment."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(running)) / num_envs
