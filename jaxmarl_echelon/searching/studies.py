"""Optuna studies: opened in a folder, asked for groups of trials, told their values."""

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from algos.checks import require_choice, require_count, require_integer
from jaxmarl_echelon import optional_packages
from jaxmarl_echelon.training.config.search_space import CHOICE, COMPLEMENT, Dimension

FILE = "study.db"
NAME = "sweep"
RETRIED = "retry_of"
OBJECTIVES = ("best", "last", "mean")
# Shares of the trials that go on after an evaluation.
PRUNERS = {"halving": 1 / 3, "median": 1 / 2, "none": 1.0}


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search.

    Attributes:
      trials: trials in total.
      batch: trials in one program.
      seeds: runs of a trial, from the configuration's seed on.
      measure: column of `eval.csv` whose values count; None for the score, or `avg_reward` without one.
      objective: a trial's value: the "best", "last" or "mean" score of its evaluations after training began.
      pruner: a key of `PRUNERS`: "halving" keeps the best third at a ninth and at a third of the evaluations
        (successive halving, Jamieson and Talwalkar 2016, arXiv:1502.07943), "median" the better half at every
        evaluation but the first, "none" all.
      trial_steps: decisions of a trial, the first ones of a run; None for all of them.
      finalists: best trials that are trained again at the end, for a whole run and with other seeds.
      final_seeds: runs of a finalist.
    """

    trials: int = 64
    batch: int = 16
    seeds: int = 1
    measure: str | None = None
    objective: str = OBJECTIVES[0]
    pruner: str = "halving"
    trial_steps: int | None = None
    finalists: int = 0
    final_seeds: int = 3

    def __post_init__(self):
        for key in ("trials", "batch", "seeds", "final_seeds"):
            require_count(f"--{key.replace('_', '-')}", getattr(self, key))
        if self.trial_steps is not None:
            require_count("--trial-steps", self.trial_steps)
        require_integer("--finalists", self.finalists, 0)
        require_choice("--objective", self.objective, OBJECTIVES)
        require_choice("--pruner", self.pruner, tuple(PRUNERS))

    def judges(self, number: int, total: int) -> bool:
        """Whether trials may be pruned after this many of all evaluations of a run."""
        if self.pruner == "none" or number >= total:
            return False
        return number >= 2 if self.pruner == "median" else number in (-(-total // 9), -(-total // 3))


def judge_course(scores: Sequence[float], objective: str) -> float:
    """Returns the value of a trial with these scores of its evaluations, see `SearchSettings.objective`.

    The best is that of the finite scores, NaN without any; one that is not finite makes the mean NaN.
    """
    best = max(filter(math.isfinite, scores), default=math.nan)
    return {"best": best, "last": scores[-1], "mean": math.fsum(scores) / len(scores)}[objective]


def is_among_best(value: float, others: Sequence[float], share: float) -> bool:
    """Whether a value is among this share of the largest of `others`, at least one; equal ones are."""
    return value >= sorted(others, reverse=True)[max(1, math.ceil(share * len(others))) - 1]


def import_optuna() -> ModuleType:
    """Imports Optuna without its log lines; raises a one-line ValueError if it is not installed."""
    optuna = optional_packages.import_package("optuna", "jaxmarl_echelon.sweep", "sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna


class Study:
    """Optuna study of a search, stored in a SQLite file.

    Args:
      folder: folder of the file.
      space: what is searched.
      settings: of the search.
      seed: of the sampler.
    """

    def __init__(self, folder: Path, space: Mapping[str, Dimension], settings: SearchSettings, seed: int):
        self._optuna, self._settings, self._seed = import_optuna(), settings, seed
        self._dimensions = dict(space)
        self._space = {key: self._distribution(dimension) for key, dimension in space.items()}
        self._study = self._optuna.create_study(
            storage=f"sqlite:///{folder.resolve() / FILE}",
            study_name=NAME,
            direction="maximize",
            load_if_exists=True,
        )

    def _distribution(self, dimension: Dimension) -> Any:
        """Optuna's distribution of a dimension."""
        kinds = self._optuna.distributions
        if dimension.kind == CHOICE:
            return kinds.CategoricalDistribution(dimension.options)
        if dimension.kind == "integer":
            return kinds.IntDistribution(int(dimension.low), int(dimension.high))
        # Of a complement Optuna knows the distance to 1.
        return kinds.FloatDistribution(
            dimension.low, dimension.high, log=dimension.kind in ("log", COMPLEMENT)
        )

    def trials(self) -> list[Any]:
        """Returns all trials as they are in the file, without those that were started again."""
        every = self._study.get_trials(deepcopy=False)
        again = {trial.user_attrs.get(RETRIED) for trial in every}
        return [trial for trial in every if trial.number not in again]

    def finished(self) -> list[Any]:
        """Returns the trials with a value, pruned ones, and those that diverged."""
        return [trial for trial in self.trials() if trial.state.is_finished()]

    def values_at(self, number: int) -> list[float]:
        """Returns the values that all trials had after this many evaluations, of those that came so far."""
        every = (trial.intermediate_values for trial in self.trials())
        return [values[number] for values in every if number in values]

    def best(self, number: int = 1) -> list[Any]:
        """Returns the complete trials of the largest values, at most `number`, of equal ones the first."""
        complete = [trial for trial in self.trials() if trial.state.name == "COMPLETE"]
        return sorted(complete, key=lambda trial: (-trial.value, trial.number))[:number]

    def restart_killed(self) -> int:
        """Queues the trials that a killed process left running, with their values; returns their number."""
        running = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state.name == "RUNNING"]
        for trial in running:
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
            self._study.enqueue_trial(trial.params, user_attrs={RETRIED: trial.number})
        return len(running)

    def ask(self) -> list[Any]:
        """Returns the trials of the next group; those left over at the end make a smaller one.

        The sampler's seed depends on the number of finished trials, so that a search that was interrupted
        between two groups draws the same trials as one that was not.
        """
        done = len(self.finished())
        self._study.sampler = self._optuna.samplers.TPESampler(
            seed=self._seed + 1000 * done,
            n_startup_trials=max(self._settings.batch, 8),
            multivariate=True,
            constant_liar=True,
        )
        number = min(self._settings.batch, self._settings.trials - done)
        return [self._study.ask(self._space) for _ in range(number)]

    def values(self, trial: Any) -> dict[str, Any]:
        """Returns a trial's settings by key, numbers with as many digits as drawn ones have."""
        ranges = ("log", "uniform", COMPLEMENT)
        return {
            key: one.round_drawn(value) if (one := self._dimensions[key]).kind in ranges else value
            for key, value in trial.params.items()
        }

    def tell(self, trial: Any, value: float) -> None:
        """Stores a trial's value; one that is not finite fails."""
        sound = math.isfinite(value)
        failed = None if sound else self._optuna.trial.TrialState.FAIL
        self._study.tell(trial, value if sound else None, state=failed)

    def tell_pruned(self, trial: Any) -> None:
        """Stores that a trial was pruned; its value is the last that was reported."""
        self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
