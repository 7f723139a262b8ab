"""Progress through the phases of a mission curriculum: what is judged, when phases change, what is paid.

Transitions are tested after every single episode, in order.

Source: sections 3 and 8 of the mission curriculum's design; spec/echelon.md sections 7.3, 7.7, 7.9 and 7.10.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.curricula import stages
from jaxmarl_echelon.curricula.missions import significance
from jaxmarl_echelon.curricula.missions.settings import Plan
from jaxmarl_echelon.curricula.missions.significance import Estimate
from jaxmarl_echelon.envs.echelon.missions import calibration, weights
from jaxmarl_echelon.envs.trees import masked_mean

# Share of a phase's way that even the longest stay does not exceed, so that progress tells phases apart.
MOST = 0.999


class Marks(NamedTuple):
    """What an episode is judged by, or a batch with leading axes.

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


@struct.dataclass
class Course:
    """Progress of a run.

    Attributes:
      phase: int32 from 0.
      episodes: int32 counted training episodes since the phase was entered.
      judged: int32 episodes judged since then.
      history: `Marks [W]` of the newest of these, newest last.
      before: `[4]` what was paid as the last phase ended; see `payment`.
      advances, regressions: int32 counts of transitions.
    """

    phase: jax.Array
    episodes: jax.Array
    judged: jax.Array
    history: Marks
    before: jax.Array
    advances: jax.Array
    regressions: jax.Array


class Standing(NamedTuple):
    """What a window of episodes says, `[...]`.

    Attributes:
      metrics: `Estimate` of each metric, `[..., M]`.
      variance: of the verbs' mean scores, over the verbs that occurred; NaN without any.
      size: int32, length of the window so far.
    """

    metrics: Estimate
    variance: jax.Array
    size: jax.Array


def no_marks(names: tuple[str, ...]) -> Marks:
    """A template of one episode's marks."""
    return Marks(
        dict.fromkeys(names, np.float32(0)),
        dict.fromkeys(names, np.bool_(False)),
        np.float32(0),
        np.int32(-1),
    )


def begin(names: tuple[str, ...], window: int) -> Course:
    """The state before the first episode."""
    zero = jnp.int32(0)
    return Course(
        phase=zero,
        episodes=zero,
        judged=zero,
        history=jax.tree.map(lambda x: jnp.full(window, x), no_marks(names)),
        before=jnp.zeros(4, jnp.float32),
        advances=zero,
        regressions=zero,
    )


def progress(plan: Plan, phase: jax.Array, episodes: jax.Array) -> jax.Array:
    """Progress in [0, 1) after `episodes` in a phase."""
    way = jnp.minimum(MOST, episodes / plan.nominal)
    return (phase + way) / plan.exams.shape[0]


def scheduled(plan: Plan, progress: jax.Array) -> jax.Array:
    """`[4]`: shares of the families (`weights.FAMILIES`) and the weight of calibration, at a progress."""
    shares = weights.shares(plan.schedule, progress, plan.totals, plan.floor)
    return jnp.append(shares, plan.calibration * calibration.fade(progress))


def payment(plan: Plan, course: Course) -> jax.Array:
    """What is paid now, as `scheduled`: after a transition, a blend from what was paid before."""
    now = scheduled(plan, progress(plan, course.phase, course.episodes))
    mixed = weights.blended(course.before, now, course.episodes / jnp.maximum(plan.blend, 1.0))
    moved = course.advances + course.regressions > 0
    return jnp.where(moved & (course.episodes < plan.blend), mixed, now)


def advance(
    plan: Plan, quantiles: np.ndarray, course: Course, marks: Marks, number: jax.Array, ages: jax.Array
) -> tuple[Course, jax.Array]:
    """Judges the next episodes of the present phase and changes it at the first that decides so.

    Advance where, over a full window, every metric that the phase asks for lies significantly above
    threshold plus margin, and the verbs' scores vary no more than allowed. Regress where a metric of the
    phase before lies significantly below its threshold minus margin. Neither before `dwell` episodes.
    Episodes after a transition are ignored: they began under the phase that was left.

    Args:
      plan: the numbers.
      quantiles: from `significance.t_quantiles`, for the history's window.
      course: the state before.
      marks: `[N]` in order.
      number: int32; how many of them there are.
      ages: `[N]` int32, `Course.episodes` as each is judged.

    Returns:
      the state, and bool: the phase has changed.
    """
    found = _sliding(plan, quantiles, course, marks)
    passed, failed = _decided(plan, quantiles, course.phase, found, ages)
    seen, moved = stages.first(passed | failed, number)
    passed, failed = (moved & stages.last(x, seen, False) for x in (passed, failed))
    after = judged(course, marks, seen).replace(episodes=stages.last(ages, seen, course.episodes))
    return _moved(plan, after, passed, failed)


def judged(course: Course, marks: Marks, number: jax.Array) -> Course:
    """The state with the first `number` of `marks [N]` in its window."""
    history = jax.tree.map(lambda old, new: stages.appended(old, new, number), course.history, marks)
    return course.replace(judged=course.judged + number, history=history)


def decide(plan: Plan, quantiles: np.ndarray, course: Course) -> tuple[Course, jax.Array]:
    """As `advance`, by the present window alone."""
    found = standing(plan, quantiles, course)
    return _moved(plan, course, *_decided(plan, quantiles, course.phase, found, course.episodes))


