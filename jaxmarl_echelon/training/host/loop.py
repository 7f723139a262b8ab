"""Host loop of a run: dispatches compiled chunks, logs their reports, stops and resumes."""

import json
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
from typing_extensions import override

from algos import compiler
from jaxmarl_echelon import checkpoints, processes
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.training.acting.random_streams import Stream, run_key, stream_key
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host import memory, reference_scores, run_record, selection_score
from jaxmarl_echelon.training.host import resume as resuming
from jaxmarl_echelon.training.host.compile import Compiled, compile_program
from jaxmarl_echelon.training.host.describe_language import describe_language
from jaxmarl_echelon.training.host.describe_pool import describe_short_hold
from jaxmarl_echelon.training.host.devices import ALONE, DeviceLayout, describe_devices
from jaxmarl_echelon.training.host.profile import UpdateProfile
from jaxmarl_echelon.training.host.run_record import DivergedError, RunProgress, RunRecord
from jaxmarl_echelon.training.host.video import EpisodeVideos
from jaxmarl_echelon.training.program.program import Program, evaluation_as_in_training

__all__ = ["DivergedError", "StopSignal", "train_run"]


class StopSignal:
    """Context that turns SIGINT and SIGTERM into a stop request, handled between chunks.

    A second Ctrl-C raises KeyboardInterrupt at once.
    """

    def __init__(self):
        self.requested = False
        self._before = {}

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread: the caller keeps its signal handlers
                break
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number, _frame):
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


