"""Files and tables of a comparison: CSV, Markdown, a page, and tables for the terminal."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.table import Table
from rich.text import Text

from jaxmarl_echelon.reporting import pages
from jaxmarl_echelon.reporting.charts import STEPS, Line, draw_chart
from jaxmarl_echelon.reporting.comparison import ALL_TASKS, MethodComparison
from jaxmarl_echelon.reporting.seed_statistics import Estimate
from jaxmarl_echelon.tracking.formats import format_estimate, format_finite, format_fixed

STATISTIC_NAMES = {"iqm": "IQM", "median": "median", "mean": "mean", "optimality_gap": "optimality gap"}
AXIS_NAMES = {"steps": STEPS, "seconds": "seconds of training"}
RUNS = "runs.csv"
# Runs of a task whose scores are listed one by one.
MOST_SEEDS = 10
_METHODS = (
    "IQM: mean of the middle half of the runs. Intervals hold 95 % of the resamples of a bootstrap over "
    "seeds, within tasks. Probability of improvement: that a run of the first method scores higher than one "
    "of the second."
)


def write_comparison_tables(folder: Path, comparison: MethodComparison) -> None:
    """Writes `statistics.csv`, `pairs.csv`, `runs.csv`, `curves.csv` and `profiles.csv` into a folder."""
    ends = ("value", "low", "high")
    tables = {
        "statistics": (("method", "task", "runs", "statistic", *ends), _statistic_lines(comparison)),
        "pairs": (("better", "worse", "paired", "statistic", *ends), _pair_lines(comparison)),
        RUNS.removesuffix(".csv"): (
            ("method", "task", "seed", "step", "measure", "raw", "score", "folder"),
            _run_lines(comparison),
        ),
        "curves": (("method", "task", "axis", "x", "iqm", "low", "high"), _curve_lines(comparison)),
        "profiles": (("method", "threshold", "fraction", "low", "high"), _profile_lines(comparison)),
    }
    for name, (head, lines) in tables.items():
        _write(folder / f"{name}.csv", head, lines)


def read_compared_runs(folder: Path) -> list[str]:
    """Returns the folders of the runs of a comparison in a folder; empty if it has none."""
    table = folder / RUNS
    if not table.is_file():
        return []
    with table.open(newline="", encoding="utf-8") as file:
        return [run for row in csv.DictReader(file) if (run := row.get("folder"))]


def _statistic_lines(comparison: MethodComparison) -> Iterator[Sequence]:
    for (method, task), found in comparison.statistics.items():
        for name, estimate in found.items():
            yield method, task, _count_runs(comparison, method, task), name, *estimate


def _pair_lines(comparison: MethodComparison) -> Iterator[Sequence]:
    for pair in comparison.pairs:
        for name in ("difference", "improvement"):
            yield pair.better, pair.worse, pair.paired, name, *getattr(pair, name)


def _run_lines(comparison: MethodComparison) -> Iterator[Sequence]:
    for one in comparison.runs:
        measure = comparison.measures[one.task]
        yield one.method, one.task, one.run.seed, one.step, measure, one.raw, one.score, one.run.folder


def _curve_lines(comparison: MethodComparison) -> Iterator[Sequence]:
    for curve in comparison.curves:
        for point in zip(curve.x, *curve.score, strict=True):
            yield curve.method, curve.task, curve.axis, *point


def _profile_lines(comparison: MethodComparison) -> Iterator[Sequence]:
    for method, profile in comparison.profiles.items():
        for point in zip(comparison.thresholds, *profile, strict=True):
            yield method, *point


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def _count_runs(comparison: MethodComparison, method: str, task: str) -> int:
    return sum(one.method == method and task in (one.task, ALL_TASKS) for one in comparison.runs)


def statistic_rows(
    comparison: MethodComparison, *, intervals: bool = True, seeds: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the rows of the table of statistics, as text: all tasks, then each task.

    Without `intervals`, only the interquartile mean has one. With `seeds`, scores of up to `MOST_SEEDS` runs
    of a task are listed in the order of their seeds.
    """
    bare = [] if intervals else [name for name in STATISTIC_NAMES if name != "iqm"]
    names = list(next(iter(comparison.statistics.values())))
    tasks = list(dict.fromkeys(task for _, task in comparison.statistics))
    head = ["method", *(["task"] if len(tasks) > 1 else []), "runs"]
    head += [STATISTIC_NAMES[name] + ("" if name in bare else " [95 %]") for name in names]
    listed = _list_scores(comparison) if seeds else {}
    head += ["seed by seed"] if listed else []
    rows = []
    for task in tasks:
        for method in comparison.methods:
            found = comparison.statistics[method, task]
            cells = [method, *([task] if len(tasks) > 1 else []), str(_count_runs(comparison, method, task))]
            told = (_told(found[name], scaled=comparison.scaled, bare=name in bare) for name in names)
            rows.append([*cells, *told, *([listed.get((method, task), "")] if listed else [])])
    return head, rows


