"""Ratings of a pool's entries from integer counts of games per pair.

A rating system is a set of pure functions with a common interface. Counts are sums over time, environments
and devices, and games are rated in a fixed order, so ratings are bit-identical for any order of environments
and any distribution over devices. See docs/reference/selfplay.md 2.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.selfplay import elo, trueskill
from jaxmarl_echelon.selfplay.elo import EloSettings, GlickoSettings
from jaxmarl_echelon.selfplay.trueskill import TrueSkillSettings

WIN, DRAW, LOSS = range(3)
NO_GAME = -1


class RankedGames(NamedTuple):
    """Finished games of more than two seats; one entry may have several seats.

    Attributes:
      entries: `[G, N]` int32 entry at each seat.
      ranks: `[G, N]` int32 ranks of the seats' final scores; lower is better, equal scores draw.
      mask: `[G]` bool; the row is a game between at least two entries.
    """

    entries: jax.Array
    ranks: jax.Array
    mask: jax.Array


class PairResults(NamedTuple):
    """Results of one update's games between P pairs of entries.

    Attributes:
      first, second: `[P]` int32 entries.
      counts: `[P, 3]` int32 games won, drawn and lost by the first.
      points: `[P]` float32 sum of the first one's scores in [0, 1], for games with graded scores; None if the
        scores follow from `counts`.
    """

    first: jax.Array
    second: jax.Array
    counts: jax.Array
    points: jax.Array | None = None

    @property
    def games(self) -> jax.Array:
        """Number of games `[P]`, int32."""
        return jnp.sum(self.counts, axis=-1)

    @property
    def score(self) -> jax.Array:
        """Mean score `[P]` of the first, float32; 0 without games."""
        points = self.counts[:, WIN] + 0.5 * self.counts[:, DRAW] if self.points is None else self.points
        return points / jnp.maximum(self.games, 1)


class RatingSystem(NamedTuple):
    """A rating system as pure functions; `rating` is `[n, D]`, and its first column is the estimate.

    Attributes:
      prior: `[D]` rating of a new entry.
      update: `(key, rating, PairResults, moves) -> rating`: applies one update's results; `moves [n]` bool
        marks the entries whose skill drifts.
      expected: `(ours, theirs) -> [...]`, expected score.
      quality: `(ours, theirs) -> [...]`, match quality in [0, 1].
      snapshot_rating: `(row) -> row`, rating of a new snapshot of an entry.
      lower: `(rating) -> [n]`, lower bound of the estimates.
      scale: rating difference that separates two classes of strength.
      deviation: `(rating) -> [n]`, uncertainty of the estimates; 0 for systems without one.
      rank: `(rating, RankedGames, moves) -> rating`: applies games of more than two seats by their ranks;
        None for systems that rate pairs only.
    """

    prior: tuple[float, ...]
    update: Callable
    expected: Callable
    quality: Callable
    snapshot_rating: Callable
    lower: Callable
    scale: float
    deviation: Callable
    rank: Callable | None = None

    def after(
        self,
        key: jax.Array,
        rating: jax.Array,
        pairs: PairResults,
        moves: jax.Array,
        games: RankedGames | None,
    ) -> jax.Array:
        """Returns ratings `[n, D]` after an update, by `games` if given and supported, else by `pairs`."""
        if games is None or self.rank is None:
            return self.update(key, rating, pairs, moves)
        return self.rank(rating, games, moves)


def draw_outcomes(key: jax.Array, pairs: PairResults, most: int) -> jax.Array:
    """Samples wins, draws and losses `[P, 3]`, int32, of at most `most` games per pair, without bias.

    If a pair has more games, each outcome keeps its share of `most`, rounded up or down at random such that
    the expected counts are exactly proportional. Points, if given, are converted to wins and losses in the
    same way.
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


