"""A decoder with its parameters and adapters bound, as acting and learning call it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax

from algos.language.adapters import Adapters
from algos.language.model import (
    DecoderSettings,
    apply_decoder,
    decode_step,
    prefill,
    project_children,
    project_logits,
)
from algos.types import PyTree


class Reader(NamedTuple):
    """Functions of a decoder with bound parameters; see `algos.language.model` for their arguments.

    Attributes:
      hidden: `(tokens [R, S], seen=None) -> [R, S, d]`.
      prefill: `(tokens [R, P], size, seen=None) -> (hidden [R, d], cache)`.
      step: `(tokens [R], cache, place, seen=None) -> (hidden [R, d], cache)`.
      logits: `(hidden [..., d]) -> [..., V]`.
      children: `(hidden [..., d], tokens [..., C]) -> [..., C]`.
    """

    hidden: Callable[..., jax.Array]
    prefill: Callable
    step: Callable
    logits: Callable[[jax.Array], jax.Array]
    children: Callable[[jax.Array, jax.Array], jax.Array]


def bind_reader(
    settings: DecoderSettings, parameters: PyTree, adapters: Adapters | None, *, remat: bool = False
) -> Reader:
    """Binds a decoder's parameters and adapters; `remat` recomputes layers in the backward pass."""

    def hidden(tokens, seen=None):
        return apply_decoder(settings, parameters, tokens, adapters, seen, remat)

    def read(tokens, size, seen=None):
        return prefill(settings, parameters, tokens, size, adapters, seen)

    def step(tokens, cache, place, seen=None):
        return decode_step(settings, parameters, tokens, cache, place, adapters, seen)

    return Reader(
        hidden, read, step, partial(project_logits, parameters), partial(project_children, parameters)
    )