def standing(plan: Plan, quantiles: np.ndarray, course: Course) -> Standing:
    """What the present window says."""
    size = quantiles.size - 1
    known = stages.newest(size, course.judged, jnp.int32(size))
    columns = jnp.where(known[:, None], _columns(plan, course.history), 0.0)
    length = jnp.minimum(course.judged, size)
    return _standing(plan, quantiles, jnp.sum(columns, axis=0) / jnp.maximum(length, 1), length)


def criteria(plan: Plan, course: Course, found: Standing) -> tuple[jax.Array, jax.Array]:
    """What the present phase asks for and whether the present window says so, bool `[M + 1]` each.

    The last entry is the variance between verbs. The last phase asks for nothing.
    """
    asked = jnp.append(jnp.isfinite(plan.at_least[course.phase]), jnp.isfinite(plan.variance[course.phase]))
    return asked, asked & _met(plan, course.phase, found)


def worst_decile(course: Course) -> jax.Array:
    """Mean score of the worst tenth of the window; NaN without episodes."""
    size = course.history.score.size
    known = stages.newest(size, course.judged, jnp.int32(size))
    ordered = jnp.sort(jnp.where(known, course.history.score, jnp.inf))
    return stages.share(jnp.arange(size) * 10 < jnp.sum(known), ordered)


def _met(plan: Plan, phase: jax.Array, found: Standing) -> jax.Array:
    """Which criteria for leaving a phase are met, `[..., M + 1]`; those that it does not ask for are."""
    target = plan.at_least[phase]
    above = significance.significantly_above(found.metrics, target + plan.advance_margin, plan.effect)
    even = jnp.isinf(plan.variance[phase]) | (found.variance <= plan.variance[phase])
    return jnp.concatenate([above | jnp.isneginf(target), even[..., None]], axis=-1)


def _failed(plan: Plan, phase: jax.Array, found: Standing) -> jax.Array:
    """Which metrics of the phase before have been lost, `[..., M]`."""
    target = plan.at_least[jnp.maximum(phase - 1, 0)]
    return significance.significantly_below(found.metrics, target - plan.regress_margin)


def _decided(
    plan: Plan, quantiles: np.ndarray, phase: jax.Array, found: Standing, ages: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Whether to advance and to regress, bool `[...]` each, after `ages [...]` episodes in a phase."""
    last = plan.exams.shape[0] - 1
    ripe = (ages >= plan.dwell) & (found.size >= quantiles.size - 1)
    passed = (phase < last) & ripe & jnp.all(_met(plan, phase, found), axis=-1)
    return passed, ~passed & (phase > 0) & ripe & jnp.any(_failed(plan, phase, found), axis=-1)


def _moved(plan: Plan, course: Course, passed: jax.Array, failed: jax.Array) -> tuple[Course, jax.Array]:
    """The state after a transition, if there is one, and whether there is."""
    moved = passed | failed
    after = course.replace(
        phase=course.phase + passed - failed,
        episodes=jnp.where(moved, 0, course.episodes),
        judged=jnp.where(moved, 0, course.judged),
        before=jnp.where(moved, payment(plan, course), course.before),
        advances=course.advances + passed,
        regressions=course.regressions + failed,
    )
    return after, moved


def _sliding(plan: Plan, quantiles: np.ndarray, course: Course, marks: Marks) -> Standing:
    """What the window says after each of the next episodes `[N]`."""
    size = jnp.int32(quantiles.size - 1)
    old, new = _columns(plan, course.history), _columns(plan, marks)
    means = stages.sliding_mean(old, course.judged, new, size)
    length = jnp.minimum(course.judged + 1 + jnp.arange(marks.score.shape[0]), size)
    return _standing(plan, quantiles, means, length)


def _columns(plan: Plan, marks: Marks) -> jax.Array:
    """Summands of all statistics, `[N, 3 M + 2 V]`: counts, values, squares; counts and scores by verb."""
    names = sorted(marks.metrics)
    counts = jnp.stack([marks.counts[name] for name in names], axis=-1)
    values = jnp.where(counts, jnp.stack([marks.metrics[name] for name in names], axis=-1), 0.0)
    verbs = marks.verb[:, None] == jnp.arange(plan.verbs.shape[0])
    scores = jnp.where(verbs, marks.score[:, None], 0.0)
    return jnp.concatenate([counts, values, jnp.square(values), verbs, scores], axis=-1, dtype=jnp.float32)


def _standing(plan: Plan, quantiles: np.ndarray, means: jax.Array, length: jax.Array) -> Standing:
    """From means `[..., 3 M + 2 V]` of `_columns` over windows of `length [...]` episodes."""
    metrics, verbs = plan.at_least.shape[1], plan.verbs.shape[0]
    ends = np.cumsum([metrics, metrics, metrics, verbs])
    counts, values, squares, occurred, scores = jnp.split(means, ends, axis=-1)
    some = jnp.where(counts > 0, counts, 1.0)
    found = significance.estimate(counts * length[..., None], values / some, squares / some, quantiles)
    there = occurred > 0
    by_verb = scores / jnp.where(there, occurred, 1.0)
    return Standing(found, _variance(by_verb, there), length)


def _variance(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Population variance over the last axis where `mask` is set; NaN without any."""
    mean = masked_mean(values, mask)
    return masked_mean(jnp.square(values - mean[..., None]), mask)
