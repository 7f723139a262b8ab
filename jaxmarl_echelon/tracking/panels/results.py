"""Training and evaluation panels."""

import math

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from jaxmarl_echelon.tracking.base import Values
from jaxmarl_echelon.tracking.formats import draw_sparkline, format_count, format_finite
from jaxmarl_echelon.tracking.panels import parts
from jaxmarl_echelon.tracking.panels.parts import ACCENT, colour_share
from jaxmarl_echelon.tracking.view import RunView, select_prefix

COLUMNS = ("95 %", "return", "length", "± std")
LEAST_EVALUATIONS = 2
# Least width of a number beside a sparkline, and cells between the columns there.
NUMBER, GAPS = 7, 4


def draw_training(view: RunView, width: int, height: int) -> Panel:
    """Draws the newest training results with trends, the last episodes, and a bar per outcome."""
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", min_width=NUMBER, no_wrap=True)
    table.add_column(ratio=1, no_wrap=True)
    returns = [(f"train/return{role}", f"return{role}") for role, _ in view.section("train/return")]
    courses = {
        key: label for key, label in (*returns, ("train/episode_length", "length")) if key in view.latest
    }
    cells = {key: Text(format_finite(view.value(key)), style="bold") for key in courses}
    if (score := f"train/{view.score_column}") in view.latest:
        courses = {score: view.score, **courses}
        cells[score] = colour_share(view.value(score), good=True)
    # What a sparkline lacks room for is cut off at its newest end.
    taken = max(map(len, courses.values()), default=0) + max(NUMBER, *map(len, cells.values()), 0)
    room = max(width - taken - GAPS, 4)
    for key, label in courses.items():
        bounds, style = ((0.0, 1.0), "green") if key == score else ((), ACCENT)
        table.add_row(label, cells[key], Text(draw_sparkline(view.trend(key, room), *bounds), style=style))
    lines: list[RenderableType] = [table] if table.row_count else []
    if answers := view.answers():
        lines.append(Text(" · ".join(answers), no_wrap=True, overflow="ellipsis"))
        height -= 1
    if view.recent:
        lines.append(draw_recent_outcomes(view, width))
    if not lines:
        return parts.draw_panel("training", Text("no episode has ended yet", style="dim"))
    outcomes = [one for one in view.outcomes() if math.isfinite(one[1])]
    left = height - table.row_count - (1 if view.recent else 0)
    if outcomes and left > len(outcomes):
        lines.append(Text(""))
        left -= 1
    lines.append(parts.outcome_bars(outcomes[: max(left, 0)], view.good_outcomes, width))
    return parts.draw_panel("training", Group(*lines))


def draw_recent_outcomes(view: RunView, width: int) -> Text:
    """Draws the outcomes of the newest episodes by colour, newest at the right; successes are taller."""
    line = Text("recent  ", style="dim", no_wrap=True)
    for outcome in list(view.recent)[-max(width - len(line), 1) :]:
        tall = not view.good_outcomes or outcome in view.good_outcomes
        line.append("▇" if tall else "▃", style=f"not dim {parts.outcome_colour(outcome)}")
    return line


def draw_evaluations(view: RunView, width: int, height: int) -> Panel:
    """Draws the last evaluations, newest first; for the last one, as space allows, outcomes and tasks.

    Without space for one bar per outcome, outcomes share a stacked bar; without space for all tasks, those
    with the lowest success are shown.
    """
    if not view.evaluations:
        return parts.draw_panel("evaluation", Text("none yet", style="dim"))
    last = view.evaluations[-1][1]
    lines = _headlines(view, last, width)
    least = min(LEAST_EVALUATIONS, len(view.evaluations))
    room = height - len(lines) - 1 - least
    details: list[RenderableType] = []
    outcomes, tasks = view.ordered(select_prefix(last, "outcome/")), select_prefix(last, "task/")
    if outcomes and room >= len(outcomes) + len(tasks):
        details.append(parts.outcome_bars(outcomes, view.good_outcomes, width))
        room -= len(outcomes)
    elif outcomes and room > 0:
        details.append(parts.draw_stacked_outcomes(outcomes, width))
        room -= 1
    if tasks and room > 0:
        hardest = sorted(tasks, key=lambda item: item[1] if math.isfinite(item[1]) else 2.0)
        if room > len(tasks) and details:
            details.append(Text(""))
            room -= 1
        details.append(parts.success_bars(tasks if len(tasks) <= room else hardest[:room], width))
        room -= min(len(tasks), room)
    table = _evaluations(view, width, least + max(room, 0))
    return parts.draw_panel("evaluation", Group(*lines, table, *details))


def _headlines(view: RunView, last: Values, width: int) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if view.best is not None:
        best = Text.assemble(
            (f"best{view.best_of} ", "dim"),
            colour_share(view.best[1], good=True),
            (f" at {format_count(view.best[0])}", "dim"),
        )
        points = view.trend(f"eval_agg/{view.best_column}", max(width - best.cell_len - 2, 1))
        lines.append(parts.align_ends(best, Text(draw_sparkline(points, 0.0, 1.0), style="green")))
    if "phase_success_rate" in last:
        phase = Text.assemble(("this phase ", "dim"), colour_share(last["phase_success_rate"], good=True))
        episodes = float(last.get("num_episodes", math.nan))
        number_of = f"{format_count(episodes)} episodes" if math.isfinite(episodes) else ""
        lines.append(parts.align_ends(phase, Text(number_of, style="dim")))
    return lines


def _evaluations(view: RunView, width: int, rows: int) -> Table:
    columns = next((n for n, least in ((6, 52), (5, 42), (4, 28), (3, 22)) if width >= least), 2)
    gap = 1 if width < 33 else 2
    table = Table(box=None, expand=True, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for title in ("steps", view.score or "score", *COLUMNS)[:columns]:
        table.add_column(title, justify="right", no_wrap=True)
    for step, values in list(view.evaluations)[::-1][:rows]:
        table.add_row(*_evaluation_cells(view, step, values)[:columns])
    return table


def _evaluation_cells(view: RunView, step: int, values: Values) -> list[RenderableType]:
    def value(key: str) -> float:
        return float(values.get(key, math.nan))

    mean, low, high = view.interval(values)
    return [
        format_count(step),
        colour_share(mean, good=True),
        Text(f"{100 * low:.0f}–{100 * high:.0f}" if math.isfinite(low + high) else "-", style="dim"),
        *(format_finite(value(key)) for key in ("avg_reward", "avg_episode_length", "std_reward")),
    ]
