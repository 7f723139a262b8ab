"""Whom a pool's seat meets in a rollout of teams that act at once."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp

from algos.types import Agent
from jaxmarl_echelon.training.pools.opponents import TAG, Seat, opponents, tagged
from jaxmarl_echelon.training.types import RunState


class Meetings(NamedTuple):
    """Whom a pool's seat meets in a rollout; without a pool nothing.

    Attributes:
      policies: `(RunState) -> policies`, by name, with those of the seat.
      cut: `(cut [E], last) -> cut [E]`, also the last decision before an opponent changes.
      tagged: `(Flow) -> Flow`, with the tag `opponent`.
      last: `(horizon, segments) -> [segments, T]` bool, the last decision; None without a pool.
    """

    policies: Callable = lambda run: run.policies
    cut: Callable = lambda cut, last: cut
    tagged: Callable = lambda flow: flow
    last: Callable = lambda horizon, segments: None


def meetings(seat: Seat | None, agents: Mapping[str, Agent], run: RunState) -> Meetings:
    """Opponents of one rollout, constant in it."""
    if seat is None:
        return Meetings()
    number = run.reset.shape[0]
    entries, changes = seat.entries(run.pool, number), seat.changes(run.pool, number)
    taken = opponents(seat, agents[seat.owner], run.pool, run.policies)

    return Meetings(
        policies=lambda run: run.policies | {seat.policy: taken._replace(owner=run.policies[seat.owner])},
        cut=lambda cut, last: cut | (last & changes),
        tagged=lambda flow: tagged(flow, {TAG: entries}),
        last=lambda horizon, segments: (jnp.arange(horizon) == horizon - 1).reshape(segments, -1),
    )
