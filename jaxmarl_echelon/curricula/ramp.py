"""Ramp: linear interpolation of task parameters during training. Reference: docs/reference/curricula.md 6."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos import checks
from algos.defaults import FROM_FILE, take_defaults_from
from algos.types import PyTree
from jaxmarl_echelon.curricula.base import Curriculum, read_task_params
from jaxmarl_echelon.envs.episodes import EpisodeTask

_LONGEST = 10**9
_MOST = 2**30


class RampState(struct.PyTreeNode):
    """State of a ramp.

    Attributes:
      start: parameters of the first task.
      end: parameters of the last task.
      warmup: float32, count at which the ramp begins.
      length: float32, counts from there to the last task.
      count: int32 updates or finished episodes of the whole run, so that a run can be resumed with a longer
        ramp; saturates at 2**30.
    """

    start: PyTree
    end: PyTree
    warmup: jax.Array
    length: jax.Array
    count: jax.Array


@take_defaults_from("curriculum/echelon_ramp")
def ramp_curriculum(
    env,
    start: Mapping,
    end: Mapping,
    updates: int | None = None,
    episodes: int | None = None,
    warmup: int = FROM_FILE,
    evaluation: Mapping | None = None,
) -> Curriculum:
    """Builds a curriculum that interpolates settings linearly; new episodes use their current values.

    Args:
      env: the environment; its `task_params` reads `start`, `end` and `evaluation`.
      start: initial settings.
      end: final values of the same settings.
      updates: length of the ramp in updates; None to count episodes.
      episodes: length in finished episodes, summed over environments; None to count updates.
      warmup: updates or episodes before the ramp begins.
      evaluation: settings of the task that scores the run, overriding the environment's own.

    Raises:
      ValueError: one line, for settings that are invalid, at one end only or cannot be interpolated, and
        for a length that is missing, given twice or not positive.
    """
    length = _length(updates, episodes)
    warmup = checks.require_whole("curriculum.warmup", warmup, 0, _LONGEST)
    ends = _ends(env, start, end)
    scored = read_task_params(env, dict(evaluation or {}), "curriculum.evaluation")

    def init():
        first, last = (jax.tree.map(jnp.asarray, params) for params in ends)
        return RampState(first, last, jnp.float32(warmup), jnp.float32(length), jnp.int32(0))

    def update(state, tickets, flow):
        more = 1 if episodes is None else jnp.sum(flow.finished.mask)
        return state.replace(count=jnp.minimum(state.count + more, _MOST)), tickets

    return Curriculum(
        init=init,
        draw=lambda _key, state: EpisodeTask(_between(state)),
        update=update,
        metrics=lambda state: {"curriculum/progress": ramp_progress(state)},
        evaluation=lambda _state: jax.tree.map(jnp.asarray, scored),
        retasked=lambda state, fresh: fresh.replace(count=state.count),
        by_episodes=episodes is not None,
    )


def ramp_progress(state: RampState) -> jax.Array:
    """Returns the completed fraction of the ramp, in [0, 1]."""
    return jnp.clip((state.count - state.warmup) / state.length, 0.0, 1.0)


def _between(state: RampState) -> PyTree:
    share = ramp_progress(state)

    def mix(first, last):
        # Equal values are kept unchanged: they may be infinite, such as a disabled time limit.
        return jnp.where(first == last, first, first + share * (last - first)).astype(first.dtype)

    return jax.tree.map(
        lambda first, last: mix(first, last) if jnp.issubdtype(first.dtype, jnp.floating) else first,
        state.start,
        state.end,
    )


def _length(updates, episodes) -> int:
    given = {"updates": updates, "episodes": episodes}
    named = {key: value for key, value in given.items() if value is not None}
    if len(named) != 1:
        raise ValueError(f"curriculum.updates={updates}, episodes={episodes}: one of them must be a number")
    ((key, value),) = named.items()
    return checks.require_whole(f"curriculum.{key}", value, 1, _LONGEST)


def _ends(env, start: Mapping, end: Mapping) -> tuple[PyTree, PyTree]:
    """Returns the parameters of the two tasks, on the host."""
    for where, settings in (("start", start), ("end", end)):
        if not isinstance(settings, Mapping) or not settings:
            raise ValueError(f"curriculum.{where}={settings}: must be settings of the environment")
    if lone := sorted(set(start) ^ set(end)):
        raise ValueError(f"curriculum.start and end: {lone[0]} must be in both")
    for key in start:
        first = read_task_params(env, {key: start[key]}, "curriculum.start")
        last = read_task_params(env, {key: end[key]}, "curriculum.end")
        if not all(map(_on_a_line, jax.tree.leaves(first), jax.tree.leaves(last))):
            change = f"cannot be interpolated from {start[key]}; only finite numbers can"
            raise ValueError(f"curriculum.end.{key}={end[key]}: {change}")
    return read_task_params(env, dict(start), "curriculum.start"), read_task_params(
        env, dict(end), "curriculum.end"
    )


def _on_a_line(first, last) -> bool:
    """Returns whether two arrays can be interpolated: elements are equal, or finite floats."""
    first, last = np.asarray(first), np.asarray(last)
    real = np.issubdtype(first.dtype, np.floating)
    return bool(np.all((first == last) | (real & np.isfinite(first) & np.isfinite(last))))
