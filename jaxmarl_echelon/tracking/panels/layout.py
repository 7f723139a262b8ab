"""Layout of panels for a given terminal size, with header and bottom row."""

import re
from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from jaxmarl_echelon.tracking.formats import format_clock, format_count
from jaxmarl_echelon.tracking.panels.curriculum import draw_curriculum
from jaxmarl_echelon.tracking.panels.history import draw_history
from jaxmarl_echelon.tracking.panels.parts import ACCENT, align_ends, draw_meter, draw_panel, list_numbers
from jaxmarl_echelon.tracking.panels.pool import draw_pool
from jaxmarl_echelon.tracking.panels.results import draw_evaluations, draw_training
from jaxmarl_echelon.tracking.view import RunView

HEADER_HEIGHT = 5
MIDDLE_LEAST = 10
BOTTOM_LEAST = 5
# Events for which a bottom row has room before the history gets any.
EVENTS = 6
PANEL_WIDTH = 33
MIDDLE_PANEL_WIDTH = 32
TRANSITION = re.compile(r"phase (\d+) -> (\d+)")


def compose_dashboard(view: RunView, width: int, height: int, now: float, running: bool = True) -> Layout:
    """Composes the dashboard for a terminal of `width` times `height` cells.

    Rows of panels that do not fit are omitted, lowest first. The curriculum is in the row of training and
    evaluation if three panels fit, else in the bottom row. What the other rows do not need shows the history.
    """
    rows = [Layout(draw_header(view, width - 4, now, running), name="header", size=HEADER_HEIGHT)]
    left = height - HEADER_HEIGHT
    beside = bool(view.section("curriculum/")) and width >= 3 * MIDDLE_PANEL_WIDTH
    if left >= BOTTOM_LEAST:
        middle = _middle_height(view, left)
        drawn = [draw_training, draw_evaluations, *([draw_curriculum] if beside else [])]
        inner = width // len(drawn) - 4
        rows.append(_row("middle", [draw(view, inner, middle - 2) for draw in drawn], middle))
        left -= middle
        for number, (tall, history) in enumerate(draw_history(view, width, left - _bottom_height(view))):
            rows.append(_row(f"history {number}", history, tall))
            left -= tall
    if left >= BOTTOM_LEAST:
        rows.append(_row("bottom", draw_bottom_row(view, width, left - 2, not beside), left))
    picture = Layout()
    picture.split_column(*rows)
    return picture


def draw_header(view: RunView, width: int, now: float, running: bool) -> Panel:
    """Draws the header: run, progress bar, speed and times."""
    pace = view.pace
    compiling = view.first_update is None and "time/compile_seconds" not in view.latest
    state = Text("compiling" if compiling else "running", style="bold yellow" if compiling else "bold green")
    if not running:
        state = Text("ended", style="bold")
    title = Text(" · ").join(
        Text(part, style="bold" if i < 2 else "") for i, part in enumerate(view.run.title)
    )
    title.truncate(width - 22, overflow="ellipsis")
    lines = Group(
        align_ends(title, Text.assemble(state, "  ", format_clock(now - view.started))),
        draw_meter(pace.fraction, pulse=running and compiling),
        _facts(view, now, width),
    )
    return Panel(lines, title="[bold]jaxmarl_echelon[/]", border_style=ACCENT, box=box.ROUNDED)


def draw_bottom_row(view: RunView, width: int, height: int, with_curriculum: bool) -> list[Panel]:
    """Draws the panels of the last row, as many as fit.

    In order: curriculum, opponent pool, the environment's measures, losses, reward components (largest
    first); events are always last.
    """
    # A pool's table of ratings takes two places.
    room = max(width // PANEL_WIDTH, 1) - (2 if view.entries and width < 5 * PANEL_WIDTH else 1)
    found = [
        ("results", view.results()),
        ("losses", view.losses()),
        ("reward", _components(view)),
    ]
    panels = [draw_panel(title, list_numbers(values, height)) for title, values in found if values]
    if view.entries:
        panels.insert(0, draw_pool(view, width // min(len(panels) + 2, room + 1) - 4, height))
    if with_curriculum and view.section("curriculum/") and room:
        panels.insert(0, draw_curriculum(view, width // min(len(panels) + 2, room + 1) - 4, height))
    return [*panels[:room], draw_events(view, height)]


def draw_events(view: RunView, height: int) -> Panel:
    """Draws the newest events, newest first."""
    if not view.events:
        return draw_panel("events", Text("none yet", style="dim"))
    shown = [(format_count(step), text) for step, text in list(view.events)[::-1][: max(height, 0)]]
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", justify="right", no_wrap=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for step, text in shown:
        table.add_row(step, Text(text, style=event_style(text)))
    return draw_panel("events", table)


def event_style(text: str) -> str:
    """Returns the style of an event: regressions red, forced advances yellow, new bests green."""
    transition = TRANSITION.search(text)
    if "regress" in text or (transition and int(transition[2]) < int(transition[1])):
        return "red"
    if "forced" in text:
        return "yellow"
    if re.search(r"\bbest_", text):
        return "green"
    return f"bold {ACCENT}" if transition else ""


def _middle_height(view: RunView, left: int) -> int:
    if left < MIDDLE_LEAST + BOTTOM_LEAST:
        return left
    tasks = view.section("eval_agg/task/")
    wanted = 9 + len(view.outcomes()) + len(tasks)
    # The two rows below the minimal bottom row go to it rather than to the middle.
    most = max(MIDDLE_LEAST + 2, left * 3 // 5)
    return max(min(wanted, most, left - BOTTOM_LEAST), MIDDLE_LEAST)


def _bottom_height(view: RunView) -> int:
    """Returns the height that the longest panel of the bottom row needs, and some events."""
    lists = (view.results(), view.losses(), _components(view), view.entries, EVENTS * [None])
    return 2 + max(map(len, lists))


def _components(view: RunView) -> list[tuple[str, float | int | str]]:
    """Returns the components of the return in training, the largest first."""
    paid = [item for item in view.section("train/reward_components/") if "/" not in item[0]]
    return sorted(paid, key=lambda item: -abs(item[1]))


def _facts(view: RunView, now: float, width: int) -> Table:
    pace = view.pace
    steps = Text.assemble((format_count(pace.step), "bold"), f" / {format_count(pace.total)} steps")
    speed = Text.assemble((format_count(view.speed), "bold"), " steps/s")
    times = [("compile", view.value("time/compile_seconds"))]
    if view.first_update is not None and width > 66:
        times.append(("run", now - view.first_update))
    times.append(("ETA", pace.remaining(now)))
    right = Text(" · ").join(Text.assemble((f"{name} ", "dim"), format_clock(value)) for name, value in times)
    return align_ends(Text.assemble(steps, ("  ·  " if width > 80 else " · "), speed), right)


def _row(name: str, panels: Sequence[Panel], size: int) -> Layout:
    row = Layout(name=name, size=size)
    row.split_row(*panels)
    return row
