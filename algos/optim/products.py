"""A matrix product whose gradients XLA's CPU backend computes fast for few rows."""

import jax


@jax.custom_vjp
def matrix_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`x @ kernel`, from `[..., K]` and `[K, N]` to `[..., N]`.

    Each gradient is computed as a product whose operands are contiguous in the order of multiplication and
    whose left operand has many rows. On a CPU this is faster for few rows, in programs compiled with the
    options of `algos.optim.small_batches`; docs/results.md has the measurements.

    Differentiable in reverse mode, any number of times, but not in forward mode.
    """
    return x @ kernel


def _forward(x, kernel):
    return x @ kernel, (x, kernel)


def _backward(saved, slope):
    x, kernel = saved
    rows, slopes = (array.reshape(-1, array.shape[-1]) for array in (x, slope))
    # The barriers make XLA materialise the transposes instead of folding them into the products.
    of_x = jax.lax.optimization_barrier(kernel @ jax.lax.optimization_barrier(slopes.T)).T
    of_kernel = jax.lax.optimization_barrier(rows.T) @ slopes
    return of_x.reshape(x.shape), of_kernel


matrix_product.defvjp(_forward, _backward)
