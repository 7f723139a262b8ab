"""The contract of `envs.base`, as far as a run demands it before it begins: one line says what is wrong."""

import traceback
from pathlib import Path

from jaxmarl_echelon.envs import check_env
from jaxmarl_echelon.envs.base import Environment

OWN = __name__.partition(".")[0]


def require_spec(env: Environment) -> None:
    """Demands consistent static facts of any environment, action bounds among them.

    Raises:
      ValueError: one line with the environment's class and what was expected.
    """
    try:
        check_env.check_spec(env.spec)
    except AssertionError as error:
        raise ValueError(f"{_named(env)}: {error}") from error


def require_traces(env: Environment) -> None:
    """Demands that an environment from outside this package passes `checks.check_traces`.

    That takes less than 3 seconds for the largest one of this package; these are tested with all of
    `check_env`.

    Raises:
      ValueError: one line with the environment's class, what was expected, and where an error came from.
    """
    if type(env).__module__.partition(".")[0] == OWN:
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


def _place(env: Environment, error: Exception) -> str:
    """File and line where an error left the code outside this package and the libraries; empty if nowhere."""
    own = Path(check_env.__file__).parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if own not in path.parents and "site-packages" not in path.parts and path.is_file():
            return f" ({path.name}, line {frame.lineno})"
    return ""
