"""Metrics and tables of a pool after each update."""

import jax
import jax.numpy as jnp

from algos import collectives
from jaxmarl_echelon.envs.results import divide_or_empty
from jaxmarl_echelon.envs.spaces import Discrete, MultiDiscrete
from jaxmarl_echelon.envs.trees import mean_where
from jaxmarl_echelon.selfplay import diversity, league
from jaxmarl_echelon.selfplay import pool as pool_lib
from jaxmarl_echelon.selfplay.diversity import MoveHistory
from jaxmarl_echelon.selfplay.pool import EMPTY, FIXED, LEARNER, SNAPSHOT, Pool, PoolState

CANDIDATE, COMMANDER = FIXED + 1, FIXED + 2
KINDS = {
    EMPTY: "empty",
    LEARNER: "learner",
    SNAPSHOT: "snapshot",
    FIXED: "fixed",
    CANDIDATE: "candidate",
    COMMANDER: "commander",
}
PAST = ("snapshot", "candidate", "commander")


def pool_metrics(pool: Pool, state: PoolState) -> dict[str, jax.Array]:
    """Returns the scalars `pool/...`; entropies in nats, ages in snapshots.

    `rating_minus_anchor` exists only if the initial policy is kept. `opponent_age` is NaN if no snapshot can
    be drawn. `worst_payoff` is the learner's lowest score in [0, 1] among the entries it has played, NaN
    without games. With promotions, `commanders` is their number. A league adds for each learner, by name, its
    rating, the score that triggers its next snapshot, updates since the last snapshot, and resets so far.
    """
    chances = pool_lib.opponent_probabilities(pool, state)
    entries = pool_lib.matchmaking_candidates(pool, state)
    filled = entries.open
    met = filled & (entries.games > 0)
    plain = jnp.where(met, state.points[0] / jnp.maximum(state.games[0], 1e-10), jnp.inf)
    worst = jnp.min(plain)
    past = jnp.where(entries.snapshot, chances, 0.0)
    age = divide_or_empty(jnp.sum(past * entries.lag), jnp.sum(past))
    found = {} if state.league is None else _league(pool, state)
    if pool.settings.anchor == "initial":
        anchor = jnp.argmax(state.pinned)
        found["pool/rating_minus_anchor"] = state.rating[0, 0] - state.rating[anchor, 0]
    if state.commander is not None:
        found["pool/commanders"] = jnp.sum(state.commander)
    return found | {
        "pool/rating_mu": state.rating[0, 0],
        "pool/rating_sigma": pool.system.deviation(state.rating)[0],
        "pool/size": jnp.sum(filled),
        "pool/snapshots": state.taken,
        "pool/opponent_age": age,
        "pool/opponent_entropy": -jnp.sum(jnp.where(chances > 0, chances * jnp.log(chances), 0.0)),
        "pool/worst_payoff": jnp.where(jnp.isfinite(worst), worst, jnp.nan),
    }


def _league(pool: Pool, state: PoolState) -> dict[str, jax.Array]:
    settings, member = pool.settings, state.league.member
    told = {
        "rating_mu": state.rating[0, 0],
        "worst_payoff": league.worst_score(pool_lib.league_view(pool, state), settings.roles, member),
        "waited": state.waited,
        "resets": state.league.resets,
    }
    return {
        f"pool/{settings.learner_name(number)}/{name}": values[number]
        for name, values in league.gather_learners(told).items()
        for number in range(settings.learners)
    }


def exploration_metrics(plays: MoveHistory, space: Discrete | MultiDiscrete) -> dict[str, jax.Array]:
    """Returns mean shares of distinct n-grams of moves, n = 1 to 4, over the entries played; NaN if none."""
    met, moves = collectives.sum_over_shards(plays.written) > 0, diversity.action_count(space)

    def mean(n):
        return mean_where(diversity.distinct_ngram_share(plays, moves, n), met)

    return {f"pool/exploration/unique_{n}_grams": mean(n) for n in diversity.GRAMS}


def pool_rows(pool: Pool, state: PoolState) -> dict[str, jax.Array]:
    """Returns one row per entry, as columns `[n]`.

    `kind` is a key of `KINDS`; `score` is the learner's decayed score against the entry, NaN without games;
    `expected` is the learner's expected score by the ratings and `quality` the match quality, both in [0, 1];
    `share` is the entry's probability as opponent; `groups` is the number of groups that play it next (of
    environments, if opponents are drawn per episode).
    """
    met = state.games[0] > 0
    slots = jnp.sum(state.slots[:, None] == jnp.arange(state.kind.shape[0]), axis=0)
    return {
        "kind": entry_kinds(state),
        "iteration": state.iteration,
        "mu": state.rating[:, 0],
        "sigma": pool.system.deviation(state.rating),
        "lower": pool.system.lower(state.rating),
        "wins": state.wins[0],
        "draws": state.draws[0],
        "losses": state.wins[:, 0],
        "score": jnp.where(met, state.points[0] / jnp.where(met, state.games[0], 1.0), jnp.nan),
        "expected": pool.system.expected(state.rating[0], state.rating),
        "quality": pool.system.quality(state.rating[0], state.rating),
        "share": pool_lib.opponent_probabilities(pool, state),
        "groups": slots,
    }


def entry_kinds(state: PoolState) -> jax.Array:
    """Returns the kinds `[n]`, int32 keys of `KINDS`; with promotions, snapshots are split into two kinds."""
    if state.commander is None:
        return state.kind
    return jnp.where(
        state.kind == SNAPSHOT, jnp.where(state.commander, COMMANDER, CANDIDATE), state.kind
    ).astype(jnp.int32)
