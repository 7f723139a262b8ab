"""Checks of the contract of `envs.base` that a run makes before it begins, with one-line errors."""

import traceback
from pathlib import Path

from jaxmarl_echelon.envs import check_env
from jaxmarl_echelon.envs.base import Environment

OWN_PACKAGE = __name__.partition(".")[0]


def require_spec(env: Environment) -> None:
    """Requires consistent static facts of an environment, including action bounds.

    Raises:
      ValueError: one line with the environment's class and what was expected.
    """
    try:
        check_env.check_spec(env.spec)
    except AssertionError as error:
        raise ValueError(f"{_named(env)}: {error}") from error


def require_traces(env: Environment) -> None:
    """Requires that an environment from outside this package passes `check_env.check_traces`.

    The check takes less than 3 seconds for the largest environment of this package. Environments of this
    package are tested with the whole of `check_env`.

    Raises:
      ValueError: one line with the environment's class, the expected value, and the location of an error.
    """
    if type(env).__module__.partition(".")[0] == OWN_PACKAGE:
        return
    try:
        check_env.check_traces(env)
    except AssertionError as error:
        raise ValueError(f"{_named(env)}: {error}") from error
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise ValueError(f"{_named(env)}: {type(error).__name__}: {lines[0]}{_place(env, error)}") from error


def _named(env: Environment) -> str:
    kind = type(env)
    return f"env={kind.__module__}.{kind.__qualname__}"


def _place(_env: Environment, error: Exception) -> str:
    """Returns the last file and line of an error outside this package and the libraries; empty if none."""
    own = Path(check_env.__file__).parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if own not in path.parents and "site-packages" not in path.parts and path.is_file():
            return f" ({path.name}, line {frame.lineno})"
    return ""
