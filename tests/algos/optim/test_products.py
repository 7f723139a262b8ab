"""The products that a CPU learns faster with are products, and so are their derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.optim.products import matrix_product

TIGHT = {"rtol": 1e-5, "atol": 1e-4}


def operands(rows: tuple[int, ...], inner: int = 80, columns: int = 96):
    rng, shapes = np.random.default_rng(0), ((*rows, inner), (inner, columns), (*rows, columns))
    return [np.float32(rng.normal(size=shape)) for shape in shapes]


def pull_back(function, x, kernel, slope):
    value, back = jax.vjp(function, x, kernel)
    return value, *back(slope)


@pytest.mark.parametrize("rows", [(64,), (7, 9), (3, 4, 5), ()])
def test_values_and_gradients_of_a_product(rows):
    x, kernel, slope = operands(rows)
    got = jax.jit(lambda *a: pull_back(matrix_product, *a))(x, kernel, slope)
    flat, slopes = np.reshape(x, (-1, 80)), np.reshape(slope, (-1, 96))
    np.testing.assert_allclose(got[0], x @ kernel, **TIGHT)
    np.testing.assert_allclose(got[1], np.asarray(slope) @ np.asarray(kernel).T, **TIGHT)
    np.testing.assert_allclose(got[2], flat.T @ slopes, **TIGHT)


def test_a_batch_of_matrices():
    x, kernel, slope = operands((5, 64))
    kernels = np.stack([np.float32(scale) * kernel for scale in (1.0, -2.0, 0.5, 3.0, 0.0)])
    for axes, others in (((0, 0, 0), (x, kernels, slope)), ((None, 0, 0), (x[0], kernels, slope))):
        got = jax.jit(jax.vmap(lambda *a: pull_back(matrix_product, *a), axes))(*others)
        wanted = jax.jit(jax.vmap(lambda *a: pull_back(jnp.matmul, *a), axes))(*others)
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, **TIGHT)


def test_second_derivatives():
    x, kernel, _ = operands((4,), 64, 64)

    @partial(jax.jit, static_argnums=0)
    def slope_of_slope(multiply):
        def penalty(kernel):
            return jnp.sum(jnp.square(jax.grad(lambda y: jnp.sum(jnp.tanh(multiply(y, kernel))))(x)))

        return jax.grad(penalty)(kernel)

    np.testing.assert_allclose(slope_of_slope(matrix_product), slope_of_slope(jnp.matmul), **TIGHT)
