"""A run's programs, compiled ahead of time and side by side."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax

from algos import compiler


class Compiled(NamedTuple):
    """A program compiled ahead of time, perhaps still under way: each function waits for its own part.

    Attributes:
      init: `() -> RunState`.
      chunk: `(RunState) -> (RunState, Report [updates_per_chunk])`; the state is donated.
      assess: `(RunState) -> (curriculum state, Assessment)`.
      state: shapes and dtypes of the state.
      seconds: `() -> float`, wall-clock time from the first trace to the last compiled part; waits for it.
    """

    init: Callable
    chunk: Callable
    assess: Callable
    state: Any
    seconds: Callable


def compile_program(
    init: Callable,
    update: Callable,
    assess: Callable,
    arguments: tuple,
    world: Any,
    updates_per_chunk: int,
    options: dict[str, str] | None = None,
) -> Compiled:
    """Compiles the start, the evaluation and a chunk of updates side by side.

    Tracing takes turns, in the order in which a run needs the parts; XLA compiles each on a thread of its
    own, so that a run starts and is evaluated for the first time while the updates are still compiled.
    The start, which runs once, is compiled with `compiler.quick`.

    Args:
      init: `(*arguments, world) -> state`.
      update: `(state, world) -> (state, report)`; the state of a chunk is donated.
      assess: `(state, world) -> (curriculum state, assessment)`; of the state only what that needs is
        passed on.
      arguments: arrays to start from.
      world: arrays that all functions share; on the device once, never donated.
      updates_per_chunk: updates in one call.
      options: options of XLA for the updates, see `Program.compiler_options`.
    """
    begin = time.perf_counter()
    world = jax.device_put(world)

    def chunk(state, world):
        return jax.lax.scan(lambda s, _: update(s, world), state, None, updates_per_chunk)

    def compiled(lowered, options=None):
        return lowered.compile(compiler_options=options), time.perf_counter()

    pool = ThreadPoolExecutor(max_workers=3)
    start = jax.jit(init)
    parts = [pool.submit(compiled, start.lower(*arguments, world), compiler.quick())]
    state = jax.eval_shape(start, *arguments, world)
    parts.append(pool.submit(compiled, jax.jit(assess).lower(state, world)))
    parts.append(pool.submit(compiled, jax.jit(chunk, donate_argnums=0).lower(state, world), options))
    pool.shutdown(wait=False)

    def call(part, *given):
        return part.result()[0](*given, world)

    return Compiled(
        init=partial(call, parts[0], *arguments),
        chunk=partial(call, parts[2]),
        assess=partial(call, parts[1]),
        state=state,
        seconds=lambda: max(part.result()[1] for part in parts) - begin,
    )
