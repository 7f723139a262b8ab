"""Seeds and variants of a run as one vmapped program, with one record each."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from jaxmarl_echelon import checkpoints, processes
from jaxmarl_echelon.tracking.base import RunInfo, Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.tracking.statistics import ScoreSums, add_scores, score_interval, student_interval
from jaxmarl_echelon.training.acting.random_streams import Stream, run_key, stream_key
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host import reference_scores, selection_score
from jaxmarl_echelon.training.host import resume as resuming
from jaxmarl_echelon.training.host.compile import Compiled
from jaxmarl_echelon.training.host.devices import ALONE, DeviceLayout
from jaxmarl_echelon.training.host.loop import RunLoop, StopSignal
from jaxmarl_echelon.training.host.run_record import (
    DivergedError,
    RunProgress,
    RunRecord,
    by_namespace,
    package_versions,
    score_values,
    versioned_name,
)
from jaxmarl_echelon.training.host.video import EpisodeVideos
from jaxmarl_echelon.training.program.program import Program, make_program


class Member(NamedTuple):
    """Run of a group.

    Attributes:
      name: name of the run's folder.
      variant: name of its variant.
      config: its configuration, which differs from the other runs' only in numbers.
      resolved: the configuration as plain data.
    """

    name: str
    variant: str
    config: RunConfig
    resolved: dict[str, Any]


def take_member(tree, index: int, axis: int = 0):
    """Slices one member out of arrays stacked along `axis`."""
    return jax.tree.map(lambda x: x[(slice(None),) * axis + (index,)], tree)


def stack_curriculum_states(members: Sequence[Member]):
    """Stacks the members' initial curriculum states to `[M, ...]`."""
    states = [member.config.curriculum(member.config.env).init() for member in members]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def restore_group(program: Program, members: Sequence[Member], checkpoint: Path, like):
    """Restores the members' states with their current hyper-parameters and tasks."""
    resuming.require_environment(program, checkpoint)
    state = checkpoints.restore_state(checkpoint, resuming.without_hyperparameters(program, like))
    return jax.vmap(program.renewed)(state, stack_curriculum_states(members))


def read_group_checkpoint(members: Sequence[Member], program: Program, checkpoint: Path):
    """Restores the members' states without a compiled program, with the structure from `jax.eval_shape`."""
    keys = jnp.stack([jax.random.key(member.config.seed) for member in members])
    like = jax.eval_shape(jax.vmap(program.init), keys, stack_curriculum_states(members))
    return restore_group(program, members, checkpoint, like)


