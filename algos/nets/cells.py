"""Equations of the LSTM and the GRU with their gradients, and their runs over time.

See docs/reference/trainer.md 5.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos.optim.products import kernel_gradient, sequence_product
from algos.types import PyTree


def clear_carry(carry: PyTree, reset: jax.Array) -> PyTree:
    """Zeroes recurrent state, leaves `[..., H]`, where `reset` `[...]` is True."""
    return jax.tree.map(lambda state: jnp.where(reset[..., None], 0.0, state), carry)


def cast_product(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Matrix product computed in `dtype` and returned in at least float32."""
    product = sequence_product(x.astype(dtype), kernel.astype(dtype))
    return product.astype(jnp.promote_types(dtype, jnp.float32))


class Cell(NamedTuple):
    """Equations of a recurrent layer whose gates read its previous output, and their gradient.

    Attributes:
      gates: blocks of `width` columns in both kernels.
      states: arrays carried from step to step, the output first.
      parts: arrays into which the contributions of the inputs are divided before the loop over time.
      step: `(states, inputs, recurrent) -> (states, saved)`; `inputs` (bias included), as `parts` arrays, and
        `recurrent` are the contributions of the input and of the previous output to the gates,
        `[..., gates * width]` in all, and `saved` is what `pull` needs.
      pull: `(slopes, states, saved) -> (slopes, inputs, recurrent)`, from the gradients of the states after
        a step to those of its arguments; `states` are those before the step.
    """

    gates: int
    states: int
    parts: int
    step: Callable
    pull: Callable


def lstm_step(states, inputs: list[jax.Array], recurrent: jax.Array):
    """Takes one step of the LSTM with a forget gate (Gers, Schmidhuber and Cummins 2000), without peepholes.

    Gates come in the order input, forget, candidate, output; states are `(output, cell)`.
    """
    enter, keep, candidate, leave = _activate(inputs[0] + recurrent, (True, True, False, True))
    cell = keep * states[1] + enter * candidate
    bounded = jnp.tanh(cell)
    return (leave * bounded, cell), (enter, keep, candidate, leave, bounded)


def lstm_pull(slopes, states, saved):
    """Gradient of `lstm_step`; see `Cell`."""
    (doutput, dcell), (_, cell), (enter, keep, candidate, leave, bounded) = slopes, states, saved
    dcell = dcell + doutput * leave * (1.0 - bounded * bounded)
    blocks = (
        dcell * candidate * enter * (1.0 - enter),
        dcell * cell * keep * (1.0 - keep),
        dcell * enter * (1.0 - candidate * candidate),
        doutput * bounded * leave * (1.0 - leave),
    )
    dgates = jnp.concatenate(blocks, axis=-1)
    return (jnp.zeros_like(doutput), dcell * keep), dgates, dgates


def gru_step(states, inputs: list[jax.Array], recurrent: jax.Array):
    """Takes one step of the GRU (Cho et al. 2014), with the reset gate applied after the recurrent product.

    Gates come in the order reset, update, candidate; an update gate of 1 keeps the state. The inputs of each
    gate are an array of their own: XLA on a CPU does not vectorise functions of parts of the rows that it
    takes from a longer array in a loop over time.
    """
    (hidden,) = states
    *gates, kept = jnp.split(recurrent, 3, axis=-1)
    use, keep = (0.5 + 0.5 * jnp.tanh(0.5 * (x + y)) for x, y in zip(inputs[:2], gates, strict=True))
    candidate = jnp.tanh(inputs[2] + use * kept)
    return (keep * hidden + (1.0 - keep) * candidate,), (use, keep, kept, candidate)


def gru_pull(slopes, states, saved):
    """Gradient of `gru_step`; see `Cell`."""
    (dhidden,), (hidden,), (use, keep, kept, candidate) = slopes, states, saved
    dcandidate = dhidden * (1.0 - keep) * (1.0 - candidate * candidate)
    duse = dcandidate * kept * use * (1.0 - use)
    dkeep = dhidden * (hidden - candidate) * keep * (1.0 - keep)
    inputs = jnp.concatenate((duse, dkeep, dcandidate), axis=-1)
    recurrent = jnp.concatenate((duse, dkeep, dcandidate * use), axis=-1)
    return (dhidden * keep,), inputs, recurrent


def _activate(gates: jax.Array, sigmoids: tuple[bool, ...]) -> list[jax.Array]:
    """Splits gates `[..., n * H]` into n blocks, with sigmoid(x) = (1 + tanh(x / 2)) / 2 or tanh(x) of each.

    One function of the whole array, before it is split: XLA on a CPU does not vectorise functions of slices
    in a loop over time.
    """
    width = gates.shape[-1] // len(sigmoids)
    half = jnp.repeat(jnp.where(jnp.array(sigmoids), 0.5, 1.0), width)
    blocks = jnp.split(jnp.tanh(gates * half), len(sigmoids), axis=-1)
    return [0.5 + 0.5 * x if logistic else x for x, logistic in zip(blocks, sigmoids, strict=True)]


CELLS = {"lstm": Cell(4, 2, 1, lstm_step, lstm_pull), "gru": Cell(3, 1, 3, gru_step, gru_pull)}


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def run_cell(
    cell: Cell, dtype: jnp.dtype, kernel: jax.Array, states: PyTree, inputs: jax.Array, reset: jax.Array
) -> tuple[PyTree, jax.Array]:
    """Runs a cell over T steps.

    The gradient of the kernel is one product over all steps, instead of a sum of T products: the sum's order
    is the product's. The gradient has no forward mode.

    Args:
      cell: the equations.
      dtype: type of the matrix products.
      kernel: `[H, gates * H]`, the recurrent one.
      states: arrays `[..., H]` before the first step.
      inputs: `[T, ..., gates * H]`, contributions of the inputs.
      reset: `[T, ...]` bool; the states are cleared before each step where True.

    Returns:
      `(states, y)`: the states after the last step, and the outputs `[T, ..., H]`.
    """
    (states, y), _ = _run_cell_forward(cell, dtype, kernel, states, inputs, reset)
    return states, y


def _run_cell_forward(cell, dtype, kernel, states, inputs, reset):
    """Runs the cell; returns its result and what the gradient needs."""

    def step(states, now):
        inputs, reset = now
        states = clear_carry(states, reset)
        after, saved = cell.step(states, inputs, cast_product(states[0], kernel, dtype))
        return after, (after[0], states, saved)

    rows = jnp.split(inputs, cell.parts, axis=-1), reset
    after, (y, before, saved) = jax.lax.scan(step, states, rows)
    return (after, y), (kernel, reset, before, saved)


def _run_cell_backward(cell, dtype, saved, cotangents):
    """Runs the gradient from the last step to the first."""
    kernel, reset, before, saved = saved
    turned = kernel.T

    def step(slopes, now):
        dy, states, saved, reset = now
        (first, *others), dinputs, drecurrent = cell.pull((slopes[0] + dy, *slopes[1:]), states, saved)
        slopes = (first + cast_product(drecurrent, turned, dtype), *others)
        return clear_carry(slopes, reset), (dinputs, drecurrent)

    rows = (cotangents[1], before, saved, reset)
    slopes, (dinputs, drecurrent) = jax.lax.scan(step, cotangents[0], rows, reverse=True)
    dkernel = kernel_gradient(before[0].astype(dtype), drecurrent.astype(dtype)).astype(kernel.dtype)
    return dkernel, slopes, dinputs, np.zeros(reset.shape, jax.dtypes.float0)


run_cell.defvjp(_run_cell_forward, _run_cell_backward)
