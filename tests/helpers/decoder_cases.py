"""Small decoders whose parameters are sines, so that their logits can be computed anywhere."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from algos.language.adapters import PRODUCTS, Adapters
from algos.language.model import DecoderSettings, parameter_shapes, product_shapes

QWEN3 = DecoderSettings(
    vocab=11,
    width=8,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    mlp_width=12,
    max_positions=64,
    theta=1e6,
    eps=1e-6,
    tied=True,
    score_scale=0.5,
    qk_norm=True,
)
LLAMA = dataclasses.replace(QWEN3, theta=5e5, eps=1e-5, tied=False, qk_norm=False)
QWEN2 = dataclasses.replace(QWEN3, qkv_bias=True, qk_norm=False)
GEMMA3 = dataclasses.replace(
    QWEN3,
    offset_norms=True,
    out_norms=True,
    scaled_embedding=True,
    activation="gelu_tanh",
    window=3,
    local=(True, False),
)
# As in the order of the numbers; those that an architecture does not have are left out.
ORDER = (
    "attention_norm",
    *("q", "k", "v", "q_bias", "k_bias", "v_bias", "o", "q_norm", "k_norm"),
    *("attention_out_norm", "mlp_norm"),
    *("gate", "up", "down"),
    "mlp_out_norm",
)


def sines(shape, number, factor=0.3):
    """Array of a shape: factor * sin(i + 17 number), i in row-major order."""
    return factor * np.sin(np.arange(np.prod(shape)) + 17.0 * number).reshape(shape)


def sine_parameters(settings: DecoderSettings):
    """Parameters whose tensors, as published in `[out, in]`, are sines; vectors are near 1, or 0 in Gemma."""
    shapes, center = parameter_shapes(settings), 0.0 if settings.offset_norms else 1.0
    number = iter(range(1000))

    def vector(shape):
        return center + sines(shape, next(number), 0.1)

    embed = sines(shapes["embed"], next(number))
    layers = {name: [] for name in ORDER if name in shapes["layers"]}
    for _ in range(settings.layers):
        for name, found in layers.items():
            shape = shapes["layers"][name][1:]
            found.append(vector(shape) if len(shape) == 1 else sines(shape[::-1], next(number)).T)
    stacked = {name: jnp.asarray(np.stack(found), jnp.float32) for name, found in layers.items()}
    found = {"embed": embed, "norm": vector(shapes["norm"])}
    found |= {} if settings.tied else {"head": sines(shapes["head"], next(number))}
    return {name: jnp.asarray(value, jnp.float32) for name, value in found.items()} | {"layers": stacked}


def sine_adapters(settings: DecoderSettings, rank=2, alpha=4.0, shift=0):
    """Adapters of all products, as published in `[r, in]` and `[out, r]` .2 sin and .2 cos of i + 5 j."""
    pairs = {name: {"a": [], "b": []} for name in PRODUCTS}
    for layer in range(settings.layers):
        for place, (name, (_, rows, columns)) in enumerate(product_shapes(settings).items()):
            j = 2 * (layer * len(PRODUCTS) + place) + shift
            a = 0.2 * np.sin(np.arange(rank * rows) + 5.0 * j).reshape(rank, rows)
            b = 0.2 * np.cos(np.arange(columns * rank) + 5.0 * (j + 1)).reshape(columns, rank)
            pairs[name]["a"].append(a.T)
            pairs[name]["b"].append(b.T)
    stacked = {
        name: {side: jnp.asarray(np.stack(both[side]), jnp.float32) for side in both}
        for name, both in pairs.items()
    }
    return Adapters(stacked, alpha / rank)
