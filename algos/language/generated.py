"""Answers of language policies, and their probabilities."""

from typing import NamedTuple

import jax


class Generated(NamedTuple):
    """Answers of a language policy.

    Attributes:
      tokens: int32 `[R, w]`; 0 after the end.
      log_prob: float32 `[R, w]`; 0 where nothing was chosen.
      chosen: bool `[R, w]`; places where several tokens were possible.
      answer: int32 `[R]`, the answer's row in the table; -1 if it is none.
      formed: bool `[R]`; the answer contains text in brackets.
      hidden: `[R, d]`, the decoder's state at the end of the prompt.
      steps: int32, places that were computed for every row.
    """

    tokens: jax.Array
    log_prob: jax.Array
    chosen: jax.Array
    answer: jax.Array
    formed: jax.Array
    hidden: jax.Array
    steps: jax.Array


class Scored(NamedTuple):
    """Probabilities of generated tokens under the parameters that are trained.

    Attributes:
      log_prob: float32 `[R, w]`; 0 where nothing was chosen.
      entropy: float32 `[R, w]` of the distribution over the options; 0 where nothing was chosen.
    """

    log_prob: jax.Array
    entropy: jax.Array
