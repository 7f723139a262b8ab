"""Parallel ahead-of-time compilation of a run's programs."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax

from algos import compiler
from algos.optim import small_batches
from jaxmarl_echelon.training.host.devices import ALONE, DeviceLayout, Spec


class Compiled(NamedTuple):
    """Program compiled ahead of time in background threads; each function blocks until it is compiled.

    Attributes:
      init: `() -> RunState`.
      chunk: `(RunState) -> (RunState, Report [updates_per_chunk])`; the state is donated.
      assess: `(RunState) -> (curriculum state, Assessment)`.
      state: shapes and dtypes of the state, with its shardings where it lies on several devices.
      place: `(RunState) -> RunState`, puts a restored state on its devices.
      world: the program's world, on its devices.
      executable: `() -> jax.stages.Compiled` of `chunk`, for its memory analysis and text; blocks.
      seconds: `() -> float`, wall-clock seconds from the first trace to the last compiled part; blocks.
      start: `(arguments) -> RunState`, as `init` with other arguments of the same shapes.
    """

    init: Callable
    chunk: Callable
    assess: Callable
    state: Any
    place: Callable
    world: Any
    executable: Callable
    seconds: Callable
    start: Callable

    def begin_with(self, arguments: tuple) -> "Compiled":
        """Returns the program with other arguments of `init`, such as seeds."""
        return self._replace(init=partial(self.start, arguments))


def compile_program(
    init: Callable,
    update: Callable,
    assess: Callable,
    arguments: tuple,
    world: Any,
    updates_per_chunk: int,
    options: dict[str, str] | None = None,
    layout: DeviceLayout = ALONE,
    local: Callable | None = None,
    admit: Callable | None = None,
) -> Compiled:
    """Compiles `init`, the evaluation and a chunk of updates in parallel.

    Tracing is sequential, in the order in which a run needs the parts; XLA compiles each in its own
    thread, so that initialisation and the first evaluation overlap with compiling the updates. `init`,
    which runs once, is compiled with `compiler.quick_compile_options`, the evaluation with
    `compiler.evaluation_compile_options`.

    Args:
      init: `(*arguments, world) -> state`.
      update: `(state, world) -> (state, report)`; the state of a chunk is donated.
      assess: `(state, world) -> (curriculum state, assessment)`; jit drops the unused parts of the state.
      arguments: arrays passed to `init`.
      world: arrays shared by all functions; on the device once, never donated.
      updates_per_chunk: updates per call.
      options: XLA options for the updates, see `Program.compiler_options`.
      layout: the devices. On several devices `init` is compiled for parts of the state, so that no device
        holds all of it.
      local: see `Program.local`; needed on several devices.
      admit: `(state, world)` with the state as shapes, called before compilation starts; an exception from
        it stops the compilation before any background work.
    """
    began = time.perf_counter()
    all_of_it, shared = Spec(), layout.shared
    world, arguments = layout.put(world, all_of_it), layout.put(arguments, shared)

    def chunk(state, world):
        return jax.lax.scan(lambda s, _: update(s, world), state, None, updates_per_chunk)

    def compiled(lowered, options=None):
        return lowered.compile(compiler_options=options), time.perf_counter()

    state = jax.eval_shape(jax.jit(init), *arguments, world)
    specs = None if layout.mesh is None else layout.specs(local(state))
    state = layout.shapes(state, specs)
    if admit is not None:
        admit(state, world)
    pool = ThreadPoolExecutor(max_workers=3)
    start = layout.jit(init, (*(shared for _ in arguments), all_of_it), specs, specs)
    parts = [
        pool.submit(compiled, start.lower(*arguments, world), compiler.quick_compile_options(layout.number))
    ]
    score = layout.jit(assess, (specs, all_of_it), (shared, shared), (shared, all_of_it))
    quick = compiler.evaluation_compile_options(layout.number)
    parts.append(pool.submit(compiled, score.lower(state, world), quick))
    advance = layout.jit(
        chunk, (specs, all_of_it), (specs, layout.stacked), (specs, all_of_it), donate_argnums=0
    )
    lowered = small_batches.lower_for_options(advance, state, world)
    parts.append(pool.submit(compiled, lowered, options))
    pool.shutdown(wait=False)

    def call(part, *given):
        return part.result()[0](*given, world)

    def begin(arguments):
        return call(parts[0], *layout.put(arguments, shared))

    return Compiled(
        init=partial(call, parts[0], *arguments),
        chunk=partial(call, parts[2]),
        assess=partial(call, parts[1]),
        state=state,
        place=lambda restored: restored if specs is None else layout.put(restored, specs),
        world=world,
        executable=lambda: parts[2].result()[0],
        seconds=lambda: max(part.result()[1] for part in parts) - began,
        start=begin,
    )
