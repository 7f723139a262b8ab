"""Host-side record of one run: logging, best scores, checkpoint metadata."""

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algos.metrics import find_divergence
from jaxmarl_echelon import checkpoints, processes
from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.envs.results import NONE, Result, stored_results
from jaxmarl_echelon.selfplay.pool import EMPTY
from jaxmarl_echelon.selfplay.report import KINDS, PAST
from jaxmarl_echelon.tracking.base import RunInfo, Tracker
from jaxmarl_echelon.tracking.statistics import ScoreSums, score_interval, sum_scores
from jaxmarl_echelon.training.acting.answer_statistics import TOKENS
from jaxmarl_echelon.training.acting.episode_statistics import SCORED
from jaxmarl_echelon.training.config.role_assignment import POOL
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host import selection_score
from jaxmarl_echelon.training.host.episode_rows import label_codes, list_episodes, result_labels
from jaxmarl_echelon.training.program.agents import WORLDS, agent_digests
from jaxmarl_echelon.training.program.assessment import Assessment
from jaxmarl_echelon.training.program.evaluation import Evaluation, summarize_evaluation
from jaxmarl_echelon.training.program.program import Program
from jaxmarl_echelon.training.program.update import Report


@dataclass
class RunProgress:
    """Progress of a run on the host, stored in checkpoint metadata.

    Attributes:
      updates: updates done.
      episodes: episodes finished in training.
      scored: of these, those that entered the rolling statistics; all, in checkpoints of older versions.
      seconds: wall-clock time spent in compiled chunks and evaluations.
      stage: the curriculum's stage.
      forced: number of curriculum advances forced by patience.
      entered: value of `scored` when the curriculum's stage, or the last task of a ramp, was entered, when
        the stage before was drawn for the last time, or when the run was resumed with another task.
      moving: whether episodes drawn after the last update may be of an earlier task of a ramp, or of the
        stage that was left.
      evaluated: updates done at the last evaluation.
      best: name of a best checkpoint to its score, a list compared lexicographically.
      last_eval: scalars of the last evaluation.
      last_sums: `ScoreSums` of its episodes by the score's column; empty without a score, and in
        checkpoints of older versions.
    """

    updates: int = 0
    episodes: int = 0
    scored: int = 0
    seconds: float = 0.0
    stage: int = 0
    forced: int = 0
    entered: int = 0
    moving: bool = False
    evaluated: int = 0
    best: dict[str, list[float]] = field(default_factory=dict)
    last_eval: dict[str, float] = field(default_factory=dict)
    last_sums: dict[str, list[float]] = field(default_factory=dict)


# How far tasks have changed that a curriculum without stages changes, in [0, 1].
RAMP = "curriculum/progress"
# Probability that the stage that was left is still drawn.
BLEND = "curriculum/blend_probability"
# Decisions per environment, in at least two updates, with all environments quarantined before a run stops.
SICK_DECISIONS = 64


class DivergedError(RuntimeError):
    """Error of a run with a non-finite loss, or without any environment with finite values."""


