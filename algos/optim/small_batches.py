"""Faster gradient steps on small batches on CPUs: transposed products, packed arrays and an XLA option.

A step on at most `FEW_ROWS` samples is too short to keep a CPU busy. Three changes together shorten it:
gradients of hidden layers as transposed products (`products`), an optimiser that steps all small arrays
as one (`packing`), and an XLA option that spreads small products over all cores. Without the option
the transposed products are slower than plain ones, so an agent is built with them only for a program that
is compiled with its `compiler_options` (`tuned=True`). The choice is made here, before tracing; batches of
acting may have any size, including symbolic sizes.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from algos import compiler
from algos.optim.optimizers import Optimizer
from algos.optim.packing import pack_optimizer
from algos.optim.products import matrix_product

# Largest number of samples per gradient step, and smallest size of a matrix's shorter axis, for which the
# changes are faster.
FEW_ROWS = 128
WIDE = 64

# Uses the library of products that spreads small ones over all cores.
_SPREAD = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}


class Implementation(NamedTuple):
    """Implementation of an agent's gradient steps.

    Attributes:
      dot_general: product of a hidden layer, as `flax.linen.Dense` calls it.
      wrap: `(optimizer) -> optimizer` for steps on single samples.
      compiler_options: XLA options that the other two need.
    """

    dot_general: Callable = jax.lax.dot_general
    wrap: Callable[[Optimizer], Optimizer] = lambda optimizer: optimizer
    compiler_options: Mapping[str, str] = {}


PLAIN = Implementation()


def choose_implementation(rows: int | None, *, tuned: bool) -> Implementation:
    """Chooses the implementation for gradient steps on this many samples.

    Args:
      rows: samples per forward and backward pass; None if not known.
      tuned: whether the program will be compiled with the `compiler_options` of the result.

    Returns:
      `PLAIN` if not tuned, for many samples or an unknown number, on other devices than CPUs, and where
      XLA does not support the option.
    """
    if rows is None or rows > FEW_ROWS or not tuned or jax.default_backend() != "cpu":
        return PLAIN
    options = compiler.supported_options(_SPREAD)
    if not options:
        return PLAIN
    return Implementation(hidden_product if rows > 1 else jax.lax.dot_general, pack_optimizer, options)


def hidden_product(x, kernel, dimension_numbers, precision=None, preferred_element_type=None) -> jax.Array:
    """`jax.lax.dot_general` as `flax.linen.Dense` calls it; `matrix_product` for wide float32 kernels."""
    if min(kernel.shape) >= WIDE and kernel.dtype == "float32":
        return matrix_product(x, kernel)
    return jax.lax.dot_general(
        x, kernel, dimension_numbers, precision=precision, preferred_element_type=preferred_element_type
    )