class RunLoop:
    """Base class of loops over chunks of a compiled program, to the end of a run or a stop request.

    Subclasses define the compiled functions and the handling of their results.

    Attributes:
      config: the run.
      program: its program.
      tracker: for the loop's own messages.
      folder: the run's folder.
      layout: its devices.
      videos: animations of its evaluations.
      compiled_by: the function that compiles it; `compile_program` if None.
      resolved: the composed configuration as plain data.
    """

    config: RunConfig
    program: Program
    tracker: Tracker
    folder: Path
    layout: DeviceLayout
    videos: EpisodeVideos
    compiled_by: Callable[..., Compiled] | None = None
    resolved: dict[str, Any]

    def functions(self) -> tuple[Callable, Callable, Callable, tuple]:
        """Returns `init`, `update`, `assess` and the arguments of `init`, see `compile_program`."""
        raise NotImplementedError

    @property
    def progress(self) -> RunProgress:
        """Progress of the run."""
        raise NotImplementedError

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return self.progress.updates * self.config.steps_per_update

    def reports(self, reports, seconds: float) -> Any:
        """Logs a chunk; returns the metrics for `training_scores`."""
        raise NotImplementedError

    def assessed(self, state, assessment, seconds: float) -> list[str]:
        """Logs an evaluation; returns the names of checkpoints to save."""
        raise NotImplementedError

    def training_scores(self, state, metrics) -> list[str]:
        """Returns the names of checkpoints to save because of training metrics."""
        raise NotImplementedError

    def flush(self) -> None:
        """Tells the sinks that a chunk has been logged."""
        self.tracker.flush()

    def save(self, state, names: list[str]) -> None:
        """Saves a checkpoint under each name."""
        raise NotImplementedError

    def save_last(self, state) -> None:
        """Saves the state with which the loop ends."""
        self.save(state, ["latest"])

    def restore(self, checkpoint: Path, like) -> Any:
        """Restores a checkpoint and drops later ones."""
        raise NotImplementedError

    def summary(self, status: str) -> dict[str, Any]:
        """Returns the run's summary."""
        raise NotImplementedError

    def policies(self, state) -> list[tuple[RunRecord, Any]]:
        """Returns the record of every run that goes on, and its state reduced to its policy, on the host."""
        raise NotImplementedError

    def references(self, state) -> list[str]:
        """Evaluates the environment's reference scripts on the evaluation's episodes; returns a line each."""
        raise NotImplementedError

    def run(self, resume: Path | None, stop: StopSignal, stop_after: int | None) -> dict[str, Any]:
        """Runs to the end or to a stop request; returns the summary."""
        spoken = describe_language(self.config, self.program.agents)
        for line in (*self.program.env.describe(), *spoken, *selection_score.describe_selection(self.config)):
            self.tracker.event(self.step, line)
        warnings = (*self.program.env.left_out(), *describe_short_hold(self.config))
        for line in warnings if processes.is_first_process() else ():
            self.tracker.warn(self.step, line)
        self.tracker.event(self.step, "compiling the program")
        self.compiled = self.compile()
        state = self._start(resume)
        stats = self.compiled.executable().memory_analysis()
        memory.check_program(stats, self.compiled.state, self.compiled.world, self.layout)
        self.tracker.log("time", self.step, {"compile_seconds": self.compiled.seconds()})
        setting = self.config.profile if processes.is_first_process() else None
        with UpdateProfile(setting, self.folder, self._note) as profile:
            while self.progress.updates < self.config.updates and not self.is_over():
                if processes.any_process(stop.requested) or self.progress.updates == stop_after:
                    self.save_last(state)
                    self.tracker.event(self.step, "stopped")
                    return self._finish("stopped")
                profile.begin(self.progress.updates, self.config.updates_per_chunk)
                state = self._advance(state)
                profile.end(self.progress.updates)
        self.save_last(state)
        for line in self.references(state):
            self.tracker.event(self.step, line)
        return self._finish("finished")

    def compile(self) -> Compiled:
        """Compiles the program of the run."""
        options = dict(self.program.compiler_options)
        if self.config.compilation == "quick":
            options |= compiler.evaluation_compile_options(self.layout.number)
        return (self.compiled_by or compile_program)(
            *self.functions(),
            self.program.world,
            self.config.updates_per_chunk,
            options,
            self.layout,
            self.program.local,
            partial(memory.check_arrays, layout=self.layout),
        )

    def is_over(self) -> bool:
        """Whether the run ends before its last update."""
        return False

    def _note(self, line: str) -> None:
        """Logs a line about the run as an event."""
        self.tracker.event(self.step, line)

    def _start(self, resume):
        """Returns the first state: restored, or initial and evaluated."""
        if resume is not None:
            state = self.compiled.place(self.restore(resume, self.compiled.state))
            done = self.progress.updates >= self.config.updates
            more = "; all steps are done, a larger total_env_steps continues" if done else ""
            self.tracker.event(self.step, f"resumed from {resume.name}{more}")
            before = checkpoints.read_metadata(resume)["config"]
            lines = resuming.describe_kept_replay(self.config, before, self.resolved)
            for line in lines if processes.is_first_process() else ():
                self.tracker.warn(self.step, line)
            return state
        state, names = self._assess(self.compiled.init())
        self.save(state, names)
        return state

    def _advance(self, state):
        """Runs one chunk of updates, with the evaluation and checkpoints that follow it."""
        begin = time.perf_counter()
        state, reports = self.compiled.chunk(state)
        reports = jax.device_get(reports)
        metrics = self.reports(reports, time.perf_counter() - begin)
        names, updates = [], self.progress.updates
        last = updates == self.config.updates
        if updates % self.config.eval_every == 0 or last:
            state, names = self._assess(state)
        # Training scores count only where a checkpoint is written anyway: early in a run almost every update
        # is the best so far, and a checkpoint of each would take longer than the update.
        if updates % self.config.checkpoint_every == 0 or last:
            names += ["latest", *self.training_scores(state, metrics)]
        self.flush()
        self.save(state, names)
        return state

    def _assess(self, state):
        """Evaluates a state; returns it with the new curriculum state, and names of checkpoints to save."""
        begin = time.perf_counter()
        course, assessment = self.compiled.assess(state)
        state, assessment = state.replace(curriculum=course), jax.device_get(assessment)
        names = self.assessed(state, assessment, time.perf_counter() - begin)
        if self.videos.due(self.progress.updates):
            runs = self.policies(state)
            if processes.is_first_process():
                self.videos.write(runs)
        return state, names

    def _finish(self, status):
        """Writes and returns the summary."""
        result = self.summary(status) | {"device": describe_devices(self.layout.number)}
        if processes.is_first_process():
            (self.folder / "summary.json").write_text(json.dumps(result, indent=2) + "\n")
        return result


