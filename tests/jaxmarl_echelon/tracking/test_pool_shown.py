"""What the terminal, the tables and the plots show of an opponent pool."""

import io
import math
import re

import matplotlib.image
from matplotlib.figure import Figure
from rich.console import Console
from tracking_runs import run_info, write_updates

from jaxmarl_echelon.tracking.csv_sink import CsvSink, read_columns
from jaxmarl_echelon.tracking.panels import compose_dashboard
from jaxmarl_echelon.tracking.panels.pool import draw_pool
from jaxmarl_echelon.tracking.pool_plot import plot_payoffs, plot_ratings, pool_plot
from jaxmarl_echelon.tracking.view import RunView

NAMES = ("blue now", "#0", "#7", "heuristic")
KINDS = ("learner", "snapshot", "snapshot", "fixed")


def entries(update: int = 0) -> list[dict]:
    """Rows of a small pool; the script has not been met."""
    rows = []
    for entry, (name, kind) in enumerate(zip(NAMES, KINDS, strict=True)):
        games = 0 if entry in (0, 3) else 40
        rows.append(
            {
                "entry": entry,
                "name": name,
                "kind": kind,
                "iteration": {"#0": 0, "#7": 7}.get(name, -1),
                "mu": 30.0 - 4.0 * entry + 0.1 * update,
                "sigma": 1.25,
                "wins": games // 2,
                "draws": games // 4,
                "losses": games // 4,
                "score": 0.625 if games else math.nan,
                "expected": 0.71,
                "quality": 0.38,
                "share": 0.25 * entry,
                "groups": entry,
            }
        )
    return rows


class Writer:
    """Lets the made-up run write into a view, with a pool."""

    def __init__(self, view: RunView):
        self.view = view

    def write(self, namespace, step, values):
        self.view.write(namespace, step, values, 1.0)

    def flush(self):
        for row in entries():
            self.view.write("entries", 0, row, 1.0)
        self.view.write("pool", 0, {"size": 3, "worst_payoff": 0.42}, 1.0)


def test_panel_on_a_small_terminal(tmp_path):
    """On 100x30: ratings with uncertainty, games, scores; the learner stays in sight."""
    view = RunView(run_info(tmp_path), now=0.0)
    write_updates(Writer(view), 1, 4)
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30, color_system=None)
    console.print(compose_dashboard(view, 100, 30, 10.0), height=30)
    text = console.file.getvalue()
    assert len(text.splitlines()) == 30 and all(len(line) <= 100 for line in text.splitlines())
    for part in ("pool", "blue now", "30.0±1.2", "#7", "22.0±1.2", "62.5", "3 opponents", "worst score 42"):
        assert part in text, part


def test_expected_scores_are_shown_if_there_is_room(tmp_path):
    view = RunView(run_info(tmp_path), now=0.0)
    for row in entries():
        view.write("entries", 0, row, 1.0)
    console = Console(file=io.StringIO(), width=70, color_system=None)
    console.print(draw_pool(view, 70, 10))
    text = console.file.getvalue()
    assert "expected" in text and "quality" in text and text.count("71") == text.count("38") == 3


def test_promoted_snapshots_are_marked(tmp_path):
    """The panel names the kinds; the plot tells snapshots of any kind from fixed opponents."""
    rows = entries()
    rows[1]["kind"], rows[2]["kind"] = "commander", "candidate"
    view = RunView(run_info(tmp_path), now=0.0)
    for row in rows:
        view.write("entries", 0, row, 1.0)
    for width, shown in ((70, True), (50, True), (40, False)):
        console = Console(file=io.StringIO(), width=width, color_system=None)
        console.print(draw_pool(view, width, 10))
        text = console.file.getvalue()
        assert ("commander" in text and "candidate" in text) == shown and "#7" in text
    axes = Figure().subplots()
    plot_ratings(axes, [{key: str(value) for key, value in row.items()} | {"step": "0"} for row in rows])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["blue now", "heuristic"]


def test_table_and_picture(tmp_path):
    """`pool.csv` has a row per update and entry, from which the picture is drawn."""
    sink = CsvSink()
    sink.open(run_info(tmp_path))
    for update in range(1, 6):
        for row in entries(update):
            sink.write("entries", 1000 * update, row)
    sink.close()
    table = read_columns(tmp_path / "pool.csv")
    assert len(table["step"]) == 20 and table["mu"][0] == 30.1 and math.isnan(table["score"][3])
    pool_plot(tmp_path / "pool.png", tmp_path / "pool.csv")
    assert matplotlib.image.imread(tmp_path / "pool.png").std() > 0.05


def test_other_learners_of_a_league_are_opponents(tmp_path):
    """The panel keeps its height and the learner, whoever else is rated higher; the plot tells them apart."""
    league = entries()
    league[1] |= {"name": "exploiter now", "kind": "learner", "iteration": -1, "mu": 40.0}
    league[2] |= {"name": "rover now", "kind": "learner", "iteration": -1, "mu": 39.0}
    view = RunView(run_info(tmp_path), now=0.0)
    for row in league:
        view.write("entries", 0, row, 1.0)
    console = Console(file=io.StringIO(), width=70, color_system=None)
    console.print(draw_pool(view, 70, 4))
    text = console.file.getvalue()
    assert "exploiter now" in text and "blue now" in text and "rover now" not in text
    (other,) = (line for line in text.splitlines() if "exploiter now" in line)
    assert re.findall(r"±\S+ +(\d+)", other) == ["40"]
    rows = [{key: str(value) for key, value in row.items()} | {"step": "0"} for row in league]
    left, right = Figure().subplots(1, 2)
    plot_ratings(left, rows)
    assert len({line.get_color() for line in left.lines[:3]}) == 3
    plot_payoffs(right, rows)
    assert [tick.get_text() for tick in right.get_yticklabels()] == [
        "exploiter now",
        "rover now",
        "heuristic",
    ]
