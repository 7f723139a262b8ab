"""TrueSkill (Herbrich et al. 2006): two teams in closed form, several by expectation propagation.

All functions take and return float32 and stay finite and accurate for very unlikely results. See
docs/reference/selfplay.md 2.2 and 2.3.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, ndtr, ndtri
from jax.scipy.stats import norm

# Beyond this distance the inverse Mills ratio is computed by a continued fraction, because differences of
# logarithms lose precision.
TAIL = 3.0
LEVELS = 10
MOST_CERTAIN = 1.0 - 1e-6
SWEEPS = 8


@dataclass(frozen=True)
class TrueSkillSettings:
    """Constants of TrueSkill.

    Attributes:
      mu, sigma: prior mean and standard deviation of a skill.
      beta: standard deviation of a performance about its skill.
      draw_probability: probability of a draw between two equal players.
    """

    mu: float = 25.0
    sigma: float = 25.0 / 3.0
    beta: float = 4.0
    draw_probability: float = 0.1

    def margin(self, players: jax.Array | float) -> jax.Array:
        """Returns the largest performance difference that is a draw, for `players` in both teams together."""
        return ndtri((self.draw_probability + 1.0) / 2.0) * jnp.sqrt(players) * self.beta


def win_moments(t: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the correction terms (v, w) of a win: a unit normal with mean `t`, truncated to above `e`.

    Its mean increases by v, its variance decreases to 1 - w. See docs/reference/selfplay.md 2.2.
    """
    x = t - e
    near = jnp.maximum(x, -TAIL)
    v = jnp.exp(norm.logpdf(near) - log_ndtr(near))
    excess = v + near
    far = _excess(jnp.maximum(-x, TAIL))
    tail = x < -TAIL
    v, excess = jnp.where(tail, far - x, v), jnp.where(tail, far, excess)
    return v, jnp.clip(v * excess, 0.0, MOST_CERTAIN)


