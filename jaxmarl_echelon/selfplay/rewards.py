"""Reward transforms in three stages (final rewards, steps, batches) as pure functions of arrays.

A transform is a pair `(init, apply)` with `apply(state, rewards, context) -> (state, rewards)`. Lists of
transforms are applied in order. Final transforms handle one value per game and seat, step transforms one per
own decision, sampling transforms the samples of a batch. See docs/reference/selfplay.md 5.2.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from algos.types import PyTree

TINY = 1e-8


class RewardContext(NamedTuple):
    """Information about rewards `[...]` for transforms; arrays `[...]`, or None if the stage lacks them.

    Attributes:
      mask: bool; the reward exists.
      game: int32 index of the game, if a run has several; 0 otherwise.
      seat: int32 index of the role or seat.
      score: float32 in [0, 1] of a seat: the share of the others it has beaten, ties count half.
      well_formed: bool; the step's answer has the requested format.
      invalid: bool; the step's move is illegal.
      to_come: int32 number of own moves after the step.
    """

    mask: jax.Array
    game: jax.Array | None = None
    seat: jax.Array | None = None
    score: jax.Array | None = None
    well_formed: jax.Array | None = None
    invalid: jax.Array | None = None
    to_come: jax.Array | None = None


class RewardTransform(NamedTuple):
    """A reward transform.

    Attributes:
      init: `() -> state`.
      apply: `(state, rewards [...], RewardContext) -> (state, rewards [...])`.
      scored: whether it reads scores, which are known only at the end of an episode.
    """

    init: Callable[[], PyTree]
    apply: Callable
    scored: bool = False


def chain_transforms(transforms: Sequence[RewardTransform]) -> RewardTransform:
    """Composes transforms, applied in order, into one."""

    def apply(states, rewards, context):
        after = []
        for transform, state in zip(transforms, states, strict=True):
            state, rewards = transform.apply(state, rewards, context)
            after.append(state)
        return tuple(after), rewards

    scored = any(transform.scored for transform in transforms)
    return RewardTransform(lambda: tuple(transform.init() for transform in transforms), apply, scored)


def win_draw_loss() -> RewardTransform:
    """Replaces rewards by 1 for a win, 0 for a draw, -1 for a loss.

    With N seats, by -1 + 2 rank / (N - 1) with ranks from 0 for the lowest score; ranks of ties are averaged.
    """

    def apply(state, _rewards, context):
        return state, jnp.where(context.mask, 2.0 * context.score - 1.0, 0.0)

    return RewardTransform(lambda: (), apply, scored=True)


def role_advantage(seats: int, games: int = 1, tau: float = 0.05) -> RewardTransform:
    """Subtracts a moving average of the same role's rewards, a baseline for learners without a critic.

    The average is read before it is updated, so that it is independent of the rewards it is subtracted from:
    all n games of a call use the old b, then b = (1 - tau)^n b + (1 - (1 - tau)^n) mean.

    Args:
      seats: number of roles or seats, each with its own baseline.
      games: number of games, each with its own baselines ("RoleAdvantageByEnv"); 1 for one set.
      tau: rate of the average per reward.
    """

    def apply(baseline, rewards, context):
        game = jnp.zeros_like(context.seat) if context.game is None or games == 1 else context.game
        place = (game * seats + context.seat).ravel()
        here = context.mask.ravel()
        table = (place[:, None] == jnp.arange(seats * games)) & here[:, None]
        total = collectives.sum_over_shards(jnp.sum(jnp.where(table, rewards.ravel()[:, None], 0.0), axis=0))
        number = collectives.sum_over_shards(jnp.sum(table, axis=0).astype(jnp.float32))
        kept = (1.0 - tau) ** number
        mean = total / jnp.maximum(number, 1.0)
        old = baseline.ravel()
        new = (kept * old + (1.0 - kept) * mean).reshape(baseline.shape)
        advantage = rewards - old[place].reshape(rewards.shape)
        return new, jnp.where(context.mask, advantage, 0.0)

    return RewardTransform(lambda: jnp.zeros((games, seats)), apply)


def reward_for_format(reward: float = 1.5, penalty: float = 0.0) -> RewardTransform:
    """Adds a reward to steps whose answer has the requested format, and a penalty to all others."""

    def apply(state, rewards, context):
        return state, rewards + jnp.where(context.well_formed, reward, penalty)

    return RewardTransform(lambda: (), apply)


def penalty_for_invalid_move(reward: float = 1.0, penalty: float = -1.0) -> RewardTransform:
    """Adds a penalty to steps with an illegal move, and a reward to all others."""

    def apply(state, rewards, context):
        return state, rewards + jnp.where(context.invalid, penalty, reward)

    return RewardTransform(lambda: (), apply)


def discount_rewards(gamma: float = 0.99) -> RewardTransform:
    """Multiplies step rewards by gamma to the power of the number of own moves to come."""

    def apply(state, rewards, context):
        return state, rewards * gamma**context.to_come

    return RewardTransform(lambda: (), apply)


def normalize_rewards(*, z: bool = False, games: int = 1) -> RewardTransform:
    """Subtracts the batch mean of the rewards; with `z`, also divides by their standard deviation.

    Args:
      z: whether to divide by the population standard deviation.
      games: number of games with separate moments ("NormalizeByEnv"). There are no moments per turn, because
        they are biased if the policy influences the length of games.
    """

    def apply(state, rewards, context):
        game = jnp.zeros(rewards.shape, jnp.int32) if context.game is None or games == 1 else context.game
        table = (game.reshape(-1, 1) == jnp.arange(games)) & context.mask.reshape(-1, 1)

        def mean(values):
            total = jnp.sum(jnp.where(table, values.reshape(-1, 1), 0.0), axis=0)
            total, number = collectives.sum_over_shards((total, jnp.sum(table, axis=0).astype(jnp.float32)))
            return (total / jnp.maximum(number, 1.0))[game]

        centred = rewards - mean(rewards)
        if z:
            centred = centred / (jnp.sqrt(mean(centred**2)) + TINY)
        return state, jnp.where(context.mask, centred, 0.0)

    return RewardTransform(lambda: (), apply)


FINAL_TRANSFORMS = {
    "WinDrawLoss": win_draw_loss,
    "RoleAdvantage": role_advantage,
    "RoleAdvantageByEnv": role_advantage,
}
STEP_TRANSFORMS = {
    "RewardForFormat": reward_for_format,
    "PenaltyForInvalidMove": penalty_for_invalid_move,
    "Discount": discount_rewards,
}
SAMPLING_TRANSFORMS = {"Normalize": normalize_rewards, "NormalizeByEnv": normalize_rewards}
