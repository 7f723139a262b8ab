"""Update of the pools of a league's learners: common ratings, snapshots and resets.

All functions handle one learner and are traced inside a map over all learners along `league.AXIS`. See
docs/reference/selfplay.md 4.
"""

import jax
import jax.numpy as jnp

from algos.masks import select_rows
from algos.types import PyTree
from jaxmarl_echelon.selfplay import eviction, league
from jaxmarl_echelon.selfplay import pool as pool_lib
from jaxmarl_echelon.selfplay.league import gather_learners
from jaxmarl_echelon.selfplay.pool import SNAPSHOT, Pool, PoolState
from jaxmarl_echelon.selfplay.ratings import PairResults, RankedGames


def update_league_pool(
    pool: Pool,
    state: PoolState,
    key: jax.Array,
    counts: jax.Array,
    policy: PyTree,
    games: RankedGames | None = None,
    points: jax.Array | None = None,
) -> tuple[PoolState, jax.Array]:
    """Updates the pool of a league's learner after its learning; arguments as for `pool.update_pool_state`.

    Returns:
      the pool, and whether the learner is reset to its initial weights.
    """
    settings = pool.settings
    key_draw, key_reset, key_games = jax.random.split(key, 3)
    changes = pool_lib.groups_due_for_change(pool, state.updates)
    member, first = state.league.member, settings.learners
    common = league.common_numbering(settings.entries, member)
    if games is not None:
        games = games._replace(entries=common[games.entries])
    scores = None if points is None else points[common]
    rating = rate_league(key_games, pool, state.rating[common], counts[common], games, scores)
    state = pool_lib.record_ratings(pool, state, counts, rating[common], points)

    # Slots have the same index for all learners; a slot is in use if any learner plays it.
    held = jnp.any(gather_learners(pool_lib.entries_in_use(state, changes)), axis=0)
    own_first = first + member * settings.capacity
    place, found = eviction.choose_slot(settings.evict, pool_lib.eviction_slots(pool, state, held, own_first))
    score = league.worst_score(pool_lib.league_view(pool, state), settings.roles, member)
    takes = found & league.ready_for_snapshot(score, state.waited, settings.snapshot_every)
    resets = takes & league.should_reset(key_reset, jnp.array(settings.roles)[member])
    state = record_snapshots(pool, state, rating, takes, own_first + place, resets)
    bank = jax.tree.map(
        lambda x, y: jnp.where(takes, x.at[place].set(y), x),
        state.bank,
        pool_lib.to_bank_precision(settings, policy),
    )
    membership = state.league.replace(resets=state.league.resets + resets)
    state = state.replace(bank=bank, league=membership)
    return pool_lib.redraw_opponents(pool, state, key_draw, changes), resets


def rate_league(
    key: jax.Array,
    pool: Pool,
    rating: jax.Array,
    counts: jax.Array,
    games: RankedGames | None = None,
    points: jax.Array | None = None,
) -> jax.Array:
    """Returns ratings `[n, D]` after the games of all learners, in the common numbering.

    Args:
      key: for the choice of rated games; all learners use the key of the first.
      pool: the pool.
      rating: `[n, D]` before the games, equal for all learners.
      counts: `[n, 3]` int32 wins, draws and losses of this learner against each entry.
      games: this learner's games of more than two seats; None for two-seat games.
      points: `[n]` float32, see `ratings.PairResults`; None if scores follow from `counts`.
    """
    entries, learners = pool.settings.entries, pool.settings.learners
    everybody = gather_learners((rating, counts, games, points))
    first, second = jnp.divmod(jnp.arange(learners * entries), entries)
    moves = jnp.arange(entries) < learners
    scores = None if points is None else everybody[3].reshape(-1)
    pairs = PairResults(first, second, everybody[1].reshape(-1, 3), scores)
    joined = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), everybody[2])
    common_key = jax.random.wrap_key_data(gather_learners(jax.random.key_data(key))[0])
    return pool.system.after(common_key, everybody[0][0], pairs, moves, joined)


def record_snapshots(
    pool: Pool, state: PoolState, rating: jax.Array, takes: jax.Array, entry: jax.Array, resets: jax.Array
) -> PoolState:
    """Updates the tables (all but the bank) for the snapshots and resets of all learners.

    Args:
      pool: the pool.
      state: its state.
      rating: `[n, D]` in the common numbering.
      takes: bool; whether this learner takes a snapshot.
      entry: int32 entry of that snapshot.
      resets: bool; whether this learner is reset.
    """
    learners, n = pool.settings.learners, pool.settings.entries
    common = league.common_numbering(n, state.league.member)
    all_take, entries, anew = gather_learners((takes, entry, resets))
    number = state.taken + jnp.cumsum(all_take) - all_take

    def filled(x, values):
        return x.at[entries].set(select_rows(all_take, values, x[entries]))

    rating = filled(rating, jax.vmap(pool.system.snapshot_rating)(rating[:learners]))
    anew = jnp.zeros(n, bool).at[:learners].set(anew)
    rating = jnp.where(anew[:, None], jnp.array(pool.system.prior, jnp.float32), rating)
    fresh = filled(anew, True)[common]
    stale = fresh[:, None] | fresh[None]
    tables = {
        name: jnp.where(stale, 0, getattr(state, name)) for name in ("wins", "draws", "points", "games")
    }
    return state.replace(
        **tables,
        kind=filled(state.kind, SNAPSHOT),
        iteration=filled(state.iteration, number),
        rating=rating[common],
        taken=state.taken + jnp.sum(all_take),
        waited=jnp.where(takes, 0, state.waited),
        played=jnp.where(takes, 0, state.played),
    )
