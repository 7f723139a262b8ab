"""Assigns pool opponents during a rollout in simultaneous-move environments."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from algos.types import Agent
from jaxmarl_echelon.selfplay import matchmaking, pool
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.opponents.pool_role import TAG, PoolRole, add_tags, select_opponents

# Distinguishes the draw of opponents from other uses of a step's key.
DRAWS = 17


class OpponentSchedule(NamedTuple):
    """Schedule of a pool's opponents in a rollout; the defaults do nothing.

    Attributes:
      start: `(RunState) -> RunState`, before the rollout.
      begin: `(RunState, key) -> RunState`, before every decision.
      policies: `(RunState) -> policies`, by name, including the pool's.
      cut: `(RunState, last) -> [E]` bool, truncates the episode after this decision.
      tagged: `(RunState, EpisodeEvents) -> EpisodeEvents`, with the tag `opponent`.
      end: `(RunState) -> RunState`, after the rollout.
      last: `(horizon, segments) -> [segments, T]` bool, the last decision; None without a pool.
    """

    start: Callable = lambda run: run
    begin: Callable = lambda run, _key: run
    policies: Callable = lambda run: run.policies
    cut: Callable = lambda run, _last: run.stagger == 1
    tagged: Callable = lambda _run, flow: flow
    end: Callable = lambda run: run
    last: Callable = lambda _horizon, _segments: None


def make_opponent_schedule(
    seat: PoolRole | None, agents: Mapping[str, Agent], run: RunState
) -> OpponentSchedule:
    """Builds the opponents of one rollout: constant, or drawn at the start of each episode."""
    if seat is None:
        return OpponentSchedule()
    if seat.pool.settings.episodic:
        return per_episode_schedule(seat, agents, run)
    number = run.reset.shape[0]
    entries, changes = seat.entries(run.pool, number), seat.changes(run.pool, number)
    taken = select_opponents(seat, agents[seat.owner], run.pool, run.policies)

    return OpponentSchedule(
        policies=lambda run: run.policies | {seat.policy: taken._replace(owner=run.policies[seat.owner])},
        cut=lambda run, last: (run.stagger == 1) | (last & changes),
        tagged=lambda _run, flow: add_tags(flow, {TAG: entries}),
        last=_last,
    )


def per_episode_schedule(seat: PoolRole, agents: Mapping[str, Agent], run: RunState) -> OpponentSchedule:
    """Builds the schedule of opponents drawn per episode.

    During the rollout `PoolState.slots` holds the entries of this shard's environments. The bank and the
    probabilities of opponents stay constant.
    """
    before, mirrored = run.pool, seat.mirrored(run.reset.shape[0])
    taken = select_opponents(seat, agents[seat.owner], before, run.policies)
    chances, places = pool.opponent_probabilities(seat.pool, before), jnp.asarray(seat.pool.places, jnp.int32)

    def with_slots(run, slots):
        return run.replace(pool=run.pool.replace(slots=slots))

    def begin(run, key):
        slots, begins = run.pool.slots, run.reset[mirrored:]
        key = collectives.fold_shard_into_key(jax.random.fold_in(key, DRAWS))
        return with_slots(run, jnp.where(begins, matchmaking.draw_opponents(key, chances, begins), slots))

    def policies(run):
        slots = run.pool.slots
        met = taken._replace(owner=run.policies[seat.owner], slots=slots, places=places[slots])
        return run.policies | {seat.policy: met}

    def everywhere(rows):
        return jnp.concatenate([jnp.zeros(mirrored, rows.dtype), rows])

    return OpponentSchedule(
        start=lambda run: with_slots(run, collectives.local_rows(run.pool.slots)),
        begin=begin,
        policies=policies,
        cut=lambda run, last: (run.stagger == 1) | (last & everywhere(pool.groups_losing_opponent(run.pool))),
        tagged=lambda run, flow: add_tags(flow, {TAG: everywhere(run.pool.slots)}),
        end=lambda run: with_slots(run, collectives.gather_shards(run.pool.slots)),
        last=_last,
    )


def _last(horizon: int, segments: int) -> jax.Array:
    """Marks the last decision of a rollout, `[segments, T]` bool."""
    return (jnp.arange(horizon) == horizon - 1).reshape(segments, -1)
