"""Shared parts of staged curricula: the table of tasks, sampling from it, and episode statistics.

A staged curriculum moves along its table. Transitions are evaluated after every single episode, ordered
by start time, independently of the number of environments. Reference: docs/reference/curricula.md 3.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from algos import checks
from algos.types import PyTree
from jaxmarl_echelon.curricula import episode_queue
from jaxmarl_echelon.curricula.base import Curriculum, read_task_params, tasks_differ
from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.envs.episodes import EpisodeTask, Finished
from jaxmarl_echelon.envs.trees import mean_where

# Rates are float32 ratios of small integers: 70 of 100 must reach a threshold of 0.7.
RATE_TOLERANCE = 1e-6
LONGEST_WINDOW = 10_000
# Least queue capacity. A constant, so that neither the episodes processed per update nor their cost grow
# with the number of environments.
LEAST_QUEUE_CAPACITY = 1024


class Stage(NamedTuple):
    """One parsed entry of a table of stages; `where` names it in messages, `rules` are its other keys."""

    name: str
    where: str
    params: PyTree
    rules: dict[str, Any]


class EpisodeResult(NamedTuple):
    """A finished episode, or a batch with leading axes.

    Attributes:
      success: float32 score in [0, 1].
      reward: float32 return of the followed role, mean over its present agents; NaN without any.
      outcome: int32 outcome code.
    """

    success: jax.Array
    reward: jax.Array
    outcome: jax.Array


NO_EPISODE_RESULT = EpisodeResult(np.float32(0.0), np.float32(0.0), np.int32(-1))


class StageRules(NamedTuple):
    """Transition rules of a staged curriculum; `course` is their state, with an int32 `stage`.

    Attributes:
      init: `() -> course`.
      probabilities: `(course) -> [S]`, sampling probabilities of stages.
      advance: `(course, EpisodeResult [N], number) -> course`, for the next `number` counted episodes of the
        current stage, in order, in the first rows of N. At most one transition per call; episodes after
        it are ignored.
      metrics: `(course) -> dict` of `curriculum/...` scalars.
      window: longest window, in episodes.
      restarted: `(course) -> course`, without the counted episodes of the current stage.
      evaluated: `(course, score) -> course`, after an evaluation of the current stage.
      needs_evaluations: whether a stage is only left after evaluations.
    """

    init: Callable
    probabilities: Callable
    advance: Callable
    metrics: Callable
    window: int
    restarted: Callable
    evaluated: Callable = lambda course, _score: course
    needs_evaluations: bool = False


class StagedState(struct.PyTreeNode):
    """State of a curriculum of S stages.

    Attributes:
      params: parameters `[S, ...]` of the stages' tasks.
      course: state of the rules.
    """

    params: PyTree
    course: PyTree


def read_stages(
    env, where: str, stages: Sequence[Mapping], common: Mapping | None, rules: Sequence[str]
) -> list[Stage]:
    """Parses a table of stages, `{name, settings, ...}` each, on the host.

    Args:
      env: the environment; its `task_params` reads `settings`.
      where: the table's key in the configuration.
      stages: the table.
      common: defaults of all stages; mappings are merged recursively.
      rules: keys of a stage in addition to `name` and `settings`.

    Raises:
      ValueError: one line, for an empty table, a missing or repeated name, an unknown key, or an
        invalid setting.
    """
    if isinstance(stages, str | Mapping) or not isinstance(stages, Sequence) or not stages:
        raise ValueError(f"{where}={stages}: must be a list of at least one stage")
    table, names = [], set()
    for index, given in enumerate(stages):
        name = given.get("name") if isinstance(given, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}.{index}={given}: must be a mapping with a name")
        if name in names:
            raise ValueError(f"{where}.{index}.name={name}: another stage has this name")
        names.add(name)
        here = f"{where}.{index} ({name})"
        entry = merge_mappings(checks.require_mapping("curriculum.common", common), given)
        checks.require_keys(f"{here}: ", entry, ("name", "settings", *rules))
        params = read_task_params(
            env, checks.require_mapping(f"{here}: settings", entry.get("settings")), here
        )
        table.append(Stage(name, here, params, {key: entry.get(key) for key in rules}))
    return table


def build_staged_curriculum(
    env, table: Sequence[Stage], rules: StageRules, evaluation: Mapping | None, role: str | None = None
) -> Curriculum:
    """Builds a curriculum from a table of stages and transition rules.

    `rules.advance` sees only episodes of the current stage: blended easier stages, and episodes begun
    before the last transition, would bias its statistics. Episodes are admitted as they begin, up to the
    capacity of the queue (see `tickets`).

    Args:
      env: the environment; its spec must name a score.
      table: the stages.
      rules: see `StageRules`.
      evaluation: settings of the task that scores the run, overriding the environment's own.
      role: the role whose returns are used; None for the first role that learns by default.

    Raises:
      ValueError: one line, without a score, or for an unknown role or evaluation setting.
    """
    spec = env.spec
    if spec.score is None:
        raise ValueError(f"curriculum: {spec.name} reports no score, so that no stage could be passed")
    role = _followed(env, role)
    scored = read_task_params(env, dict(evaluation or {}), "curriculum.evaluation")
    stacked = jax.tree.map(
        lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *(s.params for s in table)
    )

    names = tuple(stage.name for stage in table)

    def init():
        return StagedState(jax.tree.map(jnp.asarray, stacked), rules.init())

    def draw(key, state):
        logits = jnp.log(rules.probabilities(state.course))
        stage = jax.random.categorical(key, logits).astype(jnp.int32)
        return EpisodeTask(_select_stage_params(state.params, stage), {"stage": stage})

    size = max(LEAST_QUEUE_CAPACITY, 2 * rules.window)

    def update(state, tickets, flow):
        course, finished = state.course, flow.finished
        # An episode without scored agents is neither a success nor a failure.
        flow = flow.replace(finished=finished.replace(mask=finished.mask & _has_score(finished, spec)))
        tickets = episode_queue.enqueue_and_record(
            tickets, flow, flow.tags["stage"] == course.stage, read_episodes(finished, spec, role)
        )
        episodes, number, places = episode_queue.completed_prefix(tickets)
        state = state.replace(course=rules.advance(course, episodes, number))
        moved = state.course.stage != course.stage
        return state, episode_queue.dequeue_episodes(tickets, jnp.where(moved, size, places))

    def changed(state, fresh):
        return tasks_differ(*(_select_stage_params(one.params, state.course.stage) for one in (state, fresh)))

    def retasked(state, fresh):
        again, other = rules.restarted(state.course), changed(state, fresh)
        course = jax.tree.map(lambda x, y: jnp.where(other, x, y), again, state.course)
        return StagedState(fresh.params, course)

    return Curriculum(
        init=init,
        draw=draw,
        update=update,
        metrics=lambda state: rules.metrics(state.course),
        evaluation=lambda _state: jax.tree.map(jnp.asarray, scored),
        tickets=lambda num_envs: episode_queue.make_episode_queue(num_envs, size, NO_EPISODE_RESULT),
        stages=names,
        tags={"stage": names},
        stage=lambda state: state.course.stage,
        stage_params=lambda state, index: _select_stage_params(state.params, index),
        evaluated=lambda state, score, _: state.replace(course=rules.evaluated(state.course, score)),
        needs_evaluations=rules.needs_evaluations,
        retasked=retasked,
        requeued=lambda tickets, state, fresh: episode_queue.empty_queue(tickets, changed(state, fresh)),
        retagged=lambda tags, state, fresh: leave_stage(tags, state.course.stage, changed(state, fresh)),
    )


def leave_stage(tags: Mapping[str, jax.Array], stage: jax.Array, changed: jax.Array) -> dict[str, jax.Array]:
    """Returns tags of episodes that have been drawn but not begun, without a stage whose task has changed.

    Args:
      tags: `[...]` int32 by name, with `stage`.
      stage: int32, the current stage.
      changed: bool; its task is no longer the one that the episodes were drawn for.
    """
    drawn = tags["stage"]
    return {**tags, "stage": jnp.where(changed & (drawn == stage), results.NONE, drawn)}


def _select_stage_params(params: PyTree, stage: jax.Array) -> PyTree:
    """Returns the parameters of one stage, from `[S, ...]`."""
    return jax.tree.map(lambda x: x[stage], params)


def _has_score(finished: Finished, spec: EnvSpec) -> jax.Array:
    """Returns bool `[T, E]`: the episode has a score; averages over no agents have none."""
    return results.average_terms(spec.results, finished.results, finished.present, spec.score)[1] != 0


def read_episodes(finished: Finished, spec: EnvSpec, role: str) -> EpisodeResult:
    """Returns score, return and outcome of finished episodes `[T, E]`."""
    value, weight = results.average_terms(spec.results, finished.results, finished.present, spec.score)
    return EpisodeResult(
        success=results.divide_or_empty(value, weight, empty=0.0),
        reward=mean_where(finished.episode_return[role], finished.present[role]),
        outcome=finished.results.get("outcome", jnp.full(finished.mask.shape, -1, jnp.int32)),
    )


def find_first_true(happens: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Finds the first set element among the first `number` of `happens [N]`.

    Returns:
      seen: int32, elements up to and including it; `number` if none is set.
      found: bool; whether one is set.
    """
    happens = happens & (jnp.arange(happens.size) < number)
    found = jnp.any(happens)
    return jnp.where(found, jnp.argmax(happens).astype(jnp.int32) + 1, number), found


