"""Action distributions: Gaussian, tanh-squashed Gaussian and masked multi-categorical.

All three have `sample(key)`, `mode()`, `log_prob(action)` and `entropy()`, reduced over the
action axis, for any leading batch axes. See docs/reference/trainer.md 6.2.
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import cast

import distrax
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import ArrayLike

SQUASH_LIMIT = 1.0 - 1e-6
QUADRATURE_NODES = 16
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class Gaussian(struct.PyTreeNode):
    """Diagonal Gaussian over `[..., D]`.

    Attributes:
      mean: `[..., D]`.
      log_std: logarithm of the standard deviation, `[..., D]` or `[D]`.
    """

    mean: jax.Array
    log_std: jax.Array

    @property
    def std(self) -> jax.Array:
        """Standard deviation, `[..., D]` or `[D]`."""
        return jnp.exp(self.log_std)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draws one action `[..., D]`."""
        return distrax.Normal(self.mean, self.std).sample(seed=key)

    def mode(self) -> jax.Array:
        """Returns the most likely action `[..., D]`."""
        return self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-density `[...]` of an action `[..., D]`."""
        standardised = (action - self.mean) * jnp.exp(-self.log_std)
        return -(0.5 * jnp.square(standardised) + self.log_std + HALF_LOG_TAU).sum(-1)

    def entropy(self) -> jax.Array:
        """Differential entropy `[...]` in nats."""
        entropy = (self.log_std + 0.5 + HALF_LOG_TAU).sum(-1)
        return jnp.broadcast_to(entropy, self.mean.shape[:-1])


class SquashedGaussian(struct.PyTreeNode):
    """Hyperbolic tangent of a diagonal Gaussian, on (-1, 1) in every dimension.

    Samples are clipped to a distance of 1e-6 from the bounds, and log-probabilities use the same clipping, so
    that a stored action keeps the log-probability with which it was sampled.

    Attributes:
      mean: `[..., D]`, before squashing.
      log_std: `[..., D]` or `[D]`, before squashing.
    """

    mean: jax.Array
    log_std: jax.Array

    @property
    def std(self) -> jax.Array:
        """Standard deviation before squashing, `[..., D]` or `[D]`."""
        return jnp.exp(self.log_std)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draws one action `[..., D]`."""
        return jnp.clip(jnp.tanh(Gaussian(self.mean, self.log_std).sample(key)), -SQUASH_LIMIT, SQUASH_LIMIT)

    def sample_and_log_prob(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draws one action `[..., D]` and returns it with its log-density `[...]`.

        Both are differentiable in the mean and the deviation. The density is computed from the value
        before squashing, so that it and its gradient stay exact where the action saturates.
        """
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        raw = self.mean + self.std * noise
        density = -(0.5 * jnp.square(noise) + self.log_std + HALF_LOG_TAU) - _log_tanh_slope(raw)
        return jnp.clip(jnp.tanh(raw), -SQUASH_LIMIT, SQUASH_LIMIT), density.sum(-1)

    def mode(self) -> jax.Array:
        """Returns the squashed mean `[..., D]`, which is the median of each dimension."""
        return jnp.tanh(self.mean)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-density `[...]` of a squashed action `[..., D]`."""
        raw = jnp.arctanh(jnp.clip(action, -SQUASH_LIMIT, SQUASH_LIMIT))
        return Gaussian(self.mean, self.log_std).log_prob(raw) - _log_tanh_slope(raw).sum(-1)

    def entropy(self) -> jax.Array:
        """Differential entropy `[...]` in nats, by Gauss-Hermite quadrature (no key needed)."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
        nodes = nodes.astype(self.mean.dtype)
        weights = (weights / weights.sum()).astype(self.mean.dtype)
        raw = self.mean[..., None] + jnp.exp(self.log_std)[..., None] * nodes
        slope = (_log_tanh_slope(raw) * weights).sum((-2, -1))
        return Gaussian(self.mean, self.log_std).entropy() + slope


def _log_tanh_slope(raw: jax.Array) -> jax.Array:
    """`log(1 - tanh(raw)^2)` without cancellation at large `|raw|`."""
    return 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))


def split_choices(x: jax.Array, sizes: tuple[int, ...]) -> list[jax.Array]:
    """Splits `[..., sum(sizes)]` into the options of each choice, `[..., size]`."""
    edges = np.concatenate([[0], np.cumsum(sizes)])
    return [x[..., low:high] for low, high in pairwise(edges)]


class MultiCategorical(struct.PyTreeNode):
    """Independent categorical choices with masked options.

    Attributes:
      logits: `[..., sum(sizes)]`, the choices concatenated; see `masked`.
      sizes: number of options of each choice.
    """

    logits: jax.Array
    sizes: tuple[int, ...] = struct.field(pytree_node=False)

    @property
    def std(self) -> None:
        """None: choices have no standard deviation."""
        return None

    @classmethod
    def masked(cls, logits: jax.Array, sizes: tuple[int, ...], mask: jax.Array | None) -> "MultiCategorical":
        """Builds the distribution with probability 0 for options that are False in `mask`.

        A choice without legal options is uniform over its options.
        """
        if mask is not None:
            logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
        return cls(logits, sizes)

    def heads(self) -> list[distrax.Categorical]:
        """Returns one distribution per choice."""
        return [distrax.Categorical(logits) for logits in split_choices(self.logits, self.sizes)]

    def probabilities(self) -> jax.Array:
        """Probabilities `[..., sum(sizes)]`, which sum to 1 per choice."""
        return jnp.concatenate([head.probs for head in self.heads()], -1)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draws one option per choice, int32 `[..., len(sizes)]`."""
        heads = self.heads()
        keys = jax.random.split(key, len(heads))
        return jnp.stack([head.sample(seed=k) for head, k in zip(heads, keys, strict=True)], -1)

    def mode(self) -> jax.Array:
        """Returns the most likely options, int32 `[..., len(sizes)]`."""
        return jnp.stack([head.mode() for head in self.heads()], -1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability `[...]` of the choices int `[..., len(sizes)]`."""
        return _add(head.log_prob(action[..., i]) for i, head in enumerate(self.heads()))

    def entropy(self) -> jax.Array:
        """Sum of the entropies of the choices, `[...]`, in nats."""
        return _add(head.entropy() for head in self.heads())


def _add(terms: Iterable[ArrayLike]) -> jax.Array:
    """Sum of one or more arrays."""
    return cast(jax.Array, sum(terms))


Distribution = Gaussian | SquashedGaussian | MultiCategorical


def kl_divergence(first: Distribution, second: Distribution) -> jax.Array:
    """Kullback-Leibler divergence KL(first || second) `[...]`, in nats.

    Both are of one family. Squashing does not change the divergence. Options with probability 0 under `first`
    contribute 0.
    """
    if isinstance(first, MultiCategorical) and isinstance(second, MultiCategorical):
        pairs = zip(first.heads(), second.heads(), strict=True)
        return _add(_categorical_divergence(a.logits, b.logits) for a, b in pairs)
    if isinstance(first, MultiCategorical) or isinstance(second, MultiCategorical):
        raise TypeError(f"{type(first).__name__} and {type(second).__name__} are of different families")
    ratio = jnp.exp(2.0 * (first.log_std - second.log_std))
    shift = jnp.square((first.mean - second.mean) * jnp.exp(-second.log_std))
    return (0.5 * (ratio + shift - 1.0) + second.log_std - first.log_std).sum(-1)


def _categorical_divergence(first: ArrayLike, second: ArrayLike) -> jax.Array:
    """Kullback-Leibler divergence of two categorical distributions with these logits."""
    log_p, log_q = jax.nn.log_softmax(first), jax.nn.log_softmax(second)
    probability = jnp.exp(log_p)
    return jnp.where(probability > 0, probability * (log_p - log_q), 0.0).sum(-1)


def broadcast_distribution(distribution: Distribution) -> Distribution:
    """Broadcasts every array of a distribution to the batch shape, so that batches can be sliced."""
    if isinstance(distribution, MultiCategorical):
        return distribution
    return distribution.replace(log_std=jnp.broadcast_to(distribution.log_std, distribution.mean.shape))
