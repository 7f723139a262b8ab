"""State of a language learner, and one rollout as rows of answers."""

import jax
from flax import struct

from algos.language.adapters import Adapters
from algos.types import Hyper, PyTree

ANSWERS = ("legal", "grammar", "free")
LOSSES = ("reinforce", "clip", "gspo")
CRITICS = ("none", "head")


class LinearValue(struct.PyTreeNode):
    """Linear value of a hidden state: `weight [d]` and `bias`, a scalar."""

    weight: jax.Array
    bias: jax.Array

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Returns the values `[...]` of hidden states `[..., d]`."""
        return hidden.astype(self.weight.dtype) @ self.weight + self.bias


class LanguageParams(struct.PyTreeNode):
    """Trained parameters: adapters, and the value head or None."""

    adapters: Adapters
    value: LinearValue | None = None


class LanguageState(struct.PyTreeNode):
    """State of a language learner; the base model is no part of it.

    Attributes:
      params: what is trained.
      optimizer: state of the optimiser.
      start: parameters at the start of the run, which the divergence is measured from; None without it.
      buffer: answers that wait to be learnt from (`algos.language.buffer.AnswerBuffer`); None without it.
      hyper: traced hyper-parameters by name.
      updates: int32, updates done.
    """

    params: LanguageParams
    optimizer: PyTree
    start: LanguageParams | None
    hyper: Hyper
    updates: jax.Array
    buffer: PyTree = None


class AnswerRows(struct.PyTreeNode):
    """Decisions of a rollout as N rows.

    Attributes:
      prompt: int32 `[N, P]`.
      allowed: bool `[N, M]`, legal answers.
      tokens, chosen: `[N, w]` as generated.
      sampled: `[N, w]` log-probabilities with which the tokens were drawn.
      old: `[N, w]` log-probabilities before the first gradient step.
      advantage: `[N]`.
      alive: bool `[N]`; rows that are learnt from.
      target: `[N]` of the value; None without a critic.
    """

    prompt: jax.Array
    allowed: jax.Array
    tokens: jax.Array
    chosen: jax.Array
    sampled: jax.Array
    old: jax.Array
    advantage: jax.Array
    alive: jax.Array
    target: jax.Array | None = None
