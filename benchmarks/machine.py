"""Machine baselines: rates of matrix products and gathers, measured in the same run as the benchmarks."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp


def seconds_per_call(fn: Callable, *arguments, budget: float = 1.0) -> float:
    """Median seconds of a compiled call after a warm-up, over about `budget` seconds of calls."""
    jax.block_until_ready(fn(*arguments))
    times = []
    while sum(times) < budget or len(times) < 3:
        begin = time.perf_counter()
        jax.block_until_ready(fn(*arguments))
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


def matmul_rate(rows: int = 2048, inner: int = 2048, columns: int = 2048) -> float:
    """Floating-point operations per second of a float32 matrix product of the given sizes."""
    a = jnp.ones((rows, inner))
    b = jnp.ones((inner, columns))
    return 2.0 * rows * inner * columns / seconds_per_call(jax.jit(jnp.matmul), a, b)


def gather_rate(table: int = 1 << 20, number: int = 1 << 20, rounds: int = 8) -> float:
    """Dependent random gathers per second from a float32 table of `table` entries."""
    key = jax.random.key(0)
    cells = jax.random.randint(key, (table,), 0, table)
    index = jax.random.randint(key, (number,), 0, table)

    def chase(index):
        return jax.lax.fori_loop(0, rounds, lambda _, i: cells.at[i].get(mode="promise_in_bounds"), index)

    return rounds * number / seconds_per_call(jax.jit(chase), index)
