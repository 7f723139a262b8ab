"""Reward transforms of games in three stages: final scores, steps, and batches; pure functions of arrays.

A transform is a bundle `(init, apply)`: `apply(state, rewards, context) -> (state, rewards)`. Lists of them
are applied in order. Final transforms work on one number per game and seat, step transforms on one per own
move, sampling transforms on the samples of a batch. Source: spec section 3.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives

PyTree = Any
TINY = 1e-8


class Context(NamedTuple):
    """What transforms may know of rewards `[...]`; each `[...]`, or None where a stage has no such thing.

    Attributes:
      mask: bool; there is a reward.
      game: int32 number of the game, of several in one run; 0 where there is one.
      seat: int32 number of the role or seat.
      score: float32 in [0, 1] of a seat, the share of the others that it has beaten, equal ones by half.
      formed: bool; the answer of a step has the form that was asked for.
      invalid: bool; the move of a step is illegal.
      to_come: int32, own moves still to come after a step.
    """

    mask: jax.Array
    game: jax.Array | None = None
    seat: jax.Array | None = None
    score: jax.Array | None = None
    formed: jax.Array | None = None
    invalid: jax.Array | None = None
    to_come: jax.Array | None = None


class Transform(NamedTuple):
    """A reward transform.

    Attributes:
      init: `() -> state`.
      apply: `(state, rewards [...], Context) -> (state, rewards [...])`.
      scored: whether it reads scores, which are known only at the end of a game or episode.
    """

    init: Callable[[], PyTree]
    apply: Callable
    scored: bool = False


def chain(transforms: Sequence[Transform]) -> Transform:
    """The transforms one after the other, as one."""

    def apply(states, rewards, context):
        after = []
        for transform, state in zip(transforms, states, strict=True):
            state, rewards = transform.apply(state, rewards, context)
            after.append(state)
        return tuple(after), rewards

    scored = any(transform.scored for transform in transforms)
    return Transform(lambda: tuple(transform.init() for transform in transforms), apply, scored)


def win_draw_loss() -> Transform:
    """1 for a win, 0 for a draw, -1 for a loss; of N seats -1 + 2 rank / (N - 1) from below.

    Ranks of equal scores are averaged. Replaces the rewards.
    """

    def apply(state, rewards, context):
        return state, jnp.where(context.mask, 2.0 * context.score - 1.0, 0.0)

    return Transform(lambda: (), apply, scored=True)


def role_advantage(seats: int, games: int = 1, tau: float = 0.05) -> Transform:
    """Rewards minus a moving average of those of the same role: a baseline for learners without a critic.

    The average is read before it is updated, so that it does not depend on the rewards that it is subtracted
    from: all n games of a call use the old one, then b = (1 - tau)^n b + (1 - (1 - tau)^n) mean.

    Args:
      seats: roles or seats with a baseline each.
      games: games with a baseline each ("RoleAdvantageByEnv"); 1 for one baseline per role.
      tau: rate of the average, per reward.
    """

    def apply(baseline, rewards, context):
        game = jnp.zeros_like(context.seat) if context.game is None or games == 1 else context.game
        place = (game * seats + context.seat).ravel()
        here = context.mask.ravel()
        table = (place[:, None] == jnp.arange(seats * games)) & here[:, None]
        total = collectives.sum(jnp.sum(jnp.where(table, rewards.ravel()[:, None], 0.0), axis=0))
        number = collectives.sum(jnp.sum(table, axis=0).astype(jnp.float32))
        kept = (1.0 - tau) ** number
        mean = total / jnp.maximum(number, 1.0)
        old = baseline.ravel()
        new = (kept * old + (1.0 - kept) * mean).reshape(baseline.shape)
        advantage = rewards - old[place].reshape(rewards.shape)
        return new, jnp.where(context.mask, advantage, 0.0)

    return Transform(lambda: jnp.zeros((games, seats)), apply)


def reward_for_format(reward: float = 1.5, penalty: float = 0.0) -> Transform:
    """Adds a reward to steps whose answer has the form that was asked for, and a penalty to others."""

    def apply(state, rewards, context):
        return state, rewards + jnp.where(context.formed, reward, penalty)

    return Transform(lambda: (), apply)


def penalty_for_invalid_move(reward: float = 1.0, penalty: float = -1.0) -> Transform:
    """Adds a penalty to illegal steps, and a reward to others."""

    def apply(state, rewards, context):
        return state, rewards + jnp.where(context.invalid, penalty, reward)

    return Transform(lambda: (), apply)


def discount(gamma: float = 0.99) -> Transform:
    """Rewards of steps times gamma to the power of the own moves to come."""

    def apply(state, rewards, context):
        return state, rewards * gamma**context.to_come

    return Transform(lambda: (), apply)


def normalize(*, z: bool = False, games: int = 1) -> Transform:
    """Rewards of a batch minus their mean; `z`: over their deviation as well.

    Args:
      z: whether to divide by the population's standard deviation.
      games: games with moments of their own ("NormalizeByEnv"). Never by turn: where the policy decides how
        long games last, that is biased.
    """

    def apply(state, rewards, context):
        game = jnp.zeros(rewards.shape, jnp.int32) if context.game is None or games == 1 else context.game
        table = (game.reshape(-1, 1) == jnp.arange(games)) & context.mask.reshape(-1, 1)

        def mean(values):
            total = jnp.sum(jnp.where(table, values.reshape(-1, 1), 0.0), axis=0)
            total, number = collectives.sum((total, jnp.sum(table, axis=0).astype(jnp.float32)))
            return (total / jnp.maximum(number, 1.0))[game]

        centred = rewards - mean(rewards)
        if z:
            centred = centred / (jnp.sqrt(mean(centred**2)) + TINY)
        return state, jnp.where(context.mask, centred, 0.0)

    return Transform(lambda: (), apply)


FINAL = {
    "WinDrawLoss": win_draw_loss,
    "RoleAdvantage": role_advantage,
    "RoleAdvantageByEnv": role_advantage,
}
STEP = {
    "RewardForFormat": reward_for_format,
    "PenaltyForInvalidMove": penalty_for_invalid_move,
    "Discount": discount,
}
SAMPLING = {"Normalize": normalize, "NormalizeByEnv": normalize}
