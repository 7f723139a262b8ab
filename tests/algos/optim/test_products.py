"""The products that a CPU learns faster with are products, and so are their derivatives."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos import compiler
from algos.nets.networks import MLP
from algos.off_policy.sac import SACConfig
from algos.on_policy.ppo import PPOConfig
from algos.optim import products
from algos.types import ActionSpec

TIGHT = {"rtol": 1e-5, "atol": 1e-4}


def operands(rows: tuple[int, ...], inner: int = 80, columns: int = 96):
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = ((*rows, inner), (inner, columns), (*rows, columns))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def pull_back(function, x, kernel, slope):
    value, back = jax.vjp(function, x, kernel)
    return value, *back(slope)


@pytest.mark.parametrize("rows", [(64,), (7, 9), (3, 4, 5), ()])
def test_values_and_gradients_of_a_product(rows):
    x, kernel, slope = operands(rows)
    got = jax.jit(lambda *a: pull_back(products.product, *a))(x, kernel, slope)
    flat, slopes = np.reshape(x, (-1, 80)), np.reshape(slope, (-1, 96))
    np.testing.assert_allclose(got[0], x @ kernel, **TIGHT)
    np.testing.assert_allclose(got[1], np.asarray(slope) @ np.asarray(kernel).T, **TIGHT)
    np.testing.assert_allclose(got[2], flat.T @ slopes, **TIGHT)


def test_a_batch_of_matrices():
    x, kernel, slope = operands((5, 64))
    kernels = jnp.stack([scale * kernel for scale in (1.0, -2.0, 0.5, 3.0, 0.0)])
    for axes, others in (((0, 0, 0), (x, kernels, slope)), ((None, 0, 0), (x[0], kernels, slope))):
        got = jax.jit(jax.vmap(lambda *a: pull_back(products.product, *a), axes))(*others)
        wanted = jax.vmap(lambda *a: pull_back(jnp.matmul, *a), axes)(*others)
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, **TIGHT)


def test_second_derivatives():
    x, kernel, _ = operands((4,), 64, 64)

    def slope_of_slope(multiply):
        def penalty(kernel):
            return jnp.sum(jnp.square(jax.grad(lambda y: jnp.sum(jnp.tanh(multiply(y, kernel))))(x)))

        return jax.grad(penalty)(kernel)

    np.testing.assert_allclose(slope_of_slope(products.product), slope_of_slope(jnp.matmul), **TIGHT)


@pytest.mark.parametrize("rows", [1, 64, products.FEW_ROWS + 1])
def test_networks_are_those_of_plain_layers(rows):
    mlp, obs = MLP((64, 80)), jax.random.normal(jax.random.key(1), (rows, 70))
    params = mlp.init(jax.random.key(2), obs)

    def plain(params, obs):
        for name in ("layer_0", "layer_1"):
            layer = {"params": params["params"][name]}
            obs = jnp.tanh(nn.Dense(layer["params"]["bias"].size).apply(layer, obs))
        return obs

    def gradient(apply):
        return jax.grad(lambda p: jnp.sum(jnp.square(apply(p, obs))))(params)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **TIGHT), gradient(mlp.apply), gradient(plain))


def test_settings_are_for_few_rows_on_a_cpu_that_knows_them(monkeypatch):
    assert products.compiler_options(None) == products.compiler_options(products.FEW_ROWS + 1) == {}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert products.compiler_options(64) == {}
    monkeypatch.undo()
    monkeypatch.setattr(products, "_SPREAD", {"xla_cpu_no_such_setting": "1"})
    assert products.compiler_options(64) == {}


def test_a_program_that_runs_once_is_told_what_this_xla_knows_only_on_a_cpu(monkeypatch):
    assert compiler.known(compiler.quick()) == compiler.quick()
    assert compiler.known({"xla_cpu_no_such_setting": True, "xla_backend_optimization_level": 0}) == {
        "xla_backend_optimization_level": 0
    }
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiler.quick() == {}


def test_settings_leave_the_numbers_alone():
    arguments = operands((64,))
    lowered = jax.jit(lambda *a: pull_back(products.product, *a)).lower(*arguments)
    told, untold = lowered.compile(compiler_options=products.compiler_options(64)), lowered.compile()
    for one, other in zip(told(*arguments), untold(*arguments), strict=True):
        np.testing.assert_allclose(one, other, **TIGHT)


def test_agents_say_how_many_samples_they_learn_from_at_once():
    def rows(config, samples=16):
        return config.make(
            (5,), ActionSpec("continuous", (2,)), samples=samples, episode_limit=9, goal=None
        ).rows

    assert rows(PPOConfig(horizon=128, num_minibatches=32)) == 64
    assert rows(PPOConfig(horizon=8, num_minibatches=4, sampling="sequential")) == 32
    assert rows(PPOConfig(horizon=128), samples=None) is None
    assert rows(SACConfig(batch_size=100, replay={"capacity": 512})) == 100
