"""Initial values of parameters."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

# Each iteration multiplies small singular values by 1.5, so that even 1e-6 of the norm converges to 1.
ORTHOGONAL_ITERATIONS = 40


def orthogonal(gain: float = 1.0) -> Callable:
    """Initialiser of kernels with orthogonal rows or columns (the fewer of the two) of length `gain`.

    The kernel is the polar factor of a Gaussian matrix, which is uniformly distributed over these kernels
    (Saxe et al. 2014 use the factor of a QR decomposition). It is computed by Newton-Schulz iterations,
    which need only products: the matrix decompositions of XLA's CPU backend can deadlock when kernels are
    drawn for several seeds or critics at once.
    """

    def init(key, shape, dtype=jnp.float32):
        short, long = sorted(shape)
        x = gain * _polar_factor(key, short, long)
        return (x if shape == (short, long) else x.T).astype(dtype)

    return init


# Compiled once per shape where networks are initialised outside of a program.
@partial(jax.jit, static_argnums=(1, 2))
def _polar_factor(key: jax.Array, rows: int, columns: int) -> jax.Array:
    """Polar factor `[rows, columns]` of a Gaussian matrix."""
    x = jax.random.normal(key, (rows, columns))
    x = x / jnp.linalg.norm(x)

    def iterate(_, x):
        square = jnp.matmul(x, x.T, precision="highest")
        return 1.5 * x - 0.5 * jnp.matmul(square, x, precision="highest")

    return jax.lax.fori_loop(0, ORTHOGONAL_ITERATIONS, iterate, x)