def select_last(values: jax.Array, seen: jax.Array, before: jax.Array) -> jax.Array:
    """Returns `values[seen - 1]` of `values [N]`; `before` if `seen` is 0."""
    return jnp.where(seen > 0, values[seen - 1], before)


def streak_lengths(holds: jax.Array, before: jax.Array) -> jax.Array:
    """Returns the length of the run of True ending at each of `holds [N]`; `before` precedes the first."""
    index = jnp.arange(holds.size, dtype=jnp.int32)
    broken = scan_by_doubling(jnp.maximum, jnp.where(holds, -1, index), jnp.int32(-1))
    return index - broken + jnp.where(broken < 0, before, 0)


def scan_by_doubling(combine: Callable, values: PyTree, neutral: PyTree) -> PyTree:
    """Computes the inclusive scan of `values [N]` with an associative `combine(earlier, later)`.

    A `fori_loop` of log N steps: `lax.associative_scan` unrolls them and takes seconds to compile.
    """
    size = jax.tree.leaves(values)[0].shape[0]

    def double(turn, values):
        earlier = jax.tree.map(lambda x, none: _shifted(x, 1 << turn, none), values, neutral)
        return combine(earlier, values)

    return lax.fori_loop(0, (size - 1).bit_length(), double, values)


def append_newest(history: jax.Array, values: jax.Array, number: jax.Array) -> jax.Array:
    """Appends the first `number` of `values [N]` to `history [W]`, newest last, and keeps the newest W."""
    joined = jnp.concatenate([history, values.astype(history.dtype)])
    return lax.dynamic_slice_in_dim(joined, number, history.shape[0])


