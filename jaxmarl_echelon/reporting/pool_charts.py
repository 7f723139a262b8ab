"""Chart and table of the ratings in an opponent pool."""

import math
from collections.abc import Mapping

import numpy as np

from jaxmarl_echelon.reporting.charts import Line, draw_chart
from jaxmarl_echelon.reporting.pages import write_table
from jaxmarl_echelon.tracking.formats import format_count, format_fixed
from jaxmarl_echelon.tracking.run_tables import PoolRows, group_by_name, is_own_learner

_MOST_POINTS = 80


def chart_ratings(rows: PoolRows) -> str:
    """Draws ratings over steps: learners and fixed opponents by name, snapshots in a neutral colour.

    The rating of the run's own learner has a band of one standard deviation.
    """
    lines, number = [], 0
    for name, mine in group_by_name(rows).items():
        mine = [
            mine[i]
            for i in np.unique(np.linspace(0, len(mine) - 1, min(len(mine), _MOST_POINTS)).astype(int))
        ]
        steps, mu, sigma = (np.array([_number(row, key) for row in mine]) for key in ("step", "mu", "sigma"))
        if is_own_learner(mine[0]):
            lines.insert(0, Line(name, steps, mu, mu - sigma, mu + sigma, 0))
        elif mine[0]["kind"] in ("learner", "fixed"):
            number += 1
            lines.append(Line(name, steps, mu, colour=number))
        else:
            lines.append(Line("snapshots", steps, mu, colour=None, style="faint"))
    return draw_chart("ratings", lines)


def list_ratings(rows: PoolRows) -> str:
    """Lists the pool's entries at its last update, the highest rating first."""
    last = [row for row in rows if row["step"] == rows[-1]["step"]] if rows else []
    last.sort(key=lambda row: -_number(row, "mu"))
    cells = [
        [
            row["name"],
            row["kind"],
            format_fixed(_number(row, "mu"), 2),
            format_fixed(_number(row, "sigma"), 2),
            format_count(sum(_number(row, result) for result in ("wins", "draws", "losses"))),
            format_fixed(_number(row, "score"), 2),
        ]
        for row in last
    ]
    return write_table(["entry", "kind", "rating", "deviation", "games", "learner's score against it"], cells)


def _number(row: Mapping[str, str], key: str) -> float:
    try:
        return float(row.get(key) or math.nan)
    except ValueError:
        return math.nan