class RunRecord:
    """Record of one run: logs its results to the tracker and saves its checkpoints.

    Args:
      config: the run.
      program: its program.
      resolved: the composed configuration as plain data, stored in every checkpoint.
      folder: the run's folder.
      tracker: receives all metrics.
      progress: the run's progress, updated in place.
      scored_on: in a group, the variant whose task the evaluations use, if it is not the run's own.
      variant: in a group, the variant that the run is of.
    """

    def __init__(
        self,
        config: RunConfig,
        program: Program,
        resolved: dict[str, Any],
        folder: Path,
        tracker: Tracker,
        progress: RunProgress,
        scored_on: str | None = None,
        variant: str | None = None,
    ):
        self.config, self.program, self.resolved = config, program, resolved
        self.variant = variant
        self.folder, self.tracker, self.progress = folder, tracker, progress
        self.scored_on = scored_on
        self.checkpoints = folder / "checkpoints"
        self.snapshots: np.ndarray | None = None
        self.rating: float | None = None
        self.sick = 0
        self.unfinished = False

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return self.progress.updates * self.program.steps_per_update

    @property
    def evaluated_at(self) -> int:
        """Environment steps at the last evaluation."""
        return self.progress.evaluated * self.program.steps_per_update

    def open(self, resumed: bool) -> None:
        """Opens the tracker."""
        self.tracker.open(
            RunInfo(
                folder=self.folder,
                spec=self.program.env.spec,
                total_steps=self.config.steps,
                config=self.resolved,
                resume_step=self.step if resumed else None,
                scores_rank_policies=selection_score.evaluations_are_informative(self.program.env),
                judged_by=self.judged_by,
                best=self.progress.best.get("best_eval", ()) if resumed else None,
                group=None if self.variant is None else self.folder.parent,
                variant=self.variant,
            )
        )

    def reports(self, reports: Report, seconds: float) -> dict[str, float]:
        """Logs the reports `[K]` of K updates that took `seconds`; returns the last metrics.

        Raises:
          DivergedError: if a loss is not finite, or all environments stay quarantined.
        """
        self.progress.seconds += seconds
        chunk = len(reports.episodes["number"])
        for index in range(chunk):
            self.progress.updates += 1
            metrics = {name: float(values[index]) for name, values in reports.metrics.items()}
            self._episodes({name: values[index] for name, values in reports.episodes.items()})
            self.progress.scored += int(metrics.pop(SCORED, reports.episodes["number"][index]))
            if reports.entries:
                self._entries({name: values[index] for name, values in reports.entries.items()})
            metrics["train/episodes"] = float(self.progress.episodes)
            metrics["time/steps_per_second"] = chunk * self.program.steps_per_update / seconds
            if TOKENS in metrics:
                total = float(reports.metrics[TOKENS].sum())
                metrics["time/tokens_per_second"] = total / seconds
                del metrics[TOKENS]
            metrics["time/train_seconds"] = self.progress.seconds
            self.rating = metrics.get(selection_score.rating_column(self.config))
            self._log(metrics | self._stage(metrics))
            self._refuse_divergence(metrics)
            self._refuse_quarantine(metrics, int(reports.episodes["number"][index]))
        return metrics

    def _log(self, values: dict[str, float | str]) -> None:
        """Logs values by namespace at the current step."""
        for namespace, part in by_namespace(values).items():
            self.tracker.log(namespace, self.step, part)

    def _stage(self, metrics: dict[str, float]) -> dict[str, str]:
        """Returns the name of the curriculum's stage; logs an event when it changes."""
        stages, before = self.program.curriculum.stages, self.progress.moving
        self.progress.moving = metrics.get(BLEND, 0.0) > 0.0 if stages else metrics.get(RAMP, 1.0) < 1.0
        # The episodes of an update were drawn as the tasks were before it.
        if before or self.progress.moving:
            self.progress.entered = self.progress.scored
        if not stages:
            return {}
        stage, before = int(metrics["curriculum/current_stage"]), self.progress.stage
        if stage != before:
            self.progress.stage, self.progress.entered = stage, self.progress.scored
            success = metrics.get("curriculum/decided_success", math.nan)
            forced = int(metrics.get("curriculum/forced_advances", 0.0))
            onward = "forced: phase" if forced > self.progress.forced else "phase"
            self.progress.forced = forced
            move = onward if stage > before else "back: phase"
            decided = f" (success {100 * success:.0f} %)" if math.isfinite(success) else ""
            self.tracker.event(self.step, f"{move} {before} -> {stage}: {stages[stage]}{decided}")
        return {"curriculum/phase_name": stages[stage]}

    def _refuse_divergence(self, metrics: dict[str, float]) -> None:
        """Raises DivergedError for a loss that is not finite."""
        if (name := find_divergence(metrics, "losses/")) is not None:
            raise DivergedError(f"{name} is not finite after {self.step} steps; {self._last_good()}")

    def _refuse_quarantine(self, metrics: dict[str, float], ended: int) -> None:
        """Raises DivergedError if all environments are quarantined repeatedly before any episode ends."""
        everywhere = metrics["train/quarantined_environments"] == self.config.num_envs
        self.sick = self.sick + 1 if everywhere and not ended else 0
        if self.sick < 2 or self.sick * self.config.horizon < SICK_DECISIONS:
            return
        number, last = self.config.num_envs, f"in each of the last {self.sick} updates"
        raise DivergedError(
            f"all {number} environments are quarantined after {self.step} steps: {last} every one had values "
            f"that are not finite, and no episode ended; {self._last_good()}"
        )

    def _last_good(self) -> str:
        """Names the last usable checkpoint, for messages."""
        for name in ("latest", "best_eval"):
            if (self.checkpoints / name).exists():
                return f"last good checkpoint: {self.checkpoints / name}"
        return "no checkpoint was saved yet"

    def _episodes(self, table: dict[str, np.ndarray]) -> None:
        """Logs the finished episodes of one update."""
        number = int(table.pop("number"))
        begin, shown = self.step - self.program.steps_per_update, min(number, len(table["length"]))
        before = self.progress.episodes + number - shown
        for row in range(shown):
            values = {name: column[row].item() for name, column in table.items()}
            step = begin + (values.pop("step") + 1) * self.config.steps_per_decision
            values |= self._names(values)
            self.tracker.log("episodes", step, {"episode": before + row + 1, **values})
        self.progress.episodes += number

    def _entries(self, table: dict[str, np.ndarray]) -> None:
        """Logs the filled entries of a pool, and the added and evicted snapshots."""
        for entry, values in enumerate(plain_rows(table)):
            if (kind := KINDS[values["kind"]]) == KINDS[EMPTY]:
                continue
            names = {"entry": entry, "name": self._entry_name(entry, values["iteration"]), "kind": kind}
            if kind in PAST:
                names["parent"] = self._parent(entry)
            self.tracker.log("entries", self.step, names | values | names)
        now = table["iteration"]
        before, self.snapshots = self.snapshots, now
        for entry in () if before is None else np.flatnonzero(now != before):
            gone = f", evicted #{before[entry]}" if before[entry] >= 0 else ""
            self.tracker.event(self.step, f"pool: added snapshot #{now[entry]}{gone}")

    def _entry_name(self, entry: int, iteration: int) -> str:
        """Name of a pool's entry in tables."""
        pool = self.config.pool
        if entry >= pool.first_fixed:
            return pool.fixed[entry - pool.first_fixed]
        if entry >= pool.learners:
            return f"#{iteration}" if pool.league is None else f"{self._parent(entry)} #{iteration}"
        return f"{self.config.rival if pool.league is None else pool.learner_name(entry)} now"

    def _parent(self, entry: int) -> str:
        """Name of the learner whose snapshot is in a slot."""
        pool = self.config.pool
        if pool.league is not None:
            return pool.learner_name((entry - pool.learners) // pool.capacity)
        return self.config.controllers[self.config.pooled].removeprefix(POOL)

    def _names(self, values: dict[str, float]) -> dict[str, str]:
        """Labels of an episode's codes and tags."""
        return label_codes(values, result_labels(self.program.env.spec) | dict(self.program.curriculum.tags))

    @property
    def judged_by(self) -> str | None:
        """Column of the result that scores the run; see `EnvSpec.judged_by`."""
        return self.program.env.spec.judged_by(self.program.agents)

    @property
    def scores(self) -> list[Result]:
        """Results with an interval: the environment's score, then the run's if that is another one."""
        spec = self.program.env.spec
        found = (one for one in spec.results if one.column in (spec.score_column, self.judged_by))
        return sorted(found, key=lambda one: one.column != spec.score_column)

    def assessment(self, assessment: Assessment, seconds: float) -> list[str]:
        """Logs an evaluation; returns the names of best checkpoints to save."""
        self.progress.seconds += seconds
        self.progress.evaluated = self.progress.updates
        values = evaluation_values(assessment.scalars, assessment.result, self.program.env.spec)
        self.progress.last_eval, self.progress.last_sums = values, self._sums(assessment.result)
        self._log(values | self._own_interval())
        self._evaluation_episodes(assessment.result)
        self._warn_of_unfinished(assessment.result)
        self.offer_replay(assessment.result, self.tracker)
        column = self.judged_by
        score = [] if column is None else [values[f"eval_agg/{column}"]]
        # The return is the first role's, as the environment's score is.
        if column == self.program.env.spec.score_column:
            score.append(values["eval_agg/avg_reward"])
        judge = (
            self.improved if selection_score.evaluations_are_informative(self.program.env) else self._followed
        )
        names = judge("best_eval", score)
        if self.program.curriculum.stages:
            phase = [values["eval_agg/phase_success_rate"]]
            names += judge(f"best_eval_phase_{int(assessment.stage)}", phase)
        return names

    def _warn_of_unfinished(self, result: Evaluation) -> None:
        """Warns once of evaluation episodes that the limit of the environment cuts before they end."""
        number, limit = count_unfinished(result), self.program.env.spec.episode_limit
        if number and not self.unfinished and processes.is_first_process():
            cut = f"{number} of {len(result.length)} episodes of the evaluation did not end"
            why = f"within spec.episode_limit={limit} decisions, and have no outcome"
            self.tracker.warn(self.step, f"{cut} {why}; check_env finds such faults")
        self.unfinished = self.unfinished or number > 0

    def _followed(self, name: str, score: list[float]) -> list[str]:
        """As `improved`, by the rating instead of an uninformative score; `[name]` without a rating."""
        del score
        return [name] if self.rating is None else self.improved(name, [self.rating])

    def _sums(self, result: Evaluation) -> dict[str, list[float]]:
        """Sums over an evaluation's episodes, of the environment's score and of the run's if different."""
        spec = self.program.env.spec
        return {one.column: list(sum_scores(*result.sums(spec, one.name))) for one in self.scores}

    def _own_interval(self) -> dict[str, float]:
        """Ends of the interval of the run's score if that is not the environment's, which has them."""
        sums, shared = self.progress.last_sums, self.program.env.spec.score_column
        own = [one for one in self.scores if one.column != shared]
        return {
            name: x for one in own for name, x in interval_values(one, ScoreSums(*sums[one.column])).items()
        }

    def _evaluation_episodes(self, result: Evaluation) -> None:
        """Logs the episodes of an evaluation."""
        for values in list_episodes(result, self.program.env.spec, self.program.role):
            self.tracker.log("eval", self.step, values | {"episode": values["episode"] + 1})
        self._games(result)

    def _games(self, result: Evaluation) -> None:
        """Logs the recorded episodes as text."""
        recorded = recorded_episodes(result)
        if not recorded or not self.program.env.viewer.tells or self.program.curriculum.stages:
            return
        for index in recorded:
            row = self.program.env.viewer.row(result, index)
            self.tracker.log("games", self.step, {"episode": index + 1, **row})

    def offer_replay(self, result: Evaluation, tracker: Tracker) -> None:
        """Offers the replay of the first sound episode that an evaluation recorded to a tracker."""
        recorded = recorded_episodes(result)
        if recorded:
            viewer = self.program.env.viewer
            tracker.replay(self.step, lambda path: viewer.replay(path, result, recorded[0]))

    def training_score(self, metrics: dict[str, float]) -> list[str]:
        """Returns the names of best checkpoints to save because of training metrics.

        Empty until the rolling window is full: otherwise one early success would remain the best forever. A
        later stage of a curriculum, or task of a ramp, ranks above any result in an earlier one. In games of
        constant sum in which only the learner plays, the score is uninformative, and the latest policy is
        always saved.
        """
        if metrics["train/window_episodes"] < self.config.window:
            return []
        if not selection_score.training_is_informative(self.config):
            return ["best_training"]
        ramp = [] if self.program.curriculum.stages or RAMP not in metrics else [metrics[RAMP]]
        if ramp in ([], [1.0]) and not self._window_is_of_task():
            return []
        stage = [float(self.progress.stage)] if self.program.curriculum.stages else ramp
        score = self.judged_by
        # Of several learners each has its return.
        earned = ("train/return", f"train/return/{self.program.role}")
        for name in (*([] if score is None else [f"train/{score}"]), *earned):
            if name in metrics:
                return self.improved("best_training", [metrics[name]], stage)
        return []

    def _window_is_of_task(self) -> bool:
        """Whether the rolling window holds only episodes of the current stage and task (of a ramp: the last).

        Otherwise successes in an easier stage, or in the task before a resume, would remain the best of the
        later one forever. Episodes that were running when it was entered must have ended as well. In games
        against a pool, those that the learner plays against itself are not in the window.
        """
        since = self.progress.scored - self.progress.entered
        return self.progress.entered == 0 or since >= self.config.window + self.config.num_envs

    def improved(self, name: str, score: list[float], above: Sequence[float] = ()) -> list[str]:
        """Returns `[name]` if `[*above, *score]` exceeds the best so far lexicographically, else `[]`.

        Non-finite scores are ignored, both current and previous ones.
        """
        rank, best = [*above, *score], self.progress.best.get(name, [])
        known = bool(best) and all(map(math.isfinite, best))
        if not all(map(math.isfinite, rank)) or (known and rank <= best):
            return []
        self.progress.best[name] = rank
        self.tracker.event(self.step, f"{name}: {score[0]:.3g}")
        return [name]

    def save(self, state, names: list[str]) -> None:
        """Saves the state under each name; the best checkpoints of single phases hold only the policy."""
        facts = {
            "step": self.step,
            "updates": self.progress.updates,
            "episode": self.progress.episodes,
            "phase": self.progress.stage,
            "scores": self.progress.last_eval,
            "scored_at": self.evaluated_at,
            "scored_on": self.scored_on,
            "progress": vars(self.progress),
            "config": self.resolved,
            "environment": versioned_name(self.program.env.spec),
            "versions": package_versions(),
        }
        if worlds := agent_digests(self.program.agents):
            facts[WORLDS] = worlds
        phases = tuple(name for name in names if holds_policy_only(name))
        whole = tuple(name for name in names if name not in phases)
        if whole:
            checkpoints.save_checkpoint(self.checkpoints, whole, state, facts)
        if phases:
            policy = self.program.policy(state)
            checkpoints.save_checkpoint(
                self.checkpoints, phases, policy, facts | {"policy_only": True}, "policy"
            )

    def summary(self, status: str, compile_seconds: float) -> dict[str, Any]:
        """Returns the run's summary."""
        return {
            "status": status,
            "env_steps": self.step,
            "updates": self.progress.updates,
            "episodes": self.progress.episodes,
            "compile_seconds": round(compile_seconds, 2),
            "train_seconds": round(self.progress.seconds, 2),
            "stage": self.progress.stage,
            "last_eval": self.progress.last_eval,
            "last_eval_step": self.evaluated_at,
            "best": self.progress.best,
            "versions": package_versions(),
        }


def holds_policy_only(name: str) -> bool:
    """Whether the checkpoint of this name holds only a policy: the best of a single phase."""
    return name.startswith("best_eval_phase_")


def recorded_episodes(result: Evaluation) -> list[int]:
    """Lists the recorded episodes of an evaluation that were not quarantined."""
    if result.frames is None:
        return []
    recorded = jax.tree.leaves(result.frames)[0].shape[1]
    return np.flatnonzero(~np.asarray(result.quarantined)[:recorded]).tolist()


def count_unfinished(result: Evaluation) -> int:
    """Counts the sound episodes of an evaluation without an outcome; 0 if the environment reports none.

    An outcome is -1 while an episode runs, so that its limit has cut these.
    """
    outcomes = result.results.get("outcome")
    if outcomes is None:
        return 0
    return int(np.sum((np.asarray(outcomes) == NONE) & ~np.asarray(result.quarantined)))


def plain_rows(table: dict[str, np.ndarray]) -> list[dict[str, float | int]]:
    """Converts a table of columns `[n]` to rows of Python numbers."""
    columns = [column.tolist() for column in table.values()]
    return [dict(zip(table, row, strict=True)) for row in zip(*columns, strict=True)]


def evaluation_values(scalars: dict, result: Evaluation, spec: EnvSpec) -> dict[str, float]:
    """Converts an evaluation's scalars to Python floats and adds the 95 % interval of the score.

    Groups that did not occur are left out. Score and interval are NaN without counted episodes. For a score
    that is reported by the labels of a code, its mean over the worst tenth of episodes is added, in total
    and by label.
    """
    values = {name: float(value) for name, value in scalars.items()}
    groups = tuple(f"eval_agg/{one.name}/" for one in spec.results if one.groups)
    groups += tuple(f"eval_agg/{one.column}/" for one in spec.results if one.by)
    values = {k: v for k, v in values.items() if not (k.startswith(groups) and math.isnan(v))}
    if spec.score is not None:
        value, weight = (np.asarray(x) for x in result.scores(spec))
        sums = sum_scores(value, weight)
        values[f"eval_agg/{spec.score_column}"] = sums.mean
        values |= interval_values(spec.result(spec.score), sums)
        if (code := spec.result(spec.score).by) is not None:
            labels = np.array([*spec.labels(code), ""])[np.asarray(result.results[code])]
            values |= worst_tenths(value[weight != 0] / weight[weight != 0], labels[weight != 0])
    return values


def evaluation_columns(spec: EnvSpec, role: str, *, staged: bool) -> list[str]:
    """Returns the names of all scalars that `evaluation_values` may return for evaluations in training.

    Those of groups are only in evaluations in which the group occurs.

    Args:
      spec: of the environment.
      role: role that scores the run.
      staged: whether the curriculum has stages, whose success is an own column.
    """

    def shape(role: str | None, dtype: type) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1,) if role is None else (1, spec.role(role).size), dtype)

    kinds = {one.name: jnp.int32 if one.kind == "code" else jnp.float32 for one in spec.results}
    stored = {one.name: shape(one.role, kinds[one.name]) for one in stored_results(spec.results)}
    there, earned = ({one.name: shape(one.name, kind) for one in spec.roles} for kind in (bool, jnp.float32))
    episode = Evaluation(shape(None, bool), there, earned, shape(None, jnp.int32), stored, None)
    found = list(jax.eval_shape(partial(summarize_evaluation, spec=spec, role=role), episode))
    if staged:
        found.append("eval_agg/phase_success_rate")
    if spec.score is None:
        return found
    score = spec.result(spec.score)
    found += interval_values(score, sum_scores(np.zeros(1), np.zeros(1)))
    if score.by is not None:
        found += ["eval_agg/worst_decile", *(f"eval_agg/worst_decile/{x}" for x in spec.labels(score.by))]
    return found


