"""Rich tables printed at the end of a run or evaluation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from jaxmarl_echelon.tracking.formats import fixed, measured


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


def tasks(rows: Mapping[str, Mapping[str, Mapping[str, float]]], spec: Any) -> list[Table]:
    """The scores of actors per task (spawn point, kind of scene), and all rates of the first actor.

    With them the score of its worst tenth of the episodes, where evaluations have it.

    Args:
      rows: actor to task to its `eval_agg/...` values.
      spec: the environment's `EnvSpec`.
    """
    first = next(iter(rows.values()))
    if not first:
        return []
    compared = Table(title=f"{spec.score} by task", title_justify="left")
    compared.add_column("actor", no_wrap=True)
    for name in first:
        compared.add_column(name, justify="right")
    for actor, found in rows.items():
        shares = (values[f"eval_agg/{spec.score_column}"] for values in found.values())
        compared.add_row(actor, *(fixed(share, 2) for share in shares))
    named = {f"eval_agg/outcome/{name}": name for name in spec.outcomes}
    named |= {f"eval_agg/{one.column}": one.name for one in spec.measures if one.kind == "rate"}
    named["eval_agg/worst_decile"] = "worst_decile"
    occurs = {key for values in first.values() for key in named if values.get(key, 0.0) > 0}
    named = {key: name for key, name in named.items() if key in occurs}
    detailed = Table(title=f"{next(iter(rows))} by task", title_justify="left")
    detailed.add_column("task", no_wrap=True)
    detailed.add_column(f"{spec.score} [95 %]", justify="right", no_wrap=True)
    for name in named.values():
        detailed.add_column(name.replace("_", " "), justify="right")
    scored = spec.score_column, f"{spec.score}_low", f"{spec.score}_high"
    for task, values in first.items():
        score = interval(*(values[f"eval_agg/{name}"] for name in scored))
        detailed.add_row(task, score, *(fixed(values[key], 2) for key in named))
    return [compared, detailed]


def realism(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """One row per score, one column per actor: how alike its rollouts and the recordings are."""
    result = Table(title="rollouts beside recordings", title_justify="left")
    result.add_column("score", no_wrap=True)
    for actor in rows:
        result.add_column(actor, justify="right")
    for name in next(iter(rows.values())):
        result.add_row(name.replace("_", " "), *(measured(values[name]) for values in rows.values()))
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
