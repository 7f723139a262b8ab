"""Progress through the phases of a mission curriculum: statistics, transitions and reward schedules.

Transitions are tested after every single episode, in order.
Reference: docs/reference/echelon.md 17; docs/reference/curricula.md 2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.curricula import stages
from jaxmarl_echelon.curricula.missions import significance
from jaxmarl_echelon.curricula.missions.settings import CurriculumParams
from jaxmarl_echelon.curricula.missions.significance import MeanEstimate
from jaxmarl_echelon.envs.echelon.missions import calibration, weights
from jaxmarl_echelon.envs.trees import mean_where

# Largest share of a phase in the progress, so that the progress identifies the phase.
MAX_PHASE_SHARE = 0.999


class EpisodeMetrics(NamedTuple):
    """Metrics of an episode that transitions depend on, or a batch with leading axes.

    Attributes:
      metrics: by name, float32 in [0, 1]; arrays over metrics are in alphabetical order.
      counts: by name, bool; the episode counts for the metric.
      score: float32 in [0, 1].
      verb: int32; -1 for none.
    """

    metrics: dict[str, jax.Array]
    counts: dict[str, jax.Array]
    score: jax.Array
    verb: jax.Array


class MissionProgress(struct.PyTreeNode):
    """Progress of a run.

    Attributes:
      phase: int32 from 0.
      episodes: int32 counted training episodes since the phase was entered.
      judged: int32 episodes in the statistics since then.
      history: `EpisodeMetrics [W]` of the newest of these, newest last.
      before: `[4]` reward weights at the end of the last phase; see `current_reward_weights`.
      advances, regressions: int32 counts of transitions.
    """

    phase: jax.Array
    episodes: jax.Array
    judged: jax.Array
    history: EpisodeMetrics
    before: jax.Array
    advances: jax.Array
    regressions: jax.Array


class WindowStatistics(NamedTuple):
    """Statistics of a window of episodes, `[...]`.

    Attributes:
      metrics: `MeanEstimate` of each metric, `[..., M]`.
      variance: of the verbs' mean scores, over the verbs that occurred; NaN without any.
      size: int32, length of the window so far.
    """

    metrics: MeanEstimate
    variance: jax.Array
    size: jax.Array


def empty_episode_metrics(names: tuple[str, ...]) -> EpisodeMetrics:
    """Returns a template of one episode's marks."""
    return EpisodeMetrics(
        dict.fromkeys(names, np.float32(0)),
        dict.fromkeys(names, np.bool_(False)),
        np.float32(0),
        np.int32(-1),
    )


def start_mission_progress(names: tuple[str, ...], window: int) -> MissionProgress:
    """Returns the state before the first episode."""
    zero = jnp.int32(0)
    return MissionProgress(
        phase=zero,
        episodes=zero,
        judged=zero,
        history=jax.tree.map(lambda x: jnp.full(window, x), empty_episode_metrics(names)),
        before=jnp.zeros(4, jnp.float32),
        advances=zero,
        regressions=zero,
    )


def curriculum_progress(plan: CurriculumParams, phase: jax.Array, episodes: jax.Array) -> jax.Array:
    """Returns the progress in [0, 1) after `episodes` in a phase."""
    way = jnp.minimum(MAX_PHASE_SHARE, episodes / plan.nominal)
    return (phase + way) / plan.exams.shape[0]


def scheduled_weights(plan: CurriculumParams, progress: jax.Array) -> jax.Array:
    """Returns `[4]`: shares of the families (`weights.FAMILIES`) and weight of calibration, at a progress."""
    shares = weights.family_shares(plan.schedule, progress, plan.totals, plan.floor, plan.success)
    return jnp.append(shares, plan.calibration * calibration.calibration_fade(progress))


def current_reward_weights(plan: CurriculumParams, course: MissionProgress) -> jax.Array:
    """Returns the present `scheduled_weights`, blended with the previous phase's after a transition."""
    now = scheduled_weights(plan, curriculum_progress(plan, course.phase, course.episodes))
    mixed = weights.blend_weights(course.before, now, course.episodes / jnp.maximum(plan.blend, 1.0))
    moved = course.advances + course.regressions > 0
    return jnp.where(moved & (course.episodes < plan.blend), mixed, now)


