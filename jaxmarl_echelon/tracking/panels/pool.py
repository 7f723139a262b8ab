"""Panel of an opponent pool: ratings, scores and shares of its entries."""

import math

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from jaxmarl_echelon.tracking.base import Values
from jaxmarl_echelon.tracking.formats import draw_bar, format_count, format_percent
from jaxmarl_echelon.tracking.panels.parts import ACCENT, align_ends, draw_panel
from jaxmarl_echelon.tracking.run_tables import is_own_learner
from jaxmarl_echelon.tracking.view import RunView

NARROW = 44
WIDE = 60
BAR_WIDTH = 8
EXPECTED = ("expected", "quality")
PROMOTED = ("candidate", "commander")


def draw_pool(view: RunView, width: int, height: int) -> Panel:
    """Draws a table of the learner and its opponents, the highest rated first.

    Columns: with promotions, candidate or commander; rating and uncertainty; number of games with the learner
    and its score; if there is room, expected score and match quality; the entry's share among opponents. The
    learner is always shown, of the others as many as fit.
    """
    rows = sorted(view.entries.values(), key=lambda row: -float(row["mu"]))
    room = max(height - 2, 1)
    shown = rows[:room]
    learner = [row for row in rows if is_own_learner(row)]
    if learner and learner[0] not in shown:
        shown = [*shown[: room - 1], *learner]
    table = Table.grid(expand=True, padding=(0, 1))
    kinds = width >= NARROW and any(row["kind"] in PROMOTED for row in rows)
    head = ["entry", *(["kind"] if kinds else []), "rating", "games", "score"]
    head += [*EXPECTED] if width >= WIDE else []
    head += ["share"] if width >= NARROW else []
    for name in head:
        first = name == "entry"
        justify = "left" if name in ("entry", "kind") else "right"
        table.add_column(ratio=1 if first else None, justify=justify, no_wrap=True, overflow="ellipsis")
    table.add_row(*(Text(name, style="dim") for name in head))
    for row in shown:
        cells = _cells(row)
        table.add_row(*(cells[name] for name in head))
    size, worst = view.value("pool/size"), view.value("pool/worst_payoff")
    facts = align_ends(
        Text(f"{size:.0f} opponents" if math.isfinite(size) else "", style="dim"),
        Text(f"worst score {format_percent(worst)}" if math.isfinite(worst) else "", style="dim"),
    )
    return draw_panel("pool", Group(table, facts))


def _cells(row: Values) -> dict[str, Text]:
    own = is_own_learner(row)
    style = f"bold {ACCENT}" if own else "bold" if row["kind"] == "fixed" else ""
    games = sum(int(row[key]) for key in ("wins", "draws", "losses"))
    score = float(row["score"])
    cells = {
        "entry": Text(str(row["name"]), style=style),
        "kind": Text(str(row["kind"]) if row["kind"] in PROMOTED else "", style="dim"),
        "rating": Text(f"{float(row['mu']):.1f}±{float(row['sigma']):.1f}", style=style),
        "games": Text("" if own else format_count(games)),
        "score": Text("" if own or not math.isfinite(score) else format_percent(score), style=_colour(score)),
        "share": Text("" if own else draw_bar(float(row["share"]), BAR_WIDTH), style=f"{ACCENT} on grey15"),
    }
    for name in EXPECTED:
        cells[name] = Text("" if own else format_percent(float(row[name])), style="dim")
    return cells


def _colour(score: float) -> str:
    return "green" if score >= 0.55 else "red" if score < 0.45 else "yellow"
