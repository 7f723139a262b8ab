"""Settings of a search in one program: scores at evaluations, where trials are reported and may be pruned."""

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


class CourseWatch(GroupWatch):
    """Collects the scores of settings at every evaluation of a group, as means over their seeds.

    Attributes:
      column: of `eval.csv`, whose values count.
      courses: scores of each of the group's settings, by name, since training began.

    Args:
      program: see `GroupWatch`.
      settings: of the search.
    """

    def __init__(self, program: Program, settings: SearchSettings):
        super().__init__(program)
        self._settings = settings
        scored = program.env.spec.judged_by(program.agents)
        self.column = settings.measure or scored or "avg_reward"

    def begin_courses(self, names: Iterable[str], members: Sequence[Member]) -> None:
        """Begins a group; `names` are the variants of its members."""
        self._members = {
            name: [member.name for member in members if member.variant == name] for name in names
        }
        self.courses: dict[str, list[float]] = {name: [] for name in self._members}

    @override
    def evaluated(self, updates: int, values: Mapping[str, Mapping[str, float]]) -> set[str]:
        """See `GroupWatch`.

        Raises:
          ValueError: one line, if evaluations do not have the measure.
        """
        for known in values.values():
            require_measure(self.column, known)
        if updates == 0:
            return set()
        for name, course in self.courses.items():
            scores = [values[one][EVALUATIONS + self.column] for one in self._members[name] if one in values]
            if len(scores) == len(self._members[name]):
                course.append(math.fsum(scores) / len(scores))
        return set()

    def judge(self, name: str, diverged: Iterable[str]) -> float:
        """Returns the value of settings by the objective, NaN if one of its members is among `diverged`."""
        course, lost = self.courses[name], any(one in diverged for one in self._members[name])
        return math.nan if lost or not course else judge_course(course, self._settings.objective)


class TrialWatch(CourseWatch):
    """Reports evaluations of the trials of a group, and takes out those that are pruned.

    A trial's score is the mean over its seeds; a trial with a diverged seed fails.

    Args:
      program: see `GroupWatch`.
      study: the study.
      settings: of the search.
      updates: of a trial, which ends at the first evaluation after as many.
      eval_every: updates between evaluations.
    """

    def __init__(
        self, program: Program, study: Study, settings: SearchSettings, updates: int, eval_every: int
    ):
        super().__init__(program, settings)
        self._study, self._updates = study, updates
        self._evaluations = -(-updates // eval_every)

    def begin(self, trials: Sequence[Any], members: Sequence[Member]) -> None:
        """Begins a group; the variants of the members are named after the trials."""
        self._trials = {name_trial(trial): trial for trial in trials}
        self.begin_courses(self._trials, members)
        self.pruned: set[str] = set()
        self.ended = False

    @override
    def evaluated(self, updates: int, values: Mapping[str, Mapping[str, float]]) -> set[str]:
        """See `CourseWatch`. Trials are judged after all are reported, with those of earlier groups.

        A group ends with its trials, so that trials shorter than a run are its first updates.
        """
        known = {name: len(course) for name, course in self.courses.items()}
        super().evaluated(updates, values)
        reported: dict[str, float] = {}
        for name, course in self.courses.items():
            if len(course) == known[name]:
                continue
            value = judge_course(course, self._settings.objective)
            if math.isfinite(value):
                self._trials[name].report(value, len(course))
                reported[name] = value
        pruned = self._find_worse(reported)
        for name in pruned:
            self._study.tell_pruned(self._trials[name])
        self.pruned |= pruned
        self.ended = updates >= self._updates
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
            if name not in self.pruned:
                self._study.tell(trial, self.judge(name, diverged))
