"""A role played by a pool: past policies in groups of environments, the learner itself in the others.

The first environments of a shard are mirrored: the pool's learner plays the role there, and learns from it.
The others are divided into groups, each of which plays one entry of the pool at a time. Only array values
change during a run, so that nothing recompiles. See docs/reference/trainer.md 12.4.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from algos.masks import select_rows
from algos.types import Agent, PyTree
from jaxmarl_echelon.envs import results as results_lib
from jaxmarl_echelon.envs.base import EnvSpec, Role
from jaxmarl_echelon.envs.episodes import EpisodeEvents, Finished
from jaxmarl_echelon.envs.trees import mean_where
from jaxmarl_echelon.selfplay import pool as pool_lib
from jaxmarl_echelon.selfplay.pool import Pool, PoolState
from jaxmarl_echelon.selfplay.ratings import DRAW, LOSS, NO_GAME, WIN, RankedGames
from jaxmarl_echelon.training.acting import controllers, episode_statistics
from jaxmarl_echelon.training.acting.controllers import Controller
from jaxmarl_echelon.training.acting.state import ControllerView
from physics.sparse_batch import cond_any

TAG, SEAT = "opponent", "seat"
# Unit in which scores are summed as integers, and base of the two sums that prevents overflow.
PART, HALF = 2**-16, 2**8
# Largest number of games per update that are rated by ranks.
RANKED = 64
# Rows per chunk of one policy in `act_sorted_by_policy`.
CHUNK = 8


class PoolRole(NamedTuple):
    """Static description of a role that a pool plays.

    Attributes:
      role: the role.
      owner: the learner whose past policies are in the bank; it plays the role in mirrored environments.
      rival: the learner that plays against the pool, the pool's entry 0.
      pool: the pool.
      fixed: state names of the fixed opponents' policies in the pool's order; None for scripts and for
        policies in the bank.
    """

    role: str
    owner: str
    rival: str
    pool: Pool
    fixed: tuple[str | None, ...] = ()

    @property
    def policy(self) -> str:
        """Name of the pool's policies for its controller."""
        return f"pool:{self.role}"

    def mirrored(self, environments: int) -> int:
        """Number of mirrored environments of a shard; they are its first ones."""
        return environments * self.pool.settings.mirrored // self.pool.settings.groups

    def groups(self) -> int:
        """Number of groups of this shard that play against the pool."""
        return self.pool.rivals // collectives.num_shards()

    def entries(self, state: PoolState, environments: int) -> jax.Array:
        """Entry that plays in each environment of this shard, `[E]` int32; 0 in mirrored environments."""
        mirrored = self.mirrored(environments)
        rows = environments - mirrored
        slots = jnp.repeat(
            collectives.local_rows(state.slots), rows // max(self.groups(), 1), total_repeat_length=rows
        )
        return jnp.concatenate([jnp.zeros(mirrored, jnp.int32), slots])

    def changes(self, state: PoolState, environments: int) -> jax.Array:
        """Mask `[E]` of the environments whose opponent changes after this rollout."""
        return self._by_environment(
            pool_lib.groups_due_for_change(self.pool, state.updates), environments, False
        )

    def updates_left(self, state: PoolState, environments: int, never: int) -> jax.Array:
        """Further updates `[E]`, int32, until the opponent changes; `never` in mirrored environments."""
        return self._by_environment(
            pool_lib.updates_until_change(self.pool, state.updates), environments, never
        )

    def _by_environment(self, groups: jax.Array, environments: int, mirror: int) -> jax.Array:
        """Repeats values `[G]` for the environments of this shard, `[E]`; `mirror` in mirrored ones."""
        mirrored = self.mirrored(environments)
        rows, own = environments - mirrored, collectives.local_rows(groups)
        own = jnp.repeat(own, rows // max(self.groups(), 1), total_repeat_length=rows)
        return jnp.concatenate([jnp.full(mirrored, mirror, own.dtype), own])


class Opponents(NamedTuple):
    """Policies of a pool's role in a rollout.

    Attributes:
      owner: state of the pool's learner.
      bank: policy states, leaves `[G, ...]` by group, or the whole bank `[P, ...]`, see
      `pool.playable_policies`. slots: `[G]` int32 entries that play in the groups of this shard.
      fixed: states of the fixed opponents; None for scripts and for policies in the bank.
      places: `[G]` int32 index of each group's policy in the whole bank; arbitrary for fixed opponents.
    """

    owner: PyTree
    bank: PyTree
    slots: jax.Array
    fixed: tuple[PyTree, ...]
    places: jax.Array | None = None


class PoolRoleMemory(NamedTuple):
    """Memories of a pool's role.

    Attributes:
      mirror: memory of the learner, in the mirrored environments.
      bank: memory of the bank's policies, in all others.
      fixed: memory of every fixed opponent that is not in the bank, in all others.
    """

    mirror: PyTree
    bank: PyTree
    fixed: tuple[PyTree, ...]


def select_opponents(
    seat: PoolRole, agent: Agent, state: PoolState, policies: dict[str, PyTree]
) -> Opponents:
    """Returns the policies of a pool's role for one rollout, read from the bank once.

    The owner's policy may change during the rollout.
    """
    slots, present = collectives.local_rows(state.slots), agent.rollout_policy(policies[seat.owner])
    bank, places = pool_lib.playable_policies(seat.pool, state, slots, present)
    if seat.pool.settings.acting == "groups":
        bank = jax.tree.map(lambda x: x[places], bank)
    bank = jax.tree.map(lambda x, y: x.astype(y.dtype), bank, present)
    fixed = tuple(None if name is None else policies[name] for name in seat.fixed)
    return Opponents(policies[seat.owner], bank, slots, fixed, places)


def simultaneous_pool_controller(
    seat: PoolRole, agent: Agent, role: Role, fixed: Mapping[int, Controller]
) -> Controller:
    """Builds the controller of a pool's role; its choices are those of the mirrored environments.

    Args:
      seat: description of the pool's role.
      agent: the pool's learner.
      role: the role.
      fixed: controllers of the fixed opponents that are not in the bank, by index.
    """
    settings = seat.pool.settings
    mirror = controllers.make_learner_controller(agent, role, seat.owner, greedy=False)
    # Past policies do not use critics, and get no critic observations.
    past = controllers.make_learner_controller(
        agent._replace(asymmetric=False), role, seat.owner, greedy=settings.greedy
    )
    play_bank = ACTING[settings.acting]
    first_fixed = settings.first_fixed

    def init(num_envs):
        mirrored = seat.mirrored(num_envs)
        rest = num_envs - mirrored
        return PoolRoleMemory(
            mirror.init(mirrored),
            past.init(rest),
            fixed_opponent_memories(fixed, seat, lambda one: one.init(rest)),
        )

    def act(key, state, memory, view, reset):
        mirrored = seat.mirrored(reset.shape[0])
        key_mirror, key_bank, *keys = jax.random.split(key, 2 + len(seat.fixed))
        (own, own_reset), (theirs, their_reset) = split_rows((view, reset), mirrored)
        parts, choice, carry = [], None, memory.mirror
        if mirrored:
            carry, action, choice = mirror.act(key_mirror, state.owner, carry, own, own_reset)
            parts.append(action)
        if not seat.pool.rivals:
            return memory._replace(mirror=carry), parts[0], choice
        seen = ControllerView(None, None, theirs.time)
        bank, action = play_bank(past.act, key_bank, state, memory.bank, seen, their_reset)
        entries = jnp.repeat(state.slots, their_reset.shape[0] // state.slots.shape[0])
        remembered = list(memory.fixed)
        for number, one in fixed.items():
            mine = entries == first_fixed + number
            given = (keys[number], state.fixed[number], memory.fixed[number], theirs, their_reset)
            remembered[number], reply = _where_met(one, mine, given, action)
            action = select_rows(mine, reply, action)
        parts.append(action)
        return PoolRoleMemory(carry, bank, tuple(remembered)), jnp.concatenate(parts), choice

    return Controller(init, act, seat.policy)


def fixed_opponent_memories(
    fixed: Mapping[int, Controller], seat: PoolRole, begin: Callable
) -> tuple[PyTree, ...]:
    """Returns the memories of the fixed opponents, `()` for those in the bank."""
    return tuple(begin(fixed[number]) if number in fixed else () for number in range(len(seat.fixed)))


def split_rows(tree: PyTree, number: int) -> tuple[PyTree, PyTree]:
    """Splits a tree of arrays `[E, ...]` into the first `number` rows and the rest."""
    return jax.tree.map(lambda x: x[:number], tree), jax.tree.map(lambda x: x[number:], tree)


def _where_met(one: Controller, mine: jax.Array, given: tuple, action: jax.Array):
    """Returns a fixed opponent's memory and actions; it acts only if some group plays against it.

    In a group of runs it acts if some run needs it: a condition of each run's own would compute both branches
    anyway, and JAX refuses a `custom_vmap` with constants, as simulators have, in a branch that it batches.
    """
    met = jnp.any(mine)

    def ask(*given):
        memory, reply, _ = one.act(*given)
        memory = jax.tree.map(lambda new, old: jnp.where(met, new, old), memory, given[2])
        return memory, reply.astype(action.dtype)

    def skip(*given):
        return given[2], jnp.zeros_like(action)

    return cond_any(met, ask, skip, *given)


def _by_group(tree: PyTree, groups: int) -> PyTree:
    """Splits the rows of arrays into groups: `[G, E / G, ...]`."""
    return jax.tree.map(lambda x: x.reshape(groups, x.shape[0] // groups, *x.shape[1:]), tree)


def _joined(tree: PyTree) -> PyTree:
    """Inverse of `_by_group`."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def act_in_groups(act: Callable, key, state: Opponents, carry, view, reset) -> tuple[PyTree, jax.Array]:
    """Acts with each group's policy on its own rows only, by one `vmap` over groups."""
    groups = state.slots.shape[0]
    rows = _by_group((carry, view, reset), groups)
    carry, action, _ = jax.vmap(act)(jax.random.split(key, groups), state.bank, *rows)
    return _joined((carry, action))


def act_all_policies(act: Callable, key, state: Opponents, carry, view, reset) -> tuple[PyTree, jax.Array]:
    """Acts with every policy of the bank on all rows and selects one per row: the reference in tests."""
    number = jax.tree.leaves(state.bank)[0].shape[0]
    acted = jax.vmap(act, in_axes=(0, 0, None, None, None))(
        jax.random.split(key, number), state.bank, carry, view, reset
    )
    slot = _places_of_rows(state, reset.shape[0])
    rows = jnp.arange(reset.shape[0])
    carry, action = jax.tree.map(lambda x: x[slot, rows], acted[:2])
    return carry, action


def act_sorted_by_policy(
    act: Callable, key, state: Opponents, carry, view, reset
) -> tuple[PyTree, jax.Array]:
    """Acts on rows sorted by policy, in a scan over chunks of one policy; for any distribution of rows."""
    number, rows = jax.tree.leaves(state.bank)[0].shape[0], reset.shape[0]
    slot = _places_of_rows(state, rows)
    chunks = -(-rows // CHUNK) + number
    counts = jnp.sum(slot[:, None] == jnp.arange(number), axis=0)
    needed = -(-counts // CHUNK)
    first = jnp.cumsum(needed) - needed
    order = jnp.argsort(slot, stable=True)
    rank = jnp.zeros(rows, jnp.int32).at[order].set(jnp.arange(rows)) - (jnp.cumsum(counts) - counts)[slot]
    place = first[slot] * CHUNK + rank
    # Unfilled places repeat the first row, and are not read.
    source = jnp.zeros(chunks * CHUNK, jnp.int32).at[place].set(jnp.arange(rows))
    of_chunk = jnp.clip(jnp.searchsorted(jnp.cumsum(needed), jnp.arange(chunks), side="right"), 0, number - 1)

    def one(_, given):
        key, slot, source = given
        policy = jax.tree.map(lambda x: x[slot], state.bank)
        carried, seen, begins = jax.tree.map(lambda x: x[source], (carry, view, reset))
        carried, action, _ = act(key, policy, carried, seen, begins)
        return None, (carried, action)

    keys = jax.random.split(key, chunks)
    _, acted = jax.lax.scan(one, None, (keys, of_chunk, source.reshape(chunks, CHUNK)))
    return jax.tree.map(lambda x: x[place], _joined(acted))


def _places_of_rows(state: Opponents, rows: int) -> jax.Array:
    """Index of each row's policy in the bank, `[rows]`."""
    return jnp.repeat(state.places, rows // state.places.shape[0])


ACTING = {"groups": act_in_groups, "dense": act_all_policies, "sorted": act_sorted_by_policy}


def add_tags(flow: EpisodeEvents, tags: dict[str, jax.Array]) -> EpisodeEvents:
    """Adds tags `[E]` of the running episodes to a flow `[E]` or `[T, E]`."""
    ended = {name: jnp.where(flow.finished.mask, tag, -1) for name, tag in tags.items()}
    running = {name: jnp.broadcast_to(tag, flow.over.shape) for name, tag in tags.items()}
    finished = flow.finished.replace(tags=flow.finished.tags | ended)
    return flow.replace(tags=flow.tags | running, finished=finished)


def leave_out_episodes_near_cuts(
    spec: EnvSpec, seat: PoolRole | None, state: PoolState | None, flow: EpisodeEvents, *, whole_games: bool
) -> EpisodeEvents:
    """Leaves out episodes of a rollout that a change of opponents might have cut, also if they have ended.

    Of episodes that begin shortly before a cut only the short ones end: who wins in less time than the other
    would score too much. An episode counts if it began at least `EnvSpec.episode_limit` decisions before its
    environment's next cut, which does not depend on how it went. Where groups change their opponents more
    often than that, all count.

    Args:
      spec: spec of the environment.
      seat: the role that a pool plays; None without a pool.
      state: the pool during the rollout.
      flow: `[T, E]`, tagged with opponents.
      whole_games: whether all episodes are cut after each rollout.
    """
    steps, environments = flow.over.shape
    limit, left = spec.episode_limit, jnp.arange(steps)[::-1, None]
    if not whole_games:
        if seat is None or (not seat.pool.settings.episodic and seat.pool.hold * steps < limit):
            return flow
        if seat.pool.settings.episodic:
            leaves = (flow.tags[TAG] == state.leaving) & (state.leaving > 0)
            left = jnp.where(leaves, left, limit)
        else:
            # Of a hold of many updates, so many that all episodes end.
            enough = -(-limit // steps)
            left = left + steps * jnp.minimum(seat.updates_left(state, environments, enough), enough)
    finished = flow.finished
    return flow.replace(
        begins=flow.begins & (left + 1 >= limit),
        finished=finished.replace(mask=finished.mask & (left + finished.length >= limit)),
    )


def game_outcomes(spec: EnvSpec, seat: PoolRole, finished: Finished) -> jax.Array:
    """Results of finished episodes `[...]` for the rival: WIN, DRAW or LOSS; -1 where a side had no agent.

    Compares the scores of both roles if both have one; otherwise the rival's score with 1/2. Turn-based games
    use the score of the rival's own seat.
    """
    if SEAT in finished.tags:
        mine = own_score(spec, seat, finished)
        return jnp.select([mine > 0.5, mine < 0.5], [WIN, LOSS], DRAW)
    ahead = score_margin(spec, seat.rival, seat.role, finished)
    return jnp.select([ahead > 0, ahead < 0, ahead == 0], [WIN, LOSS, DRAW], NO_GAME)


def own_score(spec: EnvSpec, seat: PoolRole, finished: Finished) -> jax.Array:
    """Score `[...]` of the rival's own seat in turn-based games."""
    scores, own = spec.scores(finished.results, seat.role), finished.tags[SEAT]
    return jnp.take_along_axis(scores, jnp.maximum(own, 0)[..., None], axis=-1)[..., 0]


def score_margin(spec: EnvSpec, ours: str, theirs: str | None, finished: Finished) -> jax.Array:
    """Difference `[...]` of one role's score and another's, or 1/2 if the other has no score."""
    other = None if theirs is None else role_score(spec, theirs, finished)
    return role_score(spec, ours, finished) - (0.5 if other is None else other)


def role_score(spec: EnvSpec, role: str, finished: Finished) -> jax.Array | None:
    """Score `[...]` of a role in episodes, the mean over its present agents; None for a role without a score.

    NaN where no agent was present.
    """
    score = spec.scores(finished.results, role)
    if score is None or score.ndim == finished.mask.ndim:
        return score
    return mean_where(score, finished.present[role])


def restrict_to_own_seat(spec: EnvSpec, _seat: PoolRole, finished: Finished) -> Finished:
    """Restricts turn-based games against opponents to the learner's own seat, for reports.

    In games in which the learner plays all seats, all are reported, and the tag of its seat is -1.
    """
    if not spec.turns:
        return finished
    against = finished.tags[TAG] > 0
    place = jnp.where(against, finished.tags[SEAT], results_lib.NONE)
    own = ~against[..., None] | (place[..., None] == jnp.arange(spec.turns))
    return finished.replace(
        present={role: there & own for role, there in finished.present.items()},
        tags=finished.tags | {SEAT: place},
    )


def select_scored_games(spec: EnvSpec, seat: PoolRole, flow: EpisodeEvents) -> EpisodeEvents:
    """Restricts episodes to those that measure the learner: in turn-based games those against opponents.

    A learner that plays all seats of a game both wins and loses it. Without opponents nothing is removed.
    """
    if not spec.turns or not seat.pool.rivals:
        return flow
    finished = flow.finished
    return flow.replace(
        begins=flow.begins & (flow.tags[TAG] > 0),
        finished=finished.replace(mask=finished.mask & (finished.tags[TAG] > 0)),
    )


def select_ranked_games(
    key: jax.Array, spec: EnvSpec, seat: PoolRole, finished: Finished
) -> RankedGames | None:
    """Selects up to `RANKED` games of an update, of all shards, with ranks of all seats; None for two seats.

    Entry 0 has the rival's seat, its opponent all others. If there are more games, a random subset is drawn:
    the first games would be those of the first groups, and short ones.
    """
    if spec.turns <= 2:
        return None
    met = draw_subset(key, finished.mask & (finished.tags[TAG] > 0), RANKED)
    games = episode_statistics.select_finished(finished.replace(mask=met), RANKED, newest=False).finished
    scores = spec.scores(games.results, seat.role)
    own = games.tags[SEAT][:, None] == jnp.arange(spec.turns)
    return RankedGames(
        entries=jnp.where(own, 0, games.tags[TAG][:, None]),
        ranks=jnp.sum(scores[:, None, :] > scores[:, :, None], axis=-1),
        mask=games.mask,
    )


def draw_subset(key: jax.Array, mask: jax.Array, most: int) -> jax.Array:
    """Draws at most `most` of the marked elements of `mask [T, E]`, of all shards, with equal probability."""
    steps, mine = mask.shape
    luck = collectives.local_rows(jax.random.uniform(key, (mine * collectives.num_shards(), steps))).T
    places = jnp.where(mask, luck, 1.0).ravel()
    lowest = collectives.stack_shards(jax.lax.top_k(-places, min(most, places.size))[0]).ravel()
    last = -jax.lax.top_k(lowest, min(most, lowest.size))[0][-1]
    return mask & (luck <= last)


def count_outcomes(spec: EnvSpec, seat: PoolRole, finished: Finished) -> jax.Array:
    """Counts the rival's wins, draws and losses `[n, 3]` int32 against every entry, over all shards.

    `finished [T, E]` is tagged with the entries; each episode counts for the entry that played all of it.
    Mirrored games are not counted, and none in which a side had no agent.
    """
    outcome = game_outcomes(spec, seat, finished)
    number = 3 * seat.pool.settings.entries
    rated = finished.mask & (finished.tags[TAG] > 0) & (outcome != NO_GAME)
    cell = jnp.where(rated, finished.tags[TAG] * 3 + outcome, number).ravel()
    # Sums of integers do not depend on the order.
    cells = jnp.zeros(number, jnp.int32).at[cell].add(1, mode="drop")
    return collectives.sum_over_shards(cells).reshape(-1, 3)


def sum_rival_scores(spec: EnvSpec, seat: PoolRole, finished: Finished) -> jax.Array | None:
    """Sums the rival's scores against every entry, `[n]` float32, over the games of `count_outcomes`.

    Returns None where wins, draws and losses determine the scores. Scores contain more in games for stakes,
    and in games of more than two seats, of which each of equal players wins less than half. They are rounded
    to multiples of `PART`, so that sums do not depend on the order.
    """
    if not spec.graded:
        return None
    counts = finished.mask & (finished.tags[TAG] > 0)
    entry = jnp.where(counts, finished.tags[TAG], -1).ravel()
    parts = jnp.round(own_score(spec, seat, finished) / PART).astype(jnp.int32).ravel()
    here = entry[:, None] == jnp.arange(seat.pool.settings.entries)
    high, low = (jnp.sum(jnp.where(here, x[:, None], 0), axis=0) for x in jnp.divmod(parts, HALF))
    return collectives.sum_over_shards(high) * (HALF * PART) + collectives.sum_over_shards(low) * PART
