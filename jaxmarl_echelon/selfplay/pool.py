"""A rated pool of past policies as arrays: snapshots, counts, ratings, and the opponent of each group.

Entry 0 is the learner, entries 1 to K are the bank's slots, the rest are fixed opponents, whose policies are
stored behind the slots or elsewhere. In a league of M learners each has its own pool and bank, with entries
for all others: 0 to M - 1 are the learners, itself first, followed by the slots of all banks. All functions
are pure functions of `PoolState`, which is part of the run's state. See docs/reference/selfplay.md 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos.types import PyTree
from jaxmarl_echelon.selfplay import eviction, league, matchmaking
from jaxmarl_echelon.selfplay.league import LeagueMembership
from jaxmarl_echelon.selfplay.ratings import (
    DRAW,
    LOSS,
    WIN,
    PairResults,
    RankedGames,
    RatingSystem,
    rating_system,
)
from jaxmarl_echelon.selfplay.settings import IDLE, PoolSettings

EMPTY, LEARNER, SNAPSHOT, FIXED = range(4)
NO_ITERATION = -1
# Share of a new entry's uncertainty below which a rating is sure: 2 of TrueSkill's 25/3.
GATE_SHARE = 0.24
# Parts of a learner's state stored in full precision: the observation normaliser and the hyperparameters.
FULL_PRECISION_PARTS = ("observations", "hyper")


class PoolState(struct.PyTreeNode):
    """State of a pool of n entries with a bank of K slots, played by G groups.

    Attributes:
      bank: policy states, leaves `[K, ...]`, followed by those of `Pool.pinned`.
      kind: `[n]` int32: `EMPTY`, `LEARNER`, `SNAPSHOT` or `FIXED`.
      pinned: `[n]` bool; never evicted.
      iteration: `[n]` int32 number of the snapshot; -1 for others.
      rating: `[n, D]` float32, see `ratings.RatingSystem`.
      wins: `[n, n]` int32; games won by the row's entry against the column's, since both slots were filled.
      draws: `[n, n]` int32, symmetric.
      points, games: `[n, n]` float32 scores and games, decayed after every update.
      distinct: `[n]` float32 share of distinct 2-grams of moves in the games against each entry; None unless
        a mode needs it.
      slots: `[G]` int32 opponent entries of the groups without mirror play. If opponents are drawn per
        episode, every environment is a group.
      taken: int32 number of snapshots so far.
      waited: int32 number of updates since the last snapshot.
      played: int32 number of counted games against opponents since the last snapshot.
      updates: int32 number of updates so far.
      leaving: int32 entry that the next snapshot replaces, 0 for none; None unless opponents are drawn per
        episode.
      league: league part of the state; None without a league.
      commander: `[n]` bool; promoted snapshots, the others are candidates. None without promotions.
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
    leaving: jax.Array | None = None
    league: LeagueMembership | None = None
    commander: jax.Array | None = None


class Pool(NamedTuple):
    """The static parts of a pool.

    Attributes:
      settings: its settings.
      system: its rating system.
      hold: updates for which a group keeps its opponent.
      own: whether the bank holds past policies of the learner that plays against it; otherwise a new
        snapshot inherits the rating of the previous one.
      pinned: indices of the fixed opponents whose policies are stored in the bank, behind its slots.
      rivals: number of groups that play an opponent instead of the learner; number of such environments, if
        opponents are drawn per episode.
    """

    settings: PoolSettings
    system: RatingSystem
    hold: int
    own: bool = True
    pinned: tuple[int, ...] = ()
    rivals: int = 0

    @property
    def places(self) -> np.ndarray:
        """Index `[n]` of each entry's policy in `playable_policies`; undefined for others."""
        settings, size = self.settings, self.settings.capacity + len(self.pinned)
        first = settings.learners if settings.league else 0
        bank, slot = np.divmod(np.arange(settings.learners * settings.capacity), settings.capacity)
        behind = np.zeros(len(settings.fixed), int)
        behind[list(self.pinned)] = first + settings.capacity + np.arange(len(self.pinned))
        present = np.arange(settings.learners)
        return np.concatenate([present, first + bank * size + slot, behind])


