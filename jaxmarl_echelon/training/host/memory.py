"""Memory needs of a run per device, compared with the free memory before it starts."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from algos.types import PyTree
from jaxmarl_echelon import processes
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host.devices import ALONE, DeviceLayout

NAMED = 3


class MemoryPlanError(ValueError):
    """A run needs more memory than its devices have; the message is one line."""


def replay_bytes(config: RunConfig) -> int:
    """Bytes of the replay buffers of one run's learners, on all of its shards."""
    total = 0
    for name, algo in config.algos.items():
        spaces, sizes = config.learner_task(name)
        total += config.policies(name) * algo.memory(*spaces, **sizes)
    return total


def free_bytes(layout: DeviceLayout) -> float:
    """Free bytes per device of a run, the least of all hosts; infinite if unknown. All processes call it."""
    mine = available_bytes(layout.number)
    return processes.minimum_over_processes(math.inf if mine is None else mine)


def available_bytes(devices: int = 1) -> int | None:
    """Free bytes of one of this process's `devices` devices; None if unknown."""
    device = jax.local_devices()[0]
    facts = device.memory_stats() or {}
    if "bytes_limit" in facts:
        return facts["bytes_limit"] - facts.get("bytes_in_use", 0)
    if device.platform == "cpu" and (free := host_free_bytes()) is not None:
        return free // min(devices, jax.local_device_count())
    return None


def host_free_bytes(root: Path = Path("/")) -> int | None:
    """Free bytes of this machine, within the limits of its container; None if Linux does not report them.

    File caches count as free: the kernel releases them on demand (`MemAvailable` of proc(5)).

    Args:
      root: folder that contains `proc` and `sys`.
    """
    try:
        facts = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
        free = int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    return max(min([free, *_container_free(root)]), 0)


def _container_free(root: Path) -> Iterator[int]:
    """Yields the remaining bytes of each memory limit of this process, for control groups v1 and v2."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        names = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        # Inside a container the path may be the host's, while the mount holds the container's own group.
        own = mount / path.lstrip("/")
        for group in dict.fromkeys([own, *own.parents, mount]):
            if not group.is_relative_to(mount):
                continue
            limit, used = (_lines(group / f"memory.{name}") for name in names)
            if limit and used and limit[0].isdigit():
                yield int(limit[0]) - int(used[0]) + _reclaimable(group)


def _reclaimable(group: Path) -> int:
    """Bytes of a control group's file caches that the kernel can release at once."""
    stats = dict(line.split() for line in _lines(group / "memory.stat"))
    return int(stats.get("inactive_file", stats.get("total_inactive_file", 0)))


def _lines(path: Path) -> list[str]:
    """Reads the lines of a file; empty if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def check_replay(config: RunConfig, runs: int = 1, layout: DeviceLayout = ALONE) -> int:
    """Checks and returns the bytes of the replay buffers of `runs` vmapped runs, on all devices.

    Raises:
      ValueError: if they exceed the free memory of the devices.
    """
    needed, free = runs * replay_bytes(config), free_bytes(layout)
    if needed / layout.number > free:
        devices = f" on each of {layout.number} devices" if layout.number > 1 else ""
        raise ValueError(
            f"algo.replay.capacity: the replay buffer needs {needed / layout.number / 1e9:.2f} GB{devices}"
            f"{f' for {runs} runs' if runs > 1 else ''}, {free / 1e9:.2f} GB are free"
        )
    return needed


def array_bytes(state: PyTree, world: PyTree) -> dict[str, int]:
    """Returns the bytes on one device of every array of a state (as shapes) and its world, by name."""
    found = {}
    for part, tree in (("run", state), ("world", world)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            sharding = leaf.sharding
            shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
            number = 1
            for length in shape:
                number *= length
            found[part + jax.tree_util.keystr(path)] = number * leaf.dtype.itemsize
    return found


def check_arrays(state: PyTree, world: PyTree, layout: DeviceLayout) -> int:
    """Checks the memory of a run's state before it is built; returns its and its world's bytes per device.

    Raises:
      MemoryPlanError: if the state exceeds the free memory.
    """
    found = array_bytes(state, world)
    needed = sum(size for name, size in found.items() if name.startswith("run"))
    _require(needed, found, layout, "the run's state needs")
    return sum(found.values())


def check_program(stats: Any, state: PyTree, world: PyTree, layout: DeviceLayout) -> int | None:
    """Checks the memory of a compiled update; returns its bytes per device: arguments and temporaries.

    Aliased results are counted once.

    Args:
      stats: memory analysis of the compiled update; None if XLA does not provide it.
      state, world: its arguments, which are on the device already.
      layout: the devices.

    Raises:
      MemoryPlanError: if its needs, without the arguments, exceed the free memory.
    """
    if stats is None:
        return None
    more = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    _require(more, array_bytes(state, world), layout, "an update needs, in addition to the run's state,")
    return more + stats.argument_size_in_bytes


def _require(needed: int, found: Mapping[str, int], layout: DeviceLayout, what: str) -> None:
    """Raises MemoryPlanError, with the largest arrays, if `needed` bytes exceed the free memory."""
    free = free_bytes(layout)
    if needed <= free:
        return
    largest = sorted(found.items(), key=lambda item: -item[1])[:NAMED]
    named = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in largest)
    raise MemoryPlanError(
        f"num_envs: {what} {needed / 1e9:.2f} GB on each device, {free / 1e9:.2f} GB are free; "
        f"largest arrays: {named}"
    )
