"""Checks of settings: each raises a ValueError of one line with the key, the value and what is allowed."""


def require_choice(key: str, value: object, allowed: tuple) -> None:
    """Demands that `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{key}={value}: unknown; allowed: {', '.join(map(str, allowed))}")


def require_range(key: str, value: float, low: float, high: float) -> None:
    """Demands a number with `low <= value <= high`; NaN never is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{key}={value}: must be a number from {low:g} to {high:g}")


def require_count(key: str, value: int) -> None:
    """Demands a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}={value}: must be a whole number of at least 1")


def require_whole(key: str, value: int, high: float) -> None:
    """Demands a whole number from 0 to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise ValueError(f"{key}={value}: must be a whole number from 0 to {high:g}")


def require_minibatches(
    num_minibatches: int,
    samples: int,
    unit: str = "samples of a rollout (horizon * environments * agents)",
    key: str = "num_minibatches",
) -> None:
    """Demands that the samples of a rollout split evenly into the minibatches."""
    if samples % num_minibatches == 0:
        return
    legal = [n for n in range(1, samples + 1) if samples % n == 0]
    near = sorted(sorted(legal, key=lambda n: abs(n - num_minibatches))[:2])
    raise ValueError(
        f"{key}={num_minibatches}: must divide the {samples} {unit}; nearest: {', '.join(map(str, near))}"
    )
