from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.nets.actor_critic import ActorCriticConfig, make_actor_critic
from algos.optim.muon import (
    Matrix,
    find_matrices,
    merge_matrices,
    muon_direction,
    orthogonalize,
    split_matrices,
)
from algos.optim.optimizers import make_optimizer
from algos.types import ActionSpec, ObservationSpec

COEFFICIENTS = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]


ORTHOGONALIZE = jax.jit(orthogonalize)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def newton_schulz(x):
    """On the singular values alone: the odd polynomials leave the singular vectors as they are."""
    u, s, v = np.linalg.svd(x, full_matrices=False)
    s = s / max(np.linalg.norm(s), 1e-7)
    for a, b, c in COEFFICIENTS:
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ v


@pytest.mark.parametrize("shape", [(8, 8), (5, 40), (40, 5), (64, 200), (1, 7), (7, 1)])
def test_singular_values_end_close_to_one(shape):
    """From 1/100 of the norm upwards; 3 % is the bound of these coefficients to its first digit."""
    u, _, v = np.linalg.svd(normal(0, *shape), full_matrices=False)
    s = np.geomspace(1.0, 0.02, min(shape))
    values = np.linalg.svd(ORTHOGONALIZE(np.float32((u * s) @ v)), compute_uv=False)
    np.testing.assert_allclose(values, 1.0, atol=0.032)


@pytest.mark.parametrize("shape", [(6, 6), (3, 17), (17, 3), (4, 5, 9)])
def test_orthogonalised_matrices_equal_the_polynomials_of_their_singular_values(shape):
    x = normal(1, *shape)
    with jax.enable_x64(True):
        result = ORTHOGONALIZE(x)
    expected = np.stack([newton_schulz(y) for y in x]) if x.ndim == 3 else newton_schulz(x)
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


def test_a_matrix_of_zeros_stays_one_and_scale_does_not_matter():
    assert (ORTHOGONALIZE(np.zeros((4, 6), np.float32)) == 0).all()
    x = np.float32(normal(2, 4, 6))
    small, large = (ORTHOGONALIZE(np.float32(scale) * x) for scale in (1e-3, 1e3))
    np.testing.assert_allclose(small, large, atol=1e-5)


@pytest.mark.parametrize(
    ("matrix", "shape", "factor"),
    [
        (Matrix(0, False), (4, 16), 2.0),
        (Matrix(0, False), (16, 4), 1.0),
        (Matrix(0, True), (16, 4), 2.0),
        (Matrix(0, True), (4, 16), 1.0),
        (Matrix(0, False), (2, 2, 2, 32), 2.0),
        (Matrix(1, False), (3, 4, 16), 2.0),
        (Matrix(1, True), (3, 4, 16), 1.0),
    ],
)
def test_the_factor_for_shape_counts_outputs_over_inputs(matrix, shape, factor):
    x = np.float32(normal(3, *shape))
    flat = x.reshape((*shape[: matrix.stacked], -1, shape[-1]))
    found = jax.jit(muon_direction, static_argnums=1)(x, matrix)
    values = np.linalg.svd(np.asarray(found).reshape(flat.shape), compute_uv=False)
    np.testing.assert_allclose(values, factor, rtol=0.032)


def test_the_matrices_of_our_networks():
    """Hidden kernels are `[in, out]`, those of the heads `[out, in]`; biases and deviations are neither."""
    config = ActorCriticConfig(widths=(16, 8), value_widths=(16,))
    policy = make_actor_critic(config, ObservationSpec((5,)), ActionSpec("continuous", (3,)))
    params = jax.eval_shape(policy.init, jax.random.key(0))
    matrices = find_matrices(params)["params"]
    hidden, head = Matrix(0, False), Matrix(0, True)
    assert matrices["actor_trunk"]["layer_0"] == {"kernel": hidden, "bias": None}
    assert matrices["actor_trunk"]["layer_1"] == {"kernel": hidden, "bias": None}
    assert matrices["policy"] == {"out": {"kernel": head, "bias": None}, "log_std": None}
    assert matrices["value"]["out"] == {"kernel": head, "bias": None}


def test_kernels_are_interpreted_as_matrices():
    params = {
        "plain": {"kernel": jnp.zeros((4, 9))},
        "convolution": {"kernel": jnp.zeros((3, 3, 2, 8)), "bias": jnp.zeros(8)},
        "critics": {"layer": {"kernel": jnp.zeros((5, 6, 7)), "bias": jnp.zeros((5, 7))}},
    }
    expected = {
        "plain": {"kernel": Matrix(0, False)},
        "convolution": {"kernel": Matrix(0, False), "bias": None},
        "critics": {"layer": {"kernel": Matrix(1, False), "bias": None}},
    }
    assert find_matrices(params, stacked=("critics",)) == expected
    matrices, others = split_matrices(params, expected)
    assert others["plain"]["kernel"] is None and matrices["convolution"]["bias"] is None
    jax.tree.map(np.testing.assert_array_equal, merge_matrices(matrices, others), params)


