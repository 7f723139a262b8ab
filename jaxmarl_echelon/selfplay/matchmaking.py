"""Matchmaking: opponent probabilities of a pool's entries by mode, and the draw.

Formulas: docs/reference/selfplay.md 3.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxmarl_echelon.selfplay.ratings import RatingSystem

EPSILON = 1e-10
MIRROR, EXPLORATION, COMMANDERS = "mirror", "exploration", "commanders"


class MatchmakingSettings(Protocol):
    """The settings of a pool that matchmaking reads; see `settings.PoolSettings`."""

    @property
    def weight(self) -> str:
        """See `PoolSettings`."""
        ...

    @property
    def power(self) -> float:
        """See `PoolSettings`."""
        ...

    @property
    def temperature(self) -> float | None:
        """See `PoolSettings`."""
        ...

    @property
    def normalise(self) -> str:
        """See `PoolSettings`."""
        ...

    @property
    def prior(self) -> str:
        """See `PoolSettings`."""
        ...

    @property
    def prior_games(self) -> float:
        """See `PoolSettings`."""
        ...

    @property
    def top(self) -> int:
        """See `PoolSettings`."""
        ...

    @property
    def recent(self) -> int:
        """See `PoolSettings`."""
        ...

    @property
    def lag_range(self) -> tuple[int, int]:
        """See `PoolSettings`."""
        ...

    @property
    def mixture(self) -> dict[str, float]:
        """See `PoolSettings`."""
        ...


class OpponentCandidates(NamedTuple):
    """Inputs of the matchmaking modes: facts about the entries `[n]`; entry 0 is the learner.

    Attributes:
      open: bool; may be drawn as an opponent: filled, and not the learner.
      snapshot: bool; a past state of a learner.
      lag: int32 age in snapshots, 1 for the newest; undefined for other entries.
      distance: float32 rating of the learner minus that of the entry.
      quality: float32 match quality in [0, 1].
      payoff: float32 score in [0, 1] of the learner against the entry.
      games: float32 games of the learner against the entry.
      lower: float32 lower bound of the entry's rating.
      distinct: float32 share of distinct 2-grams of moves in the games against the entry.
      scale: rating difference that separates two classes of strength.
      commander: bool; a promoted snapshot. None without promotions.
    """

    open: jax.Array
    snapshot: jax.Array
    lag: jax.Array
    distance: jax.Array
    quality: jax.Array
    payoff: jax.Array
    games: jax.Array
    lower: jax.Array
    distinct: jax.Array
    scale: float
    commander: jax.Array | None = None


def compute_payoffs(
    settings: MatchmakingSettings, score: jax.Array, games: jax.Array, expected: jax.Array
) -> jax.Array:
    """Computes scores `[...]` in [0, 1] from points and games, by default with the expected score as a prior.

    Without the prior, the score of a pair without games is 1/2.
    """
    if settings.prior == "none":
        return jnp.where(games > 0, score / jnp.maximum(games, EPSILON), 0.5)
    return (score + settings.prior_games * expected) / (games + settings.prior_games)


def make_candidates(
    settings: MatchmakingSettings,
    system: RatingSystem,
    rating: jax.Array,
    points: jax.Array,
    games: jax.Array,
    kinds: tuple[jax.Array, jax.Array],
    lag: jax.Array,
    distinct: jax.Array,
    commander: jax.Array | None = None,
) -> OpponentCandidates:
    """Builds the candidates of a pool.

    Args:
      settings: the pool's settings.
      system: the pool's rating system.
      rating: `[n, D]`.
      points, games: `[n]` float32 of the learner against each entry.
      kinds: two bool arrays `[n]`: may be drawn; is a snapshot.
      lag: `[n]` int32.
      distinct: `[n]` float32 diversity of the games against each entry; see `OpponentCandidates`.
      commander: `[n]` bool; None without promotions.
    """
    expected = system.expected(rating[0], rating)
    return OpponentCandidates(
        open=kinds[0],
        snapshot=kinds[1],
        lag=lag,
        distance=rating[0, 0] - rating[:, 0],
        quality=system.quality(rating[0], rating),
        payoff=compute_payoffs(settings, points, games, expected),
        games=games,
        lower=system.lower(rating),
        distinct=distinct,
        scale=system.scale,
        commander=commander,
    )


def mixture_probabilities(settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    """Returns the opponent probabilities `[n]` in the groups without mirror play; they sum to 1."""
    parts = {name: share for name, share in settings.mixture.items() if name != MIRROR}
    total = sum(parts.values())
    shares = {name: share / total for name, share in parts.items()} if total else {"random": 1.0}
    return sum(share * mode_probabilities(settings, name, entries) for name, share in shares.items())


def mode_probabilities(settings: MatchmakingSettings, mode: str, entries: OpponentCandidates) -> jax.Array:
    """Returns the probabilities `[n]` of one mode; uniform over all candidates if its weights vanish."""
    return normalise_weights(WEIGHTS[mode](settings, entries), entries.open)


def normalise_weights(weights: jax.Array, among: jax.Array) -> jax.Array:
    """Normalises weights `[n]` over the entries `among [n]`; uniform if all weights vanish.

    All 0 if `among` is empty.
    """
    weights = jnp.where(among, weights, 0.0)
    total = jnp.sum(weights)
    even = among / jnp.maximum(jnp.sum(among), 1)
    return jnp.where(total < EPSILON, even, weights / jnp.maximum(total, EPSILON))


def pfsp_weights(payoff: jax.Array, weight: str, power: float) -> jax.Array:
    """Returns the weights `[n]` of prioritised fictitious self-play (PFSP); see `PoolSettings.weight`."""
    return {
        "hard": lambda: (1.0 - payoff) ** power,
        "var": lambda: payoff * (1.0 - payoff),
        "linear": lambda: 1.0 - payoff,
        "capped": lambda: jnp.minimum(0.5, 1.0 - payoff),
    }[weight]()


def _fixed(_settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    return jnp.where(entries.snapshot, 0.0, 1.0)


def _recent_snapshots(settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    first, last = settings.lag_range
    recent = entries.snapshot & (entries.lag >= first) & (entries.lag <= last)
    lag = jnp.where(entries.snapshot & entries.open, entries.lag, jnp.iinfo(jnp.int32).max)
    newest = entries.snapshot & (lag == jnp.min(lag))
    return jnp.where(jnp.any(recent & entries.open), recent, newest).astype(jnp.float32)


def _random(_settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    return jnp.ones_like(entries.payoff)


def _quality(settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    if settings.normalise == "plain":
        return entries.quality
    return _softmax(settings, entries, entries.quality, 0.1)


def _distance(settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    distance = jnp.abs(entries.distance)
    if settings.normalise == "plain":
        total = jnp.sum(jnp.where(entries.open, distance, 0.0))
        return jnp.where(total > 0, 1.0 - distance / jnp.maximum(total, EPSILON), 1.0)
    return _softmax(settings, entries, -distance, entries.scale)


def _pfsp(settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    if settings.weight == "gaussian":
        return jnp.exp(-0.5 * (entries.distance / entries.scale) ** 2)
    return pfsp_weights(entries.payoff, settings.weight, settings.power)


def ucb_values(entries: OpponentCandidates) -> jax.Array:
    """Returns an upper confidence bound `[n]` of each opponent's training value."""
    total = jnp.sum(jnp.where(entries.open, entries.games, 0.0))
    bonus = jnp.sqrt(jnp.log1p(total) / (1.0 + entries.games))
    return 1.0 - jnp.abs(2.0 * entries.payoff - 1.0) + bonus


