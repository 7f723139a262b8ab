"""Elo and Glicko-2 (Glickman 2012) from totals of a rating period."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

SCALE = 173.7178
CONSTANT = 0.5
BISECTIONS = 50


@dataclass(frozen=True)
class Elo:
    """Numbers of an Elo rating.

    Attributes:
      start: of a new player.
      k: change per game and per unit of surprise.
    """

    start: float = 1500.0
    k: float = 24.0


@dataclass(frozen=True)
class Glicko:
    """Numbers of a Glicko-2 rating: rating, deviation and volatility of a new player."""

    start: float = 1500.0
    deviation: float = 350.0
    volatility: float = 0.06


def elo_expected(ours: jax.Array, theirs: jax.Array) -> jax.Array:
    """Expected score, a draw counting half."""
    return jax.nn.sigmoid((ours - theirs) * (math.log(10.0) / 400.0))


def rate_elo(rules: Elo, ours: jax.Array, theirs: jax.Array, score: jax.Array, games: jax.Array):
    """Both ratings after `games` in one period, of which the first player scored `score`."""
    change = rules.k * (score - games * elo_expected(ours, theirs))
    return ours + change, theirs - change


def impact(deviation: jax.Array) -> jax.Array:
    """Glicko's g: how much a result against an opponent of this deviation says; on the rating's own scale."""
    return 1.0 / jnp.sqrt(1.0 + 3.0 * (deviation / SCALE) ** 2 / math.pi**2)


def glicko_expected(ours: jax.Array, theirs: jax.Array) -> jax.Array:
    """Expected score of `ours [..., 3]` against `theirs [..., 3]`, with both deviations."""
    both = jnp.sqrt(ours[..., 1] ** 2 + theirs[..., 1] ** 2)
    return jax.nn.sigmoid(impact(both) * (ours[..., 0] - theirs[..., 0]) / SCALE)


def rate_glicko(player: jax.Array, others: jax.Array, score: jax.Array, games: jax.Array) -> jax.Array:
    """A player's rating after one period.

    Args:
      player: `[3]` rating, deviation, volatility.
      others: `[n, 3]` opponents as they were before the period.
      score: `[n]` points against each, a draw counting half.
      games: `[n]` games against each; without any only the deviation grows.

    Returns:
      `[3]`. Source: spec 2.4.
    """
    f, vol = player[1] / SCALE, player[2]
    g = impact(others[:, 1])
    e = jax.nn.sigmoid(g * (player[0] - others[:, 0]) / SCALE)
    information = jnp.sum(games * g**2 * e * (1.0 - e))
    surprise = jnp.sum(g * (score - games * e))
    idle = jnp.sum(games) == 0
    v = 1.0 / jnp.where(idle, 1.0, jnp.maximum(information, 1e-12))
    new_vol = _volatility(f, vol, v, v * surprise)
    spread = 1.0 / jnp.sqrt(1.0 / (f**2 + new_vol**2) + 1.0 / v)
    played = jnp.stack([player[0] + SCALE * spread**2 * surprise, SCALE * spread, new_vol])
    waited = jnp.stack([player[0], SCALE * jnp.sqrt(f**2 + vol**2), vol])
    return jnp.where(idle, waited, played)


def _volatility(f: jax.Array, vol: jax.Array, v: jax.Array, change: jax.Array) -> jax.Array:
    """The new volatility, by bisection of a function that falls from above 0 to below."""
    target = 2.0 * jnp.log(vol)

    def slope(x):
        own = jnp.exp(x)
        total = f**2 + v + own
        return own * (change**2 - total) / (2.0 * total**2) - (x - target) / CONSTANT**2

    beyond = change**2 - f**2 - v
    high = jnp.maximum(target, jnp.log(jnp.where(beyond > 0, beyond, jnp.exp(target))))

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        right = slope(middle) > 0
        return jnp.where(right, middle, low), jnp.where(right, high, middle)

    low, high = jax.lax.fori_loop(0, BISECTIONS, halve, (target - 12.0, high))
    return jnp.exp(0.25 * (low + high))
