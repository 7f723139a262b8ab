"""Mission curriculum: phases shift rewards from shaping to mission success, and change by significance tests.

Reference: docs/reference/echelon.md 17.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos import checks
from algos.defaults import FROM_FILE, take_defaults_from
from algos.types import PyTree
from jaxmarl_echelon.curricula import episode_queue, stages
from jaxmarl_echelon.curricula.base import Curriculum, read_task_params, tasks_differ
from jaxmarl_echelon.curricula.missions import settings, significance, transitions
from jaxmarl_echelon.curricula.missions.settings import VARIANCE, CurriculumParams
from jaxmarl_echelon.curricula.missions.transitions import EpisodeMetrics, MissionProgress
from jaxmarl_echelon.envs import results as results_lib
from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.results import TASK
from jaxmarl_echelon.envs.echelon.missions.state import MissionWeights
from jaxmarl_echelon.envs.episodes import EpisodeTask, Finished

GATE_SOURCES = ("training", "evaluation")
# Settings of the environment that phases and schedules replace, in evaluations too.
_REPLACED = ("difficulty", "progress", "schedule", "early", "credit", "calibration")


class MissionCurriculumState(struct.PyTreeNode):
    """State of a mission curriculum.

    Attributes:
      params: the environment's parameters, as configured.
      plan: the curriculum's numbers.
      course: progress.
    """

    params: PyTree
    plan: CurriculumParams
    course: MissionProgress


class WindowConfig(NamedTuple):
    """Static configuration of the statistics of episodes.

    Attributes:
      spec: the environment's.
      names: metrics.
      quantiles: from `significance.t_quantiles`, for the window.
      training: whether training episodes are used; otherwise evaluations.
    """

    spec: EnvSpec
    names: tuple[str, ...]
    quantiles: np.ndarray
    training: bool

    @property
    def window(self) -> int:
        """Episodes in the window."""
        return self.quantiles.size - 1

    def marks(self, finished: Finished) -> EpisodeMetrics:
        """Returns the marks of finished episodes; those with weight 0 in an average do not count for it."""
        results = self.spec.results

        def read(name):
            value, weight = results_lib.average_terms(results, finished.results, finished.present, name)
            return results_lib.divide_or_empty(value, weight, empty=0.0), weight != 0

        found = {name: read(name) for name in self.names}
        return EpisodeMetrics(
            metrics={name: value for name, (value, _) in found.items()},
            counts={name: known for name, (_, known) in found.items()},
            score=read(self.spec.score)[0],
            verb=results_lib.read_result(results, finished.results, TASK),
        )


@take_defaults_from("curriculum/missions4")
def mission_curriculum(
    env,
    phases: Sequence[Mapping],
    gate: str = FROM_FILE,
    window: int = FROM_FILE,
    confidence: float = FROM_FILE,
    evaluation: Mapping | None = None,
    **numbers,
) -> Curriculum:
    """Builds a mission curriculum: phases set reward weights and difficulty; significance tests change them.

    A phase is `{name, difficulty, exams, criteria}`: the range of difficulties, the share of episodes at
    full fire, and thresholds by result of the environment; `variance` is the largest variance of the score
    between verbs. See `transitions.process_next_episodes` for transitions. Only episodes of the current phase
    count, in the order in which they began.

    Sets `weights` (`MissionWeights`) and `levers.mission` (weights of verbs) of the environment's
    parameters.

    Args:
      env: the environment; has a score, and reports the criteria's results and the verb as the code `task`.
      phases: in order; the last one has no criteria.
      gate: "training" to test training episodes, "evaluation" to test each evaluation of the current phase.
      window: episodes in the statistics.
      confidence: of the intervals of the metrics' means.
      evaluation: settings of the task that scores the run, overriding the environment's own; it has the last
        phase's difficulty, full fire, and the weights at the end of the schedule, which it cannot override.
        Its `mission` takes the place of the curriculum's verbs. All variants of a run are scored on the
        task of the first.
      numbers: see `settings.read_curriculum_params`.

    Raises:
      ValueError: one line, for unknown, out-of-range or contradictory values.
    """
    if gate not in GATE_SOURCES:
        raise ValueError(f"curriculum.gate={gate}: unknown; allowed: {', '.join(GATE_SOURCES)}")
    table = settings.read_phases(phases, env.spec)
    params = env.default_params()
    plan = settings.read_curriculum_params(env.spec, table, np.asarray(params.levers.mission), **numbers)
    window = checks.require_whole("curriculum.window", window, 2, stages.LONGEST_WINDOW)
    confidence = checks.require_range("curriculum.confidence", confidence, 0.5, 0.9999)
    quantiles = significance.t_quantiles(window, confidence)
    scored = _scored(env, plan, dict(evaluation or {}))
    judge = WindowConfig(env.spec, settings.list_required_results(table), quantiles, gate == "training")
    return _curriculum(tuple(phase.name for phase in table), judge, plan, params, scored)


def _scored(env, plan: CurriculumParams, given: Mapping) -> tuple[PyTree, CurriculumParams]:
    """Returns the parameters and the numbers of the task that scores the run, with settings `given`."""
    for key in given:
        if key in _REPLACED:
            own = "the task that scores the run has that of the last phase"
            raise ValueError(f"curriculum.evaluation.{key}={given[key]}: has no effect; {own}")
    task = read_task_params(env, given, "curriculum.evaluation")
    own_verbs = "mission" in given
    return task, plan.replace(verbs=np.asarray(task.levers.mission, np.float32)) if own_verbs else plan


def _curriculum(
    phases: tuple[str, ...],
    judge: WindowConfig,
    plan: CurriculumParams,
    params: PyTree,
    scored: tuple[PyTree, CurriculumParams],
) -> Curriculum:
    size = max(stages.LEAST_QUEUE_CAPACITY, 2 * judge.window)

    def init():
        numbers = jax.tree.map(jnp.asarray, (params, plan))
        return MissionCurriculumState(*numbers, transitions.start_mission_progress(judge.names, judge.window))

    def draw(key, state):
        plan, course = state.plan, state.course
        exam = jax.random.uniform(key) < plan.exams[course.phase]
        now, paid = (
            transitions.curriculum_progress(plan, course.phase, course.episodes),
            transitions.current_reward_weights(plan, course),
        )
        posed = _posed(state.params, plan, course.phase, now, paid, exam)
        return EpisodeTask(posed, {"stage": course.phase})

    def stage_params(state, index):
        plan, now = state.plan, transitions.curriculum_progress(state.plan, index, 0)
        return _posed(
            state.params, plan, index, now, transitions.scheduled_weights(plan, now), plan.exams[index] > 0
        )

    def evaluation(_state):
        # Not by the numbers of the state: variants of a run would each be scored on a task of its own.
        task, numbers = jax.tree.map(jnp.asarray, scored)
        last, end = jnp.int32(len(phases) - 1), jnp.float32(1.0)
        return _posed(task, numbers, last, end, transitions.scheduled_weights(numbers, end), jnp.bool_(True))

    def tasks(state):
        """Everything that sets the task of the current phase, but for how its weights change within it."""
        plan, phase = state.plan, state.course.phase
        paid = transitions.scheduled_weights(plan, transitions.curriculum_progress(plan, phase, 0))
        posed = _posed(state.params, plan, phase, jnp.float32(0.0), paid, jnp.bool_(False))
        return posed, plan.exams[phase]

    def changed(state, fresh):
        return tasks_differ(tasks(state), tasks(fresh.replace(course=state.course)))

    def retasked(state, fresh):
        judged = jnp.where(changed(state, fresh), 0, state.course.judged)
        return fresh.replace(course=state.course.replace(judged=judged))

    return Curriculum(
        init=init,
        draw=draw,
        update=lambda state, tickets, flow: _update(judge, state, tickets, flow),
        metrics=lambda state: _metrics(judge, state.plan, state.course),
        evaluation=evaluation,
        retasked=retasked,
        requeued=lambda tickets, state, fresh: episode_queue.empty_queue(tickets, changed(state, fresh)),
        retagged=lambda tags, state, fresh: stages.leave_stage(
            tags, state.course.phase, changed(state, fresh)
        ),
        tickets=lambda num_envs: episode_queue.make_episode_queue(
            num_envs, size, transitions.empty_episode_metrics(judge.names)
        ),
        tags={"stage": phases},
        stages=phases,
        stage=lambda state: state.course.phase,
        stage_params=stage_params,
        evaluated=lambda state, _score, finished: _evaluated(judge, state, finished),
    )


def _update(
    judge: WindowConfig, state: MissionCurriculumState, tickets, flow
) -> tuple[MissionCurriculumState, PyTree]:
    plan, course = state.plan, state.course
    own = flow.tags["stage"] == course.phase
    tickets = episode_queue.enqueue_and_record(tickets, flow, own, judge.marks(flow.finished))
    marks, number, places = episode_queue.completed_prefix(tickets)
    size = marks.score.size
    if judge.training:
        ages = course.episodes + 1 + jnp.arange(size)
        course, moved = transitions.process_next_episodes(plan, judge.quantiles, course, marks, number, ages)
    else:
        course = course.replace(episodes=course.episodes + number)
        course, moved = transitions.decide_transition(plan, judge.quantiles, course)
    return state.replace(course=course), episode_queue.dequeue_episodes(
        tickets, jnp.where(moved, size, places)
    )


def _evaluated(
    judge: WindowConfig, state: MissionCurriculumState, finished: Finished
) -> MissionCurriculumState:
    """Returns the state after an evaluation of the current phase; a transition waits for the next update.

    Only the update can separate running episodes of the phase that is left from those of the next.
    Evaluations play the same episodes each time and are not independent: each one replaces the statistics
    of the previous one.

    Raises:
      ValueError: one line, for evaluations shorter than the window, which could never fill it.
    """
    if judge.training:
        return state
    if finished.mask.size < judge.window:
        least = f"curriculum.gate=evaluation needs at least curriculum.window={judge.window}"
        raise ValueError(f"eval_episodes={finished.mask.size}: {least}")
    order = jnp.nonzero(finished.mask, size=finished.mask.size, fill_value=0)[0]
    marks = jax.tree.map(lambda x: x[order], judge.marks(finished))
    number = jnp.sum(finished.mask, dtype=jnp.int32)
    course = state.course.replace(judged=jnp.int32(0))
    return state.replace(course=transitions.append_to_window(course, marks, number))


def _posed(params: PyTree, plan: CurriculumParams, phase, progress, paid, exam) -> PyTree:
    """Returns the environment's parameters in a phase (int32), at a progress.

    Args:
      params: as configured.
      plan: the numbers.
      phase, progress: scalars.
      paid: `[4]` reward weights, as `transitions.scheduled_weights`.
      exam: bool; enemies have their full fire probability.
    """
    fire = jnp.where(exam, 1.0, plan.fire)
    least = jnp.maximum(paid[2], plan.least_credit)
    chosen = MissionWeights(
        components=weights.component_weights(paid[:3], plan.base),
        terminal=paid[2],
        early=weights.early_share(plan.schedule, plan.early),
        credit=jnp.where(jnp.isnan(plan.credit), least, plan.credit),
        calibration=paid[3],
        progress=progress,
        phase=phase + 1,
        difficulty_low=plan.difficulty[phase, 0],
        difficulty_high=plan.difficulty[phase, 1],
        fire_low=fire[0],
        fire_high=fire[1],
    )
    return params.replace(weights=chosen, levers=params.levers.replace(mission=plan.verbs))


def _metrics(judge: WindowConfig, plan: CurriculumParams, course: MissionProgress) -> dict[str, jax.Array]:
    found = transitions.compute_window_statistics(plan, judge.quantiles, course)
    asked, met = transitions.check_phase_criteria(plan, course, found)
    paid, decided = transitions.current_reward_weights(plan, course), jnp.mean(course.history.score)
    values = {
        "current_stage": course.phase,
        "total_phases": jnp.int32(plan.exams.shape[0]),
        "progress": transitions.curriculum_progress(plan, course.phase, course.episodes),
        "episodes_in_stage": course.episodes,
        "criteria_min_episodes": plan.dwell,
        "advances": course.advances,
        "regressions": course.regressions,
        # Windows are full where they decide, and kept until the phase's first episode.
        "decided_success": stages.of_last_move(course, course.advances + course.regressions, decided),
        "criteria/window/count": found.size,
        "criteria/window/at_least": jnp.int32(judge.window),
    }
    target = jnp.where(asked[:-1], plan.at_least[course.phase] + plan.advance_margin, jnp.nan)
    some, effect = found.metrics.count > 1, significance.effect_size(found.metrics, target)
    columns = {
        "rate": found.metrics.mean,
        "low": jnp.where(some, found.metrics.low, jnp.nan),
        "high": jnp.where(some, found.metrics.high, jnp.nan),
        "above": target,
        "effect": jnp.where(some, effect, jnp.nan),
        "least_effect": jnp.where(asked[:-1], plan.effect, jnp.nan),
        "met": jnp.where(asked, met, jnp.nan),
    }
    for index, name in enumerate(judge.names):
        values |= {f"criteria/{name}/{field}": column[index] for field, column in columns.items()}
    values |= {
        f"criteria/{VARIANCE}/number": found.variance,
        f"criteria/{VARIANCE}/at_most": jnp.where(asked[-1], plan.variance[course.phase], jnp.nan),
        "worst_decile": transitions.worst_decile_score(course),
    }
    values |= {f"weights/{name}": paid[index] for index, name in enumerate((*weights.FAMILIES, "status"))}
    return {f"curriculum/{name}": value for name, value in values.items()}