class SingleRun(RunLoop):
    """Loop of one run with one seed."""

    def __init__(
        self,
        record: RunRecord,
        layout: DeviceLayout = ALONE,
        compiled_by: Callable[..., Compiled] | None = None,
    ):
        """Takes the record with the run's configuration, program, tracker and folder; see `RunLoop`."""
        self.layout, self.compiled_by = layout, compiled_by
        self.record, self.config, self.program = record, record.config, record.program
        self.tracker, self.folder, self.resolved = record.tracker, record.folder, record.resolved
        self.videos = EpisodeVideos(self.config, self.program)
        self.reference_scores: reference_scores.Scores = {}

    @property
    @override
    def progress(self) -> RunProgress:
        """Progress of the run, as its record has it."""
        return self.record.progress

    @override
    def functions(self):
        """Returns `init`, `update`, `assess` and the run's key; see `RunLoop.functions`."""
        assess = evaluation_as_in_training(self.program, self.config.seed)

        def init(key, world):
            """Returns the run's state before the first update."""
            return self.program.init(key, world=world)

        return init, self.program.update, assess, (run_key(self.config.seed),)

    @override
    def reports(self, reports, seconds):
        """Logs a chunk; returns the metrics of its last update."""
        return self.record.reports(reports, seconds)

    @override
    def assessed(self, state, assessment, seconds):
        """Logs an evaluation; returns the names of best checkpoints to save."""
        return self.record.assessment(assessment, seconds)

    @override
    def training_scores(self, state, metrics):
        """Returns the names of best checkpoints to save because of training metrics."""
        return self.record.training_score(metrics)

    @override
    def save(self, state, names):
        """Saves a checkpoint under each name, and under `latest` if it holds a whole state."""
        # With any whole state `latest` is saved too, so that no whole checkpoint is newer than `latest`.
        whole = any(not run_record.holds_policy_only(name) for name in names)
        self.record.save(state, [*dict.fromkeys(["latest", *names])] if whole else names)

    @override
    def policies(self, state):
        return [(self.record, self.layout.fetch_to_host(self.program.policy(state)))]

    @override
    def references(self, state):
        """Evaluates the reference scripts on the evaluation's episodes; returns a line for each."""
        key = stream_key(self.config.seed, Stream.EVALUATION)
        policies = self.layout.fetch_to_host(self.program.policy(state))
        self.reference_scores = reference_scores.score_references(self.program, policies, key)
        policy = self.record.progress.last_eval
        return [
            reference_scores.format_reference(self.program, *found, policy)
            for found in self.reference_scores.items()
        ]

    @override
    def restore(self, checkpoint, like):
        """Restores the run's state, and drops later checkpoints."""
        state = resuming.restore_run(self.program, checkpoint, like)
        checkpoints.rewind_to_checkpoint(self.record.checkpoints, checkpoint)
        return state

    @override
    def summary(self, status):
        """Returns the run's summary, with the reference scores if there are any."""
        shown = {"references": self.reference_scores} if self.reference_scores else {}
        return self.record.summary(status, self.compiled.seconds()) | shown


def train_run(
    config: RunConfig,
    program: Program,
    resolved: dict[str, Any],
    folder: Path,
    tracker: Tracker,
    resume: Path | None = None,
    stop_after: int | None = None,
    layout: DeviceLayout = ALONE,
    compiled_by: Callable[..., Compiled] | None = None,
) -> dict[str, Any]:
    """Runs a configuration to its end or to a stop request.

    Args:
      config: the run.
      program: its program.
      resolved: the composed configuration as plain data, stored in every checkpoint.
      folder: the run's folder.
      tracker: receives all metrics.
      resume: checkpoint folder to continue from, bit for bit, or None.
      stop_after: stop after this many updates in total; for tests.
      layout: the run's devices.
      compiled_by: a function with the arguments of `compile_program`, which it replaces: several runs of one
        program may share what is compiled.

    Returns:
      the run's summary, as written to `summary.json`.

    Raises:
      DivergedError: if a learner's loss is not finite, or all environments stay quarantined; the last
        checkpoint is kept.
      CheckpointError: if a checkpoint cannot be read or written.
    """
    facts = checkpoints.read_metadata(resume) if resume else {}
    progress = RunProgress()
    if resume:
        progress = resuming.resume_progress(folder, facts, facts["progress"], resolved)
    record = RunRecord(config, program, resolved, folder, tracker, progress)
    record.open(resumed=resume is not None)
    try:
        with StopSignal() as stop:
            return SingleRun(record, layout, compiled_by).run(resume, stop, stop_after)
    finally:
        tracker.close()
