"""The dashboard's picture: a run's view and a size in, Rich renderables out."""

import math
import zlib
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jaxmarl_echelon.tracking.base import Values
from jaxmarl_echelon.tracking.formats import bar, clock, count, number, percent, sparkline
from jaxmarl_echelon.tracking.view import RunView

OUTCOME_COLOURS = {
    "target_crash": "green",
    "self_crash": "red",
    "collision": "yellow",
    "timeout": "blue",
    "idle_stop": "magenta",
    "target_finish": "cyan",
}
PALETTE = ("bright_blue", "bright_magenta", "bright_cyan", "bright_yellow", "bright_red", "bright_green")
ACCENT = "cyan"
HEADER_HEIGHT = 5
MIDDLE_HEIGHTS = (10, 14)
BOTTOM_LEAST = 5
PANEL_WIDTH = 33


def frame(view: RunView, width: int, height: int, now: float, running: bool = True) -> Layout:
    """Composes the dashboard for a terminal of `width` times `height` cells.

    Rows of panels that do not fit are left out, the lowest first.
    """
    rows = [Layout(header(view, width - 4, now, running), name="header", size=HEADER_HEIGHT)]
    left = height - HEADER_HEIGHT
    if left >= BOTTOM_LEAST:
        wanted = 6 + len(view.outcomes())
        middle = min(max(wanted, MIDDLE_HEIGHTS[0]), MIDDLE_HEIGHTS[1])
        middle = middle if left - middle >= BOTTOM_LEAST else left
        inner = width // 2 - 4
        panels = [training(view, inner, middle - 2), evaluation(view, inner, middle - 2)]
        rows.append(_row("middle", panels, middle))
        left -= middle
    if left >= BOTTOM_LEAST:
        rows.append(_row("bottom", bottom(view, width, left - 2), left))
    picture = Layout()
    picture.split_column(*rows)
    return picture


def header(view: RunView, width: int, now: float, running: bool) -> Panel:
    """Run, progress bar, speed and times."""
    pace = view.pace
    compiling = view.first_update is None and "time/compile_seconds" not in view.latest
    state = Text("compiling" if compiling else "running", style="bold yellow" if compiling else "bold green")
    if not running:
        state = Text("ended", style="bold")
    title = Text(" · ").join(
        Text(part, style="bold" if i < 2 else "") for i, part in enumerate(view.run.title)
    )
    title.truncate(width - 22, overflow="ellipsis")
    progress = Table.grid(expand=True, padding=(0, 1))
    progress.add_column(ratio=1)
    progress.add_column(justify="right", no_wrap=True)
    meter = ProgressBar(
        total=1.0,
        completed=pace.fraction,
        pulse=running and compiling,
        complete_style=ACCENT,
        finished_style="green",
    )
    progress.add_row(meter, Text(percent(pace.fraction), style="bold"))
    lines = Group(
        _ends(title, Text.assemble(state, "  ", clock(now - view.started))),
        progress,
        _facts(view, now, width),
    )
    return Panel(lines, title="[bold]jaxmarl_echelon[/]", border_style=ACCENT, box=box.ROUNDED)


def training(view: RunView, width: int, height: int) -> Panel:
    """Newest results of training, their courses, and a bar per outcome."""
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", min_width=7, no_wrap=True)
    table.add_column(ratio=1, no_wrap=True)
    room = max(width - 18, 4)
    if "train/success_rate" in view.latest:
        spark = Text(sparkline(view.trend("train/success_rate", room), 0.0, 1.0), style="green")
        table.add_row("success", share(view.value("train/success_rate"), good=True), spark)
    returns = [(f"train/return{role}", f"return{role}") for role, _ in view.section("train/return")]
    for key, label in (*returns, ("train/episode_length", "length")):
        if key in view.latest:
            spark = Text(sparkline(view.trend(key, room)), style=ACCENT)
            table.add_row(label, Text(number(view.value(key)), style="bold"), spark)
    if not table.row_count:
        return _panel("training", Text("no episode has ended yet", style="dim"))
    bars = outcome_bars(view, width, height - table.row_count - 1)
    return _panel("training", Group(table, Text(""), bars))


def outcome_bars(view: RunView, width: int, rows: int) -> Table:
    """One bar per outcome, at most `rows`."""
    outcomes = view.outcomes()[: max(rows, 0)]
    names = min(max((len(name) for name, _ in outcomes), default=0), 16)
    table = Table.grid(padding=(0, 1))
    table.add_column(width=names, no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True)
    table.add_column(width=7, justify="right", no_wrap=True)
    for name, fraction in outcomes:
        colour = outcome_colour(name)
        good = None if view.success is None else name == view.success
        meter = Text(bar(fraction, max(width - names - 10, 4)), style=f"{colour} on grey15")
        table.add_row(Text(name, style=colour), meter, share(fraction, good))
    return table