def interleave_outcomes(counts: jax.Array, most: int) -> jax.Array:
    """Orders the outcomes of each pair for rating, interleaved as evenly as possible.

    Args:
      counts: `[P, 3]` int32 wins, draws, losses; their sum is at most `most`.
      most: number R of rounds.

    Returns:
      `[R, P]` int32, WIN, DRAW, LOSS or NO_GAME: in each round the outcome furthest behind its share.
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
    """Returns ratings `[n, D]` after games rated one by one, one game of each pair per round.

    Args:
      rate: `(rating, turn, pair) -> rating`.
      rating: `[n, D]`.
      played: `[R, P]` bool; the pair has a game in this round.
    """
    # Sorted, so that the loop visits only existing games: most pairs have none.
    places = jnp.argsort(~played.ravel(), stable=True)

    def one(number, rating):
        return rate(rating, *jnp.divmod(places[number], played.shape[1]))

    return jax.lax.fori_loop(0, jnp.sum(played), one, rating)


def rating_system(
    name: str, *, games_per_pair: int = 8, tau: float = 25.0 / 300.0, tau_frozen: float = 0.0
) -> RatingSystem:
    """Builds a rating system by name.

    Args:
      name: one of `SYSTEMS`.
      games_per_pair: maximum number of rated games per pair and update.
      tau, tau_frozen: TrueSkill only: skill drift per game of learning entries, and of all others.
    """
    return SYSTEMS[name](games_per_pair, tau, tau_frozen)


def trueskill_system(games_per_pair: int, tau: float, tau_frozen: float) -> RatingSystem:
    """Builds TrueSkill, which rates games one after the other."""
    rules = TrueSkillSettings()

    def update(key, rating, pairs, moves):
        drift = jnp.where(moves, tau, tau_frozen)
        outcomes = interleave_outcomes(draw_outcomes(key, pairs, games_per_pair), games_per_pair)

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
        expected=lambda ours, theirs: trueskill.trueskill_expected(rules, ours, theirs),
        quality=lambda ours, theirs: trueskill.trueskill_quality(rules, ours, theirs),
        snapshot_rating=lambda row: row.at[1].set(jnp.minimum(rules.sigma, 2.0 * row[1])),
        lower=lambda rating: rating[:, 0] - 3.0 * rating[:, 1],
        scale=rules.beta,
        deviation=lambda rating: rating[:, 1],
    )


def elo_system(games_per_pair: int, tau: float, tau_frozen: float) -> RatingSystem:
    """Builds Elo, which rates games one after the other, each with the mean score of its pair.

    A single step with many games would overshoot the rating at which their score is expected.
    """
    del tau, tau_frozen
    rules = EloSettings()

    def update(key, rating, pairs, moves):
        del key, moves
        score, kept = pairs.score, jnp.minimum(pairs.games, games_per_pair)

        def rate(rating, _turn, pair):
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
        snapshot_rating=lambda row: row,
        lower=lambda rating: rating[:, 0],
        scale=200.0,
        deviation=lambda rating: rating[:, 1],
    )


def glicko_system(games_per_pair: int, tau: float, tau_frozen: float) -> RatingSystem:
    """Builds Glicko-2: an update is one rating period; entries without games are unchanged unless they learn.

    A period contains the rated games, each with the mean score of its pair. Volatility and deviation growth
    use the whole period. Ratings are updated in rounds of one game per pair, because simultaneous steps of
    both opponents would overshoot the rating difference at which the score is expected.
    """
    del tau, tau_frozen
    rules = GlickoSettings()

    def weigh(rating, pairs, number):
        """Evidence about all entries from `number [P]` games of each pair."""
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
        # The uncertainty never exceeds that of a new player.
        most = jnp.array([jnp.inf, rules.deviation, rules.deviation / elo.SCALE])
        drifted = jnp.minimum(jax.vmap(elo.drift_rating)(rating, whole), most)

        def settle(turn, now):
            # As in Glicko-2, the first game of each pair uses the deviations before their growth.
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
        snapshot_rating=lambda row: row.at[1].set(jnp.minimum(rules.deviation, 2.0 * row[1])),
        lower=lambda rating: rating[:, 0] - 2.0 * rating[:, 1],
        scale=200.0,
        deviation=lambda rating: rating[:, 1],
    )


SYSTEMS = {"trueskill": trueskill_system, "elo": elo_system, "glicko2": glicko_system}
