"""Environments sharded over (virtual) devices by `jax.shard_map`."""

from collections.abc import Callable

import jax


def spread(run: Callable, start: Callable, devices: int):
    """Shards `run` over devices, without collectives.

    Args:
      run: `(running [E / devices], key) -> running`, on one device.
      start: `(key) -> running [E]`.
      devices: number of devices.

    Returns:
      the jitted function `(running [E], key) -> running`, and its sharded arguments.
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
