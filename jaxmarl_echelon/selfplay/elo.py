"""Elo and Glicko-2 from totals of a rating period.

Glicko-2 is that of Glickman's "Example of the Glicko-2 system" (glicko.net, 2022), whose steps are cited.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

SCALE = 173.7178
CONSTANT = 0.5
# Of the search for a volatility, whose logarithm is about -6: float32 tells no more digits apart.
TOLERANCE = 1e-6
STEPS = 64


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


class Evidence(NamedTuple):
    """The evidence of a rating period about a player, on Glicko-2's own scale; 0 without games.

    Attributes:
      precision: the inverse of Glicko's v.
      surprise: sum of weighted scores minus expected ones; v times it is Glicko's Delta.
    """

    precision: jax.Array
    surprise: jax.Array


def weigh_games(player: jax.Array, others: jax.Array, score: jax.Array, games: jax.Array) -> Evidence:
    """The evidence of games about a player; arguments are as for `rate_glicko`."""
    g = impact(others[:, 1])
    ahead = g * (player[0] - others[:, 0]) / SCALE
    e, other = jax.nn.sigmoid(ahead), jax.nn.sigmoid(-ahead)
    return Evidence(jnp.sum(games * g**2 * e * other), jnp.sum(g * (score - games * e)))


def rate_glicko(player: jax.Array, others: jax.Array, score: jax.Array, games: jax.Array) -> jax.Array:
    """A player's rating after one period.

    Args:
      player: `[3]` rating, deviation, volatility.
      others: `[n, 3]` opponents as they were before the period.
      score: `[n]` points against each, a draw counting half.
      games: `[n]` games against each; without any only the deviation grows.

    Returns:
      `[3]`. Source: Glickman, "Example of the Glicko-2 system", steps 3 to 8.
    """
    evidence = weigh_games(player, others, score, games)
    return settle_rating(drift_rating(player, evidence), evidence)


def drift_rating(player: jax.Array, evidence: Evidence) -> jax.Array:
    """A player's rating `[3]` as a period begins: its volatility, and a deviation that has grown by it."""
    deviation, volatility = player[1] / SCALE, player[2]
    idle = evidence.precision <= 0
    v = 1.0 / jnp.where(idle, 1.0, jnp.maximum(evidence.precision, 1e-12))
    new = jnp.where(idle, volatility, rate_volatility(deviation, volatility, v, v * evidence.surprise))
    return jnp.stack([player[0], SCALE * jnp.sqrt(deviation**2 + new**2), new])


def settle_rating(player: jax.Array, evidence: Evidence) -> jax.Array:
    """A player's rating `[3]` once the games of a period are known."""
    variance = 1.0 / ((SCALE / player[1]) ** 2 + evidence.precision)
    moved = player[0] + SCALE * variance * evidence.surprise
    return jnp.stack([moved, SCALE * jnp.sqrt(variance), player[2]])


def rate_volatility(
    deviation: jax.Array, volatility: jax.Array, v: jax.Array, change: jax.Array
) -> jax.Array:
    """The new volatility, by the Illinois algorithm.

    Args:
      deviation, volatility: of the player, on Glicko-2's own scale.
      v: variance of the rating by the games alone.
      change: improvement Delta by the games alone.

    Source: Glickman, "Example of the Glicko-2 system", step 5. The equation can have several roots: the
    bracket decides which one is found.
    """
    start = 2.0 * jnp.log(volatility)
    known = deviation**2 + v

    def slope(x):
        total = known + jnp.exp(x)
        # Factor by factor, as squares of large numbers overflow.
        return 0.5 * (jnp.exp(x) / total) * ((change**2 - total) / total) - (x - start) / CONSTANT**2

    beyond = change**2 - known
    below = jax.lax.while_loop(
        lambda x: (slope(x) < 0) & (x > start - STEPS * CONSTANT), lambda x: x - CONSTANT, start - CONSTANT
    )
    end = jnp.where(beyond > 0, jnp.log(jnp.where(beyond > 0, beyond, 1.0)), below)

    def unsettled(ends):
        a, b, _, at_b, number = ends
        return (jnp.abs(b - a) > TOLERANCE) & (at_b != 0) & (number < STEPS)

    def narrow(ends):
        a, b, at_a, at_b, number = ends
        c = a + (a - b) * at_a / (at_b - at_a)
        at_c = slope(c)
        crossed = at_c * at_b <= 0
        a, at_a = jnp.where(crossed, b, a), jnp.where(crossed, at_b, 0.5 * at_a)
        return a, c, at_a, at_c, number + 1

    first = start, end, slope(start), slope(end), 0
    _, found, _, _, _ = jax.lax.while_loop(unsettled, narrow, first)
    return jnp.exp(0.5 * found)
