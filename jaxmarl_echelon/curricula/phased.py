"""Phased curriculum: phases with criteria for advancing and regressing.

Reference: docs/reference/curricula.md 4.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.curricula import stages
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.curricula.criteria import NO_PATIENCE, Criteria, read_criteria
from jaxmarl_echelon.curricula.stages import RATE_TOLERANCE, EpisodeResult, StageRules
from jaxmarl_echelon.envs.base import EnvSpec

# In the place of the success of an episode that had no part in the decision to change the phase.
NO_PART = -1.0


class PhaseProgress(struct.PyTreeNode):
    """State of a phased curriculum.

    Attributes:
      stage: int32, the current phase.
      episodes: int32, its counted episodes since it was entered.
      success, reward, outcome: `[W]`, of the newest of them, newest last. As a phase is entered they are
        of the one that was left: of the successes those that decided so, -1 for all others.
      below: int32, consecutive episodes below `regress_success_rate`.
      eval_streak: int32, consecutive evaluations at or above `eval_success_rate`.
      eval_success: float32, success rate of the phase's last evaluation; -1 before the first.
      advances, forced, regressions: int32 counts of transitions; advances include forced ones.
    """

    stage: jax.Array
    episodes: jax.Array
    success: jax.Array
    reward: jax.Array
    outcome: jax.Array
    below: jax.Array
    eval_streak: jax.Array
    eval_success: jax.Array
    advances: jax.Array
    forced: jax.Array
    regressions: jax.Array


def phased_curriculum(
    env,
    phases: Sequence[Mapping],
    common: Mapping | None = None,
    evaluation: Mapping | None = None,
    role: str | None = None,
) -> Curriculum:
    """Builds a curriculum of phases with criteria for advancing and regressing.

    A phase is a mapping `{name, settings, criteria, mixture}`. `settings` are those of the environment's
    `task_params`. `mixture` is `{foundation: p, previous: q, rehearsal: r}`: a new episode is drawn from the
    first phase with probability p (from the second phase on), from the previous one with probability q (from
    the third on), from any earlier one with probability r (from the second on), all equally likely, and from
    the current one otherwise. Omitted shares are 0. Only episodes of the current phase count, and all
    counts are reset at every transition. `criteria`, evaluated after every episode, ordered by start time:

    * Advance after `min_episodes`, if over the last `window_size` episodes the success rate is at least
      `success_rate`, the mean return at least `avg_reward`, and the rate of each outcome in `max_rates`
      at most the one given there; with an `eval_success_rate`, the last `eval_required_runs` evaluations
      of the phase must have reached it, too.
    * Advance unconditionally after `patience` episodes.
    * Regress if after `regress_min_episodes` the success rate over the last `regress_window_size`
      episodes (by default `min_episodes` and `window_size`) was below `regress_success_rate` for
      `regress_patience` consecutive episodes.

    None disables a criterion; `criteria.CRITERIA_DEFAULTS` apply to omitted ones. The last phase never
    advances.

    Args:
      env: the environment.
      phases: the phases in order.
      common: defaults of all phases, with the keys of a phase.
      evaluation: settings of the task that scores the run, overriding the environment's own.
      role: the role whose returns are used; None for the first role that learns by default.

    Raises:
      ValueError: one line with the phase's name, for unknown, out-of-range or contradictory values.
    """
    table = stages.read_stages(env, "curriculum.phases", phases, common, ("criteria", "mixture"))
    criteria = read_criteria(table, env.spec)
    rules = StageRules(
        init=partial(_init, criteria),
        probabilities=partial(_probabilities, criteria),
        advance=partial(_advance, criteria),
        metrics=partial(_metrics, criteria, env.spec),
        window=_longest(criteria),
        restarted=_restarted,
        evaluated=partial(_evaluated, criteria),
        needs_evaluations=bool((criteria.eval_required_runs > 0).any()),
    )
    return stages.build_staged_curriculum(env, table, rules, evaluation, role)


def _longest(criteria: Criteria) -> int:
    return int(max(criteria.window_size.max(), criteria.regress_window_size.max()))


def _init(criteria: Criteria) -> PhaseProgress:
    size = _longest(criteria)
    zero = jnp.int32(0)
    return PhaseProgress(
        stage=zero,
        episodes=zero,
        success=jnp.zeros(size, jnp.float32),
        reward=jnp.zeros(size, jnp.float32),
        outcome=jnp.zeros(size, jnp.int32),
        below=zero,
        eval_streak=zero,
        eval_success=jnp.float32(-1.0),
        advances=zero,
        forced=zero,
        regressions=zero,
    )


def _restarted(course: PhaseProgress) -> PhaseProgress:
    """Returns the state without the counted episodes and evaluations of the current phase."""
    return course.replace(
        episodes=jnp.int32(0),
        success=jnp.full_like(course.success, NO_PART),
        below=jnp.int32(0),
        eval_streak=jnp.int32(0),
        eval_success=jnp.float32(-1.0),
    )


def _probabilities(criteria: Criteria, course: PhaseProgress) -> jax.Array:
    now = _now(criteria, course)
    stage = course.stage
    foundation = jnp.where(stage > 0, now.foundation, 0.0)
    previous = jnp.where(stage > 1, now.previous, 0.0)
    number = len(criteria.foundation)
    one = partial(jax.nn.one_hot, num_classes=number)
    own, mixed = 1.0 - foundation - previous, foundation * one(0) + previous * one(stage - 1)
    if criteria.rehearsal.any():
        rehearsal = jnp.where(stage > 0, now.rehearsal, 0.0)
        earlier = (jnp.arange(number) < stage) / jnp.maximum(stage, 1)
        own, mixed = own - rehearsal, mixed + rehearsal * earlier
    return mixed + own * one(stage)


def _advance(
    criteria: Criteria, course: PhaseProgress, episode: EpisodeResult, number: jax.Array
) -> PhaseProgress:
    now = _now(criteria, course)
    episodes = course.episodes + 1 + jnp.arange(episode.success.size)
    on = course.stage < len(criteria.patience) - 1
    passed = on & (episodes >= now.min_episodes) & _mastered(now, course, episode)
    forced = on & ~passed & (episodes >= now.patience)
    recent = stages.sliding_mean(course.success, course.episodes, episode.success, now.regress_window_size)
    poor = (recent < now.regress_success_rate - RATE_TOLERANCE) & (episodes >= now.regress_min_episodes)
    below = stages.streak_lengths(poor, course.below)
    failed = ~passed & ~forced & (course.stage > 0) & (below >= now.regress_patience)
    seen, moved = stages.find_first_true(passed | forced | failed, number)
    passed, forced, failed = (moved & stages.select_last(x, seen, False) for x in (passed, forced, failed))
    success, judged = stages.append_newest(course.success, episode.success, seen), course.episodes + seen
    window = jnp.where(failed, now.regress_window_size, now.window_size)
    decided = stages.newest_mask(success.size, judged, window)
    return PhaseProgress(
        stage=course.stage + passed + forced - failed,
        episodes=jnp.where(moved, 0, judged),
        success=jnp.where(moved & ~decided, NO_PART, success),
        reward=stages.append_newest(course.reward, episode.reward, seen),
        outcome=stages.append_newest(course.outcome, episode.outcome, seen),
        below=jnp.where(moved, 0, stages.select_last(below, seen, course.below)),
        eval_streak=jnp.where(moved, 0, course.eval_streak),
        eval_success=jnp.where(moved, -1.0, course.eval_success),
        advances=course.advances + passed + forced,
        forced=course.forced + forced,
        regressions=course.regressions + failed,
    )


def _mastered(now: Criteria, course: PhaseProgress, episode: EpisodeResult) -> jax.Array:
    """Returns bool `[N]`: the criteria for advancing hold after the episode."""

    def columns(success, reward, outcome):
        known = ~jnp.isnan(reward)
        shares = outcome[:, None] == jnp.arange(now.max_rates.shape[-1])
        parts = [jnp.stack([success, known, jnp.where(known, reward, 0.0)], axis=-1), shares]
        return jnp.concatenate(parts, axis=-1, dtype=jnp.float32)

    history, values = columns(course.success, course.reward, course.outcome), columns(*episode)
    means = stages.sliding_mean(history, course.episodes, values, now.window_size)
    known, total = means[:, 1], means[:, 2]
    reward = jnp.where(known > 0, total / jnp.where(known > 0, known, 1.0), -jnp.inf)
    return (
        (means[:, 0] >= now.success_rate - RATE_TOLERANCE)
        & (reward >= now.avg_reward)
        & jnp.all(means[:, 3:] <= now.max_rates + RATE_TOLERANCE, axis=-1)
        & (course.eval_streak >= now.eval_required_runs)
    )


def _outcome_rates(course: PhaseProgress, marked: jax.Array, outcomes: int) -> jax.Array:
    """Returns the rate of each outcome over the marked episodes, `[O]`."""
    return stages.mean_of_marked(
        marked, (course.outcome == jnp.arange(outcomes)[:, None]).astype(jnp.float32)
    )


def _evaluated(criteria: Criteria, course: PhaseProgress, rate: jax.Array) -> PhaseProgress:
    reached = rate >= _now(criteria, course).eval_success_rate - RATE_TOLERANCE
    return course.replace(eval_streak=jnp.where(reached, course.eval_streak + 1, 0), eval_success=rate)


def _metrics(criteria: Criteria, spec: EnvSpec, course: PhaseProgress) -> dict[str, jax.Array]:
    now, phases = _now(criteria, course), len(criteria.patience)
    lately = stages.newest_mask(course.success.size, course.episodes, now.window_size)
    success = stages.mean_of_marked(lately, course.success)
    decided = stages.mean_of_marked(course.success != NO_PART, course.success)
    gated = now.eval_required_runs > 0
    values = {
        "current_stage": course.stage,
        "phase_idx": course.stage,
        "total_phases": jnp.int32(phases),
        "progress": course.stage / max(phases - 1, 1),
        "episodes_in_stage": course.episodes,
        "rolling_success": success,
        "phase_success_rate": success,
        "decided_success": stages.of_last_move(course, course.advances + course.regressions, decided),
        "avg_reward": stages.mean_of_marked(lately, course.reward),
        "eval_success_streak": jnp.where(gated, course.eval_streak, jnp.nan),
        "eval_success_rate": jnp.where(course.eval_success < 0.0, jnp.nan, course.eval_success),
        "criteria_success_rate": now.success_rate,
        "criteria_avg_reward": jnp.where(jnp.isfinite(now.avg_reward), now.avg_reward, jnp.nan),
        "criteria_min_episodes": now.min_episodes,
        "criteria_eval_success_rate": jnp.where(gated, now.eval_success_rate, jnp.nan),
        "criteria_eval_required_runs": now.eval_required_runs,
        "patience": jnp.where(now.patience == NO_PATIENCE, jnp.nan, now.patience.astype(jnp.float32)),
        "advances": course.advances,
        "forced_advances": course.forced,
        "regressions": course.regressions,
    }
    rates = _outcome_rates(course, lately, len(spec.outcomes))
    for i, name in enumerate(spec.outcomes):
        if name not in spec.good_outcomes:
            values[f"{name}_rate"] = rates[i]
        if (criteria.max_rates[:, i] < 1.0).any():
            cap = now.max_rates[i]
            values[f"criteria_max_{name}_rate"] = jnp.where(cap < 1.0, cap, jnp.nan)
    return {f"curriculum/{name}": value for name, value in values.items()}


def _now(criteria: Criteria, course: PhaseProgress) -> Criteria:
    """Returns the current phase's criteria."""
    return Criteria(*(jnp.asarray(values)[course.stage] for values in criteria))
