"""Faster gradient steps on small batches on CPUs: transposed products and an XLA option.

A step on at most `FEW_ROWS` samples is too short to keep a CPU busy. Two changes together shorten it:
gradients of hidden layers as transposed products (`products`), and an XLA option that spreads small products
over all cores. Without the option the transposed products are slower than plain ones, so both depend on how a
program is compiled, which the caller says when it traces:

    lowered = small_batches.lower_for_options(jax.jit(program.update), state)
    lowered.compile(compiler_options=program.compiler_options)

Layers ask when they are traced; no signature mentions it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import jax

from algos import compiler
from algos.optim.products import matrix_product
from algos.types import Agent, PyTree

# Largest number of samples per gradient step, and smallest size of a matrix's shorter axis, for which the
# changes are faster.
FEW_ROWS = 128
WIDE = 64

# Uses the library of products that spreads small ones over all cores.
_SPREAD = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}

# Whether what is traced will be compiled with the option, and the rows of the steps of the agent in it.
_for_options: ContextVar[bool] = ContextVar("for_options", default=False)
_few_rows: ContextVar[int | None] = ContextVar("few_rows", default=None)


@contextmanager
def traced_for_options() -> Iterator[None]:
    """Context of traces of programs that will be compiled with `Agent.compiler_options`."""
    before = _for_options.set(True)
    try:
        yield
    finally:
        _for_options.reset(before)


def lower_for_options(jitted: Any, *arguments: PyTree) -> Any:
    """Lowers a jitted function to a program that is then compiled with `Agent.compiler_options`.

    It must not have been traced before: `jax.jit` keeps traces.
    """
    with traced_for_options():
        return jitted.lower(*arguments)


def small_batch_options(rows: int | None) -> Mapping[str, str]:
    """Returns the XLA options for gradient steps on this many samples.

    They are empty for many samples or an unknown number, on other devices than CPUs, and where XLA does not
    support the option.
    """
    if rows is None or rows > FEW_ROWS or jax.default_backend() != "cpu":
        return {}
    return compiler.supported_options(_SPREAD)


def step_on_few_rows(agent: Agent, rows: int | None, length: int = 1) -> Agent:
    """Adds the options for gradient steps on this many samples to an agent, and marks its traces.

    Steps on few sequences have the options, but no transposed products: these have the rows of all steps.

    Args:
      agent: the agent.
      rows: samples per forward and backward pass, or sequences; None if not known.
      length: steps of a sequence.
    """
    options = small_batch_options(rows)
    if rows is None or not options:
        return agent
    marked = rows if rows * length <= FEW_ROWS else None

    def telling(fn: Callable | None) -> Callable | None:
        if fn is None:
            return None

        @wraps(fn)
        def call(*arguments):
            before = _few_rows.set(marked if _for_options.get() else None)
            try:
                return fn(*arguments)
            finally:
                _few_rows.reset(before)

        return call

    names = ("act", "greedy", "value", "update", "teach")
    return agent._replace(**{name: telling(getattr(agent, name)) for name in names}, compiler_options=options)


def layer_product(x, kernel, dimension_numbers, precision=None, preferred_element_type=None) -> jax.Array:
    """`jax.lax.dot_general` as `flax.linen.Dense` calls it; `matrix_product` for few rows and wide kernels.

    A single row, and kernels of other types than float32, have the plain product.
    """
    few = (_few_rows.get() or 1) > 1
    if few and min(kernel.shape) >= WIDE and kernel.dtype == "float32":
        return matrix_product(x, kernel)
    return jax.lax.dot_general(
        x, kernel, dimension_numbers, precision=precision, preferred_element_type=preferred_element_type
    )
