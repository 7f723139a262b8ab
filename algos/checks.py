"""Checks of settings: each raises a one-line ValueError with the key, the value and the allowed values."""

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from numbers import Real
from typing import Any, TypeGuard, TypeVar, get_type_hints

T = TypeVar("T")
# Largest whole number of the arrays that settings become.
LONGEST = 2**31 - 1
# More allowed names than this are listed only if none of them is close to the one given.
LISTED = 20


def require_switches(settings: Any, prefix: str = "") -> None:
    """Checks that every field of a dataclass annotated as `bool` is true or false.

    Args:
      settings: an instance of the dataclass.
      prefix: text before the fields' names in messages, such as `replay.`.
    """
    kinds = get_type_hints(type(settings))
    for field in fields(settings):
        value = getattr(settings, field.name)
        if kinds[field.name] is bool:
            require_switch(f"{prefix}{field.name}", value)


def require_given(name: str, value: T | None) -> T:
    """Returns a value that may be None elsewhere but not here; raises ValueError with its name if it is."""
    if value is None:
        raise ValueError(f"{name}=None: must be given")
    return value


def find_similar(given: object, names: Iterable[str], limit: int = 2, likeness: float = 0.6) -> list[str]:
    """Returns up to `limit` names that the given one may have been meant to be, the closest first.

    `likeness` is the least `ratio` of difflib's matcher, from 0 to 1.
    """
    by_lower = {name.lower(): name for name in names}
    return [by_lower[one] for one in difflib.get_close_matches(str(given).lower(), by_lower, limit, likeness)]


def suggest_names(given: object, names: Collection[object], shown: Collection[object] | None = None) -> str:
    """Formats what a message says of an unknown name: all `names` if few, the closest ones of many.

    Where none of many is close, all of `shown` are listed, by default the names.
    """
    known = [str(name) for name in names]
    close = find_similar(given, known) if len(known) > LISTED else []
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"allowed: {', '.join(str(name) for name in (known if shown is None else shown))}"


def require_choice(key: str, value: T, allowed: Iterable[object], what: str = "unknown") -> T:
    """Returns a value that is one of `allowed`; `what` says what others are, such as "unknown role"."""
    if value not in (known := tuple(allowed)):
        raise ValueError(f"{key}={value}: {what}; {suggest_names(value, known)}")
    return value


def require_keys(prefix: str, given: Mapping, allowed: Iterable[str], what: str = "unknown") -> None:
    """Checks that all keys of a mapping are in `allowed`; `prefix` comes before the key in messages."""
    known = tuple(allowed)
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{prefix}{key}={value}: {what}; {suggest_names(key, known)}")


def require_switch(key: str, value: object) -> bool:
    """Returns a value that is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{key}={value}: must be true or false")
    return value


def require_mapping(key: str, value: object) -> Mapping:
    """Returns a mapping, empty for None."""
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{key}={value}: must be a mapping")
    return value or {}


def require_range(key: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """Returns a finite number with `low <= value <= high` as a float; infinite bounds do not restrict it."""
    if not is_number(value) or not low <= value <= high:
        bounds = f"a number from {low:g} " + (f"to {high:g}" if math.isfinite(high) else "on that is finite")
        raise ValueError(f"{key}={value}: must be {bounds if math.isfinite(low) else 'a finite number'}")
    return float(value)


def require_positive(key: str, value: object, high: float = math.inf) -> float:
    """Returns a finite number above 0 and at most `high` as a float."""
    if not is_number(value) or not 0 < value <= high:
        most = f" and at most {high:g}" if math.isfinite(high) else ""
        raise ValueError(f"{key}={value}: must be above 0{most}")
    return float(value)


def require_list(key: str, value: object) -> tuple:
    """Returns a list (or tuple) as a tuple; raises for other values."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{key}={value}: must be a list")
    return tuple(value)


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite number and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def require_whole(key: str, value: object, low: int = 0, high: int = LONGEST) -> int:
    """Returns a whole number from `low` to `high`, which may be written as a float such as 1e6.

    By default numbers are bounded as in arrays.
    """
    if not is_number(value) or not low <= value <= high or value != int(value):
        raise ValueError(f"{key}={value}: must be a whole number {_whole_bounds(low, high)}")
    return int(value)


def require_integer(
    key: str, value: object, low: int = 0, high: float = math.inf, otherwise: str = ""
) -> int:
    """Returns an int from `low` to `high`; `otherwise` says what else is allowed."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        bounds = f"{_whole_bounds(low, high)} {otherwise}".rstrip()
        raise ValueError(f"{key}={value}: must be a whole number {bounds}")
    return value


def _whole_bounds(low: int, high: float) -> str:
    return f"of at least {low}" if high in (LONGEST, math.inf) else f"from {low} to {high}"


def require_count(key: str, value: object, otherwise: str = "") -> int:
    """Returns an int of at least 1; `otherwise` says what else is allowed."""
    return require_integer(key, value, 1, otherwise=otherwise)


def require_minibatches(
    num_minibatches: int,
    samples: int,
    unit: str = "samples of a rollout (horizon * environments * agents)",
    key: str = "num_minibatches",
) -> None:
    """Checks that the samples of a rollout split evenly into the minibatches."""
    if samples % num_minibatches == 0:
        return
    legal = [n for n in range(1, samples + 1) if samples % n == 0]
    near = sorted(sorted(legal, key=lambda n: abs(n - num_minibatches))[:2])
    raise ValueError(
        f"{key}={num_minibatches}: must divide the {samples} {unit}; nearest: {', '.join(map(str, near))}"
    )