def draw_moments(t: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the correction terms of a draw: as `win_moments`, truncated to [-e, e] with `e` > 0."""
    size = jnp.abs(t)
    v, w = _draw_near(jnp.minimum(size, e + TAIL), e)
    far_v, far_w = _draw_far(jnp.maximum(size, e + TAIL), e)
    tail = size > e + TAIL
    v, w = jnp.where(tail, far_v, v), jnp.where(tail, far_w, w)
    return jnp.sign(t) * v, jnp.clip(w, 0.0, MOST_CERTAIN)


def _draw_near(size: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = e - size, -e - size
    mass = ndtr(a) - ndtr(b)
    v = (norm.pdf(b) - norm.pdf(a)) / mass
    return v, v * v + (a * norm.pdf(a) - b * norm.pdf(b)) / mass


def _draw_far(size: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the draw terms with all densities relative to the density at the nearer end."""
    near, far = size - e, size + e
    above_near, above_far = _excess(near), _excess(far)
    ratio = jnp.exp(-2.0 * e * size)
    share = ratio * (near + above_near) / (far + above_far)
    density = (near + above_near) / (1.0 - share)
    v = -(1.0 - ratio) * density
    inner = (1.0 - ratio) ** 2 * density - near + far * ratio
    return v, density * jnp.where(ratio < 1e-7, above_near, inner)


def _excess(y: jax.Array) -> jax.Array:
    """Returns `pdf(y) / cdf(-y) - y` for y >= TAIL, by Laplace's continued fraction."""
    rest = y
    for level in range(LEVELS, 1, -1):
        rest = y + level / rest
    return 1.0 / rest


def rate_teams(
    rules: TrueSkillSettings, first: jax.Array, second: jax.Array, tau: tuple, outcome: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the ratings after a game of two teams.

    Args:
      rules: the constants.
      first, second: `[m, 2]` mu and sigma of the players.
      tau: standard deviation of the skill drift before the game, for each team a number or `[m]`.
      outcome: int32: 0 the first wins, 1 draw, 2 the second wins.

    Returns:
      both teams' new ratings. See docs/reference/selfplay.md 2.2.
    """
    players = first.shape[0] + second.shape[0]
    variances = [team[:, 1] ** 2 + drift**2 for team, drift in zip((first, second), tau, strict=True)]
    c = jnp.sqrt(players * rules.beta**2 + sum(jnp.sum(s) for s in variances))
    t, e = (jnp.sum(first[:, 0]) - jnp.sum(second[:, 0])) / c, rules.margin(players) / c
    sign = jnp.where(outcome == 2, -1.0, 1.0)
    wins, draws = win_moments(sign * t, e), draw_moments(t, e)
    v, w = (jnp.where(outcome == 1, a, b) for a, b in zip(draws, (sign * wins[0], wins[1]), strict=True))

    def moved(team, s, sign):
        mu = team[:, 0] + sign * s * v / c
        return jnp.stack([mu, jnp.sqrt(s * (1.0 - s * w / c**2))], axis=-1)

    return moved(first, variances[0], 1.0), moved(second, variances[1], -1.0)


def rate_seats(
    rules: TrueSkillSettings, rating: jax.Array, ranks: jax.Array, tau: jax.Array | float, same: jax.Array
) -> jax.Array:
    """Returns the ratings after a free-for-all in which one player may have several seats.

    Seats of one player share its skill and have independent performances.

    Args:
      rules: the constants.
      rating: `[n, 2]` mu and sigma of each seat's player.
      ranks: `[n]` ranks of the seats; lower is better, equal ranks are draws.
      tau: standard deviation of the skill drift before the game, a number or `[n]`.
      same: `[n, n]` bool; both seats belong to one player.

    Returns:
      `[n, 2]` ratings of each seat's player, equal for all seats of one player. See
      docs/reference/selfplay.md 2.3.
    """
    centre = jnp.mean(rating[:, 0])
    mu, s = rating[:, 0] - centre, rating[:, 1] ** 2 + tau**2
    skills = jnp.where(same, s[:, None], 0.0)
    prior = skills + rules.beta**2 * jnp.eye(mu.shape[0])
    cov, weighted = _performances(rules, prior, jnp.linalg.solve(prior, mu), ranks)
    # Skills given performances: a linear regression, because all variables are jointly Gaussian.
    gain = jnp.linalg.solve(prior, skills).T
    mean = mu + gain @ (cov @ weighted - mu)
    variance = s - jnp.sum((gain @ (prior - cov)) * gain, axis=1)
    return jnp.stack([mean + centre, jnp.sqrt(variance)], axis=-1)


def _performances(
    rules: TrueSkillSettings, cov: jax.Array, weighted: jax.Array, ranks: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Infers the seats' performances `[n]` from their ranks, by expectation propagation.

    Args:
      rules: the constants.
      cov: `[n, n]` covariance before the game.
      weighted: `[m]` inverse covariance times the mean.
      ranks: as for `rate_seats`.

    Returns:
      `cov` and `weighted` after the game.
    """
    order = jnp.argsort(ranks, stable=True)
    seats = jnp.eye(ranks.shape[0])
    above, below = seats[order[:-1]], seats[order[1:]]
    rows, margins = above - below, rules.margin(jnp.sum(above + below, axis=1))
    ties = ranks[order[:-1]] == ranks[order[1:]]
    games = rows.shape[0]

    def site(number, state):
        number = number % games
        row, tie = rows[number], ties[number]
        cov, weighted, precision, shift = state
        spread = cov @ row
        variance, mean = row @ spread, spread @ weighted
        cavity = 1.0 / variance - precision[number]
        cavity_shift = mean / variance - shift[number]
        c = 1.0 / jnp.sqrt(cavity)
        t, e = cavity_shift / cavity / c, margins[number] / c
        won, drawn = win_moments(t, e), draw_moments(t, e)
        v, w = (jnp.where(tie, a, b) for a, b in zip(drawn, won, strict=True))
        kept = c**2 * (1.0 - w)
        new, new_shift = 1.0 / kept - cavity, (t * c + c * v) / kept - cavity_shift
        change = new - precision[number]
        cov = cov - change / (1.0 + change * variance) * jnp.outer(spread, spread)
        weighted = weighted + row * (new_shift - shift[number])
        return cov, weighted, precision.at[number].set(new), shift.at[number].set(new_shift)

    nothing = jnp.zeros(games)
    start = (cov, weighted, nothing, nothing)
    cov, weighted, _, _ = jax.lax.fori_loop(0, SWEEPS * games, site, start)
    return cov, weighted


def trueskill_expected(rules: TrueSkillSettings, ours: jax.Array, theirs: jax.Array) -> jax.Array:
    """Returns the expected score of `ours [..., 2]` against `theirs [..., 2]`; a draw counts half."""
    return ndtr((ours[..., 0] - theirs[..., 0]) / jnp.sqrt(_spread(rules, ours, theirs)))


def trueskill_quality(rules: TrueSkillSettings, ours: jax.Array, theirs: jax.Array) -> jax.Array:
    """Returns the match quality in [0, 1]: the draw density relative to that of two known equal players."""
    c2 = _spread(rules, ours, theirs)
    d = ours[..., 0] - theirs[..., 0]
    return math.sqrt(2.0) * rules.beta / jnp.sqrt(c2) * jnp.exp(-0.5 * d**2 / c2)


def _spread(rules: TrueSkillSettings, ours: jax.Array, theirs: jax.Array) -> jax.Array:
    return 2.0 * rules.beta**2 + ours[..., 1] ** 2 + theirs[..., 1] ** 2
