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


class Pairs(NamedTuple):
    """What P pairs of entries have scored against each other in one update.

    Attributes:
      first, second: `[P]` int32 entries.
      counts: `[P, 3]` int32 games that the first has won, drawn and lost.
      points: `[P]` float32 sum of the first one's scores in [0, 1], where games are worth more or less than a
        win, a draw or a loss; None where the counts tell all.
    """

    first: jax.Array
    second: jax.Array
    counts: jax.Array
    points: jax.Array | None = None

    @property
    def games(self) -> jax.Array:
        """`[P]` int32."""
        return jnp.sum(self.counts, axis=-1)

    @property
    def score(self) -> jax.Array:
        """`[P]` float32 mean score of the first; 0 without games."""
        points = self.counts[:, WIN] + 0.5 * self.counts[:, DRAW] if self.points is None else self.points
        return points / jnp.maximum(self.games, 1)


class RatingSystem(NamedTuple):
    """A rating system; `rating` is `[n, D]`, of which the first column is the estimate.

    Attributes:
      prior: `[D]` rating of a new entry.
      update: `(key, rating, Pairs, moves) -> rating`: the results of one update, `moves [n]` bool whose skill
        drifts.
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
        self, key: jax.Array, rating: jax.Array, pairs: Pairs, moves: jax.Array, games: Games | None
    ) -> jax.Array:
        """Ratings `[n, D]` after one update's results: of pairs, or of games with more seats, where given."""
        if games is None or self.rank is None:
            return self.update(key, rating, pairs, moves)
        return self.rank(rating, games, moves)


def draw_outcomes(key: jax.Array, pairs: Pairs, most: int) -> jax.Array:
    """Wins, draws and losses `[P, 3]` int32 of at most `most` games per pair, right on average.

    More games are thinned out: each outcome keeps its share of `most`, rounded up or down at random, so that
    the expected numbers are exactly in proportion. Where points are given, they are shared out as wins and
    losses in the same way.
    """
    games = pairs.games
    kept = jnp.minimum(games, most)
    if pairs.points is not None:
        wins = jnp.floor(pairs.score * kept + jax.random.uniform(key, games.shape)).astype(jnp.int32)
        wins = jnp.minimum(wins, kept)
        return jnp.stack([wins, jnp.zeros_like(wins), kept - wins], axis=-1)
    start = jax.random.randint(key, games.shape, 0, jnp.maximum(games, 1))[:, None]
    ends = (jnp.cumsum(pairs.counts, axis=-1) * kept[:, None] + start) // jnp.maximum(games, 1)[:, None]
    thinned = jnp.diff(ends, axis=-1, prepend=0)
    return jnp.where((games > most)[:, None], thinned, pairs.counts)


def in_order(counts: jax.Array, most: int) -> jax.Array:
    """The order in which games are rated: mixed as evenly as their counts allow.

    Args:
      counts: `[P, 3]` int32 wins, draws, losses, together at most `most`.
      most: rounds R.

    Returns:
      `[R, P]` int32, WIN, DRAW, LOSS or NO_GAME: in each round the outcome that is most behind its share.
    """
    games = jnp.sum(counts, axis=-1, keepdims=True)

    def emit(used, k):
        claim = jnp.where(used < counts, counts * k - used * games, jnp.iinfo(jnp.int32).min)
        chosen = jnp.argmax(claim, axis=-1)
        now = k <= games[..., 0]
        used = used + (jax.nn.one_hot(chosen, 3, dtype=jnp.int32) * now[..., None])
        return used, jnp.where(now, chosen, NO_GAME)

    return jax.lax.scan(emit, jnp.zeros_like(counts), jnp.arange(1, most + 1))[1].astype(jnp.int32)


def rate_in_rounds(rate: Callable, rating: jax.Array, played: jax.Array) -> jax.Array:
    """Ratings `[n, D]` after games that are rated one by one, a game of each pair in every round.

    Args:
      rate: `(rating, turn, pair) -> rating`.
      rating: `[n, D]`.
      played: `[R, P]` bool; there is such a game.
    """
    # Most pairs have not met: their places are passed over, not walked through.
    places = jnp.argsort(~played.ravel(), stable=True)

    def one(number, rating):
        return rate(rating, *jnp.divmod(places[number], played.shape[1]))

    return jax.lax.fori_loop(0, jnp.sum(played), one, rating)


