"""The host's part of a run: start compiled chunks, write down what comes back, stop and resume."""

import json
import math
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata as packages
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.tracking.base import RunInfo, Tracker
from jaxmarl_echelon.tracking.statistics import wilson
from jaxmarl_echelon.training import evaluation
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.program import Program

EVALUATION_STREAM = 1


class Compiled(NamedTuple):
    """A program compiled ahead of time.

    Attributes:
      init: `(key) -> RunState`.
      chunk: `(RunState) -> (RunState, Report [updates_per_chunk])`; the state is donated.
      evaluate: `(RunState) -> (summary scalars, Evaluation)`.
      seconds: time the compiler took.
    """

    init: Callable
    chunk: Callable
    evaluate: Callable
    seconds: float


@dataclass
class Progress:
    """Where a run stands on the host; kept in a checkpoint's metadata.

    Attributes:
      updates: updates done.
      episodes: episodes finished in training.
      seconds: wall-clock time spent in compiled chunks and evaluations.
      best: name of a best checkpoint to its score, a list compared in order.
      last_eval: scalars of the last evaluation.
    """

    updates: int = 0
    episodes: int = 0
    seconds: float = 0.0
    best: dict[str, list[float]] = field(default_factory=dict)
    last_eval: dict[str, float] = field(default_factory=dict)


class DivergedError(RuntimeError):
    """A learner's numbers are no longer finite."""


def evaluation_key(seed: int) -> jax.Array:
    """The key of every evaluation of a run: the same episodes each time."""
    return jax.random.fold_in(jax.random.key(seed), EVALUATION_STREAM)


def learner_role(program: Program) -> str:
    """The role whose results count as the run's score."""
    return next(iter(program.agents))


def evaluation_function(program: Program, config: RunConfig) -> Callable:
    """`(RunState) -> (summary scalars, Evaluation)`: the evaluation that a run repeats and is scored by."""

    def evaluate(run):
        result = program.evaluate(run, evaluation_key(config.seed))
        return evaluation.summary(result, program.env.spec, learner_role(program)), result

    return evaluate


def compile_program(program: Program, config: RunConfig) -> Compiled:
    """Compiles init, a chunk of updates and the evaluation; the state of a chunk is donated."""
    begin = time.perf_counter()
    key = jax.random.key(config.seed)

    def chunk(run):
        return jax.lax.scan(lambda r, _: program.update(r), run, None, config.updates_per_chunk)

    init = jax.jit(program.init).lower(key).compile()
    state = jax.eval_shape(program.init, key)
    chunk = jax.jit(chunk, donate_argnums=0).lower(state).compile()
    evaluate = jax.jit(evaluation_function(program, config)).lower(state).compile()
    return Compiled(init, chunk, evaluate, time.perf_counter() - begin)


class StopSignal:
    """Turns Ctrl-C and SIGTERM into a request that the loop honours between chunks.

    A second Ctrl-C raises KeyboardInterrupt at once.
    """

    def __init__(self):
        self.requested = False
        self._before = {}

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread: the caller keeps control
                break
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number, _frame):
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


def train(
    config: RunConfig,
    program: Program,
    resolved: dict[str, Any],
    folder: Path,
    tracker: Tracker,
    resume: Path | None = None,
    stop_after: int | None = None,
) -> dict[str, Any]:
    """Runs a configuration to its end, or until it is asked to stop.

    Args:
      config: the run.
      program: its program.
      resolved: the composed configuration as plain data, kept in every checkpoint.
      folder: the run's folder.
      tracker: where numbers go.
      resume: checkpoint folder to continue from, bit for bit, or None.
      stop_after: stop as if asked to after this many updates in all; for tests.

    Returns:
      the run's summary, as written to `summary.json`.

    Raises:
      DivergedError: where a learner's numbers are no longer finite; the last checkpoint stays.
    """
    progress = Progress(**checkpoints.metadata(resume)["progress"]) if resume else Progress()
    tracker.open(run_info(config, resolved, folder, program, progress if resume else None))
    host = _Host(config, resolved, folder, tracker, program, progress)
    try:
        with StopSignal() as stop:
            return host.run(resume, stop, stop_after)
    finally:
        tracker.close()