class RunGroup(RunLoop):
    """M runs that differ in seeds and task parameters, vmapped in one program."""

    def __init__(
        self,
        members: Sequence[Member],
        program: Program,
        records: Sequence[RunRecord],
        resolved: dict[str, Any],
        tracker: Tracker,
        folder: Path,
        layout: DeviceLayout = ALONE,
        compiled_by: Callable[..., Compiled] | None = None,
    ):
        """Takes the runs, their common program and one record per run; see `train_group` for the others."""
        self.compiled_by = compiled_by
        self.layout, self.member = layout, layout.make_member_picker(program.local)
        self.members, self.program, self.records, self.resolved = members, program, records, resolved
        self.config, self.tracker, self.folder = members[0].config, tracker, folder
        self.checkpoints = folder / "checkpoints"
        self.diverged: set[str] = set()
        self.videos = EpisodeVideos(self.config, program)
        self.reference_scores: dict[str, reference_scores.Scores] = {}

    @property
    @override
    def progress(self) -> RunProgress:
        """Progress of the first member; the others have done the same number of updates."""
        return self.records[0].progress

    @override
    def functions(self):
        """Returns `init`, `update` and `assess`, vmapped over the members, and the arguments of `init`."""
        seeds = [member.config.seed for member in self.members]
        keys = jnp.stack([run_key(seed) for seed in seeds])
        scored = jnp.stack([stream_key(seed, Stream.EVALUATION) for seed in seeds])

        def assess(runs, world):
            """Evaluates every member on the episodes of its own seed."""
            keys = self.layout.own(scored)
            return jax.vmap(self.program.assess, (0, 0, None))(runs, keys, world)

        return (
            jax.vmap(self.program.init, (0, 0, None)),
            jax.vmap(self.program.update, (0, None)),
            assess,
            (keys, stack_curriculum_states(self.members)),
        )

    @override
    def reports(self, reports, seconds):
        """Logs a chunk `[K, M, ...]` for every member, and the means over the members.

        Returns:
          a dictionary of training metrics per member, empty if it has diverged.

        Raises:
          DivergedError: if all members have diverged.
        """
        results, reason, updates = [], "", self.progress.updates + self.config.updates_per_chunk
        for index, record in enumerate(self.records):
            try:
                results.append(record.reports(take_member(reports, index, 1), seconds))
            except DivergedError as error:
                if record.folder.name not in self.diverged:
                    self.tracker.event(self.step, f"{record.folder.name}: {error}")
                self.diverged.add(record.folder.name)
                reason = str(error)
                record.progress.updates = updates
                results.append({})
        if len(self.diverged) == len(self.members):
            raise DivergedError(f"every run of the group has diverged; {reason}")
        values = mean_values(results)
        if "time/steps_per_second" in values:
            values["time/steps_per_second"] *= len(self.records)
        for namespace, part in by_namespace(values).items():
            self.tracker.log(namespace, self.step, part)
        return results

    @override
    def assessed(self, state, assessment, seconds):
        """Logs an evaluation `[M, ...]` by member and the pooled score; saves the members' checkpoints.

        Returns:
          an empty list: the group itself saves no checkpoint because of a score.
        """
        values = []
        for index, record in enumerate(self.records):
            names = record.assessment(take_member(assessment, index), seconds)
            self._save_member(state, index, names)
            values.append(record.progress.last_eval)
        self.records[0].offer_replay(take_member(assessment, 0).result, self.tracker)
        pooled = mean_values(values)
        spec = self.program.env.spec
        if spec.score is not None:
            pooled |= score_values(spec, pooled_sums(self.records, spec.score_column))
        for namespace, part in by_namespace(pooled).items():
            self.tracker.log(namespace, self.step, part)
        return []

    def _save_member(self, state, index, names):
        """Saves one member's state under each name, unless it has diverged."""
        record = self.records[index]
        if names and record.folder.name not in self.diverged:
            record.save(self.member(state, index), names)

    @override
    def training_scores(self, state, metrics):
        """Saves the members whose training metrics are their best so far; returns an empty list."""
        for index, values in enumerate(metrics):
            if values:
                self._save_member(state, index, self.records[index].training_score(values))
        return []

    @override
    def save(self, state, names):
        """Saves the group's checkpoint under each name; after the last update also the members' `latest`."""
        if not names:
            return
        facts = {
            "step": self.step,
            "group": {record.folder.name: vars(record.progress) for record in self.records},
            "config": self.resolved,
            "environment": versioned_name(self.program.env.spec),
            "versions": package_versions(),
        }
        checkpoints.save_checkpoint(self.checkpoints, tuple(names), state, facts)
        if self.progress.updates == self.config.updates:
            for index in range(len(self.records)):
                self._save_member(state, index, ["latest"])

    @override
    def references(self, state):
        """Evaluates the reference scripts on every member's evaluation episodes; returns a line for each."""
        if not reference_scores.reference_names(self.program):
            return []
        keys = jnp.stack([stream_key(member.config.seed, Stream.EVALUATION) for member in self.members])
        play = jax.jit(jax.vmap(partial(reference_scores.play_references, self.program), (0, 0, None)))
        policies = self.layout.fetch_to_host(jax.vmap(self.program.policy)(state))
        played, lines = jax.device_get(play(policies, keys, self.program.world)), []
        for index, record in enumerate(self.records):
            name, policy = record.folder.name, record.progress.last_eval
            found = reference_scores.reference_values(self.program, take_member(played, index))
            self.reference_scores |= {name: found} if found else {}
            lines += [
                f"{name}: {reference_scores.format_reference(self.program, *one, policy)}"
                for one in found.items()
            ]
        return lines

    @override
    def restore(self, checkpoint, like):
        """Restores the group's state, and drops later checkpoints of the group and of its members."""
        state = restore_group(self.program, self.members, checkpoint, like)
        checkpoints.rewind_to_checkpoint(self.checkpoints, checkpoint)
        for record in self.records:
            checkpoints.remove_later_checkpoints(record.checkpoints, self.step)
        return state

    @override
    def policies(self, state):
        """Returns every member's record and policy, without those that have diverged."""
        every = self.layout.fetch_to_host(jax.vmap(self.program.policy)(state))
        return [
            (record, take_member(every, index))
            for index, record in enumerate(self.records)
            if record.folder.name not in self.diverged
        ]

    def _variants(self):
        """Rows of the summary's table of variants."""
        rows = variant_rows(self.members, self.records, self.records[0].judged_by)
        if not selection_score.evaluations_are_informative(self.program.env):
            # The best policies were chosen by rating or time, which are not scores.
            rows = [row | {"best": math.nan} for row in rows]
        return rows

    @override
    def summary(self, status):
        """Returns the group's summary: status, times in seconds, a row per variant, members' summaries."""
        shown = {"references": self.reference_scores} if self.reference_scores else {}
        return shown | {
            "status": status,
            "env_steps": self.step,
            "compile_seconds": round(self.compiled.seconds(), 2),
            "train_seconds": round(self.progress.seconds, 2),
            "diverged": sorted(self.diverged),
            "variants": self._variants(),
            "members": {r.folder.name: r.summary(status, self.compiled.seconds()) for r in self.records},
        }