def evaluation(view: RunView, width: int, height: int) -> Panel:
    """The last evaluations, newest first, above the course of their success."""
    if not view.evaluations:
        return _panel("evaluation", Text("none yet", style="dim"))
    lines: list[RenderableType] = []
    if view.best is not None:
        best = Text.assemble(
            ("best ", "dim"), share(view.best[1], good=True), (f" at {count(view.best[0])}", "dim")
        )
        points = view.trend("eval_agg/success_rate", max(width - best.cell_len - 2, 1))
        lines.append(_ends(best, Text(sparkline(points, 0.0, 1.0), style="green")))
    columns = 5 if width >= 42 else 4 if width >= 33 else 2
    table = Table(box=None, expand=True, padding=(0, 1), pad_edge=False, header_style="dim")
    for title in ("steps", "success", "95 %", "return", "length")[:columns]:
        table.add_column(title, justify="right", no_wrap=True)
    room = height - len(lines) - 1
    for step, values in list(view.evaluations)[::-1][: max(room, 0)]:
        table.add_row(*_evaluation_cells(step, values)[:columns])
    return _panel("evaluation", Group(*lines, table))


def bottom(view: RunView, width: int, height: int) -> list[Panel]:
    """Panels of the last row, as many as fit: what is known of curriculum, losses, pool
    and reward components (largest first), then events."""
    rewards = sorted(view.section("train/reward_components/"), key=lambda item: -abs(item[1]))
    room = max(width // PANEL_WIDTH, 1) - 1
    found = [
        ("curriculum", view.section("curriculum/")),
        ("losses", view.losses()),
        ("pool", view.section("pool/")),
        ("reward", rewards),
    ]
    panels = [_panel(title, numbers(values, height)) for title, values in found if values][:room]
    return [*panels, events(view, height)]


def numbers(values: Sequence[tuple[str, float | int | str]], height: int) -> Table:
    """Names and values, one per line."""
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    for name, value in values[:height]:
        if isinstance(value, str):
            table.add_row(name, Text(value, style="bold"))
        elif name.endswith(("success_rate", "fraction")):
            table.add_row(name, Text(percent(value), style="bold"))
        else:
            table.add_row(name, Text(number(value), style="bold" if math.isfinite(value) else "bold red"))
    return table


def events(view: RunView, height: int) -> Panel:
    """The newest events, newest first."""
    if not view.events:
        return _panel("events", Text("none yet", style="dim"))
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for step, text in list(view.events)[::-1][:height]:
        table.add_row(count(step), Text(text))
    return _panel("events", table)


def share(fraction: float, good: bool | None) -> Text:
    """A percentage, coloured at a half and a quarter; `good` says whether more is better."""
    if good is None or not math.isfinite(fraction):
        return Text(percent(fraction), style="bold")
    if good:
        colour = "green" if fraction >= 0.5 else "yellow" if fraction >= 0.25 else "red"
    else:
        colour = "red" if fraction >= 0.5 else "yellow" if fraction >= 0.25 else "green"
    return Text(percent(fraction), style=f"bold {colour}")


def outcome_colour(name: str) -> str:
    """The colour of an outcome; names without one of their own get the same one in every run."""
    return OUTCOME_COLOURS.get(name, PALETTE[zlib.crc32(name.encode()) % len(PALETTE)])


def _facts(view: RunView, now: float, width: int) -> Table:
    pace = view.pace
    steps = Text.assemble((count(pace.step), "bold"), f" / {count(pace.total)} steps")
    speed = Text.assemble((count(view.speed), "bold"), " steps/s")
    times = [("compile", view.value("time/compile_seconds"))]
    if view.first_update is not None and width > 66:
        times.append(("run", now - view.first_update))
    times.append(("ETA", pace.remaining(now)))
    right = Text(" · ").join(Text.assemble((f"{name} ", "dim"), clock(value)) for name, value in times)
    return _ends(Text.assemble(steps, ("  ·  " if width > 80 else " · "), speed), right)


def _evaluation_cells(step: int, values: Values) -> list[RenderableType]:
    value = {key: float(values.get(key, math.nan)) for key in ("success_rate", "success_low", "success_high")}
    low, high = 100 * value["success_low"], 100 * value["success_high"]
    return [
        count(step),
        share(value["success_rate"], good=True),
        Text(f"{low:.0f}–{high:.0f}" if math.isfinite(low + high) else "-", style="dim"),
        number(values.get("avg_reward", math.nan)),
        number(values.get("avg_episode_length", math.nan)),
    ]


def _row(name: str, panels: Sequence[Panel], size: int) -> Layout:
    row = Layout(name=name, size=size)
    row.split_row(*panels)
    return row


def _ends(left: Text, right: Text) -> Table:
    """Two texts at the two ends of one line."""
    line = Table.grid(expand=True)
    line.add_column(ratio=1, no_wrap=True)
    line.add_column(justify="right", no_wrap=True)
    line.add_row(left, right)
    return line


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(
        content, title=f"[bold]{title}[/]", title_align="left", border_style="grey50", box=box.ROUNDED
    )
