"""A rated pool of past policies as arrays: snapshots, counts, ratings, and whom each group plays.

Entry 0 is the learner, entries 1 to K are the bank's slots, the rest are fixed opponents without parameters
here. Everything is a pure function of `PoolState`, which is part of the run's state. Source: spec section 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.selfplay import eviction, matchmaking
from jaxmarl_echelon.selfplay.ratings import DRAW, LOSS, WIN, RatingSystem, rating_system
from jaxmarl_echelon.selfplay.settings import PoolSettings

PyTree = Any

EMPTY, LEARNER, SNAPSHOT, FIXED = range(4)
NONE = -1


@struct.dataclass
class PoolState:
    """A pool of n entries with a bank of K slots, met by G groups.

    Attributes:
      bank: policy states, leaves `[K, ...]`.
      kind: `[n]` int32: `EMPTY`, `LEARNER`, `SNAPSHOT` or `FIXED`.
      pinned: `[n]` bool; never evicted.
      iteration: `[n]` int32 number of the snapshot; -1 for others.
      rating: `[n, D]` float32, see `ratings.RatingSystem`.
      wins: `[n, n]` int32; games that the row's entry won against the column's, since both are there.
      draws: `[n, n]` int32, symmetric.
      points, games: `[n, n]` float32 scores and games, decayed from update to update.
      distinct: `[n]` float32 share of distinct 2-grams of moves in the games against each; None where nobody
        asks.
      slots: `[G]` int32 entries that the groups play; only of those that do not mirror.
      taken: int32, snapshots so far.
      waited: int32, updates since the last snapshot.
      played: int32, rated games since the last snapshot.
      updates: int32, updates so far.
    """

    bank: PyTree
    kind: jax.Array
    pinned: jax.Array
    iteration: jax.Array
    rating: jax.Array
    wins: jax.Array
    draws: jax.Array
    points: jax.Array
    games: jax.Array
    distinct: jax.Array | None
    slots: jax.Array
    taken: jax.Array
    waited: jax.Array
    played: jax.Array
    updates: jax.Array


class Pool(NamedTuple):
    """The static parts of a pool.

    Attributes:
      settings: its settings.
      system: its rating system.
      hold: updates for which a group keeps its opponent.
      own: whether the learner that plays against the bank is the one whose past is in it; otherwise a
        snapshot inherits the rating of the last one.
    """

    settings: PoolSettings
    system: RatingSystem
    hold: int
    own: bool = True

    @property
    def rivals(self) -> int:
        """Groups that play an opponent instead of the learner."""
        return self.settings.groups - self.settings.mirrored


def make_pool(settings: PoolSettings, episode_limit: int, horizon: int, *, own: bool = True) -> Pool:
    """The pool of a run with rollouts of `horizon` decisions; `own` as in `Pool`."""
    system = rating_system(
        settings.rating, games_per_pair=settings.games_per_pair, tau_frozen=settings.tau_frozen
    )
    return Pool(settings, system, settings.held(episode_limit, horizon), own)


def init(pool: Pool, key: jax.Array, policy: PyTree) -> PoolState:
    """A pool with the initial policy in its first slot, and opponents for all groups.

    Args:
      pool: the pool.
      key: for the first draw.
      policy: state of the learner's policy, what acting needs of it.
    """
    settings, n = pool.settings, pool.settings.entries
    capacity = settings.capacity
    entry = jnp.arange(n)
    fixed = entry > capacity
    kind = jnp.select([entry == 0, entry == 1, fixed], [LEARNER, SNAPSHOT, FIXED], EMPTY)
    bank = jax.tree.map(
        lambda x: jnp.zeros((capacity, *x.shape), x.dtype).at[0].set(x), stored(settings, policy)
    )
    state = PoolState(
        bank=bank,
        kind=kind.astype(jnp.int32),
        pinned=fixed | ((entry == 1) & (settings.anchor == "initial")),
        iteration=jnp.where(entry == 1, 0, NONE),
        rating=jnp.tile(jnp.array(pool.system.prior, jnp.float32), (n, 1)),
        wins=jnp.zeros((n, n), jnp.int32),
        draws=jnp.zeros((n, n), jnp.int32),
        points=jnp.zeros((n, n), jnp.float32),
        games=jnp.zeros((n, n), jnp.float32),
        distinct=jnp.ones(n) if settings.explores else None,
        slots=jnp.ones(pool.rivals, jnp.int32),
        taken=jnp.int32(1),
        waited=jnp.int32(0),
        played=jnp.int32(0),
        updates=jnp.int32(0),
    )
    return redraw(pool, state, key, jnp.ones(pool.rivals, bool))


def stored(settings: PoolSettings, policy: PyTree) -> PyTree:
    """A policy's state as the bank holds it."""
    if settings.store == "float32":
        return policy
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, policy)


def policies(state: PoolState, like: PyTree) -> PyTree:
    """The policies `[G, ...]` that the groups play; of groups with a fixed opponent, those of any slot."""
    slot = jnp.clip(state.slots - 1, 0, jax.tree.leaves(state.bank)[0].shape[0] - 1)
    return jax.tree.map(lambda x, y: x[slot].astype(y.dtype), state.bank, like)


def due(pool: Pool, updates: jax.Array) -> jax.Array:
    """`[G]` bool; groups whose opponent changes after the update number `updates`, from 0."""
    return jnp.arange(pool.rivals) % pool.hold == updates % pool.hold