def mean_values(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Averages finite numbers by name over the members that report them, in the members' order."""
    found = [result for result in results if result]
    means = {}
    for name in dict.fromkeys(name for result in found for name in result):
        values = [r[name] for r in found if isinstance(r.get(name), int | float) and np.isfinite(r[name])]
        if values:
            means[name] = float(np.mean(values))
    return means


def pooled_sums(records: Sequence[RunRecord], column: str | None) -> ScoreSums:
    """Adds up the score of this column over the episodes of the last evaluations of several runs.

    Runs without this score are left out.
    """
    known = [record.progress.last_sums.get(column) for record in records]
    found = [ScoreSums(*sums) for sums in known if sums]
    return add_scores([ScoreSums(*[0.0] * len(ScoreSums._fields)), *found])


def variant_rows(
    members: Sequence[Member], records: Sequence[RunRecord], column: str | None
) -> list[dict[str, Any]]:
    """Returns a row per variant with the score `column` (None: the return) of last and best evaluations.

    The interval is the union of Student's t interval over seeds (if several) and, for scores, the interval
    over all episodes (`score_interval`): a sample of seeds that all score 0 does not make 0 certain. Seeds
    without a score (all episodes quarantined) are left out; without any seed, all values are NaN.
    """
    rows = []
    for variant in dict.fromkeys(member.variant for member in members):
        mine = [r for m, r in zip(members, records, strict=True) if m.variant == variant]
        name = f"eval_agg/{column or 'avg_reward'}"
        last = [record.progress.last_eval[name] for record in mine]
        last = [score for score in last if math.isfinite(score)] or [math.nan]
        bests = [record.progress.best for record in mine]
        best = [scores["best_eval"][0] for scores in bests if "best_eval" in scores]
        low, high = student_interval(last) if len(last) > 1 else (last[0], last[0])
        sums = pooled_sums(mine, column)
        if sums.number:
            least, most = score_interval(sums)
            low, high = max(min(low, least), 0.0), min(max(high, most), 1.0)
        rows.append(
            {
                "name": variant,
                "measure": name.rpartition("/")[2],
                "seeds": len(mine),
                "success": float(np.mean(last)),
                "low": low,
                "high": high,
                "best": float(np.mean(best)) if best else math.nan,
            }
        )
    return rows


def train_group(
    members: Sequence[Member],
    resolved: dict[str, Any],
    folder: Path,
    tracker: Tracker,
    resume: Path | None = None,
    stop_after: int | None = None,
    layout: DeviceLayout = ALONE,
    program: Program | None = None,
    compiled_by: Callable[..., Compiled] | None = None,
) -> dict[str, Any]:
    """Trains all members as one program; see `loop.train_run`.

    Args:
      members: the runs.
      resolved: the group's configuration as plain data.
      folder: the group's folder, with a subfolder per member.
      tracker: receives means over members; each member's metrics go to CSV files in its folder, and to the
        tracker's sinks for members.
      resume: the group's checkpoint to continue from, or None.
      stop_after: stop after this many updates in total; for tests.
      layout: the group's devices.
      program: that of the first member's configuration, made if None.
      compiled_by: see `loop.train_run`.

    Returns:
      the summary, with a row per variant.
    """
    program = program or make_program(members[0].config)
    facts = checkpoints.read_metadata(resume) if resume else {}
    records = []
    for member in members:
        place = folder / member.name
        if processes.is_first_process():
            place.mkdir(parents=True, exist_ok=True)
        progress = RunProgress()
        if resume:
            progress = resuming.carry_progress(facts["group"][member.name], facts["config"], resolved)
        sinks = {"csv": CsvSink(), **tracker.member_sinks()} if processes.is_first_process() else {}
        first = members[0].variant
        other = None if member.variant == first else first
        records.append(
            RunRecord(
                member.config,
                program,
                member.resolved,
                place,
                Tracker(sinks),
                progress,
                other,
                member.variant,
            )
        )
    group = RunGroup(members, program, records, resolved, tracker, folder, layout, compiled_by)
    total = group.config.updates * program.steps_per_update
    step = group.step if resume else None
    tells = selection_score.evaluations_are_informative(program.env)
    tracker.open(RunInfo(folder, program.env.spec, total, resolved, step, tells, group=folder))
    try:
        for record in records:
            record.open(resumed=resume is not None)
        with StopSignal() as stop:
            return group.run(resume, stop, stop_after)
    finally:
        for record in records:
            record.tracker.close()
        tracker.close()