def rating_system(
    name: str, *, games_per_pair: int = 8, tau: float = 25.0 / 300.0, tau_frozen: float = 0.0
) -> RatingSystem:
    """The rating system called `name`.

    Args:
      name: one of `SYSTEMS`.
      games_per_pair: games of one update that count, per pair.
      tau, tau_frozen: TrueSkill: drift per game of those that learn, and of the others.
    """
    return SYSTEMS[name](games_per_pair, tau, tau_frozen)


def trueskill_system(games_per_pair: int, tau: float, tau_frozen: float) -> RatingSystem:
    """TrueSkill, one game after the other."""
    rules = TrueSkill()

    def update(key, rating, pairs, moves):
        drift = jnp.where(moves, tau, tau_frozen)
        outcomes = in_order(draw_outcomes(key, pairs, games_per_pair), games_per_pair)

        def rate(rating, turn, pair):
            i, k = pairs.first[pair], pairs.second[pair]
            ours, theirs = trueskill.rate_teams(
                rules, rating[i][None], rating[k][None], (drift[i], drift[k]), outcomes[turn, pair]
            )
            return rating.at[i].set(ours[0]).at[k].set(theirs[0])

        return rate_in_rounds(rate, rating, outcomes != NO_GAME)

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
    """Elo, one game after the other, each worth the mean score of its pair.

    In one period with many games a rating would move past the one at which these are expected.
    """
    del tau, tau_frozen
    rules = Elo()

    def update(key, rating, pairs, moves):
        del key, moves
        score, kept = pairs.score, jnp.minimum(pairs.games, games_per_pair)

        def rate(rating, turn, pair):
            i, k = pairs.first[pair], pairs.second[pair]
            ours, theirs = elo.rate_elo(rules, rating[i, 0], rating[k, 0], score[pair], 1.0)
            return rating.at[i, 0].set(ours).at[k, 0].set(theirs)

        return rate_in_rounds(rate, rating, jnp.arange(games_per_pair)[:, None] < kept)

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
    """Glicko-2: an update is one period; those without games keep their rating, unless they learn.

    A period's games are those that count, with the mean score of their pair. Volatilities and deviations
    change with the whole period. Ratings follow in rounds of a game per pair: all at once, the step of a
    rating and that of its opponent would together go past the one at which the games are expected.
    """
    del tau, tau_frozen
    rules = Glicko()

    def weigh(rating, pairs, number):
        """The evidence of `number [P]` games of the pairs about everybody."""
        n, points = rating.shape[0], pairs.score * number
        both = (pairs.first, pairs.second), (pairs.second, pairs.first)
        score, games = jnp.zeros((n, n)), jnp.zeros((n, n))
        for place, won in zip(both, (points, number - points), strict=True):
            score, games = score.at[place].add(won), games.at[place].add(number)
        return jax.vmap(elo.weigh_games, (0, None, 0, 0))(rating, rating, score, games)

    def update(key, rating, pairs, moves):
        del key
        kept = jnp.minimum(pairs.games, games_per_pair)
        whole = weigh(rating, pairs, kept.astype(jnp.float32))
        # Nobody is less certain than a new player, whatever surprise there was.
        most = jnp.array([jnp.inf, rules.deviation, rules.deviation / elo.SCALE])
        drifted = jnp.minimum(jax.vmap(elo.drift_rating)(rating, whole), most)

        def settle(turn, now):
            # The first game of each pair is weighed as by Glicko-2: before deviations have grown.
            seen = jnp.where(turn == 0, rating, now)
            evidence = weigh(seen, pairs, (turn < kept).astype(jnp.float32))
            return jax.vmap(elo.settle_rating)(now, evidence)

        rated = jax.lax.fori_loop(0, jnp.max(kept), settle, drifted)
        return jnp.where((moves | (whole.precision > 0))[:, None], rated, rating)

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
