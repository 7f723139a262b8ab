"""Parameters of which `make test` runs only some."""

from collections.abc import Iterable

import pytest


def thorough(*values, id=None):
    """One set of parameters that only `make test MARKS=` runs."""
    return pytest.param(*values, marks=pytest.mark.thorough, id=id)


def mark_others(values: Iterable, *quick) -> list:
    """All values, of which those that are not `quick` are thorough."""
    values = list(values)
    assert set(quick) <= set(values), quick
    return [value if value in quick else thorough(value) for value in values]


def mark_after(number: int, values: Iterable) -> list:
    """All values, of which those after the first `number` are thorough; tuples are sets of parameters."""
    values = list(values)
    rest = (value if isinstance(value, tuple) else (value,) for value in values[number:])
    return [*values[:number], *(thorough(*value) for value in rest)]
