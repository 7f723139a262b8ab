"""Matrix products whose gradients XLA's CPU backend computes fast, for few rows and for whole sequences."""

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
    of_kernel = kernel_gradient(rows, slopes)
    return of_x.reshape(x.shape), of_kernel


matrix_product.defvjp(_forward, _backward)


@jax.custom_vjp
def sequence_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`x @ kernel` of many rows, from `[..., K]` and `[K, N]` to `[..., N]`; no forward-mode derivative."""
    return x @ kernel


def _sequence_backward(saved, slope):
    x, kernel = saved
    return (slope @ kernel.T).astype(x.dtype), kernel_gradient(x, slope).astype(kernel.dtype)


sequence_product.defvjp(_forward, _sequence_backward)


def kernel_gradient(x: jax.Array, slope: jax.Array) -> jax.Array:
    """Gradient `[K, N]` of a kernel from its inputs `[..., K]` and the gradient `[..., N]` of its product.

    A product of a transposed operand is slower on a CPU than to copy the operand first, which the barrier
    makes XLA do.
    """
    rows, slopes = (array.reshape(-1, array.shape[-1]) for array in (x, slope))
    return jax.lax.optimization_barrier(rows.T) @ slopes
