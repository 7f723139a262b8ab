"""Rich tables printed at the end of a run or evaluation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from jaxmarl_echelon.tracking.formats import fixed


def actors(rows: Mapping[str, Mapping[str, float]], episodes: int, spec: Any) -> Table:
    """One row per actor: score with its interval, return, length, non-zero outcomes and measures.

    Args:
      rows: actor to its `eval_agg/...` values.
      episodes: episodes per actor.
      spec: the environment's `EnvSpec`.
    """
    first = next(iter(rows.values()))
    names = [name for name in first if name.startswith("eval_agg/outcome/")]
    outcomes = [name for name in names if any(values[name] > 0 for values in rows.values())]
    result = Table(title=f"score on {episodes} fresh episodes each, deterministic", title_justify="left")
    result.add_column("actor", no_wrap=True)
    scored = spec.score is not None
    numbers = [one.column for one in spec.measures]
    numbers = [
        name for name in numbers if any(abs(values[f"eval_agg/{name}"]) > 0 for values in rows.values())
    ]
    for column in ([f"{spec.score} [95 %]"] if scored else []) + ["return", "length"]:
        result.add_column(column, justify="right", no_wrap=True)
    for name in (*outcomes, *numbers):
        result.add_column(name.rpartition("outcome/")[2].replace("_", " "), justify="right")
    for actor, values in rows.items():
        cells = [actor]
        if scored:
            names = (spec.score_column, f"{spec.score}_low", f"{spec.score}_high")
            cells.append(interval(*(values[f"eval_agg/{name}"] for name in names)))
        cells += [fixed(values["eval_agg/avg_reward"], 1), fixed(values["eval_agg/avg_episode_length"], 0)]
        cells += [fixed(values[name], 2) for name in outcomes]
        result.add_row(*cells, *(fixed(values[f"eval_agg/{name}"], 2) for name in numbers))
    return result


def tasks(values: Mapping[str, float], spec: Any) -> Table | None:
    """The score per task (spawn point); None without tasks."""
    prefix = "eval_agg/task/"
    found = {name.removeprefix(prefix): share for name, share in values.items() if name.startswith(prefix)}
    if not found:
        return None
    result = Table(title=f"{spec.score} by task", title_justify="left")
    for name in found:
        result.add_column(name, justify="right")
    result.add_row(*(fixed(share, 2) for share in found.values()))
    return result


def ladder(rows: Sequence[Mapping[str, Any]], episodes: int) -> Table:
    """One row per stage of a curriculum: success with its interval, and outcome rates."""
    result = Table(title=f"score on {episodes} fresh episodes per phase, deterministic", title_justify="left")
    result.add_column("phase", no_wrap=True)
    result.add_column("success [95 %]", justify="right", no_wrap=True)
    outcomes = [name for name in rows[0]["outcomes"] if any(row["outcomes"][name] > 0 for row in rows)]
    for name in outcomes:
        result.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        shares = (fixed(row["outcomes"][name], 2) for name in outcomes)
        result.add_row(row["name"], interval(row["success"], row["low"], row["high"]), *shares)
    return result


def variants(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per variant of a group of runs."""
    result = Table(title="last evaluations, deterministic", title_justify="left")
    result.add_column("variant", no_wrap=True)
    result.add_column("seeds", justify="right")
    result.add_column(f"{rows[0]['measure'].replace('_', ' ')} [95 %]", justify="right", no_wrap=True)
    result.add_column("best on the way", justify="right")
    for row in rows:
        result.add_row(
            row["name"],
            str(row["seeds"]),
            interval(row["success"], row["low"], row["high"]),
            fixed(row["best"], 2),
        )
    return result


def plan(role: str, sizes: Any) -> Table:
    """The sizes of an update, one row each; `sizes.rows()` gives name, value and explanation."""
    result = Table(title=f"one update of {role}", title_justify="left")
    result.add_column("size", no_wrap=True)
    result.add_column("value", justify="right", no_wrap=True)
    result.add_column("meaning")
    for name, value, meaning in sizes.rows():
        result.add_row(name, f"{value:,}", meaning)
    return result


def interval(value: float, low: float, high: float) -> str:
    """A value with its interval; `-` if not finite."""
    return f"{value:.2f} [{low:.2f}, {high:.2f}]" if math.isfinite(value) else "-"
