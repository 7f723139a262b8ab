"""Turn-based games against a pool: the learner plays one phase agent in each class of environments.

The environments of each group are divided into N classes. In class c the learner is phase agent c, and the
group's opponent plays all others: in every ply the learner decides in one class, and opponents in the others.
Starts of games are delayed so that the learner plays every seat equally often (`rounds`). In mirrored
environments the learner plays all phase agents, and games begin immediately.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos.masks import select_rows
from algos.types import Agent, PyTree
from jaxmarl_echelon.envs.base import Role
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.acting.controllers import Controller
from jaxmarl_echelon.training.acting.decisions import ActingSeat, repeat_for_seats
from jaxmarl_echelon.training.acting.state import ControllerView, RunState
from jaxmarl_echelon.training.opponents import pool_role, seat_rounds
from jaxmarl_echelon.training.opponents.pool_role import PoolRole, PoolRoleMemory
from jaxmarl_echelon.training.rollouts import turn_based
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec
from jaxmarl_echelon.training.rollouts.turn_based import SeatPolicy


class DecidingRows(NamedTuple):
    """Indices of the environments in which the learner or opponents decide, by phase.

    Attributes:
      learner: `[N, M]` int32; the mirrored environments, and those of the phase's class.
      others: `[N, L]` int32; the other environments, group by group.
      classes: `[E]` int32; the learner's phase agent, -1 in mirrored environments.
    """

    learner: np.ndarray
    others: np.ndarray
    classes: np.ndarray


def compute_deciding_rows(mirrored: int, environments: int, groups: int, phases: int) -> DecidingRows:
    """Computes the rows of a shard with `mirrored` mirrored environments and the others in `groups`."""
    place = np.arange(mirrored, environments).reshape(groups, phases, -1)
    first = np.arange(mirrored)
    learner = [np.concatenate([first, place[:, phase].ravel()]) for phase in range(phases)]
    others = [np.delete(place, phase, axis=1).ravel() for phase in range(phases)]
    classes = np.broadcast_to(np.arange(phases)[None, :, None], place.shape).ravel()
    return DecidingRows(np.stack(learner), np.stack(others), np.concatenate([np.full(mirrored, -1), classes]))


def turn_based_pool_controller(
    seat: PoolRole, agent: Agent, role: Role, fixed: Mapping[int, Controller]
) -> Controller:
    """Builds the controller of a pool's role in turn-based games, called once per ply.

    `act` is `(key, Opponents, PoolRoleMemory, due, phase) -> (PoolRoleMemory, action [E, 1, ...], choice)`,
    with choices of the rows `DecidingRows.learner` of the phase. Memories have axes of environments and
    phase agents.
    """
    settings, phases = seat.pool.settings, role.size
    own = controllers.make_learner_controller(agent, role, seat.owner, greedy=False)
    past = controllers.make_learner_controller(
        agent._replace(asymmetric=False), role, seat.owner, greedy=settings.greedy
    )
    play_bank = pool_role.ACTING[settings.acting]

    def init(num_envs):
        def begin(one):
            return repeat_for_seats(one.init(num_envs), phases)

        return PoolRoleMemory(own.init(num_envs), (), pool_role.fixed_opponent_memories(fixed, seat, begin))

    def act(key, state, memory, due, phase):
        rows = jax.tree.map(jnp.asarray, shard_deciding_rows(seat, due.reset.shape[0], phases))
        mine, theirs = rows.learner[phase], rows.others[phase]
        key_own, key_bank, *keys = jax.random.split(key, 2 + len(seat.fixed))
        carry = _slice(memory.mirror, phase)
        kept, reply, choice = own.act(key_own, state.owner, index_rows(carry, mine), *_shown(due, mine))
        carry, action = (
            set_rows(carry, mine, kept),
            set_rows(jnp.zeros_like(reply, shape=_shape(due, reply)), mine, reply),
        )
        remembered = memory.fixed
        if seat.pool.rivals:
            view, reset = _shown(due, theirs)
            seen = ControllerView(None, None, view.time)
            kept, reply = play_bank(past.act, key_bank, state, index_rows(carry, theirs), seen, reset)
            carry, action = set_rows(carry, theirs, kept), set_rows(action, theirs, reply)
            action, remembered = _fixed(seat, fixed, keys, state, memory.fixed, due, phase, theirs, action)
        return PoolRoleMemory(_write(memory.mirror, carry, phase), (), remembered), action, choice

    return Controller(init, act, seat.policy)


def _fixed(seat, fixed, keys, state, memories, due: ActingSeat, phase, theirs, action):
    """Inserts the actions of fixed opponents in their groups; returns the actions and memories."""
    slots = jnp.repeat(state.slots, theirs.shape[0] // state.slots.shape[0])
    view, reset = _shown(due, theirs)
    remembered = list(memories)
    for number, one in fixed.items():
        mine = slots == seat.pool.settings.first_fixed + number
        memory = index_rows(_slice_own(memories[number], phase), theirs)
        kept, reply, _ = one.act(keys[number], state.fixed[number], memory, view, reset)
        before = action[theirs]
        action = set_rows(action, theirs, select_rows(mine, reply.astype(before.dtype), before))
        remembered[number] = _write_own(memories[number], theirs, kept, phase)
    return action, tuple(remembered)


def shard_deciding_rows(seat: PoolRole, environments: int, phases: int) -> DecidingRows:
    """Computes the rows of this shard."""
    return compute_deciding_rows(seat.mirrored(environments), environments, max(seat.groups(), 1), phases)


def pool_play_seats(collector: RolloutSpec, run: RunState) -> SeatPolicy:
    """Builds the table of a rollout against the pool."""
    seat, number = collector.seat, run.reset.shape[0]
    (role,) = collector.env.spec.roles
    agent, controller = collector.agents[role.name], collector.controllers[role.name]
    phases = collector.env.spec.turns
    rows = shard_deciding_rows(seat, number, phases)
    classes, changes = jnp.asarray(rows.classes), seat.changes(run.pool, number)
    plies = collector.horizon * phases
    met = pool_role.select_opponents(seat, agent, run.pool, run.policies)
    entries = seat.entries(run.pool, number)

    def act(key, run, due, phase):
        memories, action, choice = controller.act(key, met, run.memories[role.name], due, phase)
        mine = index_rows(due, jnp.asarray(rows.learner)[phase])
        return {role.name: memories}, action, turn_based.record_decision(collector, role.name, mine, choice)

    def pick(x):
        return turn_based.merge_phases(
            jnp.stack([x[:, phase, rows.learner[phase]] for phase in range(phases)], axis=1)
        )

    def carry(memories):
        def columns(x):
            return jnp.concatenate([x[rows.learner[phase], phase] for phase in range(phases)])[:, None]

        return jax.tree.map(columns, memories[role.name].mirror)

    def tagged(flow, phase, length):
        place = seat_rounds.seat_of_agent(classes, phase, length, phases)
        return pool_role.add_tags(flow, {pool_role.TAG: entries, pool_role.SEAT: place})

    def waits(run, phase):
        length = run.episodes.running.tree.sums.length
        place = seat_rounds.seat_of_agent(classes, phase, length, phases)
        return (classes >= 0) & (length == 0) & seat_rounds.is_seat_played(run.had, place)

    def after(run, flow, phase, length):
        place = seat_rounds.seat_of_agent(classes, phase, length, phases)
        # A game that is truncated by a change of opponents is played again from the same seat, unless it
        # does not fit a rollout.
        over = flow.finished.mask | (flow.over & (length + 1 >= plies))
        return run.replace(had=seat_rounds.mark_played_seats(run.had, place, over))

    def learning(x, phase):
        return x[jnp.asarray(rows.learner)[phase]]

    return SeatPolicy(act, pick, carry, changes, tagged, waits, after, learning)


def collect_turn_based_pool(collector: RolloutSpec, run: RunState, key: jax.Array, draw):
    """Collects a rollout against the pool; see `turn_based.collect_turn_based`."""
    return turn_based.collect_turn_based(collector, run, key, draw, pool_play_seats(collector, run))


def index_rows(tree: PyTree, rows: jax.Array) -> PyTree:
    """Selects rows of arrays `[E, ...]`."""
    return jax.tree.map(lambda x: x[rows], tree)


def set_rows(tree: PyTree, rows: jax.Array, values: PyTree) -> PyTree:
    """Replaces rows of arrays `[E, ...]` by `values`."""
    return jax.tree.map(lambda x, y: x.at[rows].set(y), tree, values)


def _shown(due: ActingSeat, rows: jax.Array) -> tuple[ControllerView, jax.Array]:
    """Views and reset flags of some environments."""
    return index_rows((due.view, due.reset), rows)


def _shape(due: ActingSeat, reply: jax.Array) -> tuple[int, ...]:
    """Shape of the actions of all environments."""
    return (due.reset.shape[0], *reply.shape[1:])


def _slice(tree: PyTree, phase: jax.Array) -> PyTree:
    """Slices the memories `[E, 1, ...]` of one phase agent from `[E, N, ...]`."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, phase, 1, axis=1), tree)


def _write(tree: PyTree, part: PyTree, phase: jax.Array) -> PyTree:
    """Writes the memories `[E, 1, ...]` of one phase agent into `[E, N, ...]`."""
    return jax.tree.map(lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, phase, axis=1), tree, part)


def _slice_own(tree: PyTree, phase: jax.Array) -> PyTree:
    """Selects the memories `[E, ...]` of one phase agent from `[E, N, ...]`."""
    return jax.tree.map(lambda x: x[:, phase], tree)


def _write_own(tree: PyTree, rows: jax.Array, part: PyTree, phase: jax.Array) -> PyTree:
    """Writes memories of one phase agent in some environments into `[E, N, ...]`."""
    return jax.tree.map(lambda x, new: x.at[rows, phase].set(new), tree, part)
