"""The learners of a league: one run each, mapped along one axis.

The first main agent's run is the run itself: its policy is what evaluations, checkpoints' readers and other
runs see. The others lie in `RunState.league`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from algos.types import PyTree
from jaxmarl_echelon.selfplay.league import AXIS
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.acting.state import RunState


def stacked(run: RunState) -> RunState:
    """The runs of all learners, leaves `[M, ...]`."""
    own = run.replace(league=None)
    return jax.tree.map(lambda x, others: jnp.concatenate([x[None], others]), own, run.league)


def unstacked(runs: RunState) -> RunState:
    """The first learner's run, with the others' in it."""
    first, others = (jax.tree.map(lambda x, at=at: x[at], runs) for at in (0, slice(1, None)))
    return first.replace(league=others)


def begin(one: Callable, settings: PoolSettings) -> Callable:
    """`(key, ...) -> RunState` of a whole league, of the same of one learner, `(key, member, ...)`."""

    def init(key, *shared):
        keys = jax.random.split(key, settings.learners)
        axes = (0, 0) + (None,) * len(shared)
        members = jnp.arange(settings.learners)
        return unstacked(jax.vmap(one, axes, axis_name=AXIS)(keys, members, *shared))

    return init


def advance(one: Callable, settings: PoolSettings) -> Callable:
    """`(run, world) -> (run, report)` of a whole league, of the same of one learner.

    The report is that of the first main agent, with the losses of the others under their names.
    """

    def update(run, world):
        runs, reports = jax.vmap(one, (0, None), axis_name=AXIS)(stacked(run), world)
        return unstacked(runs), reported(reports, settings)

    return update


def reported(reports: PyTree, settings: PoolSettings) -> PyTree:
    """The report of a league of those of all learners, leaves `[M, ...]`."""
    first = jax.tree.map(lambda x: x[0], reports)
    losses = {
        name.replace("losses/", f"losses/{settings.learner_name(number)}/", 1): values[number]
        for number in range(1, settings.learners)
        for name, values in reports.metrics.items()
        if name.startswith("losses/")
    }
    return first._replace(metrics=first.metrics | losses)
