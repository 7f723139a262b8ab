"""Criteria of phases: parsed from a configuration into arrays. Reference: docs/reference/curricula.md 4.1."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from algos import checks
from jaxmarl_echelon.curricula.stages import LONGEST_WINDOW, Stage
from jaxmarl_echelon.envs.base import EnvSpec

NO_PATIENCE = int(np.iinfo(np.int32).max)
CRITERIA_DEFAULTS = {
    "success_rate": 0.7,
    "avg_reward": None,
    "min_episodes": 100,
    "window_size": 100,
    "patience": None,
    "max_rates": None,
    "regress_success_rate": None,
    "regress_min_episodes": None,
    "regress_window_size": None,
    "regress_patience": 1,
    "eval_success_rate": None,
    "eval_required_runs": 2,
}
# Of new episodes that do not come from the present phase.
SHARES = ("foundation", "previous", "rehearsal")

_UNASKED = {
    "avg_reward": -np.inf,
    "patience": NO_PATIENCE,
    "regress_success_rate": -np.inf,
    "eval_success_rate": -np.inf,
}
_AS_FOR_GOING_ON = {"regress_min_episodes": "min_episodes", "regress_window_size": "window_size"}


class Criteria(NamedTuple):
    """Criteria of S phases for advancing and regressing; disabled ones (None) never block and never trigger.

    Attributes:
      success_rate, avg_reward: `[S]` float32, minimum values for advancing.
      min_episodes, window_size, patience: `[S]` int32, for advancing.
      max_rates: `[S, O]` float32, maximum rate of each outcome for advancing.
      regress_success_rate: `[S]` float32; regress below this rate.
      regress_min_episodes, regress_window_size, regress_patience: `[S]` int32, for regressing.
      eval_success_rate: `[S]` float32, minimum success rate of evaluations.
      eval_required_runs: `[S]` int32, consecutive evaluations that must reach it; 0 disables the gate.
      foundation, previous, rehearsal: `[S]` float32, probabilities of the first phase, of the previous
        one, and of any earlier one.
    """

    success_rate: np.ndarray
    avg_reward: np.ndarray
    min_episodes: np.ndarray
    window_size: np.ndarray
    patience: np.ndarray
    max_rates: np.ndarray
    regress_success_rate: np.ndarray
    regress_min_episodes: np.ndarray
    regress_window_size: np.ndarray
    regress_patience: np.ndarray
    eval_success_rate: np.ndarray
    eval_required_runs: np.ndarray
    foundation: np.ndarray
    previous: np.ndarray
    rehearsal: np.ndarray


def read_criteria(phases: Sequence[Stage], spec: EnvSpec) -> Criteria:
    """Parses `criteria` and `mixture` of all phases, on the host.

    Raises:
      ValueError: one line with the phase's name, for unknown, out-of-range or contradictory values.
    """
    rows = [_criteria(phase, spec) | _mixture(phase) for phase in phases]
    columns = {name: np.array([row[name] for row in rows]) for name in Criteria._fields}
    return Criteria(
        **{
            name: column.astype(np.int32 if column.dtype.kind == "i" else np.float32)
            for name, column in columns.items()
        }
    )


def _criteria(phase: Stage, spec: EnvSpec) -> dict[str, Any]:
    where = f"{phase.where}: criteria"
    given = checks.require_mapping(where, phase.rules["criteria"])
    checks.require_keys(f"{where}.", given, tuple(CRITERIA_DEFAULTS))
    given = CRITERIA_DEFAULTS | given
    for key, other in _AS_FOR_GOING_ON.items():
        given[key] = given[other] if given[key] is None else given[key]
    read = {key: _read(f"{where}.{key}", key, value) for key, value in given.items() if key != "max_rates"}
    read["max_rates"] = _max_rates(f"{where}.max_rates", given["max_rates"], spec)
    _check(where, read, spec)
    if given["eval_success_rate"] is None:
        read["eval_required_runs"] = 0
    return read


def _read(name: str, key: str, value) -> int | float:
    if value is None and key in _UNASKED:
        return _UNASKED[key]
    if key.endswith("success_rate"):
        return checks.require_range(name, value, 0.0, 1.0)
    if key == "avg_reward":
        return checks.require_range(name, value)
    return checks.require_whole(
        name, value, 1, LONGEST_WINDOW if key.endswith("window_size") else NO_PATIENCE
    )


def _max_rates(name: str, value, spec: EnvSpec) -> list[float]:
    given = checks.require_mapping(name, value)
    checks.require_keys(
        f"{name}.", given, [outcome for outcome in spec.outcomes if outcome not in spec.good_outcomes]
    )
    caps = {
        outcome: checks.require_range(f"{name}.{outcome}", cap, 0.0, 1.0) for outcome, cap in given.items()
    }
    return [caps.get(outcome, 1.0) for outcome in spec.outcomes]


def _check(where: str, read: Mapping, spec: EnvSpec) -> None:
    """Raises ValueError for criteria that contradict each other or the environment."""
    patience, least = read["patience"], read["min_episodes"]
    if patience < least:
        raise ValueError(f"{where}.patience={patience}: must be at least min_episodes={least}")
    back, on = read["regress_success_rate"], read["success_rate"]
    if back >= on:
        raise ValueError(f"{where}.regress_success_rate={back:g}: must be below success_rate={on:g}")
    if np.isfinite(read["avg_reward"]) and not spec.components:
        raise ValueError(
            f"{where}.avg_reward={read['avg_reward']:g}: {spec.name} has no reward components; allowed: null"
        )


def _mixture(phase: Stage) -> dict[str, float]:
    where = f"{phase.where}: mixture"
    given = checks.require_mapping(where, phase.rules["mixture"])
    checks.require_keys(f"{where}.", given, SHARES)
    shares = {key: checks.require_range(f"{where}.{key}", given.get(key, 0.0), 0.0, 1.0) for key in SHARES}
    if sum(shares.values()) >= 1.0:
        raise ValueError(f"{where}: {' + '.join(SHARES)} = {sum(shares.values()):g}: must be below 1")
    return shares
