"""Explicit integrators: exactness, order, structure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physics.integrate import euler, rk4


def pendulum(x, u):
    return {"angle": x["rate"], "rate": u - jnp.sin(x["angle"])}


def pendulum_after(integrator, steps):
    x = {"angle": jnp.asarray(0.4), "rate": jnp.asarray(0.1)}
    x, _ = jax.lax.scan(lambda x, _: (integrator(pendulum, x, 0.2, 2.0 / steps), None), x, length=steps)
    return np.array([x["angle"], x["rate"]])


def test_euler_is_one_step_along_the_derivative():
    x = euler(lambda x, u: (x[1], u), (jnp.array([1.0]), jnp.array([2.0])), jnp.array([-4.0]), 0.25)
    np.testing.assert_array_equal(np.array(x), [[1.5], [1.0]])


@pytest.mark.parametrize(("integrator", "order"), [(euler, 1), (rk4, 4)])
def test_order_of_convergence(integrator, order):
    with jax.enable_x64(True):
        exact = pendulum_after(rk4, 4000)
        errors = [np.abs(pendulum_after(integrator, steps) - exact).max() for steps in (40, 80, 160)]
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), order, atol=0.1)


def test_rk4_is_exact_for_cubics():
    with jax.enable_x64(True):
        start = jnp.asarray(1.0), jnp.asarray(0.0)
        t, x = rk4(lambda x, u: (jnp.ones_like(x[0]), 4 * x[0] ** 3 + u), start, 3.0, 2.0)
        np.testing.assert_allclose([t, x], [3.0, 3.0**4 - 1 + 6], rtol=1e-14)


@pytest.mark.parametrize("integrator", [euler, rk4])
def test_structure_and_dtype_are_kept(integrator):
    x = {"a": jnp.ones((3, 2)), "b": (jnp.zeros(4, jnp.bfloat16),)}
    with jax.enable_x64(True):
        moved = integrator(lambda x, u: jax.tree.map(lambda leaf: -leaf, x), x, None, np.float64(0.1))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), moved) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), x
    )


def test_gradient_through_a_step_matches_the_exact_flow():
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(lambda x: rk4(lambda x, u: u * x, x, -2.0, 0.01)))(1.5)
    np.testing.assert_allclose(slope, np.exp(-0.02), rtol=1e-10)