def run_info(config, resolved, folder: Path, program: Program, resumed: Progress | None) -> RunInfo:
    """The facts of a run that sinks show."""
    return RunInfo(
        folder=folder,
        spec=program.env.spec,
        total_steps=config.updates * program.steps_per_update,
        config=resolved,
        resume_step=None if resumed is None else resumed.updates * program.steps_per_update,
    )


class _Host:
    """One run on the host; every method is one thing it does between chunks."""

    def __init__(self, config, resolved, folder, tracker, program, progress):
        self.config, self.resolved, self.folder = config, resolved, folder
        self.tracker, self.program, self.progress = tracker, program, progress
        self.checkpoints = folder / "checkpoints"
        self.compiled: Compiled

    @property
    def step(self) -> int:
        return self.progress.updates * self.program.steps_per_update

    def run(self, resume, stop, stop_after):
        self.tracker.event(self.step, "compiling the program")
        self.compiled = compile_program(self.program, self.config)
        self.tracker.log("time", self.step, {"compile_seconds": self.compiled.seconds})
        state = self._start(resume)
        while self.progress.updates < self.config.updates:
            if stop.requested or self.progress.updates == stop_after:
                self._save(state, ["latest"])
                self.tracker.event(self.step, f"stopped; continue with resume={self.folder}")
                return self._summary("stopped")
            state = self._advance(state)
        self._save(state, ["latest"])
        return self._summary("finished")

    def _start(self, resume):
        if resume is not None:
            like = jax.eval_shape(self.program.init, jax.random.key(self.config.seed))
            state = checkpoints.restore(resume, like)
            checkpoints.rewind(self.checkpoints, resume)
            self.tracker.event(self.step, f"resumed from {resume.name}")
            return state
        state = self.compiled.init(jax.random.key(self.config.seed))
        self._save(state, self._evaluate(state))
        return state

    def _advance(self, state):
        begin = time.perf_counter()
        state, reports = self.compiled.chunk(state)
        reports = jax.device_get(reports)
        seconds = time.perf_counter() - begin
        self.progress.seconds += seconds
        self._log_reports(reports, seconds)
        last = {name: float(values[-1]) for name, values in reports.metrics.items()}
        names = []
        if (
            self.progress.updates % self.config.eval_every == 0
            or self.progress.updates == self.config.updates
        ):
            names += self._evaluate(state)
        if self.progress.updates % self.config.checkpoint_every == 0:
            names += ["latest", *self._improved("best_training", _training_score(last))]
        self.tracker.flush()
        self._save(state, names)
        return state

    def _log_reports(self, reports, seconds):
        chunk = self.config.updates_per_chunk
        for index in range(chunk):
            self.progress.updates += 1
            metrics = {name: float(values[index]) for name, values in reports.metrics.items()}
            table = {name: values[index] for name, values in reports.episodes.items()}
            self._log_episodes(table)
            metrics["train/episodes"] = float(self.progress.episodes)
            metrics["time/steps_per_second"] = chunk * self.program.steps_per_update / seconds
            metrics["time/train_seconds"] = self.progress.seconds
            for namespace, values in by_namespace(metrics).items():
                self.tracker.log(namespace, self.step, values)
            broken = sorted(n for n, v in metrics.items() if n.startswith("losses/") and not math.isfinite(v))
            if broken:
                raise DivergedError(
                    f"{broken[0]} is not finite after {self.step} steps; last good checkpoint: "
                    f"{self.checkpoints / 'latest'}"
                )

    def _log_episodes(self, table):
        number = int(table.pop("number"))
        outcomes = self.program.env.spec.outcomes
        tasks = self.program.env.spec.tasks
        begin = self.step - self.program.steps_per_update
        for row in range(min(number, len(table["length"]))):
            values = {name: column[row].item() for name, column in table.items()}
            step = begin + (values.pop("step") + 1) * self.config.num_envs
            outcome, task = values.pop("outcome"), values.pop("task")
            values["outcome"] = outcomes[outcome] if 0 <= outcome < len(outcomes) else ""
            values["task"] = tasks[task] if 0 <= task < len(tasks) else ""
            self.tracker.log("episodes", step, {"episode": self.progress.episodes + row + 1, **values})
        self.progress.episodes += number

    def _evaluate(self, state) -> list[str]:
        begin = time.perf_counter()
        scalars, result = jax.device_get(self.compiled.evaluate(state))
        self.progress.seconds += time.perf_counter() - begin
        values = evaluation_values(scalars, result, self.program.env.spec)
        self.progress.last_eval = values
        for namespace, scalars in by_namespace(values).items():
            self.tracker.log(namespace, self.step, scalars)
        score = [values["eval_agg/avg_reward"]]
        if "eval_agg/success_rate" in values:
            score.insert(0, values["eval_agg/success_rate"])
        return self._improved("best_eval", score)

    def _improved(self, name, score) -> list[str]:
        if score is None or (name in self.progress.best and score <= self.progress.best[name]):
            return []
        self.progress.best[name] = score
        self.tracker.event(self.step, f"{name}: {score[0]:.3g}")
        return [name]

    def _save(self, state, names):
        if not names:
            return
        facts = {
            "step": self.step,
            "updates": self.progress.updates,
            "episode": self.progress.episodes,
            "scores": self.progress.last_eval,
            "progress": vars(self.progress),
            "config": self.resolved,
            "versions": versions(),
        }
        checkpoints.save(self.checkpoints, tuple(names), state, facts)

    def _summary(self, status):
        result = {
            "status": status,
            "env_steps": self.step,
            "updates": self.progress.updates,
            "episodes": self.progress.episodes,
            "compile_seconds": round(self.compiled.seconds, 2),
            "train_seconds": round(self.progress.seconds, 2),
            "last_eval": self.progress.last_eval,
            "best": self.progress.best,
            "versions": versions(),
        }
        (self.folder / "summary.json").write_text(json.dumps(result, indent=2) + "\n")
        return result


