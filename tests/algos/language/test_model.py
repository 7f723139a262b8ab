"""The decoder: published numbers, and one function from several sides."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_cases import GEMMA3, LLAMA, QWEN2, QWEN3, sine_adapters, sine_parameters
from jax.extend.core import jaxprs_in_params
from marked import thorough

from algos.language.adapters import LoraSettings, init_adapters
from algos.language.attention import RopeScaling, rotary_frequencies
from algos.language.model import (
    apply_decoder,
    decode_step,
    init_decoder,
    parameter_shapes,
    prefill,
    product_shapes,
    project_children,
    project_logits,
)

TOKENS = [1, 5, 2, 9, 3]
# Logits after the last token and log-probabilities of the tokens after the first. The first two and the last
# agree with transformers 5 in float64.
GOLDEN = {
    "qwen3": (
        [0.021304129, -0.743880313, 0.195165093, 0.687087257, -0.395107531, -0.572110939]
        + [0.561591853, 0.408687672, -0.680519993, -0.210656308, 0.741820993],
        [-2.255686558, -2.234718464, -2.176022919, -2.669377477],
    ),
    "llama": (
        [-0.460842700, -0.547006470, 0.620021620, 0.366580137, -0.726696465, -0.155111417]
        + [0.771833897, -0.069492300, -0.751611633, 0.288211336, 0.667742115],
        [-2.438850150, -2.363763654, -1.764441386, -2.997524372],
    ),
    "gemma3": (
        [-0.042431858, -0.610052536, 0.219957188, 0.546044980, -0.378856314, -0.435797767]
        + [0.505673493, 0.288646746, -0.589669716, -0.117052819, 0.623732094],
        [-2.807418702, -2.550713782, -2.395588238, -2.221724880],
    ),
    "adapted": (
        [-0.023196463, -0.841217974, 0.267990950, 0.763232589, -0.490091685, -0.620615876]
        + [0.670690947, 0.425444765, -0.794495402, -0.194246549, 0.851021161],
        [-2.224604019, -2.168394378, -2.175980089, -2.582938389],
    ),
}
SETTINGS = {"qwen3": QWEN3, "llama": LLAMA, "gemma3": GEMMA3, "adapted": QWEN3}


APPLY = jax.jit(apply_decoder, static_argnums=0)
PREFILL = jax.jit(prefill, static_argnums=(0, 3))
STEP = jax.jit(decode_step, static_argnums=0)


def next_log_probs(settings, parameters, tokens, adapters=None):
    """Logits `[R, S, V]` and log-probabilities `[R, S - 1]` of the tokens after the first."""
    logits = project_logits(parameters, apply_decoder(settings, parameters, tokens, adapters))
    taken = jax.nn.log_softmax(logits[:, :-1])
    return logits, jnp.take_along_axis(taken, tokens[:, 1:, None], axis=-1)[..., 0]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_logits(name):
    settings = SETTINGS[name]
    adapters = sine_adapters(settings) if name == "adapted" else None
    tokens = jnp.asarray([TOKENS])
    found = jax.jit(next_log_probs, static_argnums=0)
    logits, log_probs = found(settings, sine_parameters(settings), tokens, adapters)
    expected_logits, expected = GOLDEN[name]
    np.testing.assert_allclose(logits[0, -1], expected_logits, atol=1e-5)
    np.testing.assert_allclose(log_probs[0], expected, atol=1e-5)


# Prompt 1 5 with the answer 2 9 3 and advantage 1; prompt 4 4 with the answer 7 10 and advantage -.5.
ROWS = jnp.asarray([[1, 5, 2, 9, 3], [4, 4, 7, 10, 0]])
ANSWERED = jnp.asarray([[False, True, True, True], [False, True, True, False]])


def reinforce_loss(adapters, parameters):
    """REINFORCE's loss of `ROWS` with divisor 2 rows * 4 tokens, and the log-probabilities of the answers."""
    _, log_probs = next_log_probs(QWEN3, parameters, ROWS, adapters)
    gained = jnp.asarray([1.0, -0.5]) * jnp.where(ANSWERED, log_probs, 0.0).sum(axis=1)
    return -gained.sum() / 8.0, log_probs


GRADIENT = jax.jit(jax.value_and_grad(reinforce_loss, has_aux=True))


def test_golden_gradient_of_adapters():
    adapters, parameters = sine_adapters(QWEN3), sine_parameters(QWEN3)
    (loss, log_probs), gradient = jax.device_get(GRADIENT(adapters, parameters))
    expected = [-2.168394378, -2.175980089, -2.582938389, -2.274977519, -2.498039130]
    np.testing.assert_allclose(log_probs[ANSWERED], expected, atol=1e-5)
    np.testing.assert_allclose(loss, 0.567600566416, atol=1e-6)
    norm = np.sqrt(sum(np.sum(x * x) for x in jax.tree.leaves(gradient)))
    np.testing.assert_allclose(norm, 0.235214841229, atol=1e-6)
    for name, layer, a, b in (
        ("q", 0, [-0.002836805, 0.006837488, 0.011293864], [-0.005027166, -0.000635204]),
        ("v", 1, [0.006475037, -0.000548215, 0.001520465], [-0.005068687, 0.009630094]),
    ):
        np.testing.assert_allclose(gradient.pairs[name]["a"][layer, :3, 0], a, atol=1e-6)
        np.testing.assert_allclose(gradient.pairs[name]["b"][layer, :, 0], b, atol=1e-6)