def reference(params, momentum, grads, rate, decay, mu):
    """One step in NumPy for `{"layer": {"kernel" [in, out], "bias"}}` with momentum for the bias."""
    moved, means = {}, {}
    for name, p in params.items():
        means[name] = mu * momentum[name] + (1 - mu) * grads[name]
        update = (1 - mu) * grads[name] + mu * means[name]
        if name == "kernel":
            inputs, outputs = p.shape
            update = newton_schulz(update.T).T * np.sqrt(max(1.0, outputs / inputs))
        moved[name] = p * (1 - rate * decay) - rate * update
    return moved, means


@pytest.mark.parametrize("shape", [(3, 7), (7, 3)])
def test_steps_equal_a_reference(shape):
    params = {"kernel": normal(4, *shape), "bias": normal(5, shape[1])}
    momentum = {name: np.zeros_like(p) for name, p in params.items()}
    hyper = {"learning_rate": 0.05, "muon_momentum": 0.8, "weight_decay": 0.3}
    with jax.enable_x64(True):
        optimizer = make_optimizer("muon", rest="sgd")
        ours = {"layer": jax.tree.map(jnp.asarray, params)}
        state = optimizer.init(ours)
        for i in range(4):
            grads = {name: normal(10 + i, *p.shape) for name, p in params.items()}
            params, momentum = reference(
                params, momentum, {k: 0.5 * g for k, g in grads.items()}, 0.05, 0.3, 0.8
            )
            grads = {"layer": jax.tree.map(jnp.asarray, grads)}
            ours, state = jax.jit(optimizer.step)(grads, state, ours, hyper, 0.5)
        for name in params:
            np.testing.assert_allclose(ours["layer"][name], params[name], rtol=1e-9)


def test_parameters_that_are_not_matrices_take_adamw_steps_at_their_own_rate():
    params = {"layer": {"kernel": jnp.ones((3, 2)), "bias": jnp.array([1.0, -2.0])}}
    grads = jax.tree.map(jnp.cos, params)
    hyper = {"learning_rate": 0.1, "weight_decay": 0.2, "rest_rate": 0.5, "adam_eps": 1e-3}
    muon, adamw = make_optimizer("muon"), make_optimizer("adamw")

    def stepped(optimizer, grads, params, hyper):
        step = jax.jit(
            lambda grads, params: optimizer.step(grads, optimizer.init(params), params, hyper, 0.7)
        )
        return step(grads, params)

    moved, state = stepped(muon, grads, params, hyper)
    bias, bias_grad = {"bias": params["layer"]["bias"]}, {"bias": grads["layer"]["bias"]}
    slower = {"learning_rate": 0.05, "weight_decay": 0.2, "adam_eps": 1e-3}
    expected, _ = stepped(adamw, bias_grad, bias, slower)
    np.testing.assert_allclose(moved["layer"]["bias"], expected["bias"], rtol=1e-6)
    assert state.rest.mean["layer"]["kernel"] is None and state.momentum["layer"]["bias"] is None


def test_stacked_networks_learn_as_if_alone():
    kernel, bias = normal(6, 3, 4, 5).astype(np.float32), normal(7, 3, 5).astype(np.float32)
    together = {"critics": {"kernel": kernel, "bias": bias}}
    hyper = {"learning_rate": 0.1}
    optimizer = make_optimizer("muon", stacked=("critics",))
    single = make_optimizer("muon")

    @partial(jax.jit, static_argnums=0)
    def stepped(optimizer, params):
        grads = jax.tree.map(jnp.sin, params)
        return optimizer.step(grads, optimizer.init(params), params, hyper)[0]

    moved = stepped(optimizer, together)
    for i in range(3):
        one = stepped(single, {"critic": {"kernel": kernel[i], "bias": bias[i]}})
        for name in ("kernel", "bias"):
            np.testing.assert_allclose(moved["critics"][name][i], one["critic"][name], rtol=1e-5, atol=1e-6)


def test_an_unknown_rest():
    with pytest.raises(ValueError, match="rest=rmsprop: unknown; allowed: adam, sgd"):
        make_optimizer("muon", rest="rmsprop")