def process_next_episodes(
    plan: CurriculumParams,
    quantiles: np.ndarray,
    course: MissionProgress,
    marks: EpisodeMetrics,
    number: jax.Array,
    ages: jax.Array,
) -> tuple[MissionProgress, jax.Array]:
    """Processes the next episodes of the current phase, up to the first transition.

    Advance if, over a full window, every required metric lies significantly above its threshold plus margin
    and the variance of scores between verbs is at most the allowed one. Regress if a metric of the previous
    phase lies significantly below its threshold minus margin. Neither before `dwell` episodes. Episodes after
    a transition are ignored, because they began in the phase that was left.

    Args:
      plan: the numbers.
      quantiles: from `significance.t_quantiles`, for the history's window.
      course: the state before.
      marks: `[N]` in order.
      number: int32, number of valid entries.
      ages: `[N]` int32, value of `MissionProgress.episodes` at each episode.

    Returns:
      the state, and bool: the phase has changed.
    """
    found = _sliding(plan, quantiles, course, marks)
    passed, failed = _decided(plan, quantiles, course.phase, found, ages)
    seen, moved = stages.find_first_true(passed | failed, number)
    passed, failed = (moved & stages.select_last(x, seen, False) for x in (passed, failed))
    after = append_to_window(course, marks, seen).replace(
        episodes=stages.select_last(ages, seen, course.episodes)
    )
    return _moved(plan, after, passed, failed)


def append_to_window(course: MissionProgress, marks: EpisodeMetrics, number: jax.Array) -> MissionProgress:
    """Returns the state with the first `number` of `marks [N]` added to its window."""
    history = jax.tree.map(lambda old, new: stages.append_newest(old, new, number), course.history, marks)
    return course.replace(judged=course.judged + number, history=history)


def decide_transition(
    plan: CurriculumParams, quantiles: np.ndarray, course: MissionProgress
) -> tuple[MissionProgress, jax.Array]:
    """Tests for a transition as `process_next_episodes` does, based on the current window only."""
    found = compute_window_statistics(plan, quantiles, course)
    return _moved(plan, course, *_decided(plan, quantiles, course.phase, found, course.episodes))


def compute_window_statistics(
    plan: CurriculumParams, quantiles: np.ndarray, course: MissionProgress
) -> WindowStatistics:
    """Computes the statistics of the current window."""
    size = quantiles.size - 1
    known = stages.newest_mask(size, course.judged, jnp.int32(size))
    columns = jnp.where(known[:, None], _columns(plan, course.history), 0.0)
    length = jnp.minimum(course.judged, size)
    return _standing(plan, quantiles, jnp.sum(columns, axis=0) / jnp.maximum(length, 1), length)


def check_phase_criteria(
    plan: CurriculumParams, course: MissionProgress, found: WindowStatistics
) -> tuple[jax.Array, jax.Array]:
    """Returns the criteria required by the current phase and those met now, bool `[M + 1]` each.

    The last entry is the variance between verbs. The last phase has no criteria.
    """
    asked = jnp.append(jnp.isfinite(plan.at_least[course.phase]), jnp.isfinite(plan.variance[course.phase]))
    return asked, asked & _met(plan, course.phase, found)


def worst_decile_score(course: MissionProgress) -> jax.Array:
    """Returns the mean score of the worst tenth of the window; NaN without episodes."""
    size = course.history.score.size
    known = stages.newest_mask(size, course.judged, jnp.int32(size))
    ordered = jnp.sort(jnp.where(known, course.history.score, jnp.inf))
    return stages.mean_of_marked(jnp.arange(size) * 10 < jnp.sum(known), ordered)


def _met(plan: CurriculumParams, phase: jax.Array, found: WindowStatistics) -> jax.Array:
    """Returns bool `[..., M + 1]`: the criterion for advancing is met, or not required by the phase."""
    target = plan.at_least[phase]
    above = significance.significantly_above(found.metrics, target + plan.advance_margin, plan.effect)
    even = jnp.isinf(plan.variance[phase]) | (found.variance <= plan.variance[phase])
    return jnp.concatenate([above | jnp.isneginf(target), even[..., None]], axis=-1)