def make_pool(
    settings: PoolSettings,
    episode_limit: int,
    horizon: int,
    *,
    own: bool = True,
    pinned: tuple[int, ...] = (),
    environments: int = 0,
) -> Pool:
    """Builds the pool of a run with rollouts of `horizon` decisions; `own` and `pinned` as in `Pool`.

    `environments` is the run's number of environments, needed if opponents are drawn per episode.
    """
    system = rating_system(
        settings.rating, games_per_pair=settings.games_per_pair, tau_frozen=settings.tau_frozen
    )
    rivals = settings.groups - settings.mirrored
    if settings.episodic:
        rivals *= environments // settings.groups
    return Pool(settings, system, settings.held(episode_limit, horizon), own, pinned, rivals)


def init_pool(
    pool: Pool,
    key: jax.Array,
    policy: PyTree,
    membership: LeagueMembership | None = None,
    pinned: Sequence[PyTree] = (),
) -> PoolState:
    """Returns a pool with the initial policy in its first slot, and with opponents for all groups.

    Args:
      pool: the pool.
      key: for the first draw of opponents.
      policy: the part of the learner's state that is needed for acting.
      membership: league part of the state; None without a league.
      pinned: states of the policies of `Pool.pinned`.
    """
    settings, n = pool.settings, pool.settings.entries
    capacity, learners = settings.capacity, settings.learners
    entry = jnp.arange(n)
    fixed = entry >= settings.first_fixed
    first = ~fixed & (entry >= learners) & ((entry - learners) % capacity == 0)
    kind = jnp.select([entry < learners, first, fixed], [LEARNER, SNAPSHOT, FIXED], EMPTY)
    bank = jax.tree.map(
        lambda x: jnp.zeros((capacity, *x.shape), x.dtype).at[0].set(x), to_bank_precision(settings, policy)
    )
    for one in pinned:
        bank = jax.tree.map(
            lambda x, y: jnp.concatenate([x, y[None]]), bank, to_bank_precision(settings, one)
        )
    state = PoolState(
        bank=bank,
        kind=kind.astype(jnp.int32),
        pinned=fixed | (first & (settings.anchor == "initial")),
        iteration=jnp.where(first, 0, NO_ITERATION),
        rating=jnp.tile(jnp.array(pool.system.prior, jnp.float32), (n, 1)),
        wins=jnp.zeros((n, n), jnp.int32),
        draws=jnp.zeros((n, n), jnp.int32),
        points=jnp.zeros((n, n), jnp.float32),
        games=jnp.zeros((n, n), jnp.float32),
        distinct=jnp.ones(n) if settings.explores else None,
        slots=jnp.full(pool.rivals, learners, jnp.int32),
        taken=jnp.int32(1),
        waited=jnp.int32(0),
        played=jnp.int32(0),
        updates=jnp.int32(0),
        leaving=jnp.int32(0) if settings.episodic else None,
        league=membership,
        commander=jnp.zeros(n, bool) if settings.promotes else None,
    )
    return redraw_opponents(pool, state, key, jnp.ones(pool.rivals, bool))


def to_bank_precision(settings: PoolSettings, policy: PyTree) -> PyTree:
    """Converts a policy's state for the bank: weights in the bank's precision, the rest unchanged.

    The normaliser stays in float32: in half precision, an observation whose mean is large compared with its
    standard deviation would be shifted by several standard deviations.
    """
    if settings.store == "float32":
        return policy
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, policy)
    exact = {name: getattr(policy, name) for name in FULL_PRECISION_PARTS if hasattr(policy, name)}
    return half.replace(**exact) if exact else half


