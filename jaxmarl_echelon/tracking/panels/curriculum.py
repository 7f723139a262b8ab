"""Curriculum panel: current phase and the criteria for leaving it."""

import math
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from jaxmarl_echelon.tracking.formats import format_count, format_finite, format_number, format_short_percent
from jaxmarl_echelon.tracking.panels import parts
from jaxmarl_echelon.tracking.panels.parts import ACCENT
from jaxmarl_echelon.tracking.view import RunView

SHOWN = frozenset({
    "current_stage", "phase_name", "rolling_success", "episodes_in_stage", "phase_success_rate",
    "decided_success", "avg_reward", "criteria_success_rate", "criteria_min_episodes", "criteria_avg_reward",
    "criteria_eval_success_rate", "criteria_eval_required_runs", "eval_success_streak", "patience",
    "total_phases", "progress", "advances", "forced_advances", "regressions",
    # Aliases of the above, including those of staged curricula.
    "phase_idx", "stage", "total_stages", "stage_success_rate", "enable_rate",
})  # fmt: skip
TRANSITIONS = (
    ("advances", "advances", "bold"),
    ("forced_advances", "forced", "bold yellow"),
    ("regressions", "regressions", "bold red"),
)
MARKS = {True: ("✓", "bold green"), False: ("✗", "bold red"), None: ("", "")}


# Fields of a criterion `criteria/NAME/FIELD`: the measured value, and the limit it is compared with.
MEASURED = {"rate": format_short_percent, "number": format_finite, "count": format_count}
LIMITS = {"above": ">", "at_least": "/", "at_most": "≤"}
CRITERIA = "criteria/"
# Of the rates of outcomes that do not count as success.
CAPS = "criteria_max_"


class Criterion(NamedTuple):
    """A condition for leaving the phase.

    Attributes:
      name: the measured quantity.
      value: its current value, as text.
      limit: its threshold, as text; empty without one.
      met: whether the threshold is met; None without one.
      mark: text after it; by default derived from `met`.
      interval: the interval of the value, as text; empty without one.
      shortfall: the missing amount to meet the threshold, as text; empty if nothing or unknown.
    """

    name: str
    value: str
    limit: str = ""
    met: bool | None = None
    mark: tuple[str, str] | None = None
    interval: str = ""
    shortfall: str = ""

    @property
    def lines(self) -> int:
        """Number of lines on the panel."""
        return 1 + bool(self.interval)


def draw_curriculum(view: RunView, width: int, height: int) -> Panel:
    """Draws phase, progress through all phases, criteria with their intervals, and counts of transitions.

    If not everything fits, intervals are omitted, and unmet criteria come first.
    """
    conditions = collect_criteria(view)
    head = _head(view, width)
    room = height - len(head)
    if sum(item.lines for item in conditions) > room:
        conditions = [item._replace(interval="") for item in conditions]
    if len(conditions) > room:
        conditions.sort(key=lambda item: (False, True, None).index(item.met))
        conditions = conditions[: max(room, 0)]
    room -= sum(item.lines for item in conditions)
    lines: list[RenderableType] = list(head)
    way, transitions = _way(view), _transitions(view, width)
    if math.isfinite(way) and room > 0:
        lines.append(parts.draw_meter(way))
        room -= 1
    if conditions:
        lines.append(_table(conditions))
    if transitions is not None and room > 0:
        lines.append(transitions)
        room -= 1
    facts = _facts(view)
    if facts and room > 0:
        lines.append(parts.list_numbers(facts, room))
    return parts.draw_panel("curriculum", Group(*lines) if lines else Text("not known yet", style="dim"))


def collect_criteria(view: RunView) -> list[Criterion]:
    """Returns the known criteria for leaving the current phase."""

    def value(*names: str) -> float:
        known = (view.value(f"curriculum/{name}") for name in names)
        return next(filter(math.isfinite, known), math.nan)

    episodes = value("episodes_in_stage")
    success = value("phase_success_rate", "rolling_success", "stage_success_rate")
    caps = {name: value(f"{CAPS}{name}_rate") for name in view.run.spec.outcomes}
    runs, rate = value("criteria_eval_required_runs"), value("criteria_eval_success_rate")
    found = [
        _criterion("success", success, value("criteria_success_rate", "enable_rate"), format_short_percent),
        _criterion("reward", value("avg_reward"), value("criteria_avg_reward"), format_number),
        _criterion("episodes", episodes, value("criteria_min_episodes"), format_count),
        *(_cap(name, value(f"{name}_rate"), cap) for name, cap in caps.items() if math.isfinite(cap)),
    ]
    if runs > 0:
        name = f"eval ≥{format_short_percent(rate)}" if math.isfinite(rate) else "evaluation"
        found.append(_criterion(name, value("eval_success_streak"), runs, format_count))
    if value("patience") > 0:
        patience = _criterion("patience", episodes, value("patience"), format_count)
        # Never marked as met: when patience runs out, the advance is forced.
        mark = ("!", "bold yellow") if patience.met else ("", "")
        found.append(patience._replace(met=None, mark=mark))
    found += [_measured(fields) for fields in _measurements(view) if _limit(fields)[0]]
    return [item for item in found if item is not None]