def _list_scores(comparison: MethodComparison) -> dict[tuple[str, str], str]:
    """Scores of up to `MOST_SEEDS` runs by method and task, as text."""
    single = len(comparison.tasks) == 1
    found: dict[tuple[str, str], list[str]] = {}
    for one in comparison.runs:
        told = _format_score(one.score, scaled=comparison.scaled)
        found.setdefault((one.method, ALL_TASKS if single else one.task), []).append(told)
    return {key: ", ".join(scores) for key, scores in found.items() if len(scores) <= MOST_SEEDS}


def pair_rows(comparison: MethodComparison) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the rows of the table of pairs, as text."""
    head = ["first", "second", "difference of IQM [95 %]", "probability of improvement [95 %]", "seeds"]
    rows = [
        [
            pair.better,
            pair.worse,
            _told(pair.difference, scaled=comparison.scaled),
            _told(pair.improvement),
            "paired" if pair.paired else "not paired",
        ]
        for pair in comparison.pairs
    ]
    return head, rows


def _told(estimate: Estimate, *, scaled: bool = True, bare: bool = False) -> str:
    shown = partial(_format_score, scaled=scaled)
    return shown(float(estimate.value)) if bare else format_estimate(estimate, shown)


def _format_score(score: float, *, scaled: bool) -> str:
    return format_fixed(score, 3) if scaled else format_finite(score)


def compose_comparison_markdown(comparison: MethodComparison) -> str:
    """Composes the title, the tables of statistics and of pairs, and warnings as Markdown, for documents."""
    pairs = [pair_rows(comparison)] if comparison.pairs else []
    tables = [
        "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
        for head, rows in (statistic_rows(comparison, seeds=True), *pairs)
    ]
    warnings = [f"Warning: {line}." for line in comparison.warnings]
    return "\n\n".join([f"{comparison_title(comparison)}.", *tables, *warnings])


def comparison_title(comparison: MethodComparison) -> str:
    """Names what was compared."""
    tasks = ", ".join(f"{task} ({measure})" for task, measure in comparison.measures.items())
    number = len(comparison.runs)
    source = f", {comparison.source}" if comparison.source else ""
    return f"{number} run{'s' if number > 1 else ''} on {tasks}{source}"


def comparison_tables(comparison: MethodComparison) -> list[Table]:
    """Tables for the terminal: statistics, and pairs if there are several methods."""
    tables = [(comparison_title(comparison), statistic_rows(comparison, intervals=False))]
    tables += [("in pairs", pair_rows(comparison))] if comparison.pairs else []
    found = []
    for title, (head, rows) in tables:
        # As texts: names of methods can have brackets, which Rich would read as its markup.
        table = Table(title=Text(title), title_justify="left")
        for index, column in enumerate(head):
            table.add_column(Text(column), justify="left" if index == 0 else "right")
        for row in rows:
            table.add_row(*map(Text, row))
        found.append(table)
    return found


def write_comparison_page(path: Path, comparison: MethodComparison) -> None:
    """Writes a comparison as a self-contained page."""
    colours = {method: number for number, method in enumerate(comparison.methods)}
    curves = [
        draw_chart(
            f"{task}: {comparison.measures[task]}",
            [
                Line(one.method, one.x, *one.score, colour=colours[one.method])
                for one in comparison.curves
                if (one.task, one.axis) == (task, axis)
            ],
            across=across,
        )
        for task in comparison.tasks
        for axis, across in AXIS_NAMES.items()
    ]
    profiles = [
        Line(method, comparison.thresholds, *profile, colour=colours[method])
        for method, profile in comparison.profiles.items()
    ]
    profile = draw_chart("runs above a score", profiles, across="score", bounds=(-0.02, 1.02), percent=True)
    runs = [
        [
            one.method,
            one.task,
            str(one.run.seed),
            f"{one.step:,}",
            format_finite(one.raw),
            format_fixed(one.score, 3),
            str(one.run.folder),
        ]
        for one in comparison.runs
    ]
    run_table = pages.write_table(["method", "task", "seed", "step", "as recorded", "score", "folder"], runs)
    parts = [
        *(pages.write_paragraph(f"Warning: {line}.", "warning") for line in comparison.warnings),
        pages.lay_out_section("Scores", (), pages.write_table(*statistic_rows(comparison))),
        pages.lay_out_section("In pairs", (), pages.write_table(*pair_rows(comparison))),
        pages.write_paragraph(_METHODS),
        pages.lay_out_section("Interquartile means and profiles", [*curves, profile]),
        pages.fold_part("all runs", run_table),
    ]
    path.write_text(pages.compose_page(comparison_title(comparison), parts), encoding="utf-8")