def after_update(
    pool: Pool, state: PoolState, key: jax.Array, counts: jax.Array, policy: PyTree
) -> PoolState:
    """Everything that happens after learning: counts, ratings, decay, snapshot, opponents of groups.

    Args:
      pool: the pool.
      state: its state, as it was in the rollout.
      key: for the draw of opponents.
      counts: `[n, 3]` int32 games of the learner that ended, as its wins, draws and losses.
      policy: state of the policy that may become a snapshot, after learning.
    """
    changes = due(pool, state.updates)
    state = counted(state, counts)
    entries = jnp.arange(1, pool.settings.entries)
    rating = pool.system.update(
        state.rating, jnp.zeros_like(entries), entries, counts[1:], state.kind == LEARNER
    )
    decay = pool.settings.decay
    state = state.replace(
        rating=rating,
        points=state.points * decay,
        games=state.games * decay,
        waited=state.waited + 1,
        played=state.played + jnp.sum(counts[1:]),
        updates=state.updates + 1,
    )
    place, found = eviction.choose(pool.settings.evict, _bank(pool, state, changes))
    takes = found & wanted(pool, state)
    state = jax.lax.cond(
        takes, lambda state: snapshot(pool, state, place, policy), lambda state: state, state
    )
    return redraw(pool, state, key, changes)


def counted(state: PoolState, counts: jax.Array) -> PoolState:
    """The state with `counts [n, 3]` of the learner's games added."""
    score = counts[:, WIN] + 0.5 * counts[:, DRAW]
    number = jnp.sum(counts, axis=1).astype(jnp.float32)
    return state.replace(
        wins=state.wins.at[0].add(counts[:, WIN]).at[:, 0].add(counts[:, LOSS]),
        draws=state.draws.at[0].add(counts[:, DRAW]).at[:, 0].add(counts[:, DRAW]),
        points=state.points.at[0].add(score).at[:, 0].add(number - score),
        games=state.games.at[0].add(number).at[:, 0].add(number),
    )


def wanted(pool: Pool, state: PoolState) -> jax.Array:
    """Whether a snapshot is due and its gate open."""
    settings = pool.settings
    due_now = state.waited >= settings.snapshot_every
    if settings.gate == "always":
        return due_now
    if settings.gate == "rated":
        sure = pool.system.deviation(state.rating)[0] <= settings.gate_sigma
        return due_now & sure & (state.played >= settings.gate_games)
    last = newest(state)
    won, lost, drawn = state.wins[0, last], state.wins[last, 0], state.draws[0, last]
    games = won + lost + drawn
    better = won + 0.5 * drawn >= settings.gate_payoff * games
    late = state.waited >= settings.gate_timeout
    return due_now & (late | (better & (games >= settings.gate_games)))


def newest(state: PoolState) -> jax.Array:
    """The entry of the newest snapshot."""
    return jnp.argmax(jnp.where(state.kind == SNAPSHOT, state.iteration, NONE - 1))


def snapshot(pool: Pool, state: PoolState, place: jax.Array, policy: PyTree) -> PoolState:
    """The state with a policy in slot `place`, which inherits the rating of its parent."""
    entry = place + 1
    parent = 0 if pool.own else newest(state)

    def clear(table):
        return table.at[entry].set(0).at[:, entry].set(0)

    return state.replace(
        bank=jax.tree.map(lambda x, y: x.at[place].set(y), state.bank, stored(pool.settings, policy)),
        kind=state.kind.at[entry].set(SNAPSHOT),
        iteration=state.iteration.at[entry].set(state.taken),
        rating=state.rating.at[entry].set(pool.system.heir(state.rating[parent])),
        wins=clear(state.wins),
        draws=clear(state.draws),
        points=clear(state.points),
        games=clear(state.games),
        distinct=None if state.distinct is None else state.distinct.at[entry].set(1.0),
        taken=state.taken + 1,
        waited=jnp.int32(0),
        played=jnp.int32(0),
    )


def payoff(pool: Pool, state: PoolState) -> jax.Array:
    """Score `[n, n]` in [0, 1] of the row's entry against the column's."""
    expected = pool.system.expected(state.rating[:, None], state.rating[None])
    return matchmaking.payoffs(pool.settings, state.points, state.games, expected)


def candidates(pool: Pool, state: PoolState) -> matchmaking.Candidates:
    """What matchmaking knows of the entries."""
    past = state.kind == SNAPSHOT
    return matchmaking.candidates(
        pool.settings,
        pool.system,
        state.rating,
        state.points[0],
        state.games[0],
        (past | (state.kind == FIXED), past),
        state.taken - state.iteration,
        jnp.ones(state.kind.shape) if state.distinct is None else state.distinct,
    )


def chances(pool: Pool, state: PoolState) -> jax.Array:
    """Probabilities `[n]` of the opponents."""
    return matchmaking.mix(pool.settings, candidates(pool, state))


def redraw(pool: Pool, state: PoolState, key: jax.Array, changes: jax.Array) -> PoolState:
    """The state with new opponents for the groups `changes [G]`."""
    if not pool.rivals:
        return state
    drawn = matchmaking.draw(key, chances(pool, state), changes)
    return state.replace(slots=jnp.where(changes, drawn, state.slots))


def _bank(pool: Pool, state: PoolState, changes: jax.Array) -> eviction.Slots:
    slots = slice(1, 1 + pool.settings.capacity)
    held = jnp.zeros(state.kind.shape, bool).at[jnp.where(changes, 0, state.slots)].set(True)
    filled = state.kind[slots] == SNAPSHOT
    return eviction.Slots(
        iteration=state.iteration[slots],
        filled=filled,
        free=filled & ~state.pinned[slots] & ~held[slots],
        lower=pool.system.lower(state.rating)[slots],
        tried=jnp.sum(state.wins + state.wins.T + state.draws, axis=1)[slots] >= pool.settings.evict_games,
        payoff=payoff(pool, state)[slots],
        met=state.games[slots] > 0,
        now=state.taken,
    )
