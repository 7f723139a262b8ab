"""The decoder: published numbers, and one function from several sides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_cases import GEMMA3, LLAMA, QWEN3, sine_adapters, sine_parameters

from algos.language.model import apply_decoder, project_logits

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
    logits, log_probs = next_log_probs(settings, sine_parameters(settings), tokens, adapters)
    expected_logits, expected = GOLDEN[name]
    np.testing.assert_allclose(logits[0, -1], expected_logits, atol=1e-5)
    np.testing.assert_allclose(log_probs[0], expected, atol=1e-5)