def evaluation_values(scalars, result, spec) -> dict[str, float]:
    """An evaluation's scalars as Python floats, with the 95 % Wilson interval of the success rate."""
    values = {name: float(value) for name, value in scalars.items()}
    if spec.success is not None:
        outcome = np.asarray(result.outcome)
        wins = int(np.sum(outcome == spec.outcomes.index(spec.success)))
        values["eval_agg/success_rate"] = wins / outcome.size
        values["eval_agg/success_low"], values["eval_agg/success_high"] = wilson(wins, outcome.size)
    return values


def _training_score(metrics: dict[str, float]) -> list[float] | None:
    for name in ("train/success_rate", "train/return"):
        if name in metrics:
            return [metrics[name]] if math.isfinite(metrics[name]) else None
    return None


def by_namespace(metrics: dict[str, float]) -> dict[str, dict[str, float]]:
    """Splits `namespace/name` keys at their first slash."""
    result: dict[str, dict[str, float]] = defaultdict(dict)
    for name, value in metrics.items():
        namespace, _, rest = name.partition("/")
        result[namespace][rest] = value
    return dict(result)


def versions() -> dict[str, str]:
    """Versions of what the numbers of a run depend on."""
    names = ("jaxmarl_echelon", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    found = {"python": sys.version.split()[0]}
    for name in names:
        try:
            found[name] = packages.version(name)
        except packages.PackageNotFoundError:
            found[name] = "unknown"
    return found
