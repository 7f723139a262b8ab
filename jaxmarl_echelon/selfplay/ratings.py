"""Ratings of a pool's entries from integer counts of games per pair.

A rating system is a bundle of pure functions, so that the pool does not know which it is. Counts are sums
over time, environments and devices, and games are rated in a fixed order: ratings do not depend on the order
of environments or on their distribution, to the last bit.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.selfplay import elo, trueskill
from jaxmarl_echelon.selfplay.elo import Elo, Glicko
from jaxmarl_echelon.selfplay.trueskill import TrueSkill

WIN, DRAW, LOSS = range(3)
NO_GAME = -1


class Games(NamedTuple):
    """Finished games of more than two seats, of which some may be played by one entry.

    Attributes:
      entries: `[G, N]` int32 entry at each seat.
      ranks: `[G, N]` int32 of the seats' final scores, lower is better; equal scores draw.
      mask: `[G]` bool; there is a game, in which two entries or more have met.
    """

    entries: jax.Array
    ranks: jax.Array
    mask: jax.Array


class RatingSystem(NamedTuple):
    """A rating system; `rating` is `[n, D]`, of which the first column is the estimate.

    Attributes:
      prior: `[D]` rating of a new entry.
      update: `(rating, first, second, counts, moves) -> rating`: pairs `[P]` of entries, ascending, `[P, 3]`
        int32 wins, draws and losses of the first in one update, `moves [n]` bool whose skill drifts.
      expected: `(ours, theirs) -> [...]`, expected score.
      quality: `(ours, theirs) -> [...]` in [0, 1].
      heir: `(row) -> row`, rating of a new snapshot of an entry.
      lower: `(rating) -> [n]`, the pessimistic estimate that is shown.
      scale: the difference of estimates that makes a class of strength.
      deviation: `(rating) -> [n]`, uncertainty of the estimates; 0 where there is none.
      rank: `(rating, Games, moves) -> rating`, from ranks in games of more than two seats; None where a
        system rates pairs only.
    """

    prior: tuple[float, ...]
    update: Callable
    expected: Callable
    quality: Callable
    heir: Callable
    lower: Callable
    scale: float
    deviation: Callable
    rank: Callable | None = None

    def after(
        self,
        rating: jax.Array,
        pairs: tuple[jax.Array, jax.Array, jax.Array],
        moves: jax.Array,
        games: Games | None,
    ) -> jax.Array:
        """Ratings `[n, D]` after one update's results: of pairs, or of games with more seats, where given.

        `pairs` is `(first, second, counts)` as for `update`.
        """
        if games is None or self.rank is None:
            return self.update(rating, *pairs, moves)
        return self.rank(rating, games, moves)


def capped(counts: jax.Array, most: int) -> jax.Array:
    """Counts `[..., 3]` scaled to a sum of at most `most`, by largest remainders; ties in order."""
    games = jnp.sum(counts, axis=-1, keepdims=True)
    kept = jnp.minimum(games, most)
    whole, rest = jnp.divmod(counts * kept, jnp.maximum(games, 1))
    missing = kept - jnp.sum(whole, axis=-1, keepdims=True)
    before = jnp.arange(3)[:, None] > jnp.arange(3)
    ahead = (rest[..., None, :] > rest[..., :, None]) | ((rest[..., None, :] == rest[..., :, None]) & before)
    return whole + (jnp.sum(ahead, axis=-1) < missing)


def in_order(counts: jax.Array, most: int) -> jax.Array:
    """The order in which games are rated: mixed as evenly as their counts allow.

    Args:
      counts: `[P, 3]` int32 wins, draws, losses.
      most: rounds R; no more games than that per pair.

    Returns:
      `[R, P]` int32, WIN, DRAW, LOSS or NO_GAME. Source: spec 2.3.
    """
    counts = capped(counts, most)
    games = jnp.sum(counts, axis=-1, keepdims=True)

    def emit(used, k):
        claim = jnp.where(used < counts, counts * k - used * games, jnp.iinfo(jnp.int32).min)
        chosen = jnp.argmax(claim, axis=-1)
        now = k <= games[..., 0]
        used = used + (jax.nn.one_hot(chosen, 3, dtype=jnp.int32) * now[..., None])
        return used, jnp.where(now, chosen, NO_GAME)

    return jax.lax.scan(emit, jnp.zeros_like(counts), jnp.arange(1, most + 1))[1].astype(jnp.int32)


def rating_system(
    name: str, *, games_per_pair: int = 8, tau: float = 25.0 / 300.0, tau_frozen: float = 0.0
) -> RatingSystem:
    """The rating system called `name`.

    Args:
      name: one of `SYSTEMS`.
      games_per_pair: TrueSkill: games of one update that count, per pair.
      tau, tau_frozen: TrueSkill: drift per game of those that learn, and of the others.
    """
    return SYSTEMS[name](games_per_pair, tau, tau_frozen)


def trueskill_system(games_per_pair: int, tau: float, tau_frozen: float) -> RatingSystem:
    """TrueSkill, one game after the other."""
    rules = TrueSkill()

    def update(rating, first, second, counts, moves):
        drift = jnp.where(moves, tau, tau_frozen)
        outcomes = in_order(counts, games_per_pair)

        # Most pairs have not met: their places are passed over, not walked through.
        places = jnp.argsort(outcomes.ravel() == NO_GAME, stable=True)

        def rate(number, rating):
            turn, pair = jnp.divmod(places[number], first.shape[0])
            i, k = first[pair], second[pair]
            ours, theirs = trueskill.rate_teams(
                rules, rating[i][None], rating[k][None], (drift[i], drift[k]), outcomes[turn, pair]
            )
            return rating.at[i].set(ours[0]).at[k].set(theirs[0])

        return jax.lax.fori_loop(0, jnp.sum(outcomes != NO_GAME), rate, rating)

    def rank(rating, games, moves):
        drift = jnp.where(moves, tau, tau_frozen)
        places = jnp.argsort(~games.mask, stable=True)

        def rate(number, rating):
            entries, ranks = games.entries[places[number]], games.ranks[places[number]]
            same = entries[:, None] == entries
            rated = trueskill.rate_seats(rules, rating[entries], ranks, drift[entries], same)
            return rating.at[entries].set(rated)

        return jax.lax.fori_loop(0, jnp.sum(games.mask), rate, rating)

    return RatingSystem(
        prior=(rules.mu, rules.sigma),
        update=update,
        rank=rank,
        expected=lambda ours, theirs: trueskill.expected(rules, ours, theirs),
        quality=lambda ours, theirs: trueskill.quality(rules, ours, theirs),
        heir=lambda row: row.at[1].set(jnp.minimum(rules.sigma, 2.0 * row[1])),
        lower=lambda rating: rating[:, 0] - 3.0 * rating[:, 1],
        scale=rules.beta,
        deviation=lambda rating: rating[:, 1],
    )


def elo_system(games_per_pair: int, tau: float, tau_frozen: float) -> RatingSystem:
    """Elo: all games of an update are one period, pair by pair."""
    del games_per_pair, tau, tau_frozen
    rules = Elo()

    def update(rating, first, second, counts, moves):
        del moves

        def rate(rating, pair):
            i, k, count = pair
            score = count[WIN] + 0.5 * count[DRAW]
            ours, theirs = elo.rate_elo(rules, rating[i, 0], rating[k, 0], score, jnp.sum(count))
            return rating.at[i, 0].set(ours).at[k, 0].set(theirs), None

        return jax.lax.scan(rate, rating, (first, second, counts))[0]

    def expected(ours, theirs):
        return elo.elo_expected(ours[..., 0], theirs[..., 0])

    def quality(ours, theirs):
        chance = expected(ours, theirs)
        return 4.0 * chance * (1.0 - chance)

    return RatingSystem(
        prior=(rules.start, 0.0),
        update=update,
        expected=expected,
        quality=quality,
        heir=lambda row: row,
        lower=lambda rating: rating[:, 0],
        scale=200.0,
        deviation=lambda rating: rating[:, 1],
    )


def glicko_system(games_per_pair: int, tau: float, tau_frozen: float) -> RatingSystem:
    """Glicko-2: an update is one period; those without games keep their rating, unless they learn."""
    del games_per_pair, tau, tau_frozen
    rules = Glicko()

    def update(rating, first, second, counts, moves):
        number = rating.shape[0]
        score = jnp.zeros((number, number))
        games = jnp.zeros((number, number))
        points = counts[:, WIN] + 0.5 * counts[:, DRAW]
        total = jnp.sum(counts, axis=1).astype(jnp.float32)
        score = score.at[first, second].add(points).at[second, first].add(total - points)
        games = games.at[first, second].add(total).at[second, first].add(total)
        rated = jax.vmap(elo.rate_glicko, in_axes=(0, None, 0, 0))(rating, rating, score, games)
        return jnp.where((moves | jnp.any(games > 0, axis=1))[:, None], rated, rating)

    def quality(ours, theirs):
        chance = elo.glicko_expected(ours, theirs)
        return 4.0 * chance * (1.0 - chance)

    return RatingSystem(
        prior=(rules.start, rules.deviation, rules.volatility),
        update=update,
        expected=elo.glicko_expected,
        quality=quality,
        heir=lambda row: row.at[1].set(jnp.minimum(rules.deviation, 2.0 * row[1])),
        lower=lambda rating: rating[:, 0] - 2.0 * rating[:, 1],
        scale=200.0,
        deviation=lambda rating: rating[:, 1],
    )


SYSTEMS = {"trueskill": trueskill_system, "elo": elo_system, "glicko2": glicko_system}
