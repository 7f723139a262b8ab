"""Renderables shared by panels."""

import math
import zlib
from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jaxmarl_echelon.tracking.formats import draw_bar, format_number, format_percent, format_short_percent

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
NAME_WIDTH = 16


def draw_panel(title: str, content: RenderableType) -> Panel:
    """Draws a frame with a left-aligned title."""
    return Panel(
        content, title=f"[bold]{title}[/]", title_align="left", border_style="grey50", box=box.ROUNDED
    )


def align_ends(left: Text, right: Text) -> Table:
    """Arranges two texts in one line, left- and right-aligned."""
    line = Table.grid(expand=True)
    line.add_column(ratio=1, no_wrap=True)
    line.add_column(justify="right", no_wrap=True)
    line.add_row(left, right)
    return line


def draw_meter(fraction: float, pulse: bool = False) -> Table:
    """Draws a bar of full width, followed by its percentage."""
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(ratio=1)
    line.add_column(justify="right", no_wrap=True)
    line.add_row(
        ProgressBar(
            total=1.0, completed=fraction, pulse=pulse, complete_style=ACCENT, finished_style="green"
        ),
        Text(format_percent(fraction), style="bold"),
    )
    return line


def colour_share(fraction: float, good: bool | None) -> Text:
    """Formats a percentage, coloured by thresholds of 1/2 and 1/4; `good`: whether higher is better."""
    if good is None or not math.isfinite(fraction):
        return Text(format_percent(fraction), style="bold")
    if good:
        colour = "green" if fraction >= 0.5 else "yellow" if fraction >= 0.25 else "red"
    else:
        colour = "red" if fraction >= 0.5 else "yellow" if fraction >= 0.25 else "green"
    return Text(format_percent(fraction), style=f"bold {colour}")


def outcome_colour(name: str) -> str:
    """Returns the colour of an outcome; a hash of the name selects that of unlisted ones."""
    return OUTCOME_COLOURS.get(name, PALETTE[zlib.crc32(name.encode()) % len(PALETTE)])


def outcome_bars(outcomes: Sequence[tuple[str, float]], good: Sequence[str], width: int) -> Table:
    """Draws one bar per outcome, in its colour."""
    rows = [
        (name, fraction, outcome_colour(name), name in good if good else None) for name, fraction in outcomes
    ]
    return _bars(rows, width)


def success_bars(successes: Sequence[tuple[str, float]], width: int) -> Table:
    """Draws one bar per name, coloured by its value."""
    rows = []
    for name, fraction in successes:
        colour = colour_share(fraction, good=True).style.removeprefix("bold").strip() or "default"
        rows.append((name, fraction, colour, True))
    return _bars(rows, width, name_style="default")


def draw_stacked_outcomes(outcomes: Sequence[tuple[str, float]], width: int) -> Text:
    """Draws all outcomes as one stacked bar, with percentages that fit."""
    line, end, total = Text(no_wrap=True), 0, 0.0
    for name, fraction in outcomes:
        total += fraction if math.isfinite(fraction) else 0.0
        begin, end = end, min(max(round(total * width), end), width)
        label = format_short_percent(fraction, digits=0)
        size = end - begin
        text = label if len(label) <= size else ""
        line.append(text.center(size), style=f"black on {outcome_colour(name)}")
    return line


def list_numbers(values: Sequence[tuple[str, float | int | str]], height: int) -> Table:
    """Lists names and values, one per line."""
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    for name, value in values[: max(height, 0)]:
        if isinstance(value, str):
            table.add_row(name, Text(value, style="bold"))
        elif name.endswith(("success_rate", "fraction")):
            table.add_row(name, Text(format_percent(value), style="bold"))
        else:
            table.add_row(
                name, Text(format_number(value), style="bold" if math.isfinite(value) else "bold red")
            )
    return table


def _bars(rows: Sequence[tuple[str, float, str, bool | None]], width: int, name_style: str = "") -> Table:
    names = min(max((len(name) for name, *_ in rows), default=0), NAME_WIDTH)
    table = Table.grid(padding=(0, 1))
    table.add_column(width=names, no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True)
    table.add_column(width=7, justify="right", no_wrap=True)
    for name, fraction, colour, good in rows:
        meter = Text(draw_bar(fraction, max(width - names - 10, 4)), style=f"{colour} on grey15")
        table.add_row(Text(name, style=name_style or colour), meter, colour_share(fraction, good))
    return table
