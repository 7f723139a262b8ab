"""XLA compiler options that only some versions and devices support."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import jax

# For programs that run once: on a CPU they compile four times as fast and run at half the speed.
_QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
# Turning the fusion emitters off selects the older ones, which corrupted memory once in a program on several
# devices; the fault has not been reproduced.
_OF_ONE_DEVICE = ("xla_cpu_use_fusion_emitters",)


def supported_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that this version of XLA accepts."""
    return {name: value for name, value in options.items() if _is_known(name, value)}


def quick_compile_options(devices: int = 1) -> dict[str, Any]:
    """Options to compile a program that runs once on this many CPU devices; empty on other devices."""
    if jax.default_backend() != "cpu":
        return {}
    return supported_options({k: v for k, v in _QUICK.items() if devices == 1 or k not in _OF_ONE_DEVICE})


@cache
def _is_known(name: str, value: Any) -> bool:
    """Whether XLA accepts an option, tested by compiling a small function with it."""
    try:
        jax.jit(lambda x: x + 1).lower(0.0).compile(compiler_options={name: value})
    except (jax.errors.JaxRuntimeError, ValueError):
        return False
    return True
