"""Members of a group of runs: their configurations, stacked numbers, tables and checkpoints."""

import csv
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos.types import Hyper
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.tracking.statistics import ScoreSums, add_scores, score_interval, student_interval
from jaxmarl_echelon.training.config.build import TASK
from jaxmarl_echelon.training.config.population_settings import AdaptedNumber, PopulationSettings
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host import resume as resuming
from jaxmarl_echelon.training.host.compile import Compiled, compile_program
from jaxmarl_echelon.training.host.run_record import RunRecord
from jaxmarl_echelon.training.program.agents import make_agents
from jaxmarl_echelon.training.program.program import Program
from jaxmarl_echelon.training.program.state import collect_hyper

BASELINE = "baseline"


class Member(NamedTuple):
    """Run of a group.

    Attributes:
      name: name of the run's folder.
      variant: name of its variant.
      config: its configuration, which differs from the other runs' only in numbers.
      resolved: the configuration as plain data.
      changes: the settings of its variant by key; None where they are not known.
    """

    name: str
    variant: str
    config: RunConfig
    resolved: dict[str, Any]
    changes: Mapping[str, Any] | None = None


class PopulationPlan(NamedTuple):
    """Population based training of a group.

    Attributes:
      settings: as configured.
      numbers: what is varied.
      seeds: seed of each population; its members are those runs of the group that have it, or all of a group
        without variants.
    """

    settings: PopulationSettings
    numbers: tuple[AdaptedNumber, ...]
    seeds: tuple[int, ...]


class GroupWatch:
    """Follows the evaluations of groups of one program, one after the other; see `searching.trial_groups`.

    Attributes:
      program: of all groups.
      ended: whether the group ends now, before the last update of its runs.
    """

    ended = False

    def __init__(self, program: Program):
        self.program = program
        self._compiled: dict[int, Compiled] = {}

    def compile(
        self, init: Callable, update: Callable, assess: Callable, arguments: tuple, *rest
    ) -> Compiled:
        """Compiles a group as `compile_program`, or reuses the program of as many members."""
        number = len(jax.tree.leaves(arguments)[0])
        if number not in self._compiled:
            self._compiled[number] = compile_program(init, update, assess, arguments, *rest)
        return self._compiled[number].begin_with(arguments)

    def evaluated(self, updates: int, values: Mapping[str, Mapping[str, float]]) -> set[str]:
        """Returns the members that are no longer reported.

        Args:
          updates: updates done.
          values: scalars of the evaluation by member, of those that are reported and have not diverged.
        """
        raise NotImplementedError


def take_member(tree, index: int, axis: int = 0):
    """Slices one member out of arrays stacked along `axis`."""
    return jax.tree.map(lambda x: x[(slice(None),) * axis + (index,)], tree)


def stack_curriculum_states(members: Sequence[Member]):
    """Stacks the members' initial curriculum states to `[M, ...]`."""
    states = [member.config.curriculum(member.config.env).init() for member in members]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def stack_hyper(members: Sequence[Member]) -> dict[str, Hyper] | None:
    """Stacks the members' hyper-parameters to `[M, ...]`, by learner; None if no member changes any."""
    keys = {key for member in members for key in member.changes or ()}
    if all(key.partition(".")[0] in TASK for key in keys):
        return None
    found = [collect_hyper(make_agents(member.config)) for member in members]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def restore_group(
    program: Program, members: Sequence[Member], checkpoint: Path, like, plan: PopulationPlan | None = None
):
    """Restores the members' states with their current hyper-parameters and tasks.

    With a `plan`, hyper-parameters are those of the checkpoint, except for the length of schedules.
    """
    resuming.require_environment(program, checkpoint)
    wanted = like if plan else resuming.without_hyperparameters(program, like)
    state, hyper = checkpoints.restore_state(checkpoint, wanted), stack_hyper(members)
    if plan:
        adapted = collect_hyper(program.agents)
        hyper = {
            name: state.policies[name].hyper | _schedule_length(values, len(members))
            for name, values in adapted.items()
        }
    renew = jax.vmap(lambda one, course, own: program.renewed(one, course, own))
    return renew(state, stack_curriculum_states(members), hyper)


def _schedule_length(hyper: Hyper, members: int) -> Hyper:
    """Length of the schedules in configured hyper-parameters, for every member."""
    mine = {name: x for name, x in hyper.items() if name == "total_updates"}
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (members, *jnp.shape(x))), mine)


def read_group_checkpoint(
    members: Sequence[Member], program: Program, checkpoint: Path, plan: PopulationPlan | None = None
):
    """Restores the members' states without a compiled program, with the structure from `jax.eval_shape`."""
    keys = jnp.stack([jax.random.key(member.config.seed) for member in members])
    like = jax.eval_shape(jax.vmap(program.init), keys, stack_curriculum_states(members))
    return restore_group(program, members, checkpoint, like, plan)


