"""Learners of a league: one run state each, vmapped along one axis.

The first main agent's state is the run's own: evaluations, readers of checkpoints and other runs use its
policy. The states of the others are in `RunState.league`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from algos.types import PyTree
from jaxmarl_echelon.selfplay.league import AXIS
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.acting.state import RunState


def stacked(run: RunState) -> RunState:
    """Stacks the states of all learners, leaves `[M, ...]`."""
    own = run.replace(league=None)
    return jax.tree.map(lambda x, others: jnp.concatenate([x[None], others]), own, run.league)


def unstacked(runs: RunState) -> RunState:
    """Inverse of `stacked`: the first learner's state, with the others in its `league`."""
    first, others = (jax.tree.map(lambda x, at=at: x[at], runs) for at in (0, slice(1, None)))
    return first.replace(league=others)


def begin(one: Callable, settings: PoolSettings) -> Callable:
    """Builds the league's `(key, ...) -> RunState` from that of one learner, `(key, member, ...)`."""

    def init(key, *shared):
        keys = jax.random.split(key, settings.learners)
        axes = (0, 0) + (None,) * len(shared)
        members = jnp.arange(settings.learners)
        return unstacked(jax.vmap(one, axes, axis_name=AXIS)(keys, members, *shared))

    return init


def advance(one: Callable, settings: PoolSettings) -> Callable:
    """Builds the league's `(run, world) -> (run, report)` from that of one learner.

    The report is the first main agent's, with the losses of the others under their names.
    """

    def update(run, world):
        runs, reports = jax.vmap(one, (0, None), axis_name=AXIS)(stacked(run), world)
        return unstacked(runs), reported(reports, settings)

    return update


def reported(reports: PyTree, settings: PoolSettings) -> PyTree:
    """Combines the reports of all learners, leaves `[M, ...]`, into the league's report."""
    first = jax.tree.map(lambda x: x[0], reports)
    losses = {
        name.replace("losses/", f"losses/{settings.learner_name(number)}/", 1): values[number]
        for number in range(1, settings.learners)
        for name, values in reports.metrics.items()
        if name.startswith("losses/")
    }
    return first._replace(metrics=first.metrics | losses)
