"""The curriculum contract: which parameters the next episode gets."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Curriculum(NamedTuple):
    """A curriculum as pure functions; its state lives in the run and is saved with it.

    Attributes:
      init: `() -> state`.
      draw: `(key, state) -> params` of one environment's next episode.
      update: `(state, finished) -> state`, after each rollout, with masked results `[T, E]`.
      metrics: `(state) -> dict` of `curriculum/...` scalars.
    """

    init: Callable
    draw: Callable
    update: Callable
    metrics: Callable


def fixed(env) -> Curriculum:
    """No curriculum: every episode gets the parameters of the configuration.

    They are the curriculum's state, so that a sweep can run other values side by side.
    """

    def init():
        return jax.tree.map(jnp.asarray, env.default_params())

    return Curriculum(
        init=init,
        draw=lambda key, state: state,
        update=lambda state, finished: state,
        metrics=lambda state: {},
    )