def mean_values(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Averages finite numbers by name over the members that report them, in the members' order.

    Where no member's number is finite, as of a criterion that their phases lack, the mean is NaN: without it
    sinks would go on showing an earlier one.
    """
    found = [result for result in results if result]
    means = {}
    for name in dict.fromkeys(name for result in found for name in result):
        values = [r[name] for r in found if isinstance(r.get(name), int | float)]
        if values:
            finite = [value for value in values if np.isfinite(value)]
            means[name] = float(np.mean(finite)) if finite else math.nan
    return means


def pooled_sums(records: Sequence[RunRecord], column: str | None) -> ScoreSums:
    """Adds up the score of this column over the episodes of the last evaluations of several runs.

    Runs without this score are left out.
    """
    known = [record.progress.last_sums.get(column) for record in records]
    found = [ScoreSums(*sums) for sums in known if sums]
    return add_scores([ScoreSums(*[0.0] * len(ScoreSums._fields)), *found])


def is_one_population(members: Sequence[Member], plan: PopulationPlan | None) -> bool:
    """Whether all runs of a group are one population: they copy each other, and no two are independent."""
    return plan is not None and len({member.variant for member in members}) == 1


def interval_over_seeds(
    scores: Sequence[float], sums: ScoreSums, *, independent: bool = True
) -> tuple[float, float]:
    """Returns the 95 % interval of the mean of seeds with these scores; `sums` are over all their episodes.

    It is the union of Student's t interval over seeds (if several) and, for scores, the interval over all
    episodes (`score_interval`): a sample of seeds that all score 0 does not make 0 certain. NaN for a return
    of a single seed, and for several that are not `independent`.
    """
    if len(scores) > 1 and not independent:
        return math.nan, math.nan
    low, high = student_interval(scores) if len(scores) > 1 else (scores[0], scores[0])
    if not sums.number:
        return (low, high) if len(scores) > 1 else (math.nan, math.nan)
    least, most = score_interval(sums)
    return max(min(low, least), 0.0), min(max(high, most), 1.0)


def group_score(
    members: Sequence[Member],
    records: Sequence[RunRecord],
    score: Result,
    plan: PopulationPlan | None = None,
) -> dict[str, float]:
    """Returns a score's mean over several seeds with its interval, by column; NaN without any.

    Of several variants, and of one population, there is no interval: their mean is not that of a sample of
    independent runs.

    Args:
      members: all runs of the group.
      records: of those whose last evaluations count.
      score: one of `RunRecord.scores`.
      plan: population based training of the group, or None.
    """
    found = [record.progress.last_eval[f"eval_agg/{score.column}"] for record in records]
    found = [value for value in found if math.isfinite(value)] or [math.nan]
    low, high = math.nan, math.nan
    if len({member.variant for member in members}) == 1:
        independent = not is_one_population(members, plan)
        low, high = interval_over_seeds(found, pooled_sums(records, score.column), independent=independent)
    ends = {f"eval_agg/{score.name}_low": low, f"eval_agg/{score.name}_high": high}
    return {f"eval_agg/{score.column}": float(np.mean(found))} | ends


def variant_rows(
    members: Sequence[Member],
    records: Sequence[RunRecord],
    column: str | None,
    diverged: Collection[str] = (),
    plan: PopulationPlan | None = None,
) -> list[dict[str, Any]]:
    """Returns a row per variant with the score `column` (None: the return) of last and best evaluations.

    Intervals are those of `interval_over_seeds`; the runs of one population have none. Seeds without a score
    (all episodes quarantined) and those that have diverged, by name of the member, are left out; without any
    seed, all values are NaN.
    """
    rows, independent = [], not is_one_population(members, plan)
    for variant in dict.fromkeys(member.variant for member in members):
        pairs = zip(members, records, strict=True)
        mine = [r for m, r in pairs if m.variant == variant and m.name not in diverged]
        name = f"eval_agg/{column or 'avg_reward'}"
        last = [record.progress.last_eval[name] for record in mine]
        last = [score for score in last if math.isfinite(score)] or [math.nan]
        bests = [record.progress.best for record in mine]
        best = [scores["best_eval"][0] for scores in bests if "best_eval" in scores]
        low, high = interval_over_seeds(last, pooled_sums(mine, column), independent=independent)
        rows.append(
            {
                "name": variant,
                "measure": name.removeprefix("eval_agg/"),
                "seeds": len(mine),
                "success": float(np.mean(last)),
                "low": low,
                "high": high,
                "best": float(np.mean(best)) if best else math.nan,
            }
        )
    return rows


def name_scored_task(member: Member, scored: str) -> str | None:
    """Returns the variant on whose task a member is scored; None if the task is the member's own."""
    known = member.changes is not None
    same = not any(key.partition(".")[0] in TASK for key in member.changes) if known else False
    return None if same or member.variant == scored else scored


def write_members_table(path: Path, members: Sequence[Member]) -> None:
    """Writes a row per member: name, variant, seed, and the settings that variants change."""
    rows = [dict(member.changes or {}) for member in members]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["member", "variant", "seed", *keys])
        for member, row in zip(members, rows, strict=True):
            cells = ("" if row.get(key) is None else row[key] for key in keys)
            table.writerow([member.name, member.variant, member.config.seed, *cells])
