"""A decoder-only transformer as plain functions over arrays stacked by layer.

Parameters are a tree: `embed [V, d]`, `norm [d]`, `head [V, d]` unless the embedding is the head too, and
`layers`, name to `[L, ...]`: `attention_norm`, `mlp_norm` `[L, d]`; the products `q k v o gate up down`
`[L, in, out]`; where the settings say so `q_bias k_bias v_bias`, `q_norm k_norm` `[L, h]`, and
`attention_out_norm mlp_out_norm` `[L, d]`. Axes are R rows, S places, H query heads, K key heads of size h.

A row's tokens have the positions 0, 1, 2 ... in their order. Places between them can be left out by a mask
`seen [R, S]`: they are not attended to and not counted, so that the tokens of a row mean the same
wherever they lie. Adapters are an argument of their own; to act with several, map over them alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from algos.language.adapters import PRODUCTS, Adapters, adapted_product
from algos.language.attention import (
    RopeScaling,
    Rotation,
    attend_causally,
    attend_to_cache,
    causal_mask,
    make_rotation,
    rotary_frequencies,
    rotate,
    window_mask,
)
from algos.types import PyTree

ACTIVATIONS = {"silu": jax.nn.silu, "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True)}


@dataclass(frozen=True)
class DecoderSettings:
    """Architecture of a decoder.

    Attributes:
      vocab, width, layers: V, d, L.
      heads, kv_heads, head_dim: H, K, h.
      mlp_width: columns of `gate` and `up`.
      max_positions: tokens that the model was made for.
      theta: base of the rotary frequencies.
      eps: added to the mean square in norms.
      tied: whether the embedding is the head too.
      qkv_bias: whether q, k and v have a bias.
      qk_norm: whether q and k are normalised per head before they are rotated.
      offset_norms: whether norms multiply by 1 + g instead of by g.
      out_norms: whether the results of attention and of the MLP are normalised before they are added.
      scaled_embedding: whether embeddings are multiplied by sqrt(d).
      activation: of the gate, of `ACTIVATIONS`.
      score_scale: factor of the attention scores.
      rope_scaling: Llama 3's change of the frequencies; None for none.
      window: keys that a local layer sees, its own included; 0 where all layers see all.
      local: per layer whether it is local; () where all layers see all.
      local_theta: `theta` of local layers.
    """

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    max_positions: int
    theta: float
    eps: float
    tied: bool
    score_scale: float
    qkv_bias: bool = False
    qk_norm: bool = False
    offset_norms: bool = False
    out_norms: bool = False
    scaled_embedding: bool = False
    activation: str = "silu"
    rope_scaling: RopeScaling | None = None
    window: int = 0
    local: tuple[bool, ...] = ()
    local_theta: float = 1e4


class Cache(NamedTuple):
    """Keys after rotation, and values, of the tokens so far.

    Attributes:
      keys, values: `[L, R, S, K, h]`.
    """

    keys: jax.Array
    values: jax.Array


def product_shapes(settings: DecoderSettings) -> dict[str, tuple[int, int, int]]:
    """Returns `(L, in, out)` of every product of the layers."""
    width, queries = settings.width, settings.heads * settings.head_dim
    keys, inner = settings.kv_heads * settings.head_dim, settings.mlp_width
    sizes = {"q": (width, queries), "k": (width, keys), "v": (width, keys), "o": (queries, width)}
    sizes |= {"gate": (width, inner), "up": (width, inner), "down": (inner, width)}
    return {name: (settings.layers, *sizes[name]) for name in PRODUCTS}


def parameter_shapes(settings: DecoderSettings) -> PyTree:
    """Returns the tree of the parameters' shapes."""
    layers: dict[str, tuple[int, ...]] = dict(product_shapes(settings))
    norms = ("attention_norm", "mlp_norm")
    norms += ("attention_out_norm", "mlp_out_norm") if settings.out_norms else ()
    layers |= {name: (settings.layers, settings.width) for name in norms}
    if settings.qkv_bias:
        layers |= {f"{name}_bias": (settings.layers, layers[name][2]) for name in ("q", "k", "v")}
    if settings.qk_norm:
        layers |= {f"{name}_norm": (settings.layers, settings.head_dim) for name in ("q", "k")}
    table = (settings.vocab, settings.width)
    head = {} if settings.tied else {"head": table}
    return {"embed": table, "norm": (settings.width,), "layers": layers, **head}


