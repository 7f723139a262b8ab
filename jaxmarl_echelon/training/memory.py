"""Device memory of replay buffers."""

import os

import jax

from jaxmarl_echelon.training.config import RunConfig


def replay_bytes(config: RunConfig) -> int:
    """Bytes of the replay buffers of one run's learners."""
    total = 0
    for name, algo in config.algos.items():
        spaces, sizes = config.learner_task(name)
        total += config.policies(name) * algo.memory(*spaces, **sizes)
    return total


def available_bytes() -> int | None:
    """Free device memory in bytes; None where unknown."""
    device = jax.devices()[0]
    facts = device.memory_stats() or {}
    if "bytes_limit" in facts:
        return facts["bytes_limit"] - facts.get("bytes_in_use", 0)
    if device.platform == "cpu" and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def check_replay(config: RunConfig, runs: int = 1) -> int:
    """Bytes of the replay buffers of `runs` vmapped runs.

    Raises:
      ValueError: if they exceed the free device memory.
    """
    needed, free = runs * replay_bytes(config), available_bytes()
    if free is not None and needed > free:
        raise ValueError(
            f"algo.replay.capacity: the replay buffer needs {needed / 1e9:.2f} GB"
            f"{f' for {runs} runs' if runs > 1 else ''}, {free / 1e9:.2f} GB are free"
        )
    return needed
