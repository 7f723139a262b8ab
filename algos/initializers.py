"""Initial values of parameters."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap


def orthogonal(gain: float = 1.0) -> Callable:
    """Initialiser of kernels with orthogonal rows or columns of length `gain`.

    Batched over seeds or critics it draws one kernel after the other, because XLA's CPU backend can
    deadlock over batched QR decompositions that run side by side.
    """
    init = nn.initializers.orthogonal(gain)

    def one_by_one(key, shape, dtype=jnp.float32):
        return sequential_vmap(lambda key: init(key, shape, dtype))(key)

    return one_by_one
