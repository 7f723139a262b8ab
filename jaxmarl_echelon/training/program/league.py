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


def stack_league(run: RunState) -> RunState:
    """Stacks the states of all learners, leaves `[M, ...]`."""
    own = run.replace(league=None)
    return jax.tree.map(lambda x, others: jnp.concatenate([x[None], others]), own, run.league)


def unstack_league(runs: RunState) -> RunState:
    """Inverse of `stack_league`: the first learner's state, with the others in its `league`."""
    first, others = (jax.tree.map(lambda x, at=at: x[at], runs) for at in (0, slice(1, None)))
    return first.replace(league=others)


def vectorize_league_init(one: Callable, settings: PoolSettings) -> Callable:
    """Builds the league's `(key, ...) -> RunState` from that of one learner, `(key, member, ...)`."""

    def init(key, *shared):
        keys = jax.random.split(key, settings.learners)
        axes = (0, 0) + (None,) * len(shared)
        members = jnp.arange(settings.learners)
        return unstack_league(jax.vmap(one, axes, axis_name=AXIS)(keys, members, *shared))

    return init


def first_learner_key(key: jax.Array, settings: PoolSettings) -> jax.Array:
    """Returns the key from which the first main agent of a league starts, of the league's own."""
    return jax.random.split(key, settings.learners)[0]


def vectorize_league_update(one: Callable, settings: PoolSettings) -> Callable:
    """Builds the league's `(run, world) -> (run, report)` from that of one learner.

    The report is the first main agent's, with the losses of the others under their names.
    """

    def update(run, world):
        runs, reports = jax.vmap(one, (0, None), axis_name=AXIS)(stack_league(run), world)
        return unstack_league(runs), merge_league_reports(reports, settings)

    return update


def merge_league_reports(reports: PyTree, settings: PoolSettings) -> PyTree:
    """Combines the reports of all learners, leaves `[M, ...]`, into the league's report."""
    first = jax.tree.map(lambda x: x[0], reports)
    losses = {
        name.replace("losses/", f"losses/{settings.learner_name(number)}/", 1): values[number]
        for number in range(1, settings.learners)
        for name, values in reports.metrics.items()
        if name.startswith("losses/")
    }
    return first._replace(metrics=first.metrics | losses)