def _ucb(settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    return _softmax(settings, entries, ucb_values(entries), 0.1)


def _exploration(settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    return _softmax(settings, entries, entries.distinct, 0.1)


def _top(settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    past = entries.snapshot & entries.open
    return top_k_mask(past, entries.lower, settings.top).astype(jnp.float32)


def top_k_mask(among: jax.Array, value: jax.Array, number: int) -> jax.Array:
    """Masks `[n]` the `number` highest of `value [n]` over the entries `among [n]`, including ties."""
    ahead = among & (value > value[:, None])
    return among & (jnp.sum(ahead, axis=1) < number)


def _commanders(settings: MatchmakingSettings, entries: OpponentCandidates) -> jax.Array:
    past = entries.snapshot & entries.open
    best = top_k_mask(past & entries.commander, -entries.distance, settings.top)
    newest = top_k_mask(past & ~entries.commander, -entries.lag, settings.recent)
    return (best | newest | ~entries.snapshot).astype(jnp.float32)


def _softmax(
    settings: MatchmakingSettings, entries: OpponentCandidates, values: jax.Array, usual: float
) -> jax.Array:
    temperature = usual if settings.temperature is None else settings.temperature
    highest = jnp.max(jnp.where(entries.open, values, -jnp.inf))
    highest = jnp.where(jnp.isfinite(highest), highest, 0.0)
    return jnp.exp(jnp.minimum((values - highest) / temperature, 0.0))


WEIGHTS: Mapping[str, Callable] = {
    "fixed": _fixed,
    "lagged": _recent_snapshots,
    "random": _random,
    "match-quality": _quality,
    "ts-dist": _distance,
    "pfsp": _pfsp,
    "ucb": _ucb,
    EXPLORATION: _exploration,
    "top": _top,
    COMMANDERS: _commanders,
}
# Values of `pool.mode`; mirror play has no opponent to draw.
MODES = (MIRROR, *WEIGHTS)


def systematic_sample(chances: jax.Array, points: jax.Array) -> jax.Array:
    """Selects the entries `[m]` at the points `[m]` in (0, 1) of the cumulative probabilities `[n]`.

    Entries of probability 0 are never selected.
    """
    cumulated = jnp.cumsum(chances)
    found = jnp.searchsorted(cumulated / cumulated[-1], points, side="left")
    last = chances.shape[0] - 1 - jnp.argmax(chances[::-1] > 0)
    return jnp.minimum(found, last).astype(jnp.int32)


def draw_opponents(key: jax.Array, chances: jax.Array, due: jax.Array) -> jax.Array:
    """Draws opponents `[G]` for the groups `due [G]` by systematic sampling; undefined for other groups.

    Each opponent gets its share of the groups, rounded down or up; the assignment to groups is random.
    """
    key_place, key_order = jax.random.split(key)
    order = jnp.where(due, jax.random.uniform(key_order, due.shape), 2.0)
    rank = jnp.argsort(jnp.argsort(order))
    start = jax.random.uniform(key_place, minval=jnp.finfo(jnp.float32).tiny)
    return systematic_sample(chances, (rank + start) / jnp.maximum(jnp.sum(due), 1))
