"""Seeds and variants of a run as one vmapped program, with one record each."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from algos import compiler
from jaxmarl_echelon import checkpoints, processes
from jaxmarl_echelon.tracking.base import RunInfo, Tracker
from jaxmarl_echelon.tracking.csv_sink import LINEAGE, CsvSink, CsvTable
from jaxmarl_echelon.training.acting.random_streams import Stream, run_key, stream_key
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host import reference_scores, selection_score
from jaxmarl_echelon.training.host import resume as resuming
from jaxmarl_echelon.training.host.compile import Compiled
from jaxmarl_echelon.training.host.devices import ALONE, DeviceLayout
from jaxmarl_echelon.training.host.group_members import (
    BASELINE,
    GroupWatch,
    Member,
    PopulationPlan,
    group_score,
    mean_values,
    name_scored_task,
    restore_group,
    stack_curriculum_states,
    stack_hyper,
    take_member,
    variant_rows,
    write_members_table,
)
from jaxmarl_echelon.training.host.loop import RunLoop, StopSignal
from jaxmarl_echelon.training.host.run_record import (
    DivergedError,
    RunProgress,
    RunRecord,
    by_namespace,
    package_versions,
    versioned_name,
)
from jaxmarl_echelon.training.host.video import EpisodeVideos
from jaxmarl_echelon.training.program.population import Population, exchange_learners
from jaxmarl_echelon.training.program.program import Program, make_program
from jaxmarl_echelon.training.program.update import Report


class RunGroup(RunLoop):
    """M runs that differ in seeds, task parameters and hyper-parameters, vmapped in one program."""

    def __init__(
        self,
        members: Sequence[Member],
        program: Program,
        records: Sequence[RunRecord],
        resolved: dict[str, Any],
        tracker: Tracker,
        folder: Path,
        layout: DeviceLayout = ALONE,
        plan: PopulationPlan | None = None,
        watch: GroupWatch | None = None,
        compiled_by: Callable[..., Compiled] | None = None,
    ):
        """Takes the runs, their common program and one record per run; see `train_group` for the others."""
        self.compiled_by = watch.compile if watch else compiled_by
        self.layout, self.member = layout, layout.make_member_picker(program.local)
        self.members, self.program, self.records, self.resolved = members, program, records, resolved
        self.config, self.tracker, self.folder = members[0].config, tracker, folder
        self.plan, self.lineage = plan, None
        self.watch, self.left = watch, set()
        self.checkpoints = folder / "checkpoints"
        self.diverged: set[str] = set()
        # Members whose learner is a copy since their last training metrics.
        self.copies: set[str] = set()
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

        def init(keys, courses, hyper, world):
            """Returns every member's state before the first update."""
            return jax.vmap(self.program.init, (0, 0, None, 0))(keys, courses, world, hyper)

        population = None if self.plan is None else make_population(self.plan, self.program, self.layout)

        def update(runs, world):
            """Updates every member; then members of a population exchange learners where that is due."""
            runs, reports = jax.vmap(self.program.update, (0, None))(runs, world)
            if population is None:
                return runs, reports
            runs, lineage = exchange_learners(population, self.program.agents, runs, reports.metrics)
            return runs, reports._replace(lineage=lineage)

        given = keys, stack_curriculum_states(self.members), stack_hyper(self.members)
        return init, update, assess, given

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
            # Only in a population does a member that has diverged go on, when it copies another one.
            if record.folder.name in (self.left if self.plan else self.left | self.diverged):
                record.progress.updates = updates
                record.progress.seconds += seconds
                results.append({})
                continue
            try:
                results.append(self._member_reports(record, take_member(reports, index, 1), seconds))
                self.diverged.discard(record.folder.name)
            except DivergedError as error:
                if record.folder.name not in self.diverged:
                    self.tracker.event(self.step, f"{record.folder.name}: {error}")
                self.diverged.add(record.folder.name)
                reason = str(error)
                record.progress.updates = updates
                results.append({})
        if len(self.diverged) == len(self.members):
            raise DivergedError(f"every run of the group has diverged; {reason}")
        self._log_lineage(reports.lineage)
        self.copies = {self.records[index].folder.name for index in list_copies(reports.lineage)}
        values = mean_values(results)
        if "time/steps_per_second" in values:
            values["time/steps_per_second"] *= len(self.records)
        for namespace, part in by_namespace(values).items():
            self.tracker.log(namespace, self.step, part)
        return results

    def _member_reports(self, record: RunRecord, reports: Report, seconds: float) -> dict[str, float]:
        """Logs a member's part of a chunk, `[K]`; as `RunRecord.reports`.

        In a population a member that diverges may copy another one within the chunk, and goes on then.
        """
        if self.plan is None:
            return record.reports(reports, seconds)
        values, gone = {}, None
        number = self.config.updates_per_chunk
        for row in range(number):
            try:
                one = jax.tree.map(lambda x, row=row: x[row : row + 1], reports)
                values, gone = record.reports(one, seconds / number), None
            except DivergedError as error:
                gone = error
        if gone is not None:
            raise gone
        return values

    def _log_lineage(self, lineage):
        """Writes the exchanges of a chunk, `[K, M]` by name, to `pbt.csv`: a row per member."""
        if self.lineage is None or not lineage:
            return
        chunk, names = lineage["due"].shape[0], [member.name for member in self.members]
        numbers = [name for name in lineage if name not in ("due", "parent")]
        for row in np.flatnonzero(lineage["due"][:, 0]):
            step = self.step - int(chunk - 1 - row) * self.program.steps_per_update
            for index, name in enumerate(names):
                values = {key: float(np.mean(lineage[key][row, index])) for key in numbers}
                parent = names[int(lineage["parent"][row, index])]
                self.lineage.append(step, {"member": name, "parent": parent, **values})

    @override
    def assessed(self, state, assessment, seconds):
        """Logs an evaluation `[M, ...]` by member and the means over members; saves the members' checkpoints.

        Members that have diverged are left out: single runs would have stopped.

        Returns:
          an empty list: the group itself saves no checkpoint because of a score.
        """
        values, gone = [], self.left | self.diverged
        present = {record.folder.name: record for record in self.records if record.folder.name not in gone}
        for index, record in enumerate(self.records):
            if record.folder.name in present:
                names = record.assessment(take_member(assessment, index), seconds)
                self._save_member(state, index, names)
                values.append(record.progress.last_eval)
            else:
                record.progress.seconds += seconds
        shown = next((i for i, record in enumerate(self.records) if record.folder.name in present), 0)
        self.records[shown].offer_replay(take_member(assessment, shown).result, self.tracker)
        means = mean_values(values)
        for score in self.records[0].scores:
            means |= group_score(self.members, [*present.values()], score, self.plan)
        for namespace, part in by_namespace(means).items():
            self.tracker.log(namespace, self.step, part)
        if self.watch is not None:
            self.left |= self.watch.evaluated(self.progress.updates, self.evaluations(present))
        return []

    def evaluations(self, names: Collection[str]) -> dict[str, dict[str, float]]:
        """Returns the last evaluations of the named members that have not diverged."""
        found = {record.folder.name: record.progress.last_eval for record in self.records}
        return {name: values for name, values in found.items() if name in names and name not in self.diverged}

    @override
    def is_over(self):
        """Whether the watch ends the group, or has no member left that is reported."""
        if self.watch is None:
            return False
        return self.watch.ended or len(self.left | self.diverged) == len(self.members)

    def _save_member(self, state, index, names):
        """Saves one member's state under each name, unless it has diverged."""
        record = self.records[index]
        if names and record.folder.name not in self.diverged:
            record.save(self.member(state, index), names)

    @override
    def training_scores(self, state, metrics):
        """Saves the members whose training metrics are their best so far; returns an empty list."""
        for index, values in enumerate(metrics):
            if values and self.records[index].folder.name not in self.copies:
                self._save_member(state, index, self.records[index].training_score(values))
        return []

    @override
    def flush(self):
        """Tells the sinks of the members and of the group that a chunk has been logged."""
        for record in self.records:
            record.tracker.flush()
        super().flush()

    @override
    def save(self, state, names):
        """Saves the group's checkpoint under each name."""
        if not names:
            return
        facts = {
            "step": self.step,
            "group": {record.folder.name: vars(record.progress) for record in self.records},
            "diverged": sorted(self.diverged),
            "config": self.resolved,
            "environment": versioned_name(self.program.env.spec),
            "versions": package_versions(),
        }
        checkpoints.save_checkpoint(self.checkpoints, tuple(names), state, facts)

    @override
    def save_last(self, state):
        """Saves the group's checkpoint and the members' `latest`, except of trials that a search has left."""
        super().save_last(state)
        for index, record in enumerate(self.records):
            if record.folder.name not in self.left:
                self._save_member(state, index, ["latest"])

    @override
    def references(self, state):
        """Evaluates the reference scripts on every member's evaluation episodes; returns a line for each.

        Members that have diverged have none: their last score is that of a policy of the time before.
        """
        if self.watch is not None or not reference_scores.reference_names(self.program):
            return []
        keys = jnp.stack([stream_key(member.config.seed, Stream.EVALUATION) for member in self.members])
        one = partial(reference_scores.play_references, self.program)
        play = compiler.jit_evaluation(jax.vmap(one, (0, 0, None)))
        policies = self.layout.fetch_to_host(jax.vmap(self.program.policy)(state))
        played, lines = jax.device_get(play(policies, keys, self.program.world)), []
        for index, record in enumerate(self.records):
            name, policy = record.folder.name, record.progress.last_eval
            if name in self.diverged:
                continue
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
        state = restore_group(self.program, self.members, checkpoint, like, self.plan)
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
        rows = variant_rows(self.members, self.records, self.records[0].judged_by, self.diverged, self.plan)
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
            "members": {record.folder.name: self._member_summary(record, status) for record in self.records},
        }

    def _member_summary(self, record: RunRecord, status: str) -> dict[str, Any]:
        """Returns a member's summary; one that the watch took out was reported until its last evaluation.

        So was one that has diverged: what the program computes in its place since then is no training.
        """
        name = record.folder.name
        found = record.summary("diverged" if name in self.diverged else status, self.compiled.seconds())
        if name in self.left | self.diverged:
            found |= {"env_steps": record.evaluated_at, "updates": record.progress.evaluated}
        return found