def playable_policies(
    pool: Pool, state: PoolState, slots: jax.Array, policy: PyTree
) -> tuple[PyTree, jax.Array]:
    """Returns all opponents' policies `[P, ...]`, in the bank's precision, and the index `[G]` of each group.

    The index is undefined for groups whose fixed opponent is not in the bank. In a league the policies
    include the current ones of all learners, and the banks of all.

    Args:
      pool: the pool.
      state: its state.
      slots: `[G]` int32 opponent entries of the groups.
      policy: the part of the learner's current state that is needed for acting.
    """
    bank, entries = state.bank, slots
    if state.league is not None:
        present, past = league.gather_learners((policy, state.bank))
        bank = jax.tree.map(
            lambda x, y: jnp.concatenate([x, y.astype(x.dtype).reshape(-1, *y.shape[2:])]), present, past
        )
        entries = league.common_numbering(state.kind.shape[0], state.league.member)[slots]
    return bank, jnp.asarray(pool.places, jnp.int32)[entries]


def groups_due_for_change(pool: Pool, updates: jax.Array) -> jax.Array:
    """Masks `[G]` the groups whose opponent changes after update number `updates` (from 0)."""
    return updates_until_change(pool, updates) == 0


def updates_until_change(pool: Pool, updates: jax.Array) -> jax.Array:
    """Returns `[G]` int32, the further updates after number `updates` in which groups keep their opponent."""
    return (jnp.arange(pool.rivals) - updates) % pool.hold


def groups_losing_opponent(state: PoolState) -> jax.Array:
    """Masks `[G]` the groups whose opponent the next snapshot replaces, for opponents drawn per episode."""
    return (state.slots == state.leaving) & (state.leaving > 0)


def update_pool_state(
    pool: Pool,
    state: PoolState,
    key: jax.Array,
    counts: jax.Array,
    policy: PyTree,
    games: RankedGames | None = None,
    points: jax.Array | None = None,
) -> PoolState:
    """Updates the pool after learning: counts, ratings, decay, promotions, snapshot, opponents.

    Args:
      pool: the pool.
      state: its state during the rollout.
      key: for the draws of opponents and of the rated games.
      counts: `[n, 3]` int32 wins, draws and losses of the learner in the games that ended.
      policy: state of the policy after learning, the candidate for a snapshot.
      games: games of more than two seats, which are rated by ranks instead; None for two seats.
      points: `[n]` float32 sums of the learner's scores in these games, see `ratings.PairResults`; None if
        scores follow from `counts`.
    """
    key_draw, key_games = jax.random.split(key)
    changes = (
        groups_due_for_change(pool, state.updates) if state.leaving is None else groups_losing_opponent(state)
    )
    entries = jnp.arange(1, pool.settings.entries)
    pairs = PairResults(jnp.zeros_like(entries), entries, counts[1:], None if points is None else points[1:])
    rating = pool.system.after(key_games, state.rating, pairs, state.kind == LEARNER, games)
    state = promote_candidates(pool, record_ratings(pool, state, counts, rating, points))
    place, found = eviction.choose_slot(
        pool.settings.evict, eviction_slots(pool, state, entries_in_use(state, changes), 1)
    )
    takes = found & should_take_snapshot(pool, state)
    state = jax.lax.cond(
        takes, lambda state: store_snapshot(pool, state, place, policy), lambda state: state, state
    )
    if state.leaving is not None:
        state = state.replace(leaving=next_evicted_entry(pool, state))
    return redraw_opponents(pool, state, key_draw, changes)


def next_evicted_entry(pool: Pool, state: PoolState) -> jax.Array:
    """Returns the entry (int32) that a snapshot after the next update will replace; 0 if none is due.

    If every environment draws its own opponent, all slots are in use; the episodes against this entry are
    truncated, so that its slot is free when the snapshot is taken.
    """
    nobody = jnp.zeros(state.kind.shape, bool)
    place, found = eviction.choose_slot(pool.settings.evict, eviction_slots(pool, state, nobody, 1))
    soon = state.waited + 1 >= pool.settings.snapshot_every
    return jnp.where(soon & found, place + 1, 0)