def test_gradient_of_new_adapters_is_in_b_alone():
    adapters = init_adapters(jax.random.key(0), LoraSettings(rank=2, alpha=4.0), product_shapes(QWEN3))
    _, gradient = jax.device_get(GRADIENT(adapters, sine_parameters(QWEN3)))
    for pair in gradient.pairs.values():
        assert not pair["a"].any()
        assert pair["b"].any(axis=(1, 2)).all()


def test_layers_computed_again_give_the_same_gradient():
    adapters, parameters = sine_adapters(QWEN3), sine_parameters(QWEN3)

    def total(adapters, remat):
        return jnp.sum(apply_decoder(QWEN3, parameters, ROWS, adapters, remat=remat) ** 2)

    gradient = jax.jit(jax.grad(total), static_argnums=1)
    kept, again = (gradient(adapters, remat) for remat in (False, True))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), kept, again)
    text = str(jax.make_jaxpr(lambda adapters: jax.grad(total)(adapters, True))(adapters))
    assert "remat" in text


@pytest.mark.parametrize("settings", [QWEN2, thorough(LLAMA), GEMMA3], ids=["qwen2", "llama", "gemma3"])
def test_prefill_and_steps_equal_the_full_pass(settings):
    parameters, adapters = sine_parameters(settings), sine_adapters(settings)
    tokens = np.int32([[1, 5, 2, 9, 3, 7, 8, 4], [6, 6, 0, 2, 10, 1, 5, 9]])
    full = np.asarray(APPLY(settings, parameters, tokens, adapters))
    hidden, cache = PREFILL(settings, parameters, tokens[:, :3], 9, adapters)
    np.testing.assert_allclose(hidden, full[:, 2], atol=1e-5)
    for place in range(3, 8):
        hidden, cache = STEP(settings, parameters, tokens[:, place], cache, place, adapters)
        np.testing.assert_allclose(hidden, full[:, place], atol=1e-5)
    assert cache.keys.shape == cache.values.shape == (2, 2, 9, 2, 4)
    assert not cache.keys[:, :, 8].any()


@pytest.mark.parametrize("settings", [LLAMA, GEMMA3], ids=["llama", "gemma3"])
def test_places_left_out_change_nothing(settings):
    # The tokens of each row, packed, and the same tokens with places between them that hold something else.
    packed = np.int32([[1, 5, 2, 9, 3, 7], [6, 6, 0, 2, 10, 1]])
    tokens = np.int32([[1, 5, 4, 2, 8, 9, 3, 7], [6, 6, 0, 7, 7, 2, 10, 1]])
    seen = np.array([[1, 1, 0, 1, 0, 1, 1, 1], [1, 1, 1, 0, 0, 1, 1, 1]], bool)
    parameters = sine_parameters(settings)
    expected = np.asarray(APPLY(settings, parameters, packed))
    spread = np.asarray(APPLY(settings, parameters, tokens, seen=seen))
    for row in range(2):
        np.testing.assert_allclose(spread[row][seen[row]], expected[row], atol=1e-5)
    hidden, cache = PREFILL(settings, parameters, tokens[:, :2], 8)
    for place in range(2, 8):
        hidden, cache = STEP(settings, parameters, tokens[:, place], cache, place, seen=seen)
        np.testing.assert_allclose(
            np.asarray(hidden)[seen[:, place]], spread[:, place][seen[:, place]], atol=1e-5
        )


def test_mapped_adapters_equal_one_at_a_time():
    parameters = sine_parameters(QWEN3)
    adapters = [sine_adapters(QWEN3, shift=shift) for shift in (0, 3, 8)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *adapters)
    tokens = jax.random.randint(jax.random.key(0), (3, 2, 5), 0, 11)

    def act(adapters, tokens):
        hidden, cache = prefill(QWEN3, parameters, tokens[:, :4], 5, adapters)
        return hidden, decode_step(QWEN3, parameters, tokens[:, 4], cache, 4, adapters)

    alone = jax.tree.map(lambda *x: jnp.stack(x), *map(jax.jit(act), adapters, tokens))
    mapped = jax.jit(jax.vmap(act))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), mapped(stacked, tokens), alone)
    # The base is multiplied once, with the rows of all adapters: no weight is repeated by adapter.
    text = str(jax.make_jaxpr(jax.vmap(act))(stacked, tokens))
    assert "f32[3,8,16]" not in text and "f32[3,8,12]" not in text


def test_scanned_layers_equal_a_loop_over_them():
    parameters, tokens = sine_parameters(QWEN3), jnp.asarray([TOKENS])
    x, weights = parameters["embed"][tokens[0]], parameters["layers"]
    for layer in range(QWEN3.layers):
        x = plain_layer({name: weight[layer] for name, weight in weights.items()}, x)
    np.testing.assert_allclose(
        plain_norm(x, parameters["norm"]), APPLY(QWEN3, parameters, tokens)[0], atol=1e-5
    )


