"""Parallel ahead-of-time compilation of a run's programs."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax

from algos import compiler


class Compiled(NamedTuple):
    """A program compiled ahead of time, in background threads; each function blocks until it is compiled.

    Attributes:
      init: `() -> RunState`.
      chunk: `(RunState) -> (RunState, Report [updates_per_chunk])`; the state is donated.
      assess: `(RunState) -> (curriculum state, Assessment)`.
      state: shapes and dtypes of the state.
      seconds: `() -> float`, wall-clock seconds from the first trace to the last compiled part; blocks.
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
    """Compiles `init`, the evaluation and a chunk of updates in parallel.

    Tracing is sequential, in the order in which a run needs the parts; XLA compiles each in its own
    thread, so that initialisation and the first evaluation overlap with compiling the updates. `init`,
    which runs once, is compiled with `compiler.quick`.

    Args:
      init: `(*arguments, world) -> state`.
      update: `(state, world) -> (state, report)`; the state of a chunk is donated.
      assess: `(state, world) -> (curriculum state, assessment)`; jit drops the unused parts of the state.
      arguments: arrays passed to `init`.
      world: arrays shared by all functions; on the device once, never donated.
      updates_per_chunk: updates per call.
      options: XLA options for the updates, see `Program.compiler_options`.
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
