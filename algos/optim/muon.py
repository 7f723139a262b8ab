"""Muon: momentum orthogonalised per matrix before each step (Jordan et al. 2024).

See docs/reference/trainer.md 8.3.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path

from algos.types import PyTree

# Each row maps singular values x to a x + b x^3 + c x^5; together they bring all but the smallest to 1.
COEFFICIENTS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


@dataclass(frozen=True)
class Matrix:
    """Interpretation of a parameter as a stack of matrices.

    Attributes:
      stacked: leading axes that index separate matrices.
      outputs_first: whether the first of the other axes is that of the outputs, as in `Linear`, rather
        than the last, as in Flax's own layers.
    """

    stacked: int
    outputs_first: bool


def find_matrices(params: PyTree, stacked: tuple[str, ...] = ()) -> PyTree:
    """Returns a `Matrix` for every parameter with at least two axes, None for the others, as a pytree.

    The axis of the outputs is the one of the length of the layer's bias. Without a bias it is the last,
    as in Flax.

    Args:
      params: nested dicts of parameters.
      stacked: names of modules whose parameters have one leading axis that indexes separate networks;
        this axis is not one of the two.
    """
    leaves, structure = tree_flatten_with_path(params)
    named = [(tuple(keystr(path, simple=True, separator="/").split("/")), x.shape) for path, x in leaves]
    biases = {name[:-1]: shape for name, shape in named if name[-1] == "bias"}

    def read(name, shape):
        lead = int(not set(stacked).isdisjoint(name))
        if len(shape) - lead < 2:
            return None
        outputs = biases.get(name[:-1], shape)[-1]
        return Matrix(lead, shape[lead] == outputs != shape[-1])

    return structure.unflatten([read(*leaf) for leaf in named])


def split_matrices(tree: PyTree, matrices: PyTree) -> tuple[PyTree, PyTree]:
    """Splits parameters into matrices and others, each tree with None in place of the rest.

    Args:
      tree: a pytree with the structure of the parameters.
      matrices: from `find_matrices`.
    """
    kinds = jax.tree.leaves(matrices, is_leaf=lambda kind: kind is None)
    leaves, structure = jax.tree.flatten(tree)
    both = [(x, None) if kind else (None, x) for x, kind in zip(leaves, kinds, strict=True)]
    return structure.unflatten([x for x, _ in both]), structure.unflatten([x for _, x in both])


def merge_matrices(first: PyTree, second: PyTree) -> PyTree:
    """Inverse of `split_matrices`."""
    return jax.tree.map(lambda x, y: y if x is None else x, first, second, is_leaf=lambda x: x is None)


def orthogonalize(x: jax.Array) -> jax.Array:
    """Brings the singular values of matrices `[..., P, Q]` close to 1 and keeps their directions.

    Takes five Newton-Schulz steps (Jordan et al. 2024, "Muon"), each with its own polynomial. Singular
    values above 1/160 of the Frobenius norm end within 3.2 % of 1, those above 1/400 within 15 %;
    smaller ones stay below 1, and a zero matrix stays zero.
    """
    wide = x if x.shape[-2] <= x.shape[-1] else x.mT
    wide = wide / jnp.maximum(jnp.linalg.norm(wide, axis=(-2, -1), keepdims=True), 1e-7)
    for a, b, c in COEFFICIENTS:
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if x.shape[-2] <= x.shape[-1] else wide.mT


def muon_direction(update: jax.Array, matrix: Matrix) -> jax.Array:
    """Returns Muon's step along a momentum: orthogonalised, times max(1, sqrt(outputs / inputs)).

    The factor is independent of the kernel's layout: for Flax's `[in, out]` it uses out and in, for
    `[height, width, in, out]` out and height * width * in.
    """
    lead, shape = update.shape[: matrix.stacked], update.shape[matrix.stacked :]
    outputs = shape[0] if matrix.outputs_first else shape[-1]
    inputs = math.prod(shape) // outputs
    flat = (outputs, inputs) if matrix.outputs_first else (inputs, outputs)
    orthogonal = orthogonalize(update.reshape(lead + flat)).reshape(update.shape)
    return math.sqrt(max(1.0, outputs / inputs)) * orthogonal


def nesterov_momentum(
    grads: PyTree,
    momentum: PyTree,
    beta: jax.Array | float,
    scale: jax.Array | float,
    apply: jax.Array | bool,
) -> tuple[PyTree, PyTree]:
    """Updates a momentum, kept as a running mean, and returns it with Nesterov's look-ahead.

    Args:
      grads: gradients.
      momentum: running mean of the gradients so far, of the same structure.
      beta: weight of the past.
      scale: factor on the gradients.
      apply: bool scalar; if False, the momentum is unchanged.

    Returns:
      `(update, momentum)`.
    """
    mean = jax.tree.map(lambda m, g: beta * m + (1.0 - beta) * scale * g, momentum, grads)
    update = jax.tree.map(lambda m, g: beta * m + (1.0 - beta) * scale * g, mean, grads)
    return update, jax.tree.map(lambda new, old: jnp.where(apply, new, old), mean, momentum)


def apply_decayed_update(
    params: PyTree,
    update: PyTree,
    learning_rate: jax.Array | float,
    weight_decay: jax.Array | float,
    apply: jax.Array | bool,
) -> PyTree:
    """Returns `p (1 - learning_rate * weight_decay) - learning_rate * update`, or p if not `apply`."""
    keep = 1.0 - learning_rate * weight_decay
    return jax.tree.map(lambda p, u: jnp.where(apply, p * keep - learning_rate * u, p), params, update)


def muon(
    grads: PyTree,
    momentum: PyTree,
    params: PyTree,
    matrices: PyTree,
    *,
    learning_rate: jax.Array | float,
    beta: jax.Array | float = 0.95,
    weight_decay: jax.Array | float = 0.0,
    scale: jax.Array | float = 1.0,
    apply: jax.Array | bool = True,
) -> tuple[PyTree, PyTree]:
    """Takes one step of Muon on matrix parameters, with Nesterov momentum and decoupled weight decay.

    Args:
      grads: gradients, structured like `params`.
      momentum: their running mean so far, initially zero.
      params: the parameters, None in place of those that are not matrices.
      matrices: from `find_matrices`.
      learning_rate: length of a step in each singular direction, before the factor for shape.
      beta: weight of the past in the running mean.
      weight_decay: coefficient of the decoupled decay.
      scale: factor on the gradients, from `clip_scale`.
      apply: bool scalar; if False, nothing changes, even for non-finite gradients.

    Returns:
      `(params, momentum)` after the step.
    """
    update, momentum = nesterov_momentum(grads, momentum, beta, scale, apply)
    update = jax.tree.map(muon_direction, update, matrices)
    return apply_decayed_update(params, update, learning_rate, weight_decay, apply), momentum