def record_ratings(
    pool: Pool, state: PoolState, counts: jax.Array, rating: jax.Array, points: jax.Array | None = None
) -> PoolState:
    """Adds an update's games to the state and sets the new ratings `[n, D]`.

    `counts [n, 3]` and `points [n]` as for `update_pool_state`.
    """
    state, decay = add_counts(state, counts, points), pool.settings.decay
    return state.replace(
        rating=rating,
        points=state.points * decay,
        games=state.games * decay,
        waited=state.waited + 1,
        played=state.played + jnp.sum(counts[1:]),
        updates=state.updates + 1,
    )


def add_counts(state: PoolState, counts: jax.Array, points: jax.Array | None = None) -> PoolState:
    """Adds the learner's games to the tables: `counts [n, 3]` and, if given, their `points [n]`."""
    score = counts[:, WIN] + 0.5 * counts[:, DRAW] if points is None else points
    number = jnp.sum(counts, axis=1).astype(jnp.float32)
    return state.replace(
        wins=state.wins.at[0].add(counts[:, WIN]).at[:, 0].add(counts[:, LOSS]),
        draws=state.draws.at[0].add(counts[:, DRAW]).at[:, 0].add(counts[:, DRAW]),
        points=state.points.at[0].add(score).at[:, 0].add(number - score),
        games=state.games.at[0].add(number).at[:, 0].add(number),
    )


def promote_candidates(pool: Pool, state: PoolState) -> PoolState:
    """Promotes candidates to commanders; commanders stay commanders.

    A candidate with `promote_after` games is promoted if fewer than `top` of all commanders and such
    candidates have a higher lower bound of the rating.
    """
    settings = pool.settings
    if state.commander is None:
        return state
    tried = (state.kind == SNAPSHOT) & (games_per_entry(state) >= settings.promote_after)
    among = state.commander | tried
    best = matchmaking.top_k_mask(among, pool.system.lower(state.rating), settings.top)
    return state.replace(commander=state.commander | best)


def games_per_entry(state: PoolState) -> jax.Array:
    """Number of games `[n]`, int32, of each entry since its slot was filled."""
    return jnp.sum(state.wins + state.wins.T + state.draws, axis=1)


def should_take_snapshot(pool: Pool, state: PoolState) -> jax.Array:
    """Whether a snapshot is due and its gate is open."""
    settings = pool.settings
    due_now = state.waited >= settings.snapshot_every
    if settings.gate == "always":
        return due_now
    if settings.gate == "rated":
        most = settings.gate_sigma
        if most is None:
            most = GATE_SHARE * pool.system.deviation(jnp.array([pool.system.prior]))[0]
        sure = pool.system.deviation(state.rating)[0] <= most
        return due_now & sure & (state.played >= settings.gate_games)
    last = newest_snapshot(state)
    won, lost, drawn = state.wins[0, last], state.wins[last, 0], state.draws[0, last]
    games = won + lost + drawn
    better = state.points[0, last] >= settings.gate_payoff * state.games[0, last]
    late = state.waited >= settings.gate_timeout
    return due_now & (late | (better & (games >= settings.gate_games)))


def newest_snapshot(state: PoolState) -> jax.Array:
    """Returns the entry of the newest snapshot."""
    return jnp.argmax(jnp.where(state.kind == SNAPSHOT, state.iteration, NO_ITERATION - 1))


def store_snapshot(pool: Pool, state: PoolState, place: jax.Array, policy: PyTree) -> PoolState:
    """Stores a policy in slot `place`, with the rating inherited from its parent."""
    entry = place + 1
    parent = 0 if pool.own else newest_snapshot(state)

    def clear(table):
        return table.at[entry].set(0).at[:, entry].set(0)

    return state.replace(
        bank=jax.tree.map(
            lambda x, y: x.at[place].set(y), state.bank, to_bank_precision(pool.settings, policy)
        ),
        kind=state.kind.at[entry].set(SNAPSHOT),
        iteration=state.iteration.at[entry].set(state.taken),
        rating=state.rating.at[entry].set(pool.system.snapshot_rating(state.rating[parent])),
        wins=clear(state.wins),
        draws=clear(state.draws),
        points=clear(state.points),
        games=clear(state.games),
        distinct=None if state.distinct is None else state.distinct.at[entry].set(1.0),
        commander=None if state.commander is None else state.commander.at[entry].set(False),
        taken=state.taken + 1,
        waited=jnp.int32(0),
        played=jnp.int32(0),
    )