def init_decoder(key: jax.Array, settings: DecoderSettings, dtype: jnp.dtype = jnp.float32) -> PyTree:
    """Draws parameters: products normal / sqrt(in), embedding normal / 10, norms' factors 1, biases 0."""
    shapes = parameter_shapes(settings)
    leaves, structure = jax.tree.flatten_with_path(shapes, is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(key, len(leaves))

    def draw(key, path, shape):
        name = path[-1].key
        if name.endswith("norm"):
            return jnp.full(shape, 0.0 if settings.offset_norms else 1.0, dtype)
        if name.endswith("bias"):
            return jnp.zeros(shape, dtype)
        deviation = {"embed": 0.1, "head": 1.0 / math.sqrt(settings.width)}.get(name)
        deviation = 1.0 / math.sqrt(shape[1]) if deviation is None else deviation
        return (deviation * jax.random.normal(key, shape)).astype(dtype)

    drawn = [draw(key, path, shape) for key, (path, shape) in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def apply_decoder(
    settings: DecoderSettings,
    parameters: PyTree,
    tokens: jax.Array,
    adapters: Adapters | None = None,
    seen: jax.Array | None = None,
    remat: bool = False,
) -> jax.Array:
    """Computes the hidden states of whole rows, after the last norm.

    Args:
      tokens: int32 `[R, S]`.
      seen: bool `[R, S]`, which places are tokens; None for all. States of other places have no meaning.
      remat: compute the layers again in the backward pass instead of keeping what is inside them.

    Returns:
      `[R, S, d]`, in the parameters' precision.
    """
    hidden, _ = _run_layers(settings, parameters, tokens, adapters, seen, remat, lambda _keys, _values: None)
    return hidden


def prefill(
    settings: DecoderSettings,
    parameters: PyTree,
    tokens: jax.Array,
    size: int,
    adapters: Adapters | None = None,
    seen: jax.Array | None = None,
) -> tuple[jax.Array, Cache]:
    """Reads prompts and fills the first places of a new cache.

    Args:
      tokens: int32 `[R, P]`.
      size: S, places of the cache, at least P.
      seen: bool `[R, P]`, which places are tokens; None for all.

    Returns:
      the hidden states of the last place `[R, d]`, and the cache.
    """
    pad = ((0, 0), (0, size - tokens.shape[1]), (0, 0), (0, 0))

    def keep(keys, values):
        return Cache(jnp.pad(keys, pad), jnp.pad(values, pad))

    hidden, cache = _run_layers(settings, parameters, tokens, adapters, seen, False, keep)
    return hidden[:, -1], cache


def decode_step(
    settings: DecoderSettings,
    parameters: PyTree,
    tokens: jax.Array,
    cache: Cache,
    place: jax.Array,
    adapters: Adapters | None = None,
    seen: jax.Array | None = None,
) -> tuple[jax.Array, Cache]:
    """Reads one more token per row.

    Args:
      tokens: int32 `[R]`.
      place: int32 scalar, the place of these tokens in the cache, of all rows; later places are not read.
      seen: bool `[R, S]`, which places up to this one are tokens; None for all.

    Returns:
      hidden states `[R, d]`, and the cache with this place written.
    """
    read = jnp.arange(cache.keys.shape[2])[None] <= place
    read = read if seen is None else read & seen
    positions = jnp.cumsum(read, axis=1) - 1
    now = positions[:, -1:]
    turns = _make_rotations(settings, now)
    masks = _add_window(settings, read[:, None, None], positions, now)

    def layer(carry, own):
        x, cache = carry
        mask, turn = _choose(own["local"], masks), _choose(own["local"], turns)

        def attend(q, k, v):
            q, k, at = rotate(q, turn), rotate(k, turn), (own["index"], 0, place, 0, 0)
            kept = Cache(
                lax.dynamic_update_slice(cache.keys, k[None], at),
                lax.dynamic_update_slice(cache.values, v[None], at),
            )
            keys, values = (lax.dynamic_index_in_dim(x, own["index"], keepdims=False) for x in kept)
            return attend_to_cache(q, keys, values, mask, settings.score_scale), kept

        x, cache = _apply_layer(settings, x, own, adapters, attend)
        return (x, cache), None

    x = _embed(settings, parameters, tokens[:, None])
    (x, cache), _ = lax.scan(layer, (x, cache), _stack_layers(settings, parameters, adapters))
    return _normalize(settings, x[:, 0], parameters["norm"]), cache


def project_logits(parameters: PyTree, hidden: jax.Array) -> jax.Array:
    """Computes the logits `[..., V]` of hidden states `[..., d]`, in float32 whatever their precision is."""
    return jnp.einsum(
        "...d,vd->...v",
        hidden,
        parameters.get("head", parameters["embed"]),
        preferred_element_type=jnp.float32,
        precision=lax.Precision.HIGHEST,
    )


def project_children(parameters: PyTree, hidden: jax.Array, tokens: jax.Array) -> jax.Array:
    """Computes the logits of some tokens only.

    Args:
      hidden: `[..., d]`.
      tokens: int32 `[..., C]`, token ids; ids outside of the vocabulary count as its nearest.

    Returns:
      float32 `[..., C]`. No array has an axis of V.
    """
    rows = jnp.take(parameters.get("head", parameters["embed"]), tokens, axis=0, mode="clip")
    return jnp.einsum(
        "...d,...cd->...c",
        hidden,
        rows,
        preferred_element_type=jnp.float32,
        precision=lax.Precision.HIGHEST,
    )


def _run_layers(
    settings: DecoderSettings,
    parameters: PyTree,
    tokens: jax.Array,
    adapters: Adapters | None,
    seen: jax.Array | None,
    remat: bool,
    keep: Callable,
) -> tuple[jax.Array, PyTree]:
    """Hidden states `[R, S, d]` of whole rows, and `keep(keys, values)` of every layer, stacked."""
    size = tokens.shape[1]
    positions = jnp.arange(size)[None] if seen is None else jnp.cumsum(seen, axis=1) - 1
    turns = _make_rotations(settings, positions)
    # Without a window and with tokens everywhere, attention needs no mask.
    bare = seen is None and not settings.window
    masks = [None] if bare else _add_window(settings, causal_mask(size, seen), positions, positions)

    def layer(x, own):
        mask, turn = _choose(own["local"], masks), _choose(own["local"], turns)

        def attend(q, k, v):
            q, k = rotate(q, turn), rotate(k, turn)
            return attend_causally(q, k, v, mask, settings.score_scale), keep(k, v)

        return _apply_layer(settings, x, own, adapters, attend)

    layer = jax.checkpoint(layer) if remat else layer
    x = _embed(settings, parameters, tokens)
    x, kept = lax.scan(layer, x, _stack_layers(settings, parameters, adapters))
    return _normalize(settings, x, parameters["norm"]), kept


def _stack_layers(settings: DecoderSettings, parameters: PyTree, adapters: Adapters | None) -> PyTree:
    """Inputs of the scan over layers: weights, adapters, number and kind of each, `[L, ...]`."""
    return {
        "weights": parameters["layers"],
        "pairs": {} if adapters is None else dict(adapters.pairs),
        "index": jnp.arange(settings.layers),
        "local": jnp.asarray(settings.local) if settings.window else None,
    }


def _apply_layer(
    settings: DecoderSettings, x: jax.Array, own: PyTree, adapters: Adapters | None, attend: Callable
) -> tuple[jax.Array, PyTree]:
    """Applies one layer to `x [R, S, d]`; returns the sum and the second result of `attend`."""
    weights, scale = own["weights"], 1.0 if adapters is None else adapters.scale

    def product(name, x):
        y = adapted_product(x, weights[name], own["pairs"].get(name), scale)
        return y + weights[f"{name}_bias"] if f"{name}_bias" in weights else y

    def heads(name, x):
        y = product(name, x).reshape(*x.shape[:-1], -1, settings.head_dim)
        return _normalize(settings, y, weights[f"{name}_norm"]) if f"{name}_norm" in weights else y

    def add(x, y, name):
        return x + (_normalize(settings, y, weights[name]) if settings.out_norms else y)

    y = _normalize(settings, x, weights["attention_norm"])
    y, kept = attend(heads("q", y), heads("k", y), heads("v", y))
    x = add(x, product("o", y.reshape(*x.shape[:-1], -1)), "attention_out_norm")
    y = _normalize(settings, x, weights["mlp_norm"])
    y = ACTIVATIONS[settings.activation](product("gate", y)) * product("up", y)
    return add(x, product("down", y), "mlp_out_norm"), kept


def _embed(settings: DecoderSettings, parameters: PyTree, tokens: jax.Array) -> jax.Array:
    """Embeddings `[..., d]` of tokens."""
    x = jnp.take(parameters["embed"], tokens, axis=0, mode="clip")
    # Gemma rounds the factor to the embedding's precision.
    return x * jnp.asarray(math.sqrt(settings.width), x.dtype) if settings.scaled_embedding else x


def _normalize(settings: DecoderSettings, x: jax.Array, factor: jax.Array) -> jax.Array:
    """RMSNorm over the last axis, computed in float32."""
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + settings.eps)
    factor = factor.astype(jnp.float32)
    return (wide * (1.0 + factor if settings.offset_norms else factor)).astype(x.dtype)


def _make_rotations(settings: DecoderSettings, positions: jax.Array) -> list[Rotation]:
    """Rotations of positions `[R or 1, S]`: of layers that see all, then of local ones if there are some."""
    bases = [(settings.theta, settings.rope_scaling)]
    bases += [(settings.local_theta, None)] if settings.window else []
    return [make_rotation(positions, rotary_frequencies(settings.head_dim, *base)) for base in bases]


def _add_window(
    settings: DecoderSettings, mask: jax.Array, positions: jax.Array, own: jax.Array
) -> list[jax.Array]:
    """Masks of layers that see all, then of local ones where there are some; both are computed once."""
    return [mask, mask & window_mask(positions, own, settings.window)] if settings.window else [mask]


def _choose(local: jax.Array | None, found: list) -> PyTree:
    """Chooses between what layers that see all and local layers use, by the flag of a layer."""
    if local is None:
        return found[0]
    return jax.tree.map(lambda wide, near: jnp.where(local, near, wide), *found)
