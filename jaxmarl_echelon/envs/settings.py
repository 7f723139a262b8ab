"""Settings of environments: frozen dataclasses, one per concern, and readers of single values.

Configurations and command lines use flat keys; `unflatten_settings` distributes them to the dataclasses. A
reader returns the validated value or raises a ValueError that lists the allowed values.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, TypeVar, get_type_hints

import numpy as np

from algos import checks
from algos.defaults import FROM_FILE, read_defaults

T = TypeVar("T")


def setting_field(read: Callable, *bounds) -> Any:
    """Declares a field of `Settings` with a value from a file, read as `read(name, value, *bounds)`."""
    return field(default=FROM_FILE, metadata={"read": lambda name, value: read(name, value, *bounds)})


@dataclass(frozen=True)
class Settings:
    """Settings of one concern; each field's reader validates it on construction."""

    def __post_init__(self):
        for one in fields(self):
            if read := one.metadata.get("read"):
                object.__setattr__(self, one.name, read(one.name, getattr(self, one.name)))


def unflatten_settings(kind: type[T], given: Mapping[str, Any]) -> T:
    """Builds a dataclass of `Settings` from flat keys; missing ones have the values of `kind.FILE`.

    Raises:
      ValueError: one line, for an unknown key or an invalid value.
    """
    hints, values = get_type_hints(kind), {**read_defaults(kind.FILE), **given}
    groups = {one.name: hints[one.name] for one in fields(kind)}
    keys = {name: [one.name for one in fields(group)] for name, group in groups.items()}
    known = list(itertools.chain(*keys.values()))
    for key in given:
        if key not in known:
            raise ValueError(f"env.{key}: unknown; {checks.suggest_names(key, known)}")
    return kind(**{name: group(**{key: values[key] for key in keys[name]}) for name, group in groups.items()})


def flatten_settings(settings: Any) -> dict[str, Any]:
    """Returns flat keys and values, the inverse of `unflatten_settings`."""
    groups = [getattr(settings, one.name) for one in fields(settings)]
    return {one.name: getattr(group, one.name) for group in groups for one in fields(group)}


# Setting -> (field of an environment's parameters, reader of its value against an environment's limits).
Readers = Mapping[str, tuple[str, Callable[[Any, Any], Any]]]


def read_fields(readers: Readers, given: Mapping[str, Any], limits: Any) -> dict[str, Any]:
    """Reads fields of the parameters from settings; raises a one-line ValueError for an invalid value."""
    return {readers[key][0]: readers[key][1](value, limits) for key, value in given.items()}


def read_all(readers: Readers, chosen: Any, limits: Any) -> dict[str, Any]:
    """Applies all `readers` to the settings `chosen`, which `unflatten_settings` built."""
    given = flatten_settings(chosen)
    return read_fields(readers, {key: given[key] for key in readers}, limits)


def refuse_fixed(given: Mapping[str, Any], changeable: Sequence[str]) -> None:
    """Raises a one-line ValueError for settings not in `changeable`."""
    for key in given:
        if key not in changeable:
            allowed = ", ".join(changeable)
            raise ValueError(f"env.{key}: cannot change between episodes; allowed: {allowed}")


def read_number(name: str, value, low: float = -np.inf, high: float = np.inf) -> float:
    """Returns `value` as a float; raises ValueError unless it is finite and within [low, high]."""
    return checks.require_range(f"env.{name}", value, low, high)


def read_whole(name: str, value, low: int, high: int = checks.LONGEST) -> int:
    """Returns `value` as an int; raises ValueError unless it is a whole number within [low, high]."""
    return checks.require_whole(f"env.{name}", value, low, high)


def read_choice(name: str, value, allowed: Sequence[str]) -> str:
    """Returns `value`; raises ValueError unless it is one of `allowed`."""
    return checks.require_choice(f"env.{name}", value, allowed)


def read_choices(name: str, value: str | Sequence[str] | None, allowed: Sequence[str]) -> tuple[str, ...]:
    """Returns one or several names as a tuple; raises ValueError unless each is one of `allowed`."""
    given = (value,) if isinstance(value, str) else value or ()
    one_by_one = given if isinstance(given, Sequence) else (given,)
    return tuple(read_choice(name, one, allowed) for one in one_by_one)


def read_switch(name: str, value) -> bool:
    """Returns `value`; raises ValueError unless it is a bool."""
    return checks.require_switch(f"env.{name}", value)


def read_mapping(name: str, value) -> Mapping:
    """Returns a mapping, empty for None; raises ValueError for anything else."""
    return checks.require_mapping(f"env.{name}", value)


def read_numbers(name: str, value, count: int, low: float = -np.inf) -> tuple[float, ...]:
    """Reads `count` numbers of at least `low`; raises ValueError for anything else."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence) or len(value) != count:
        raise ValueError(f"env.{name}={value}: must be {count} numbers")
    return tuple(read_number(name, one, low) for one in value)


def read_interval(name: str, value, low: float = -np.inf, high: float = np.inf) -> tuple[float, float]:
    """Reads one number or an ordered pair as a closed interval within [low, high]; else raises ValueError."""
    ends = [value, value] if isinstance(value, Real) else value
    if isinstance(ends, str | Mapping) or not isinstance(ends, Sequence) or len(ends) != 2:
        raise ValueError(f"env.{name}={value}: must be one number or [low, high]")
    first, second = (read_number(name, end, low, high) for end in ends)
    if first > second:
        raise ValueError(f"env.{name}={value}: the first number must not exceed the second")
    return first, second


def read_map_weights(weights: Sequence[float] | None, maps: int) -> np.ndarray:
    """Returns relative sampling weights of maps, float32 `[M]`; equal by default."""
    if weights is not None and (isinstance(weights, str) or not isinstance(weights, Sequence)):
        raise ValueError(f"env.map_weights={weights}: must be {maps} weights, one of them positive")
    values = [read_number("map_weights", weight, 0.0) for weight in (weights or [1.0] * maps)]
    if len(values) != maps or sum(values) <= 0:
        raise ValueError(f"env.map_weights={weights}: must be {maps} weights, one of them positive")
    return np.array(values, np.float32)
