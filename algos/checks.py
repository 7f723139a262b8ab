"""Checks of settings: each raises a one-line ValueError with the key, the value and the allowed values."""

import math
from dataclasses import fields
from numbers import Real
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def require_switches(settings: Any, prefix: str = "") -> None:
    """Checks that every field of a dataclass annotated as `bool` is true or false.

    Args:
      settings: an instance of the dataclass.
      prefix: text before the fields' names in messages, such as `replay.`.
    """
    kinds = get_type_hints(type(settings))
    for field in fields(settings):
        value = getattr(settings, field.name)
        if kinds[field.name] is bool and not isinstance(value, bool):
            raise ValueError(f"{prefix}{field.name}={value}: must be true or false")


def require_given(name: str, value: T | None) -> T:
    """Returns a value that may be None elsewhere but not here; raises ValueError with its name if it is."""
    if value is None:
        raise ValueError(f"{name}=None: must be given")
    return value


def require_choice(key: str, value: object, allowed: tuple) -> None:
    """Checks that `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{key}={value}: unknown; allowed: {', '.join(map(str, allowed))}")


def require_range(key: str, value: float, low: float, high: float) -> None:
    """Checks for a finite number with `low <= value <= high`; infinite bounds do not restrict it."""
    if not is_number(value) or not low <= value <= high:
        bounds = f"a number from {low:g} " + (f"to {high:g}" if math.isfinite(high) else "on that is finite")
        raise ValueError(f"{key}={value}: must be {bounds if math.isfinite(low) else 'a finite number'}")


def require_list(key: str, value: object) -> tuple:
    """Returns a list (or tuple) as a tuple; raises for other values."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{key}={value}: must be a list")
    return tuple(value)


def is_number(value: object) -> bool:
    """Whether `value` is a finite number and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def require_count(key: str, value: int) -> None:
    """Checks for a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}={value}: must be a whole number of at least 1")


def require_whole(key: str, value: int, high: float) -> None:
    """Checks for a whole number from 0 to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise ValueError(f"{key}={value}: must be a whole number from 0 to {high:g}")


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
