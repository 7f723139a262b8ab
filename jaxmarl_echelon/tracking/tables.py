"""Rich tables printed at the end of a run or evaluation."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rich.table import Table

from jaxmarl_echelon.tracking.formats import format_estimate, format_finite, format_fixed

MOST_COLUMNS = 8
_OUTCOME = "eval_agg/outcome/"


def actor_tables(
    rows: Mapping[str, Mapping[str, float]],
    episodes: int,
    spec: Any,
    width: int = 120,
    most: int = MOST_COLUMNS,
    head: str = "actor",
) -> list[Table]:
    """Table with one row per actor: score with its interval, return, length, non-zero outcomes and measures.

    Episodes that were quarantined are not scored; their number is shown if there are any. Where measures, or
    outcomes, do not fit into the row, they are shown in tables below.

    Args:
      rows: actor to its `eval_agg/...` values.
      episodes: episodes per actor.
      spec: the environment's `EnvSpec`.
      width: of the terminal; what makes the table wider is shown below.
      most: outcomes and measures in the row at most.
      head: heading of the actors' column.
    """
    outcomes = [name for name in next(iter(rows.values())) if name.startswith(_OUTCOME)]
    outcomes = [name for name in outcomes if any(values[name] > 0 for values in rows.values())]
    numbers = [f"eval_agg/{one.column}" for one in spec.measures]
    numbers = [name for name in numbers if any(abs(values[name]) > 0 for values in rows.values())]
    fits = len(outcomes) + len(numbers) <= most
    for beside in ([[*outcomes, *numbers]] if fits else []) + [outcomes, []]:
        result = _score_table(rows, episodes, spec, head, beside)
        if break_headings(result, width) <= width:  # Rich would cut cells.
            break
    below = {"outcomes": outcomes, "measures": numbers}
    below = {title: [name for name in names if name not in beside] for title, names in below.items()}
    return [
        result,
        *(one for title, names in below.items() for one in _list_below(title, names, rows, width)),
    ]


def _score_table(
    rows: Mapping[str, Mapping[str, float]], episodes: int, spec: Any, head: str, further: Sequence[str]
) -> Table:
    """Table of `actor_tables`; the values called `further` follow the scores."""
    result = Table(title=f"score on {episodes} fresh episodes each, {_acting(spec)}", title_justify="left")
    result.add_column(head, no_wrap=True)
    scored, sick = spec.score is not None, [one.get("eval_agg/quarantined", 0.0) for one in rows.values()]
    first = [*(["quarantined"] if any(sick) else []), *([f"{spec.score} [95 %]"] if scored else [])]
    for column in (*first, "return", "length"):
        result.add_column(column, justify="right", no_wrap=True)
    for name in further:
        result.add_column(_word(name), justify="right")
    for (actor, values), number in zip(rows.items(), sick, strict=True):
        cells = [actor, *([f"{number:.0f}"] if any(sick) else [])]
        if scored:
            names = (spec.score_column, f"{spec.score}_low", f"{spec.score}_high")
            cells.append(format_interval(*(values[f"eval_agg/{name}"] for name in names)))
        cells += [
            format_finite(values["eval_agg/avg_reward"]),
            format_fixed(values["eval_agg/avg_episode_length"], 0),
        ]
        result.add_row(*cells, *(format_fixed(values[name], 2) for name in further))
    return result


def _list_below(
    title: str, names: Sequence[str], rows: Mapping[str, Mapping[str, float]], width: int
) -> list[Table]:
    """Tables of the values of some names, a row each, or a column where the actors' columns do not fit."""
    if not names:
        return []
    cells = {_word(name): [format_fixed(one[name], 2) for one in rows.values()] for name in names}
    whole = _by_row(title, rows, cells)
    if _text_width(whole) <= width:
        return [whole]
    by_actor = {actor: [row[place] for row in cells.values()] for place, actor in enumerate(rows)}
    return _tables_within(title, [*cells], by_actor, width)


def _word(name: str) -> str:
    """Name of a value `eval_agg/...` for people."""
    return name.removeprefix(_OUTCOME).removeprefix("eval_agg/").replace("_", " ")


def break_headings(table: Table, width: int) -> int:
    """Puts each word of the headings on a line of its own, if a table of text is wider than the terminal.

    Returns:
      the width of the table then.
    """
    if (found := _text_width(table)) <= width:
        return found
    for column in table.columns:
        if not column.no_wrap:
            column.header = str(column.header).replace(" ", "\n")
    return _text_width(table)


def _text_width(table: Table) -> int:
    texts = ([*str(column.header).splitlines(), *map(str, column.cells)] for column in table.columns)
    return sum(max(map(len, text), default=0) + 3 for text in texts) + 1


def _acting(spec: Any) -> str:
    """Names the way of acting in evaluations: with hidden information a fixed choice can be exploited."""
    return "sampled actions" if spec.hidden else "deterministic"