def _failed(plan: CurriculumParams, phase: jax.Array, found: WindowStatistics) -> jax.Array:
    """Returns bool `[..., M]`: the metric of the previous phase is significantly below its threshold."""
    target = plan.at_least[jnp.maximum(phase - 1, 0)]
    return significance.significantly_below(found.metrics, target - plan.regress_margin)


def _decided(
    plan: CurriculumParams, quantiles: np.ndarray, phase: jax.Array, found: WindowStatistics, ages: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns bool `[...]` each: advance, and regress, after `ages [...]` episodes in a phase."""
    last = plan.exams.shape[0] - 1
    ripe = (ages >= plan.dwell) & (found.size >= quantiles.size - 1)
    passed = (phase < last) & ripe & jnp.all(_met(plan, phase, found), axis=-1)
    return passed, ~passed & (phase > 0) & ripe & jnp.any(_failed(plan, phase, found), axis=-1)


def _moved(
    plan: CurriculumParams, course: MissionProgress, passed: jax.Array, failed: jax.Array
) -> tuple[MissionProgress, jax.Array]:
    """Applies a transition, if any; returns the state and whether the phase has changed."""
    moved = passed | failed
    after = course.replace(
        phase=course.phase + passed - failed,
        episodes=jnp.where(moved, 0, course.episodes),
        judged=jnp.where(moved, 0, course.judged),
        before=jnp.where(moved, current_reward_weights(plan, course), course.before),
        advances=course.advances + passed,
        regressions=course.regressions + failed,
    )
    return after, moved


def _sliding(
    plan: CurriculumParams, quantiles: np.ndarray, course: MissionProgress, marks: EpisodeMetrics
) -> WindowStatistics:
    """Computes the statistics of the window after each of the next episodes `[N]`."""
    size = jnp.int32(quantiles.size - 1)
    old, new = _columns(plan, course.history), _columns(plan, marks)
    means = stages.sliding_mean(old, course.judged, new, size)
    length = jnp.minimum(course.judged + 1 + jnp.arange(marks.score.shape[0]), size)
    return _standing(plan, quantiles, means, length)


def _columns(plan: CurriculumParams, marks: EpisodeMetrics) -> jax.Array:
    """Returns summands of all statistics, `[N, 3 M + 2 V]`: by metric, then by verb."""
    names = sorted(marks.metrics)
    counts = jnp.stack([marks.counts[name] for name in names], axis=-1)
    values = jnp.where(counts, jnp.stack([marks.metrics[name] for name in names], axis=-1), 0.0)
    verbs = marks.verb[:, None] == jnp.arange(plan.verbs.shape[0])
    scores = jnp.where(verbs, marks.score[:, None], 0.0)
    return jnp.concatenate([counts, values, jnp.square(values), verbs, scores], axis=-1, dtype=jnp.float32)


def _standing(
    plan: CurriculumParams, quantiles: np.ndarray, means: jax.Array, length: jax.Array
) -> WindowStatistics:
    """Computes statistics from means `[..., 3 M + 2 V]` of `_columns` over windows of `length [...]`."""
    metrics, verbs = plan.at_least.shape[1], plan.verbs.shape[0]
    ends = np.cumsum([metrics, metrics, metrics, verbs])
    counts, values, squares, occurred, scores = jnp.split(means, ends, axis=-1)
    some = jnp.where(counts > 0, counts, 1.0)
    found = significance.estimate_mean(counts * length[..., None], values / some, squares / some, quantiles)
    there = occurred > 0
    by_verb = scores / jnp.where(there, occurred, 1.0)
    return WindowStatistics(found, _variance(by_verb, there), length)


def _variance(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the population variance over the last axis where `mask` is set; NaN if empty."""
    mean = mean_where(values, mask)
    return mean_where(jnp.square(values - mean[..., None]), mask)
