"""Truncated quantile critics (Kuznetsov et al. 2020).

See docs/reference/trainer.md 10.5.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from algos.checks import require_count
from algos.defaults import FROM_FILE, take_defaults_from
from algos.off_policy.agent import ReplayLearner
from algos.off_policy.learning import OffPolicyMethod
from algos.off_policy.soft import SoftSettings, make_soft_method
from algos.types import ActionSpec, ObservationSpec

# Unrolled target atoms per iteration of the quantile loss: enough for wide arithmetic, few enough to compile
# fast.
ATOMS_UNROLL = 8


@take_defaults_from("algo/tqc")
@dataclass(frozen=True)
class TQCConfig(SoftSettings, ReplayLearner):
    """Settings of TQC, in addition to those of `SoftSettings`.

    Attributes:
      n_quantiles: quantiles per critic.
      drop_per_critic: target atoms dropped per critic, the largest of the pooled atoms of all critics.
    """

    NAME: ClassVar[str] = "tqc"

    n_quantiles: int = FROM_FILE
    drop_per_critic: int = FROM_FILE

    def __post_init__(self):
        super().__post_init__()
        require_count("n_quantiles", self.n_quantiles)
        dropped = self.drop_per_critic
        if isinstance(dropped, bool) or not isinstance(dropped, int) or not 0 <= dropped < self.n_quantiles:
            raise ValueError(
                f"drop_per_critic={dropped}: must be a whole number from 0 to {self.n_quantiles - 1}, "
                "less than n_quantiles"
            )

    def method(self, observation: ObservationSpec, action: ActionSpec) -> OffPolicyMethod:
        """Returns TQC's method: truncated pooled quantiles as target, their mean as the actor's value."""
        dropped = self.drop_per_critic * self.n_critics
        return make_soft_method(
            self,
            observation,
            action,
            outputs=self.n_quantiles,
            truncate=lambda target: drop_largest(target, dropped),
            critic_loss=quantile_loss,
            value=lambda quantiles: quantiles.mean((0, 2)),
        )


class Atoms(NamedTuple):
    """Equally likely atoms of a distribution, some of them dropped.

    Attributes:
      value: `[B, M]`.
      kept: `[B, M]` 1 for kept atoms, 0 for dropped ones.
    """

    value: jax.Array
    kept: jax.Array


def drop_largest(quantiles: jax.Array, dropped: int) -> Atoms:
    """Pools the quantiles `[n, B, q]` of all critics and drops the `dropped` largest."""
    pooled = jnp.moveaxis(quantiles, 0, 1).reshape(quantiles.shape[1], -1)
    kept = jnp.ones_like(pooled)
    if dropped:
        _, largest = jax.lax.top_k(pooled, dropped)
        kept = jax.vmap(lambda row, index: row.at[index].set(0.0))(kept, largest)
    return Atoms(pooled, kept)


def quantile_loss(quantiles: jax.Array, target: Atoms) -> tuple[jax.Array, jax.Array]:
    """Quantile regression loss of all critics towards one distribution.

    Args:
      quantiles: `[n, B, q]`.
      target: M atoms per sample.

    Returns:
      the losses `[B]`, averaged over quantiles and kept atoms and summed over critics, and the
      distance `[B]` between the mean of the atoms and each critic's mean, averaged over critics.
    """
    loss = quantile_huber(quantiles, target).mean(-1).sum(0)
    mean = (target.value * target.kept).sum(-1) / target.kept.sum(-1)
    return loss, jnp.abs(quantiles.mean(-1) - mean).mean(0)


def quantile_huber(quantiles: jax.Array, target: Atoms) -> jax.Array:
    """Quantile Huber loss with threshold 1, averaged over the kept atoms (Kuznetsov et al. 2020, eq. 10).

    Value and gradient are accumulated together, atom by atom. Differentiating the pairwise form would
    store several arrays `[n, B, q, M]` and take many times as long as the networks.

    Args:
      quantiles: `[n, B, q]`, the i-th for the level (i + 1/2) / q.
      target: M atoms per sample, constant for the gradient.

    Returns:
      `[n, B, q]`.
    """
    fixed = jax.lax.stop_gradient(quantiles)
    size = quantiles.shape[-1]
    level = (jnp.arange(size) + 0.5) / size

    def add(sums, atom):
        value, kept = atom
        error = value[:, None] - fixed
        clipped = jnp.clip(error, -1.0, 1.0)
        slope = jnp.where(error < 0, 1.0 - level, level) * clipped * kept[:, None]
        return (sums[0] + slope * (error - 0.5 * clipped), sums[1] - slope), None

    zeros = jnp.zeros_like(fixed)
    atoms = jax.lax.stop_gradient((target.value.T, target.kept.T))
    (total, slope), _ = jax.lax.scan(add, (zeros, zeros), atoms, unroll=ATOMS_UNROLL)
    count = target.kept.sum(-1)[:, None]
    return (total + slope * (quantiles - fixed)) / count