def _by_row(title: str, columns: Iterable[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """Builds a table of named rows of cells."""
    result = Table(title=title, title_justify="left")
    result.add_column("", no_wrap=True)
    for column in columns:
        result.add_column(column, justify="right")
    for name, cells in rows.items():
        result.add_row(name, *cells)
    return result


def _with_spaces(rows: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Returns rows whose names are words, for people."""
    return {name.replace("_", " "): cells for name, cells in rows.items()}


def _tables_within(
    title: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]], width: int
) -> list[Table]:
    """Builds tables of named rows, each with as many columns as fit into the terminal, at least one."""
    tables, start = [], 0
    while start < len(columns):
        for stop in range(len(columns), start, -1):
            cells = {name: row[start:stop] for name, row in rows.items()}
            table = _by_row(title, columns[start:stop], cells)
            if break_headings(table, width) <= width or stop == start + 1:
                break
        tables.append(table)
        start = stop
    return tables


def task_tables(
    rows: Mapping[str, Mapping[str, Mapping[str, float]]], spec: Any, width: int = 120
) -> list[Table]:
    """Tables of the actors' scores per task (spawn point, kind of scene), and of the first actor's rates.

    The latter include the score of its worst tenth of the episodes, if evaluations have it.

    Args:
      rows: actor to task to its `eval_agg/...` values.
      spec: the environment's `EnvSpec`.
      width: of the terminal; tasks that make a table wider are in further ones.
    """
    (name, first), *_ = rows.items()
    if not first:
        return []

    def cells(found: Mapping[str, Mapping[str, float]], column: str) -> list[str]:
        return [format_fixed(values.get(f"eval_agg/{column}", math.nan), 2) for values in found.values()]

    scores = {actor: cells(found, spec.score_column) for actor, found in rows.items()}
    named = [f"outcome/{outcome}" for outcome in spec.outcomes]
    named += [*(one.column for one in spec.measures if one.kind == "rate"), "worst_decile"]
    named = [key for key in named if any(one.get(f"eval_agg/{key}", 0.0) > 0 for one in first.values())]
    rates = {key.removeprefix("outcome/").removesuffix("_rate"): cells(first, key) for key in named}
    tables = {f"{spec.score} by task": scores, f"{name} by task": rates}
    return [
        table
        for title, cells in tables.items()
        for table in _tables_within(title, [*first], _with_spaces(cells), width)
    ]


def realism_table(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Table of the similarity of rollouts and recordings: one row per score, one column per actor."""
    names = next(iter(rows.values()))
    cells = {name: [format_finite(values[name]) for values in rows.values()] for name in names}
    return _by_row("rollouts compared with recordings", rows, _with_spaces(cells))


def ladder_tables(
    rows: Sequence[Mapping[str, Any]], episodes: int, spec: Any, width: int = 120
) -> list[Table]:
    """Table with one row per stage of a curriculum: success with its interval, and outcome rates.

    Where the terminal is narrower than that (`width`), outcomes are in tables below.
    """
    outcomes = [name for name in rows[0]["outcomes"] if any(row["outcomes"][name] > 0 for row in rows)]
    shares = {row["name"]: [format_fixed(row["outcomes"][name], 2) for name in outcomes] for row in rows}
    words = [name.replace("_", " ") for name in outcomes]
    result = Table(
        title=f"score on {episodes} fresh episodes per phase, {_acting(spec)}", title_justify="left"
    )
    result.add_column("phase", no_wrap=True)
    result.add_column(f"{spec.score} [95 %]", justify="right", no_wrap=True)
    whole = copy.deepcopy(result)
    for name in words:
        whole.add_column(name, justify="right")
    for row in rows:
        cells = row["name"], format_interval(row["success"], row["low"], row["high"])
        result.add_row(*cells)
        whole.add_row(*cells, *shares[row["name"]])
    if break_headings(whole, width) <= width:
        return [whole]
    return [result, *_tables_within("outcomes", words, shares, width)]


def variant_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Table with one row per variant of a group of runs."""
    result = Table(title="last evaluations", title_justify="left")
    result.add_column("variant", no_wrap=True)
    result.add_column("seeds", justify="right")
    result.add_column(f"{rows[0]['measure'].replace('_', ' ')} [95 %]", justify="right", no_wrap=True)
    result.add_column("best on the way", justify="right")
    for row in rows:
        result.add_row(
            row["name"],
            str(row["seeds"]),
            format_interval(row["success"], row["low"], row["high"]),
            format_fixed(row["best"], 2),
        )
    return result


class SeedRow(NamedTuple):
    """Row of `seed_table`: estimates are a value with the ends of its interval.

    Attributes:
      variant: name of the members' variant; empty in groups without variants.
      actor: who played.
      seeds: number of members with scores.
      score: estimate of the score; None in environments without one.
      earned: estimate of the return.
    """

    variant: str
    actor: str
    seeds: int
    score: tuple[float, float, float] | None
    earned: tuple[float, float, float]


def seed_table(rows: Sequence[SeedRow], spec: Any) -> Table:
    """Table with one row per variant and actor: interquartile means over seeds with their intervals.

    Args:
      rows: estimates by variant and actor.
      spec: the environment's `EnvSpec`.
    """
    several = {name: len({getattr(row, name) for row in rows}) > 1 for name in ("variant", "actor")}
    shown = [name for name, many in several.items() if many]
    result = Table(title="over seeds", title_justify="left")
    for name in shown:
        result.add_column(name, no_wrap=True)
    scored = [] if rows[0].score is None else [f"{spec.score} IQM [95 %]"]
    for name in ("seeds", *scored, "return IQM [95 %]"):
        result.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [*(getattr(row, name) for name in shown), str(row.seeds)]
        cells += [] if row.score is None else [format_estimate(row.score, partial(format_fixed, digits=3))]
        result.add_row(*cells, format_estimate(row.earned, format_finite))
    return result


def update_size_table(role: str, sizes: Any) -> Table:
    """Table of the sizes of an update, one row each; `sizes.rows()` yields name, value and explanation."""
    result = Table(title=f"one update of {role}", title_justify="left")
    result.add_column("size", no_wrap=True)
    result.add_column("value", justify="right", no_wrap=True)
    result.add_column("meaning")
    for name, value, meaning in sizes.rows():
        result.add_row(name, f"{value:,}", meaning)
    return result


def format_interval(value: float, low: float, high: float) -> str:
    """Formats a value with its interval, if it has one; `-` if not finite."""
    interval = f" [{low:.2f}, {high:.2f}]" if math.isfinite(low + high) else ""
    return f"{value:.2f}{interval}" if math.isfinite(value) else "-"