def newest_mask(size: int, count: jax.Array, length: jax.Array) -> jax.Array:
    """Returns a mask `[size]` of the `length` newest of `count` values in a history, newest last."""
    return jnp.arange(size) >= size - jnp.minimum(jnp.minimum(count, length), size)


def sliding_mean(history: jax.Array, count: jax.Array, values: jax.Array, length: jax.Array) -> jax.Array:
    """Returns the sliding-window mean at each new value, over the `length` newest up to it.

    Combines sums over blocks of 1, 2, 4, ... values: no cancellation, unlike differences of cumulative
    sums, and O(log length) per value.

    Args:
      history: `[W, ...]`, newest last, of which the last `count` are valid.
      count: int32.
      values: `[N, ...]` new values.
      length: int32 window, at most W.

    Returns:
      `[N, ...]` float32.
    """
    size = history.shape[0]
    trailing = (1,) * (values.ndim - 1)
    known = newest_mask(size, count, jnp.int32(size)).reshape(-1, *trailing)
    every = jnp.concatenate([jnp.where(known, history, 0), values]).astype(jnp.float32)

    def double(turn, carry):
        total, block = carry
        places = 1 << turn
        longer = block + _shifted(total, places, 0.0)
        return jnp.where((length >> turn) & 1 == 1, longer, total), block + _shifted(block, places, 0.0)

    total, _ = lax.fori_loop(0, size.bit_length(), double, (jnp.zeros_like(every), every))
    number = jnp.minimum(count + 1 + jnp.arange(values.shape[0]), length)
    return total[size:] / number.reshape(-1, *trailing)


def _shifted(x: jax.Array, places: jax.Array, fill) -> jax.Array:
    """Shifts `x [N, ...]` by `places` rows, with `fill` in the first ones."""
    first = (jnp.arange(x.shape[0]) < places).reshape(-1, *(1,) * (x.ndim - 1))
    return jnp.where(first, fill, jnp.roll(x, places, axis=0))


def of_last_move(course: PyTree, moves: jax.Array, value: jax.Array) -> jax.Array:
    """Returns `value`, of the last change of stage, until an episode of the new stage counts; then NaN.

    Args:
      course: state with int32 `episodes` of the current stage.
      moves: int32, changes of stage so far.
      value: scalar.
    """
    return jnp.where((course.episodes == 0) & (moves > 0), value, jnp.nan)


def mean_of_marked(marked: jax.Array, values: jax.Array) -> jax.Array:
    """Returns the mean of `values [..., W]` over `marked [W]`, NaNs excluded; NaN if empty."""
    return mean_where(values, marked & ~jnp.isnan(values))


def merge_mappings(base: Mapping, over: Mapping) -> dict:
    """Merges mappings recursively; `over` takes precedence."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge_mappings(result[key], value) if both else value
    return result


def _followed(env, role: str | None) -> str:
    names = [one.name for one in env.spec.roles]
    if role is None:
        return next((name for name in names if env.controllers.get(name) == "learner"), names[0])
    if role not in names:
        raise ValueError(f"curriculum.role={role}: unknown role; allowed: {', '.join(names)}")
    return role
