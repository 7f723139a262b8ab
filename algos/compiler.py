"""Settings of XLA's compiler that not every version and device knows."""

from collections.abc import Mapping
from functools import cache

import jax

# For programs that run once: on a CPU they compile in a quarter of the time and run at half the speed.
_QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
# The older emitters, which this turns on, were seen to corrupt memory in programs on several devices;
# it could not be brought about again.
_OF_ONE_DEVICE = ("xla_cpu_use_fusion_emitters",)


def known(options: Mapping[str, object]) -> dict[str, object]:
    """Those of the options that this XLA knows."""
    return {name: value for name, value in options.items() if _is_known(name, value)}


def quick(devices: int = 1) -> dict[str, object]:
    """Options for a program that runs once on so many devices; none on other devices than CPUs."""
    if jax.default_backend() != "cpu":
        return {}
    return known({k: v for k, v in _QUICK.items() if devices == 1 or k not in _OF_ONE_DEVICE})


@cache
def _is_known(name: str, value: object) -> bool:
    try:
        jax.jit(lambda x: x + 1).lower(0.0).compile(compiler_options={name: value})
    except (jax.errors.JaxRuntimeError, ValueError):
        return False
    return True