def plain_norm(x, factor):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + QWEN3.eps) * factor


def plain_layer(weights, x):
    """A layer of `QWEN3` on states `[S, d]`, one head after the other."""
    weights = {name: np.asarray(weight, np.float64) for name, weight in weights.items()}
    x = np.asarray(x, np.float64)
    y, size = plain_norm(x, weights["attention_norm"]), len(x)
    angles = np.arange(size)[:, None] * QWEN3.theta ** (-np.arange(0, 4, 2) / 4)
    turns = np.exp(1j * angles)

    def head(name, i, turned=True):
        own = (y @ weights[name])[:, 4 * i : 4 * i + 4]
        if not turned:
            return own
        own = plain_norm(own, weights[f"{name}_norm"])
        pairs = (own[:, :2] + 1j * own[:, 2:]) * turns
        return np.concatenate([pairs.real, pairs.imag], axis=1)

    found = []
    for i in range(QWEN3.heads):
        scores = head("q", i) @ head("k", i // 2).T / 2.0
        shares = np.exp(np.where(np.tri(size), scores, -np.inf))
        found.append(shares / shares.sum(axis=1, keepdims=True) @ head("v", i // 2, turned=False))
    x = x + np.concatenate(found, axis=1) @ weights["o"]
    y = plain_norm(x, weights["mlp_norm"])
    gate = y @ weights["gate"]
    return x + (gate / (1.0 + np.exp(-gate)) * (y @ weights["up"])) @ weights["down"]


def test_chosen_rows_of_the_head():
    parameters = sine_parameters(LLAMA)
    hidden = jax.random.normal(jax.random.key(1), (3, 8))
    tokens = jnp.asarray([[0, 10, 4], [4, 4, 1], [7, 2, 9]])
    expected = jnp.take_along_axis(project_logits(parameters, hidden), tokens, axis=-1)
    np.testing.assert_allclose(project_children(parameters, hidden, tokens), expected, atol=1e-6)
    text = str(jax.make_jaxpr(lambda *x: project_children(parameters, *x))(hidden, tokens))
    assert "[3,11]" not in text


def test_logits_of_half_precision_are_float32():
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), sine_parameters(QWEN3))
    hidden = APPLY(QWEN3, half, jnp.asarray([TOKENS]), sine_adapters(QWEN3))
    assert hidden.dtype == jnp.bfloat16
    logits = project_logits(half, hidden)
    assert logits.dtype == project_children(half, hidden, jnp.zeros((1, 5, 2), int)).dtype == jnp.float32
    exact = jnp.einsum("rsd,vd->rsv", *(x.astype(jnp.float32) for x in (hidden, half["embed"])))
    np.testing.assert_allclose(logits, exact, atol=1e-5)


def test_fresh_parameters():
    init = jax.jit(init_decoder, static_argnums=1)
    parameters = jax.device_get(init(jax.random.key(0), GEMMA3))
    assert jax.tree.map(np.shape, parameters) == parameter_shapes(GEMMA3)
    assert not parameters["norm"].any() and not parameters["layers"]["q_norm"].any()
    wide = dataclasses.replace(QWEN2, vocab=500, width=64, mlp_width=256, tied=False)
    parameters = jax.device_get(init(jax.random.key(0), wide))
    assert (parameters["layers"]["mlp_norm"] == 1.0).all() and not parameters["layers"]["v_bias"].any()
    for array, deviation in (
        (parameters["embed"], 0.1),
        (parameters["head"], 1 / 8),
        (parameters["layers"]["up"], 1 / 8),
        (parameters["layers"]["down"], 1 / 16),
    ):
        np.testing.assert_allclose(array.std(), deviation, rtol=0.02)


def test_frequencies_of_llama_3():
    scaling = RopeScaling(factor=32.0, low=1.0, high=4.0, original=8192.0)
    found = rotary_frequencies(64, 5e5, scaling)[[14, 15, 16, 17, 31]]
    expected = [3.211445995e-3, 1.290547928e-3, 4.295567966e-4, 9.708287803e-5, 9.418306725e-8]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(rotary_frequencies(4, 100.0), [1.0, 0.1])


def product_results(jaxpr):
    """Shapes of the results of all products in a program, those in loops included."""
    found = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.add(equation.outvars[0].aval.shape)
        for inner in jaxprs_in_params(equation.params):
            found |= product_results(inner)
    return found


def test_the_base_gets_no_gradient():
    adapters, parameters = sine_adapters(QWEN3), sine_parameters(QWEN3)
    gradients = (jax.grad(lambda *x: reinforce_loss(*x)[0], numbers) for numbers in (0, (0, 1)))
    own, both = (product_results(jax.make_jaxpr(grad)(adapters, parameters).jaxpr) for grad in gradients)
    weights = {shape[1:] for shape in product_shapes(QWEN3).values()}
    # Products transpose their results, so a weight's gradient may be [out, in].
    weights |= {shape[::-1] for shape in weights}
    assert both & weights and not own & weights