def worst_tenths(score: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """Mean score of the worst tenth of N episodes, over all and for each label that occurs.

    Args:
      score: `[N]`.
      label: `[N]` names; empty for episodes without a label.
    """

    def worst(own: np.ndarray) -> float:
        return float(np.mean(np.sort(own)[: -(-own.size // 10)])) if own.size else math.nan

    by_label = {f"/{name}": worst(score[label == name]) for name in np.unique(label) if name}
    return {f"eval_agg/worst_decile{name}": value for name, value in {"": worst(score), **by_label}.items()}


def interval_values(score: Result, sums: ScoreSums) -> dict[str, float]:
    """Ends of a score's 95 % interval by column name, see `score_interval`."""
    low, high = score_interval(sums)
    return {f"eval_agg/{score.name}_low": low, f"eval_agg/{score.name}_high": high}


def by_namespace(metrics: dict[str, float | str]) -> dict[str, dict[str, float | str]]:
    """Groups values by namespace: splits `namespace/name` keys at the first slash."""
    result: dict[str, dict[str, float | str]] = defaultdict(dict)
    for name, value in metrics.items():
        namespace, _, rest = name.partition("/")
        result[namespace][rest] = value
    return dict(result)


def versioned_name(spec: EnvSpec) -> str:
    """Name of an environment with the version of its behaviour."""
    return f"{spec.name} of version {spec.version}"


def package_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that affect results."""
    names = ("jaxmarl_echelon", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    found = {"python": sys.version.split()[0]}
    for name in names:
        try:
            found[name] = packages.version(name)
        except packages.PackageNotFoundError:
            found[name] = "unknown"
    return found