def payoff_matrix(pool: Pool, state: PoolState) -> jax.Array:
    """Returns the payoff matrix `[n, n]`: scores in [0, 1] of the row's entry against the column's."""
    expected = pool.system.expected(state.rating[:, None], state.rating[None])
    return matchmaking.compute_payoffs(pool.settings, state.points, state.games, expected)


def matchmaking_candidates(pool: Pool, state: PoolState) -> matchmaking.OpponentCandidates:
    """Collects the inputs of matchmaking from the pool's state."""
    past = state.kind == SNAPSHOT
    return matchmaking.make_candidates(
        pool.settings,
        pool.system,
        state.rating,
        state.points[0],
        state.games[0],
        (past | (state.kind == FIXED), past),
        state.taken - state.iteration,
        jnp.ones(state.kind.shape) if state.distinct is None else state.distinct,
        state.commander,
    )


def opponent_probabilities(pool: Pool, state: PoolState) -> jax.Array:
    """Returns the opponent probabilities `[n]`."""
    if state.league is not None:
        settings = pool.settings
        return league.league_probabilities(
            league_view(pool, state), settings.roles, state.league.member, settings.power
        )
    return matchmaking.mixture_probabilities(pool.settings, matchmaking_candidates(pool, state))


def redraw_opponents(pool: Pool, state: PoolState, key: jax.Array, changes: jax.Array) -> PoolState:
    """Draws new opponents for the groups `changes [G]`."""
    if not pool.rivals:
        return state
    drawn = matchmaking.draw_opponents(key, opponent_probabilities(pool, state), changes)
    return state.replace(slots=jnp.where(changes, drawn, state.slots))


def league_view(pool: Pool, state: PoolState) -> league.LeagueView:
    """Builds a league learner's view of the entries."""
    settings, n = pool.settings, pool.settings.entries
    common = league.common_numbering(n, state.league.member)
    entry = jnp.arange(n)
    owner = jnp.where(entry < settings.learners, common, (entry - settings.learners) // settings.capacity)
    known = (state.kind == LEARNER) | (state.kind == SNAPSHOT)
    return league.LeagueView(
        payoff=payoff_matrix(pool, state)[0],
        past=(state.kind == SNAPSHOT) | (state.kind == FIXED),
        learner_index=jnp.where(known, owner, league.NO_LEARNER),
        iteration=state.iteration,
    )


def entries_in_use(state: PoolState, changes: jax.Array) -> jax.Array:
    """Masks `[n]` the entries that stay in use, by groups whose opponent does not change."""
    return jnp.zeros(state.kind.shape, bool).at[jnp.where(changes, 0, state.slots)].set(True)


def eviction_slots(
    pool: Pool, state: PoolState, held: jax.Array, first: jax.Array | int
) -> eviction.BankSlots:
    """Collects the inputs of eviction for the bank whose slots are the entries from `first` on."""

    def own(x):
        return jax.lax.dynamic_slice_in_dim(x, first, pool.settings.capacity)

    filled = own(state.kind) == SNAPSHOT
    games = games_per_entry(state)
    return eviction.BankSlots(
        iteration=own(state.iteration),
        filled=filled,
        free=filled & ~own(state.pinned) & ~own(held),
        lower=own(pool.system.lower(state.rating)),
        tried=own(games) >= pool.settings.evict_games,
        payoff=own(payoff_matrix(pool, state)),
        met=own(state.games) > 0,
        now=state.taken,
        drawn=own(opponent_probabilities(pool, state)) > 0 if pool.settings.evict == IDLE else None,
    )
