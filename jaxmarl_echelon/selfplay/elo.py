"""Elo and Glicko-2 updates from the totals of a rating period.

Steps are cited from Glickman, "Example of the Glicko-2 system" (glicko.net, 2022). See
docs/reference/selfplay.md 2.4 and 2.5.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

SCALE = 173.7178
CONSTANT = 0.5
# Tolerance of the volatility's logarithm (about -6), near the resolution of float32.
TOLERANCE = 1e-6
STEPS = 64


@dataclass(frozen=True)
class EloSettings:
    """Constants of Elo ratings.

    Attributes:
      start: rating of a new player.
      k: step size: change of the rating per game and unit of (score - expected score).
    """

    start: float = 1500.0
    k: float = 24.0


@dataclass(frozen=True)
class GlickoSettings:
    """Constants of Glicko-2: rating, deviation and volatility of a new player."""

    start: float = 1500.0
    deviation: float = 350.0
    volatility: float = 0.06


def elo_expected(ours: jax.Array, theirs: jax.Array) -> jax.Array:
    """Returns the expected score; a draw counts half."""
    return jax.nn.sigmoid((ours - theirs) * (math.log(10.0) / 400.0))


def rate_elo(rules: EloSettings, ours: jax.Array, theirs: jax.Array, score: jax.Array, games: jax.Array):
    """Returns both ratings after a period of `games` games, in which the first player scored `score`."""
    change = rules.k * (score - games * elo_expected(ours, theirs))
    return ours + change, theirs - change


def deviation_weight(deviation: jax.Array) -> jax.Array:
    """Returns Glicko's g, the weight of a result by the opponent's deviation (on the Elo scale)."""
    return 1.0 / jnp.sqrt(1.0 + 3.0 * (deviation / SCALE) ** 2 / math.pi**2)


def glicko_expected(ours: jax.Array, theirs: jax.Array) -> jax.Array:
    """Returns the expected score of `ours [..., 3]` against `theirs [..., 3]`, using both deviations."""
    both = jnp.sqrt(ours[..., 1] ** 2 + theirs[..., 1] ** 2)
    return jax.nn.sigmoid(deviation_weight(both) * (ours[..., 0] - theirs[..., 0]) / SCALE)


class PeriodEvidence(NamedTuple):
    """Evidence of a rating period about a player, on Glicko-2's internal scale; 0 without games.

    Attributes:
      precision: the inverse of Glicko's v.
      surprise: sum of g * (score - expected score); multiplied by v it is Glicko's Delta.
    """

    precision: jax.Array
    surprise: jax.Array


def weigh_games(player: jax.Array, others: jax.Array, score: jax.Array, games: jax.Array) -> PeriodEvidence:
    """Computes a player's evidence from the games of a period; arguments as for `rate_glicko`."""
    g = deviation_weight(others[:, 1])
    ahead = g * (player[0] - others[:, 0]) / SCALE
    e, other = jax.nn.sigmoid(ahead), jax.nn.sigmoid(-ahead)
    return PeriodEvidence(jnp.sum(games * g**2 * e * other), jnp.sum(g * (score - games * e)))


def rate_glicko(player: jax.Array, others: jax.Array, score: jax.Array, games: jax.Array) -> jax.Array:
    """Returns a player's rating after one period.

    Args:
      player: `[3]` rating, deviation, volatility.
      others: `[n, 3]` ratings of the opponents before the period.
      score: `[n]` points against each opponent; a draw counts half.
      games: `[n]` games against each opponent; without games only the deviation grows.

    Returns:
      `[3]`. Source: Glickman, "Example of the Glicko-2 system", steps 3 to 8.
    """
    evidence = weigh_games(player, others, score, games)
    return settle_rating(drift_rating(player, evidence), evidence)


def drift_rating(player: jax.Array, evidence: PeriodEvidence) -> jax.Array:
    """Returns a player's rating `[3]` with the new volatility and the deviation increased by it."""
    deviation, volatility = player[1] / SCALE, player[2]
    idle = evidence.precision <= 0
    v = 1.0 / jnp.where(idle, 1.0, jnp.maximum(evidence.precision, 1e-12))
    new = jnp.where(idle, volatility, rate_volatility(deviation, volatility, v, v * evidence.surprise))
    return jnp.stack([player[0], SCALE * jnp.sqrt(deviation**2 + new**2), new])


def settle_rating(player: jax.Array, evidence: PeriodEvidence) -> jax.Array:
    """Returns a player's rating `[3]` updated with the evidence of a period."""
    variance = 1.0 / ((SCALE / player[1]) ** 2 + evidence.precision)
    moved = player[0] + SCALE * variance * evidence.surprise
    return jnp.stack([moved, SCALE * jnp.sqrt(variance), player[2]])


def rate_volatility(
    deviation: jax.Array, volatility: jax.Array, v: jax.Array, change: jax.Array
) -> jax.Array:
    """Finds the new volatility with the Illinois algorithm.

    Args:
      deviation, volatility: of the player, on Glicko-2's internal scale.
      v: variance of the rating estimated from the games alone.
      change: estimated improvement Delta from the games alone.

    Source: Glickman, "Example of the Glicko-2 system", step 5. The equation can have several roots; the
    starting bracket determines the result.
    """
    start = 2.0 * jnp.log(volatility)
    known = deviation**2 + v

    def slope(x):
        total = known + jnp.exp(x)
        # Multiplied factor by factor, because squares of large numbers overflow.
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
