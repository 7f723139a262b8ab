"""Trials of a search in one program: their scores are reported at evaluations, where they may be pruned."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from algos.checks import require_choice
from jaxmarl_echelon.searching.studies import PRUNERS, SearchSettings, Study, is_among_best, judge_course
from jaxmarl_echelon.training.host.group_members import GroupWatch, Member
from jaxmarl_echelon.training.program.program import Program

# Prefix of the columns of `eval.csv` among an evaluation's scalars.
EVALUATIONS = "eval_agg/"


def name_trial(trial: Any) -> str:
    """Returns the name of a trial's variant."""
    return f"trial_{trial.number:04d}"


def require_measure(measure: str, columns: Iterable[str]) -> None:
    """Checks that evaluations have the column that counts, of scalars with these names.

    Raises:
      ValueError: one line with the columns.
    """
    names = [name.removeprefix(EVALUATIONS) for name in columns]
    require_choice("--measure", measure, names, "no column of eval.csv")


class TrialWatch(GroupWatch):
    """Reports evaluations of the trials of a group, and takes out those that are pruned.

    A trial's score is the mean over its seeds; a trial with a diverged seed fails.

    Args:
      program: see `GroupWatch`.
      study: the study.
      settings: of the search.
      evaluations: of a run, without the one before training.
    """

    def __init__(self, program: Program, study: Study, settings: SearchSettings, evaluations: int):
        super().__init__(program)
        self._study, self._settings, self._evaluations = study, settings, evaluations
        scored = program.env.spec.judged_by(program.agents)
        self.column = settings.measure or scored or "avg_reward"

    def begin(self, trials: Sequence[Any], members: Sequence[Member]) -> None:
        """Begins a group; the variants of the members are named after the trials."""
        self._trials = {name_trial(trial): trial for trial in trials}
        self._members = {
            name: [member.name for member in members if member.variant == name] for name in self._trials
        }
        self.courses: dict[str, list[float]] = {name: [] for name in self._trials}
        self.pruned: set[str] = set()

    @override
    def evaluated(self, updates: int, values: Mapping[str, Mapping[str, float]]) -> set[str]:
        """See `GroupWatch`. Trials are judged after all are reported, with those of earlier groups.

        Raises:
          ValueError: one line, if evaluations do not have the measure.
        """
        for known in values.values():
            require_measure(self.column, known)
        if updates == 0:
            return set()
        reported: dict[str, float] = {}
        for name, trial in self._trials.items():
            scores = [values[one][EVALUATIONS + self.column] for one in self._members[name] if one in values]
            if name in self.pruned or len(scores) < len(self._members[name]):
                continue
            self.courses[name].append(math.fsum(scores) / len(scores))
            value = judge_course(self.courses[name], self._settings.objective)
            if math.isfinite(value):
                trial.report(value, len(self.courses[name]))
                reported[name] = value
        pruned = self._find_worse(reported)
        for name in pruned:
            self._study.tell_pruned(self._trials[name])
        self.pruned |= pruned
        return {one for name in pruned for one in self._members[name]}

    def _find_worse(self, reported: Mapping[str, float]) -> set[str]:
        """Names of the trials that are pruned after an evaluation with these values."""
        number = max((len(self.courses[name]) for name in reported), default=0)
        if not self._settings.judges(number, self._evaluations):
            return set()
        known, share = self._study.values_at(number), PRUNERS[self._settings.pruner]
        return {name for name, value in reported.items() if not is_among_best(value, known, share)}

    def conclude(self, diverged: Sequence[str]) -> None:
        """Tells the study the values of the trials that were not pruned; `diverged` names members."""
        for name, trial in self._trials.items():
            if name in self.pruned:
                continue
            course, lost = self.courses[name], any(one in diverged for one in self._members[name])
            self._study.tell(
                trial, math.nan if lost or not course else judge_course(course, self._settings.objective)
            )
