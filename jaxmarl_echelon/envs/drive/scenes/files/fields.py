"""Reads single fields of parsed JSON; faults raise a ValueError that begins with the field's path."""

from collections.abc import Sequence
from typing import Any

import numpy as np

FARTHEST = 1e7  # m from the file's origin


def require_json_member(holder: Any, key: str, path: str) -> Any:
    """Returns `holder[key]`; the holder must be an object that has the key."""
    if not isinstance(holder, dict):
        raise ValueError(f"{path or 'the file'}: must be an object")
    if key not in holder:
        raise ValueError(f"{join_json_path(path, key)} is missing")
    return holder[key]


def get_json_member(holder: Any, key: str, path: str, default: Any) -> Any:
    """Returns `holder[key]`, or the default where it is missing or null."""
    if not isinstance(holder, dict):
        raise ValueError(f"{path or 'the file'}: must be an object")
    value = holder.get(key)
    return default if value is None else value


def join_json_path(path: str, key: str) -> str:
    """Returns the path of a member."""
    return f"{path}.{key}" if path else key


def read_json_list(value: Any, path: str) -> list:
    """Checks that a value is a list."""
    if not isinstance(value, list):
        raise ValueError(f"{path}: must be a list")
    return value


def read_json_number(value: Any, path: str, low: float = -np.inf, high: float = np.inf) -> float:
    """Checks that a value is a finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{path}: must be a number")
    if value != value:
        raise ValueError(f"{path} is NaN")
    if not low <= value <= high or abs(value) == np.inf:
        raise ValueError(f"{path} is {_short(value)}, allowed is [{low:g}, {high:g}]")
    return float(value)


def _short(value: float) -> str:
    # A whole number may be too large for the format.
    return "too large" if isinstance(value, int) and abs(value) > 1e300 else f"{value:g}"


def read_json_whole(value: Any, path: str, low: int = -(2**53), high: int = 2**53) -> int:
    """Checks that a value is a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{path}: must be a whole number")
    if read_json_number(value, path, low, high) != int(value):
        raise ValueError(f"{path}: must be a whole number")
    return int(value)


def read_json_flag(value: Any, path: str) -> bool:
    """Reads a boolean, or 0 or 1."""
    if isinstance(value, bool) or (isinstance(value, int | float) and value in (0, 1)):
        return bool(value)
    raise ValueError(f"{path}: must be true or false")


def read_json_text(value: Any, path: str, allowed: Sequence[str] = ()) -> str:
    """Checks that a value is a string, and one of `allowed` if that is not empty."""
    if not isinstance(value, str):
        raise ValueError(f"{path}: must be a string")
    if allowed and value not in allowed:
        raise ValueError(f"{path} is {value[:40]!r}; allowed: {', '.join(allowed)}")
    return value


def read_json_point(value: Any, path: str) -> tuple[float, float]:
    """Reads x and y of an object."""
    if not isinstance(value, dict) or not all(_is_number(value.get(axis)) for axis in "xy"):
        raise ValueError(f"{path}: must have numbers x and y")
    return tuple(read_json_number(value[axis], f"{path}.{axis}", -FARTHEST, FARTHEST) for axis in "xy")


def read_json_points(value: Any, path: str, least: int) -> np.ndarray:
    """Reads a list of at least `least` points, `[P, 2]`."""
    found = [read_json_point(one, f"{path}[{nth}]") for nth, one in enumerate(read_json_list(value, path))]
    if len(found) < least:
        raise ValueError(f"{path} has {len(found)} points, at least {least} are needed")
    return np.array(found)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_json_flags(value: Any, path: str) -> np.ndarray:
    """Reads a list of booleans, `[T]` bool."""
    return np.array(
        [read_json_flag(one, f"{path}[{nth}]") for nth, one in enumerate(read_json_list(value, path))], bool
    )


def read_valid_samples(value: Any, path: str, valid: np.ndarray, axes: str) -> np.ndarray:
    """Reads the valid samples of a list, `[T, len(axes)]`, of plain numbers with `axes=""`; others are 0.

    Args:
      value: list of one entry per sample.
      path: of the list.
      valid: `[T]` bool.
      axes: members of each entry.
    """
    rows = np.zeros((len(valid), max(1, len(axes))))
    for nth in np.flatnonzero(valid):
        one, at = value[nth], f"{path}[{nth}]"
        if axes and not isinstance(one, dict):
            raise ValueError(f"{at}: must have numbers {' and '.join(axes)}")
        for column, axis in enumerate(axes or [""]):
            entry, name = (require_json_member(one, axis, at), f"{at}.{axis}") if axis else (one, at)
            if isinstance(entry, float) and entry != entry:
                raise ValueError(f"{name} is NaN though valid[{nth}] is true")
            rows[nth, column] = read_json_number(entry, name, -FARTHEST, FARTHEST)
    return rows