def _measurements(view: RunView) -> list[dict[str, float | int | str]]:
    """Collects the fields of each `criteria/NAME/...`, with its `name`, in order of appearance."""
    found: dict[str, dict] = {}
    for key, value in view.section(f"curriculum/{CRITERIA}"):
        name, _, field = key.rpartition("/")
        found.setdefault(name, {"name": name})[field] = value
    return list(found.values())


def _limit(fields: dict) -> tuple[str, float]:
    """Returns the name of the threshold field and its value; empty and NaN without one."""
    known = ((name, fields[name]) for name in LIMITS if math.isfinite(fields.get(name, math.nan)))
    return next(known, ("", math.nan))


def _value(fields: dict) -> tuple[float, Callable[[float], str]]:
    """Returns the measured value and its formatter."""
    return next(
        ((fields[kind], text) for kind, text in MEASURED.items() if kind in fields), (math.nan, format_count)
    )


def _measured(fields: dict) -> Criterion:
    """Builds a criterion from the logged fields of a measurement: value, interval and threshold."""
    (value, text), (kind, limit) = _value(fields), _limit(fields)
    low, high, met = (fields.get(name, math.nan) for name in ("low", "high", "met"))
    if not math.isfinite(met) and math.isfinite(value):
        met = {"above": value > limit, "at_least": value >= limit, "at_most": value <= limit}[kind]
    shown = text(value) if math.isfinite(value) else "-"
    sure = math.isfinite(low) and math.isfinite(high)
    return Criterion(
        name=fields["name"],
        value=shown,
        limit=f"{LIMITS[kind]} {text(limit)}",
        met=met == 1,
        interval=f"{text(low).removesuffix(' %')}–{text(high)}" if sure else "",
        shortfall="" if met == 1 else _lack(fields, text),
    )


def _lack(fields: dict, text: Callable[[float], str]) -> str:
    """Formats the shortfall of the interval's lower end, or else the effect size that is too small."""
    low, limit = fields.get("low", math.nan), fields.get("above", math.nan)
    if low <= limit:
        return f"+{text(limit - low)}"
    effect, least = (fields.get(name, math.nan) for name in ("effect", "least_effect"))
    return f"d {effect:.2f}" if effect < least else ""


def _criterion(name: str, value: float, limit: float, text) -> Criterion | None:
    shown = text(value) if math.isfinite(value) else "-"
    if math.isfinite(limit):
        return Criterion(name, shown, f"/ {text(limit)}", value >= limit)
    return Criterion(name, shown) if math.isfinite(value) else None


def _cap(name: str, rate: float, most: float) -> Criterion:
    limit = f"{LIMITS['at_most']} {format_short_percent(most)}"
    return Criterion(name, format_short_percent(rate), limit, rate <= most)


def _head(view: RunView, width: int) -> list[Text]:
    position, name = view.phase
    if not position and not name:
        return []
    title = Text.assemble(
        ("phase ", "dim"), (position, f"bold {ACCENT}"), "  " if position else "", (name, "bold")
    )
    title.truncate(width, overflow="ellipsis")
    return [title]


def _way(view: RunView) -> float:
    """Returns the fraction of phases completed; NaN if unknown."""
    done = view.value("curriculum/progress")
    if math.isfinite(done) or not view.phases > 0:
        return done
    return view.value("curriculum/current_stage") / view.phases


def _table(conditions: list[Criterion]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    table.add_column(style="dim", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(width=1, no_wrap=True)
    for item in conditions:
        mark = MARKS[item.met] if item.mark is None else item.mark
        table.add_row(item.name, item.value, item.limit, Text(*mark))
        if item.interval:
            table.add_row(f" {item.interval}", "needs" if item.shortfall else "", item.shortfall, "")
    return table


def _transitions(view: RunView, width: int) -> Text | None:
    found = []
    for key, label, style in TRANSITIONS:
        times = view.value(f"curriculum/{key}")
        if math.isfinite(times):
            found.append(
                Text.assemble((f"{label} ", "dim"), (format_count(times), style if times else "bold"))
            )
    if sum(text.cell_len + 2 for text in found) - 2 > width:
        # Advances also show in the phase's number.
        found = found[1:]
    line = Text("  ", no_wrap=True).join(found)
    return line if found else None


def _facts(view: RunView) -> list[tuple[str, float | int | str]]:
    """Collects outcome rates in this phase, measurements for other phases, then all other values."""
    rates = {f"{name}_rate": name for name in view.run.spec.outcomes}
    given = {
        name: value
        for name, value in view.section("curriculum/")
        if name not in SHOWN and not name.startswith((CRITERIA, CAPS))
    }
    measurements = [
        (fields["name"], *_value(fields)) for fields in _measurements(view) if not _limit(fields)[0]
    ]
    others = [(name, text(value)) for name, value, text in measurements if math.isfinite(value)]
    shares = [
        (name, format_short_percent(view.value(f"curriculum/{key}")))
        for key, name in rates.items()
        if key in given and not math.isfinite(view.value(f"curriculum/{CAPS}{key}"))
    ]
    return [*shares, *others, *((name, value) for name, value in given.items() if name not in rates)]
