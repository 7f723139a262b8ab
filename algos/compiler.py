"""XLA compiler options that only some versions and devices support, and threads of a CPU cut into devices."""

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax

# For programs that run once: on a CPU they compile four times as fast and run at half the speed.
_QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
# For simulators with small networks, without gradients: on a CPU they compile twice as fast and run as fast.
_EVALUATION = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
# Turning the fusion emitters off selects the older ones, which corrupted memory once in a program on several
# devices; the fault has not been reproduced.
_OF_ONE_DEVICE = ("xla_cpu_use_fusion_emitters",)
_CPU_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
# Threads per CPU device: independent collectives of a program can run at the same time.
_THREADS = 4


def provide_collective_threads() -> None:
    """Gives XLA more threads where `XLA_FLAGS` cuts the CPU into devices; call before JAX starts its backend.

    XLA has one pool for all CPU devices, of as many threads as there are devices or cores, and every
    collective keeps a thread of each device until all have arrived. Where a program may run two of them in
    either order, devices that start with different ones occupy all threads and wait for each other for
    ever. `NPROC` sets the size of the pool; a value that is already set stays.
    """
    found = _CPU_DEVICES.findall(os.environ.get("XLA_FLAGS", ""))
    if found and int(found[-1]) > 1:
        os.environ.setdefault("NPROC", str(_THREADS * max(int(found[-1]), os.cpu_count() or 1)))


def supported_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that this version of XLA accepts."""
    return {name: value for name, value in options.items() if _is_known(name, value)}


def quick_compile_options(devices: int = 1) -> dict[str, Any]:
    """Options to compile a program that runs once on this many CPU devices; empty on other devices."""
    return _cpu_options(_QUICK, devices)


def evaluation_compile_options(devices: int = 1) -> dict[str, Any]:
    """Options to compile an evaluation on this many CPU devices, or a quick update; empty on other devices.

    The bits of a program depend on its options: whatever repeats an evaluation compiles it with the same.
    """
    return _cpu_options(_EVALUATION, devices)


def jit_evaluation(fn: Callable) -> Callable:
    """Jits a function that plays episodes, with the options of `evaluation_compile_options`."""
    return jax.jit(fn, compiler_options=evaluation_compile_options())


def _cpu_options(options: Mapping[str, Any], devices: int) -> dict[str, Any]:
    """Those of the options that this XLA accepts and `XLA_FLAGS` does not set; empty on other devices."""
    if jax.default_backend() != "cpu":
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    chosen = {k: v for k, v in options.items() if f"--{k}=" not in flags}
    return supported_options({k: v for k, v in chosen.items() if devices == 1 or k not in _OF_ONE_DEVICE})


@cache
def _is_known(name: str, value: Any) -> bool:
    """Whether XLA accepts an option, tested by compiling a small function with it."""
    try:
        jax.jit(lambda x: x + 1).lower(0.0).compile(compiler_options={name: value})
    except (jax.errors.JaxRuntimeError, ValueError):
        return False
    return True
