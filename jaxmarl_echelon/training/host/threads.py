"""Threads of XLA on a CPU: one for runs whose operations are too small to share."""

import os
from importlib.util import find_spec

from omegaconf import DictConfig

from algos import checks

# Multiplications of a hidden layer for one minibatch, and environments, up to which a run counts as small.
_PRODUCTS, _ENVIRONMENTS = 2**20, 32
_WIDTHS = ("widths", "value_widths", "critic_widths")
# Packages that give JAX other devices, which compile with the threads of the CPU.
_PLUGINS = ("jax_plugins", "libtpu")


def provide_threads(config: DictConfig, members: int) -> None:
    """Sets the number of XLA's threads (`NPROC`, which stays if it is set) of a run of M `members`.

    It must be called before JAX starts its backend; afterwards it has no effect.

    Raises:
      ValueError: for `threads` that is neither null nor a positive whole number.
    """
    asked = config.get("threads")
    if asked is not None:
        checks.require_count("threads", asked, "or null")
    elif is_small_run(config, members) and not any(map(find_spec, _PLUGINS)):
        asked = 1
    if asked is not None:
        os.environ.setdefault("NPROC", str(asked))


def is_small_run(config: DictConfig, members: int) -> bool:
    """Whether handing an operation to another thread costs more than the operation: few, narrow numbers."""
    algo, core = config.algo, config.algo.get("core") or {}
    widths = [width for key in _WIDTHS for width in algo.get(key) or ()]
    widths += [core["width"]] if core.get("kind", "none") != "none" else []
    if not widths or config.get("algos"):
        return False
    rows = algo.get("batch_size") or config.num_envs * algo.horizon / (algo.get("num_minibatches") or 1)
    few = members * config.num_envs <= _ENVIRONMENTS
    return few and members * rows * max(widths) ** 2 <= _PRODUCTS