def list_copies(lineage: Mapping[str, Any]) -> list[int]:
    """Returns the members that copied another one after a chunk's last update, by its lineage `[K, M]`."""
    if not lineage:
        return []
    parents = np.asarray(lineage["parent"][-1])
    return np.flatnonzero(parents != np.arange(parents.size)).tolist()


def make_population(plan: PopulationPlan, program: Program, layout: DeviceLayout) -> Population:
    """Builds what the program needs for population based training."""
    keys = jnp.stack([stream_key(seed, Stream.POPULATION) for seed in plan.seeds])
    column = program.env.spec.judged_by(program.agents)
    earned = "train/return" if len(program.agents) == 1 else f"train/return/{program.role}"
    columns = (earned,) if column is None else (f"train/{column}", earned)
    return Population(
        plan.settings, plan.numbers, len(plan.seeds), keys, columns, layout.share_members, layout.own
    )


def train_group(
    members: Sequence[Member],
    resolved: dict[str, Any],
    folder: Path,
    tracker: Tracker,
    resume: Path | None = None,
    stop_after: int | None = None,
    layout: DeviceLayout = ALONE,
    base: RunConfig | None = None,
    plan: PopulationPlan | None = None,
    watch: GroupWatch | None = None,
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
      program: that of `base`, made if None.
      compiled_by: see `loop.train_run`.
      base: the run on whose task all are scored, the variant `BASELINE`; None for the first member.
      plan: population based training of the members, or None.
      watch: follows the evaluations and takes members out, or None.

    Returns:
      the summary, with a row per variant.
    """
    program = watch.program if watch else program or make_program(base or members[0].config)
    facts = checkpoints.read_metadata(resume) if resume else {}
    records = []
    for member in members:
        place = folder / member.name
        if processes.is_first_process():
            place.mkdir(parents=True, exist_ok=True)
        progress = RunProgress()
        if resume:
            progress = resuming.resume_progress(place, facts, facts["group"][member.name], resolved)
        sinks = {"csv": CsvSink(), **tracker.member_sinks()} if processes.is_first_process() else {}
        scored_on = name_scored_task(member, members[0].variant if base is None else BASELINE)
        own = member.config, program, member.resolved, place, Tracker(sinks), progress
        records.append(RunRecord(*own, scored_on, member.variant))
    group = RunGroup(members, program, records, resolved, tracker, folder, layout, plan, watch, compiled_by)
    group.diverged.update(facts.get("diverged", ()))
    total = group.config.steps
    step = group.step if resume else None
    tells = selection_score.evaluations_are_informative(program.env)
    judged = records[0].judged_by
    # The best of the means is not that of any member, but if no member has one, none counts.
    best = () if resume and not any("best_eval" in record.progress.best for record in records) else None
    tracker.open(RunInfo(folder, program.env.spec, total, resolved, step, tells, judged, best, folder))
    if processes.is_first_process():
        write_members_table(folder / "members.csv", members)
        group.lineage = CsvTable(folder / LINEAGE, step) if plan else None
    try:
        for record in records:
            record.open(resumed=resume is not None)
        with StopSignal() as stop:
            return group.run(resume, stop, stop_after)
    finally:
        for record in records:
            record.tracker.close()
        tracker.close()
        if group.lineage is not None:
            group.lineage.close()
