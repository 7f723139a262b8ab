"""What a pool tells about itself after every update."""

import jax
import jax.numpy as jnp

from algos import collectives
from jaxmarl_echelon.envs.results import ratio
from jaxmarl_echelon.envs.spaces import Discrete, MultiDiscrete
from jaxmarl_echelon.envs.trees import masked_mean
from jaxmarl_echelon.selfplay import diversity, league
from jaxmarl_echelon.selfplay import pool as pool_lib
from jaxmarl_echelon.selfplay.diversity import Plays
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


def metrics(pool: Pool, state: PoolState) -> dict[str, jax.Array]:
    """Scalars `pool/...`; entropies in nats, ages in snapshots.

    `rating_minus_anchor` is there only where the initial policy is kept. `opponent_age` is NaN while no
    snapshot is drawn. `worst_payoff` is the learner's lowest score in [0, 1] among entries that it has met,
    NaN without any. Where snapshots are promoted, also the number of commanders. In a league also, by the
    learner's name: its rating, the score that decides on its next snapshot, updates since the last one, and
    how often it has begun anew.
    """
    chances = pool_lib.chances(pool, state)
    entries = pool_lib.candidates(pool, state)
    filled = entries.open
    met = filled & (entries.games > 0)
    plain = jnp.where(met, state.points[0] / jnp.maximum(state.games[0], 1e-10), jnp.inf)
    worst = jnp.min(plain)
    past = jnp.where(entries.snapshot, chances, 0.0)
    age = ratio(jnp.sum(past * entries.lag), jnp.sum(past))
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
        "worst_payoff": league.worst(pool_lib.standing(pool, state), settings.roles, member),
        "waited": state.waited,
        "resets": state.league.resets,
    }
    return {
        f"pool/{settings.learner_name(number)}/{name}": values[number]
        for name, values in league.gathered(told).items()
        for number in range(settings.learners)
    }


def exploration(plays: Plays, space: Discrete | MultiDiscrete) -> dict[str, jax.Array]:
    """Shares of distinct n-grams of moves, n = 1 to 4, as means over entries that were met; NaN of none."""
    met, moves = collectives.sum(plays.written) > 0, diversity.number_of(space)

    def mean(n):
        return masked_mean(diversity.distinct(plays, moves, n), met)

    return {f"pool/exploration/unique_{n}_grams": mean(n) for n in diversity.GRAMS}


def rows(pool: Pool, state: PoolState) -> dict[str, jax.Array]:
    """A row per entry, columns `[n]`.

    `kind` is one of `KINDS`; `score` is the learner's decayed score against it, NaN before they have met;
    `expected` what ratings expect of the learner, and `quality` the quality of the match, in [0, 1]; `share`
    its probability as opponent; `groups` how many play it next, of single environments where each draws its
    own.
    """
    met = state.games[0] > 0
    slots = jnp.sum(state.slots[:, None] == jnp.arange(state.kind.shape[0]), axis=0)
    return {
        "kind": kinds(state),
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
        "share": pool_lib.chances(pool, state),
        "groups": slots,
    }


def kinds(state: PoolState) -> jax.Array:
    """`[n]` int32 of `KINDS`; snapshots as candidates and commanders where some are promoted."""
    if state.commander is None:
        return state.kind
    return jnp.where(
        state.kind == SNAPSHOT, jnp.where(state.commander, COMMANDER, CANDIDATE), state.kind
    ).astype(jnp.int32)
