"""Checks that methods take the parameter names of the contract in `jaxmarl_echelon.envs.base`."""

import inspect
from collections.abc import Callable

from jaxmarl_echelon.envs.base import Comparison, Environment, Viewer
from jaxmarl_echelon.envs.check_rollout import require_that


def check_parameter_names(env: Environment) -> None:
    """Raises a one-line AssertionError unless methods can be called with the contract's parameter names.

    Checked are the methods of the environment, of its viewer and of its comparison. Further parameters need
    defaults.
    """
    _require_contract("env", Environment, env)
    for name, contract in (("viewer", Viewer), ("comparison", Comparison)):
        if getattr(env, name) is not None:
            _require_contract(f"env.{name}", contract, getattr(env, name))


def _require_contract(label: str, contract: type, part: object) -> None:
    for name, method in vars(contract).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            wanted = list(inspect.signature(method).parameters)[1:]
            _require_parameters(f"{label}.{name}", getattr(part, name), wanted)


def _require_parameters(label: str, method: Callable, wanted: list[str]) -> None:
    found = inspect.signature(method).parameters
    open_ended = {one.name for one in found.values() if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    needed = [one.name for one in found.values() if one.default is one.empty and one.name not in open_ended]
    fits = len(open_ended) == 2 or (list(found)[: len(wanted)] == wanted and set(needed) <= set(wanted))
    expected = ", ".join(wanted) or "none"
    require_that(fits, f"{label} has the parameters {', '.join(found) or 'none'}, expected {expected}")
