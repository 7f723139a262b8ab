"""Threads of XLA on a CPU: one for runs whose operations are too small to share."""

import os
from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from algos import checks
from jaxmarl_echelon.config_keys import is_number

# Multiplications of a hidden layer for one minibatch, and environments, up to which a run counts as small.
_PRODUCTS, _ENVIRONMENTS = 2**20, 32
_WIDTHS = ("widths", "value_widths", "critic_widths", "head_widths")
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
    listed = (algo.get(key) for key in _WIDTHS)
    widths = [width for given in listed if OmegaConf.is_list(given) for width in given]
    widths += [core["width"]] if core.get("kind", "none") != "none" else []
    minibatches = algo.get("num_minibatches") or 1
    samples = algo.get("batch_size") or algo.horizon
    sizes = (*widths, config.num_envs, samples, minibatches)
    # Sizes of another kind are derived later (`auto`), or refused.
    if not widths or config.get("algos") or not all(map(is_number, sizes)):
        return False
    rows = algo.get("batch_size") or config.num_envs * algo.horizon / minibatches
    few = members * config.num_envs <= _ENVIRONMENTS
    return few and members * rows * max(widths) ** 2 <= _PRODUCTS
