"""Settings of a mission curriculum, parsed from a configuration. Reference: docs/reference/echelon.md 17."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

from algos import checks
from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.calibration import WEIGHT
from jaxmarl_echelon.envs.echelon.missions.results import TASK
from jaxmarl_echelon.envs.echelon.missions.state import COMPONENTS

VARIANCE = "variance"
# The variance of numbers in [0, 1] is at most this.
LARGEST_VARIANCE = 0.25
# Results of this weight count only in episodes at full fire (docs/reference/echelon.md 15.9).
FULL_FIRE = "full_fire"
PHASE_KEYS = ("name", "difficulty", "exams", "criteria")
CREDIT_AS_TERMINAL = "terminal"
LEAST_CREDIT = 0.25


class PhaseSettings(NamedTuple):
    """One parsed entry of `phases`; criteria not required are missing in `at_least`, `variance` infinite."""

    name: str
    difficulty: tuple[float, float]
    exams: float
    at_least: dict[str, float]
    variance: float


class CurriculumParams(struct.PyTreeNode):
    """Numeric settings of a curriculum of S phases, M metrics and V verbs.

    Attributes:
      schedule: int32 index into `weights.SCHEDULES`.
      totals: `[3]`, floor, success: scalars; see `weights.family_shares`.
      base: `[C]` relative weights of the components.
      early: share of success that is also shown as it is earned.
      calibration: weight of the status report's bonus.
      credit: weight of the difference reward; NaN for the terminal reward's, at least `least_credit`.
      least_credit: see `credit`.
      at_least: `[S, M]` thresholds; -inf for metrics that a phase does not require.
      variance: `[S]` largest variance of the score between verbs; infinite for any.
      advance_margin, regress_margin: added to thresholds for advancing, subtracted for regressing.
      effect: least effect size (Cohen's d) for advancing.
      dwell: int32, least episodes in a phase.
      nominal: nominal episodes of a phase, for the progress.
      blend: episodes over which the weights are blended from one phase to the next.
      difficulty: `[S, 2]` range of difficulties.
      fire: `[2]` fire probability of scripted enemies at difficulty 0 and 1.
      exams: `[S]` share of episodes at full fire.
      verbs: `[V]` relative probability of each verb.
    """

    schedule: jax.Array
    totals: jax.Array
    floor: jax.Array
    success: jax.Array
    base: jax.Array
    early: jax.Array
    calibration: jax.Array
    credit: jax.Array
    least_credit: jax.Array
    at_least: jax.Array
    variance: jax.Array
    advance_margin: jax.Array
    regress_margin: jax.Array
    effect: jax.Array
    dwell: jax.Array
    nominal: jax.Array
    blend: jax.Array
    difficulty: jax.Array
    fire: jax.Array
    exams: jax.Array
    verbs: jax.Array


def read_curriculum_params(
    spec: EnvSpec,
    table: Sequence[PhaseSettings],
    own_verbs: np.ndarray,
    schedule: str = "continuous",
    verbs: Mapping[str, float] | None = None,
    fire: Sequence[float] = (0.2, 1.0),
    dwell: int = 500,
    effect: float = 0.1,
    advance_margin: float = 0.1,
    regress_margin: float = 0.3,
    nominal_episodes: int = 2000,
    blend_episodes: int = 200,
    floor: float = weights.FLOOR,
    success: float = weights.SUCCESS,
    totals: Sequence[float] = weights.TOTALS,
    base: Mapping[str, float] | None = None,
    early: float = 1.0,
    calibration: float = WEIGHT,
    credit: float | str = 1.0,
) -> CurriculumParams:
    """Parses the numbers of a curriculum, on the host.

    Args:
      spec: the environment's; the labels of its code `task` are the verbs.
      table: from `read_phases`.
      own_verbs: `[V]` relative probabilities of verbs in the environment's own settings.
      schedule: one of `weights.SCHEDULES`.
      verbs: relative probability of each verb, 0 for omitted ones. None for the environment's own.
      fire: probability that a scripted enemy may fire, at difficulty 0 and 1.
      dwell: least episodes in a phase.
      effect: least Cohen's d for advancing.
      advance_margin, regress_margin: by which thresholds must be exceeded, or missed, for a transition.
      nominal_episodes: nominal episodes of a phase, for the progress.
      blend_episodes: episodes over which weights are blended from one phase to the next.
      floor, success, totals, base: see `weights`; `base` replaces single weights.
      early: share of mission success that is also shown as it is earned, by differences of potentials.
      calibration: weight of honest status reports.
      credit: weight of the difference reward, or "terminal" for the terminal reward's, at least 0.25.

    Raises:
      ValueError: one line, for unknown, out-of-range or contradictory values.
    """
    names = list_required_results(table)
    margin = _between("advance_margin", advance_margin)
    _check_reachable(spec, table, float(margin))
    asked = [[phase.at_least.get(name, -np.inf) for name in names] for phase in table]
    return CurriculumParams(
        schedule=np.int32(_schedule(schedule)),
        totals=_totals(totals),
        floor=_between("floor", floor),
        success=_between("success", success),
        base=_base(base),
        early=_between("early", early, 0.0, 100.0),
        calibration=_between("calibration", calibration, 0.0, 100.0),
        credit=_credit(credit),
        least_credit=np.float32(LEAST_CREDIT),
        at_least=np.array(asked, np.float32).reshape(len(table), len(names)),
        variance=np.array([phase.variance for phase in table], np.float32),
        advance_margin=margin,
        regress_margin=_between("regress_margin", regress_margin),
        effect=_between("effect", effect, 0.0, 10.0),
        dwell=np.int32(checks.require_whole("curriculum.dwell", dwell, 0)),
        nominal=np.float32(checks.require_whole("curriculum.nominal_episodes", nominal_episodes, 1)),
        blend=np.float32(checks.require_whole("curriculum.blend_episodes", blend_episodes, 0)),
        difficulty=np.array([phase.difficulty for phase in table], np.float32),
        fire=_pair("fire", fire),
        exams=np.array([phase.exams for phase in table], np.float32),
        verbs=_verbs(verbs, spec.tasks, own_verbs),
    )


def list_required_results(table: Sequence[PhaseSettings]) -> tuple[str, ...]:
    """Returns the names of the results that phases require, in alphabetical order."""
    return tuple(sorted({name for phase in table for name in phase.at_least}))


def read_phases(phases: Sequence[Mapping], spec: EnvSpec) -> list[PhaseSettings]:
    """Parses the table of phases, `{name, difficulty, exams, criteria}` each.

    Raises:
      ValueError: one line with the phase, for values that are unknown, out of range or not reported.
    """
    require_result("curriculum", TASK, spec)
    if spec.score is None:
        raise ValueError(f"curriculum: {spec.name} reports no score")
    if isinstance(phases, str | Mapping) or not isinstance(phases, Sequence) or not phases:
        raise ValueError(f"curriculum.phases={phases}: must be a list of at least one phase")
    table = [_read_phase(f"phases.{index}", given, spec) for index, given in enumerate(phases)]
    names = [phase.name for phase in table]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"curriculum.phases: {name}: another phase has this name")
    for index, phase in enumerate(table):
        asks = phase.at_least or np.isfinite(phase.variance)
        if asks and index == len(table) - 1:
            raise ValueError(f"curriculum.phases.{index} ({phase.name}): criteria: the last phase has none")
        if not phase.at_least and index < len(table) - 1:
            raise ValueError(f"curriculum.phases.{index} ({phase.name}): criteria: must name a result")
    return table


def _read_phase(key: str, given, spec: EnvSpec) -> PhaseSettings:
    where = f"curriculum.{key}"
    name = given.get("name") if isinstance(given, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}={given}: must be a mapping with a name")
    checks.require_keys(f"{where}.", given, PHASE_KEYS)
    asked = dict(checks.require_mapping(f"{where}.criteria", given.get("criteria")))
    at_least = {one: _between(f"{key}.criteria.{one}", value) for one, value in asked.items()}
    variance = at_least.pop(VARIANCE, np.inf)
    if LARGEST_VARIANCE <= variance < np.inf:
        found = f"means in [0, 1] vary by {LARGEST_VARIANCE:g} at most; must be below it"
        raise ValueError(f"{where}.criteria.{VARIANCE}={variance:g}: {found}")
    for one in at_least:
        require_result(f"{where}.criteria", one, spec)
    difficulty = _pair(f"{key}.difficulty", given.get("difficulty", (0.0, 1.0)))
    return PhaseSettings(
        name, difficulty, _between(f"{key}.exams", given.get("exams", 0.0)), at_least, variance
    )


def _check_reachable(spec: EnvSpec, table: Sequence[PhaseSettings], margin: float) -> None:
    """Raises ValueError for criteria that cannot be met."""
    for index, phase in enumerate(table):
        where = f"curriculum.phases.{index} ({phase.name}): criteria"
        for name, value in phase.at_least.items():
            if value + margin >= 1.0:
                raise ValueError(f"{where}.{name}={value:g}: with advance_margin={margin:g} must be below 1")
            if spec.result(name).over == FULL_FIRE and phase.exams == 0.0:
                raise ValueError(f"{where}.{name}: counts at full fire only; exams must be above 0")


def require_result(where: str, name: str, spec: EnvSpec) -> None:
    """Raises ValueError if the environment reports no result of this name."""
    known = [one.name for one in spec.results]
    if name not in known:
        raise ValueError(f"{where}: {name}: unknown result of {spec.name}; allowed: {', '.join(known)}")


def _schedule(given) -> int:
    if given not in weights.SCHEDULES:
        allowed = ", ".join(weights.SCHEDULES)
        raise ValueError(f"curriculum.schedule={given}: unknown; allowed: {allowed}")
    return weights.SCHEDULES.index(given)


def _between(key: str, value: Any, low: float = 0.0, high: float = 1.0) -> np.float32:
    return np.float32(checks.require_range(f"curriculum.{key}", value, low, high))


def _pair(key: str, value) -> np.ndarray:
    """Reads two ordered numbers in [0, 1]."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence | np.ndarray) or len(value) != 2:
        raise ValueError(f"curriculum.{key}={value}: must be [low, high]")
    low, high = (_between(key, end) for end in value)
    if low > high:
        raise ValueError(f"curriculum.{key}={value}: the first number must not exceed the second")
    return np.array([low, high], np.float32)


def _verbs(given, known: tuple[str, ...], own: np.ndarray) -> np.ndarray:
    if given is None:
        return own.astype(np.float32)
    chosen = checks.require_mapping("curriculum.verbs", given)
    checks.require_keys("curriculum.verbs.", chosen, known)
    shares = [_between(f"verbs.{name}", chosen.get(name, 0.0), 0.0, 1e6) for name in known]
    if sum(shares) <= 0:
        raise ValueError(f"curriculum.verbs={dict(chosen)!r}: one of them must be above 0")
    return np.array(shares, np.float32)


def _totals(given) -> np.ndarray:
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or len(given) != 3:
        raise ValueError(f"curriculum.totals={given}: must be one number for each of {weights.FAMILIES}")
    return np.array([_between("totals", value, 1e-6, 1e6) for value in given], np.float32)


def _base(given) -> np.ndarray:
    given = checks.require_mapping("curriculum.base", given)
    checks.require_keys("curriculum.base.", given, COMPONENTS)
    return weights.base_weights(
        {key: _between(f"base.{key}", value, 0.0, 1e6) for key, value in given.items()}
    )


def _credit(given) -> np.float32:
    if given == CREDIT_AS_TERMINAL:
        return np.float32(np.nan)
    if isinstance(given, str):
        raise ValueError(f"curriculum.credit={given}: must be a number or {CREDIT_AS_TERMINAL}")
    return _between("credit", given, 0.0, 100.0)
