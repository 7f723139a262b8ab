"""Products of few rows with a wide matrix, whose gradients XLA's CPU backend computes fast."""

import jax

from algos import compiler

# Up to how many rows, and from which size of a matrix's shorter axis, this pays; see `product`.
FEW_ROWS = 128
WIDE = 64

# Leaves products to the library that spreads small ones over all cores.
_SPREAD = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}


@jax.custom_vjp
def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`x @ kernel`, from `[..., K]` and `[K, N]` to `[..., N]`.

    The gradients are those of the product, but on a CPU each is a product whose operands lie in memory as
    they are multiplied and whose left one has many rows. That is faster for few rows, and only in programs
    compiled with `compiler_options`; docs/results.md says how much.

    Differentiated in reverse, any number of times, but not forward.
    """
    return x @ kernel


def _forward(x, kernel):
    return x @ kernel, (x, kernel)


def _backward(saved, slope):
    x, kernel = saved
    rows, slopes = (array.reshape(-1, array.shape[-1]) for array in (x, slope))
    of_x, of_kernel = jax.lax.platform_dependent(rows, kernel, slopes, cpu=_transposed, default=_plain)
    return of_x.reshape(x.shape), of_kernel


product.defvjp(_forward, _backward)


def _plain(rows, kernel, slopes):
    return slopes @ kernel.T, rows.T @ slopes


def _transposed(rows, kernel, slopes):
    def lay_out(matrix):
        return jax.lax.optimization_barrier(matrix)

    return lay_out(kernel @ lay_out(slopes.T)).T, lay_out(rows.T) @ slopes


def dense_product(x, kernel, dimension_numbers, precision=None, preferred_element_type=None) -> jax.Array:
    """`jax.lax.dot_general` as `flax.linen.Dense` calls it; `product` where that pays."""
    if is_small(x.size // x.shape[-1], kernel):
        return product(x, kernel)
    return jax.lax.dot_general(
        x, kernel, dimension_numbers, precision=precision, preferred_element_type=preferred_element_type
    )


def is_small(rows: int, kernel: jax.Array) -> bool:
    """Whether `product` pays for so many rows and a matrix like `kernel`."""
    return 1 < rows <= FEW_ROWS and min(kernel.shape) >= WIDE and kernel.dtype == "float32"


def compiler_options(rows: int | None) -> dict[str, str]:
    """What XLA is to be told of a program that learns from so many rows at a time, by setting.

    Nothing for many rows or an unknown number, on other devices than CPUs, and where XLA does not know
    the setting.
    """
    return compiler.known(_SPREAD) if rows is not None and is_short(rows) else {}


def is_short(rows: int) -> bool:
    """Whether learning from so many rows at a time is as short as to be worth care on this device."""
    return rows <= FEW_ROWS and jax.default_backend() == "cpu"
