import dataclasses
import io
import math
import re
import sys

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from tracking_runs import OUTCOMES, run_info, write_updates

from jaxmarl_echelon.tracking import dashboard
from jaxmarl_echelon.tracking.console import ConsoleSink
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.tracking.dashboard import Dashboard, terminal_sink
from jaxmarl_echelon.tracking.panels import colour_share, compose_dashboard, outcome_colour
from jaxmarl_echelon.tracking.panels.curriculum import collect_criteria
from jaxmarl_echelon.tracking.panels.history import draw_course, draw_dots, find_courses
from jaxmarl_echelon.tracking.view import RunView


def make_console(width, height, **settings):
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, **settings)


def picture(view, width, height, now=100.0):
    """The lines of a frame, as they would stand on a terminal."""
    console = make_console(width, height, color_system=None)
    console.print(compose_dashboard(view, width, height, now), height=height)
    return console.file.getvalue().splitlines()


class ViewSink:
    """Lets the made-up run write into a view, one second per update."""

    def __init__(self, view):
        self.view, self.now = view, 0.0

    def write(self, namespace, step, values):
        self.view.write(namespace, step, values, self.now)

    def flush(self):
        self.now += 1.0


def full_view(tmp_path, curriculum=False, updates=12):
    view = RunView(run_info(tmp_path), now=0.0)
    view.write("time", 0, {"compile_seconds": 65.0}, 0.0)
    write_updates(ViewSink(view), 1, updates, curriculum=curriculum)
    view.events.append((12_000, "saved best_eval"))
    return view


def test_a_resumed_view_knows_the_evaluations_before(tmp_path):
    table = CsvSink()
    table.open(run_info(tmp_path))
    write_updates(table, 1, 12)
    table.write("eval_agg", 12_500, {"success_rate": 0.99, "avg_reward": 3.0})  # after the checkpoint
    table.close()
    view = RunView(run_info(tmp_path, resume_step=12_000), now=0.0)
    assert [step for step, _ in view.evaluations] == [4_000, 8_000, 12_000]
    assert view.best == (12_000, 0.3) and view.value("eval_agg/avg_reward") == 7.25
    view.write("eval_agg", 16_000, {"success_rate": 0.25, "avg_reward": 9.0}, 1.0)
    assert view.best == (12_000, 0.3)
    assert RunView(run_info(tmp_path), now=0.0).best is None


def test_a_resumed_view_goes_on_with_courses_phases_and_outcomes(tmp_path):
    table = CsvSink()
    table.open(run_info(tmp_path))
    write_updates(table, 1, 12)
    for step, phase in ((10_000, 0), (11_000, 1), (12_000, 1), (13_000, 2)):
        table.write("curriculum", step, {"current_stage": phase, "phase_name": f"spawn {phase}"})
        table.write("episodes", step, {"outcome": f"outcome {phase}"})
    table.close()
    view = RunView(run_info(tmp_path, resume_step=12_000), now=0.0)
    trend = view.trends["train/success_rate"]
    assert trend.points(99) == [update / 40 for update in range(1, 13)]
    assert (trend.first, trend.last) == (1_000, 12_000)
    assert list(view.events) == [(11_000, "phase 0 -> 1")] and view.phase == ("1", "spawn 1")
    assert list(view.recent) == ["outcome 0", "outcome 1", "outcome 1"]
    assert view.value("losses/entropy") == 2.5 and "time/steps_per_second" not in view.latest


def test_a_resumed_view_shows_nothing_of_a_phase_that_was_left(tmp_path):
    """A run that stopped as it entered a phase: neither its success nor a patience is known there yet."""
    left = {"phase_success_rate": 0.72, "criteria_success_rate": 0.7, "patience": 400.0}
    entered = {"phase_success_rate": math.nan, "criteria_success_rate": 0.7, "patience": math.nan}
    table = CsvSink()
    table.open(run_info(tmp_path))
    live = RunView(run_info(tmp_path), now=0.0)
    for step, phase in ((1_000, left), (2_000, entered)):
        for sink in (table, ViewSink(live)):
            sink.write("curriculum", step, phase)
            sink.write("losses", step, {"actor_loss": 1.0 if step == 1_000 else math.nan})
    table.close()
    view = RunView(run_info(tmp_path, resume_step=2_000), now=0.0)
    (criterion,) = collect_criteria(view)
    assert (criterion.value, criterion.met) == ("-", False) and collect_criteria(live) == [criterion]
    assert math.isnan(view.value("losses/actor_loss"))


def test_large_terminals_show_courses_of_training_and_evaluations(tmp_path):
    text = "\n".join(picture(full_view(tmp_path), 200, 59))
    for title in ("success", "return", "length"):
        assert f"─ {title} ━ training ━ evaluation ─" in text
    assert "─ value loss ─" in text
    assert re.search(r"1\.00 k +12\.0 k", text) and re.search(r"│ 100 % ", text)
    assert "━ evaluation" not in "\n".join(picture(full_view(tmp_path), 100, 29))
    assert "━ evaluation" not in "\n".join(picture(RunView(run_info(tmp_path), 0.0), 200, 59))


def test_evaluations_stand_at_their_steps_although_their_distances_differ(tmp_path):
    """As after a resume with another `eval_every`: three of four in the first tenth of the run."""
    view = RunView(run_info(tmp_path), 0.0)
    for step, score in ((0, 0.0), (500, 0.0), (1_000, 1.0), (10_000, 1.0)):
        view.write("eval_agg", step, {"success_rate": score}, 0.0)
    (course, *_) = find_courses(view)
    top = draw_course(view, course, 60, 10).renderable.plain.splitlines()[0]
    assert sum(cell not in " \u2800" for cell in top.removeprefix("100 % ")) > 0.85 * (60 - 6)


def test_dots_rise_from_the_lower_left_to_the_upper_right():
    line = (np.array([0.0, 1.0]), np.array([0.0, 1.0]), "red")
    lines = draw_dots([line], (0.0, 1.0), (0.0, 1.0), 2, 1)
    assert [text.plain for text in lines] == ["⡠⠊"]
    flat = (np.array([0.0, 1.0]), np.array([3.0, 3.0]), "red")
    assert draw_dots([flat], (0.0, 1.0), (3.0, 3.0), 2, 1)[0].plain == "⠒⠒"


def test_a_resized_terminal_is_cleared_before_the_next_frame(tmp_path):
    console = make_console(100, 30, color_system=None)
    sink = Dashboard(refresh_per_second=0.01, console=console)
    sink.open(run_info(tmp_path))
    clear = "\x1b[H\x1b[2J"
    console.print("a line")
    assert clear not in console.file.getvalue()
    console.size = (80, 24)
    console.print("another line")
    assert console.file.getvalue().count(clear) == 1
    console.print("a third line")
    sink.close()
    assert console.file.getvalue().count(clear) == 1


def test_the_best_of_equally_successful_evaluations_is_that_of_the_highest_reward(tmp_path):
    view = RunView(run_info(tmp_path), now=0.0)
    found = []
    scores = ((0.0, -90.0), (0.0, -20.0), (0.0, -20.0), (0.1, -80.0), (0.1, -90.0))
    for step, (success, reward) in enumerate(scores):
        view.write("eval_agg", step, {"success_rate": success, "avg_reward": reward}, 0.0)
        found.append(view.best)
    assert found == [(0, 0.0), (1, 0.0), (1, 0.0), (3, 0.1), (3, 0.1)]


def test_the_best_evaluation_is_by_the_score_of_who_learns(tmp_path):
    """If only the defender learns, the attacker's success falls while the policy gets better."""
    column = "success/defender_rate"
    view = RunView(dataclasses.replace(run_info(tmp_path), judged_by=column), now=0.0)
    for step, attacker in enumerate((0.9, 0.5, 0.1)):
        view.write("eval_agg", step, {"success_rate": attacker, column: 1 - attacker, "avg_reward": 9.0}, 0.0)
    assert view.best == (2, 0.9) and view.best_of == " of success/defender rate"
    # The course beside it is of the same score: it rises.
    (line,) = (line for line in picture(view, 100, 30) if "best of success/defender rate" in line)
    assert "".join(re.findall("[▁▂▃▄▅▆▇█]", line)) == "▂▅▇"
    assert RunView(run_info(tmp_path), now=0.0).best_of == ""


@pytest.mark.parametrize(
    ("best", "shown"), [(None, (2000, 0.9)), ((0.9, 5.0), (2000, 0.9)), ((), None), ((0.3, 7.0), (4000, 0.3))]
)
def test_the_best_of_a_resumed_run_is_that_of_its_present_task(tmp_path, best, shown):
    """After a change of the task earlier evaluations do not count, as for best checkpoints."""
    sink = CsvSink()
    sink.open(run_info(tmp_path))
    for step, success, reward in ((1000, 0.2, 8.0), (2000, 0.9, 5.0), (3000, 0.3, 6.0), (4000, 0.3, 7.0)):
        sink.write("eval_agg", step, {"success_rate": success, "avg_reward": reward})
    sink.close()
    view = RunView(dataclasses.replace(run_info(tmp_path, resume_step=4000), best=best), now=0.0)
    assert view.best == shown
    view.write("eval_agg", 5000, {"success_rate": 0.5, "avg_reward": 0.0}, 0.0)
    assert view.best == (shown if best is None or best == (0.9, 5.0) else (5000, 0.5))


def test_no_evaluation_is_the_best_where_the_score_tells_nothing(tmp_path):
    view = RunView(dataclasses.replace(run_info(tmp_path), scores_rank_policies=False), now=0.0)
    view.write("eval_agg", 0, {"success_rate": 0.5, "avg_reward": 0.0}, 0.0)
    assert view.best is None and len(view.evaluations) == 1


@pytest.mark.parametrize("curriculum", [False, True])
@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24), (200, 60), (60, 12), (40, 6), (20, 3)])
def test_pictures_fill_their_terminal_and_no_more(tmp_path, width, height, curriculum):
    for view in (RunView(run_info(tmp_path), 0.0), full_view(tmp_path, curriculum)):
        shown = picture(view, width, height)
        assert len(shown) == height
        assert max(map(cell_len, shown)) <= width


def test_a_hundred_by_thirty_shows_everything(tmp_path):
    text = "\n".join(picture(full_view(tmp_path, curriculum=True), 100, 29))
    for panel in ("training", "evaluation", "curriculum", "losses", "events"):
        assert f"─ {panel} ─" in text
    for fact in (
        "f110 · ppo",
        "seed 3",
        "running",
        "12.0 k / 20.0 k steps",
        "60.0 %",
        "compile 1:05",
        "12.3 k steps/s",
    ):
        assert fact in text
    for name, percentage in zip(OUTCOMES, (30.0, 35.0, 14.0, 14.0, 7.0, 0.0), strict=True):
        assert re.search(rf"{name} .*{percentage} %", text)
    assert re.search(r"success +30\.0 % [▁▂▃▄▅▆▇█]+", text)
    assert re.search(r"return +1\.500 ", text)
    assert re.search(r"12\.0 k +30\.0 % +15–40 +7\.250", text)
    assert "pinch_left" in text
    assert "saved best_eval" in text
    assert "…" not in text.replace(tmp_path.name, "")
    without = "\n".join(picture(full_view(tmp_path), 100, 29))
    assert re.search(r"12\.0 k +30\.0 % +15–40 +7\.250 +99", without)


def test_eighty_by_twentyfour_drops_panels_before_facts(tmp_path):
    text = "\n".join(picture(full_view(tmp_path), 80, 23))
    assert all(name in text for name in (*OUTCOMES, "training", "evaluation", "losses", "events", "ETA"))
    small = "\n".join(picture(full_view(tmp_path), 80, 16))
    assert "events" not in small
    assert all(name in small for name in ("training", "evaluation", "ETA"))


def test_outcomes_losses_and_rewards_are_shown_by_importance(tmp_path):
    view = RunView(run_info(tmp_path), 0.0)
    view.write("train", 1, {f"outcome/{name}": 0.1 for name in sorted(OUTCOMES)}, 1.0)
    view.write("train", 1, {"reward_components/step": -1.5, "reward_components/pinch": 0.2}, 1.0)
    view.write("losses", 1, {"clip": 0.2, "entropy": 1.8, "learning_rate": 3e-4, "policy_loss": 0.1}, 1.0)
    assert [name for name, _ in view.outcomes()] == list(OUTCOMES)
    assert [name for name, _ in view.losses()] == ["policy_loss", "entropy", "learning_rate", "clip"]
    text = "\n".join(picture(view, 100, 29))
    assert re.search(r"learning_rate +3\.00e-04", text)
    assert text.index("step  ") < text.index("pinch  ")


@pytest.mark.parametrize("roles", [[""], ["/attacker", "/defender"]])
def test_the_newest_of_a_long_course_is_shown_for_every_role(tmp_path, roles):
    view = RunView(run_info(tmp_path), 0.0)
    for update in range(1, 201):
        numbers = dict.fromkeys((f"return{role}" for role in roles), update - 1234.5)
        view.write("train", 1000 * update, {"success_rate": update / 200, **numbers}, float(update))
    rows = [line.split("││")[0] for line in picture(view, 100, 30) if re.search("│ (success|return)", line)]
    assert len(rows) == 1 + len(roles)
    for row in rows:
        assert re.search("▁.*█ *│?$", row) and "…" not in row, row


def test_bars_are_in_proportion(tmp_path):
    bars = {name: "" for name in OUTCOMES}
    for line in picture(full_view(tmp_path), 100, 29):
        for name in OUTCOMES:
            if line.startswith(f"│ {name}"):
                bars[name] = line[:50].count("█")
    assert (
        bars["self_crash"] > bars["target_crash"] > bars["collision"] == bars["timeout"] > bars["idle_stop"]
    )
    assert bars["target_finish"] == 0


def test_compiling_then_running_then_time_left(tmp_path):
    view = RunView(run_info(tmp_path), 0.0)
    assert "compiling" in picture(view, 100, 29)[1]
    write_updates(ViewSink(view), 1, 10)
    shown = picture(view, 100, 29, now=9.0)
    assert "running" in shown[1]
    # Ten more updates at one second each, the last report being just now.
    assert "ETA 0:10" in shown[3]


def test_outcomes_have_the_colours_of_their_meaning():
    colours = ("green", "red", "yellow", "blue", "magenta", "cyan")
    assert tuple(outcome_colour(name) for name in OUTCOMES) == colours
    assert outcome_colour("win") == outcome_colour("win") not in colours


@pytest.mark.parametrize(
    ("fraction", "good", "colour"),
    [
        (0.5, True, "green"),
        (0.49, True, "yellow"),
        (0.25, True, "yellow"),
        (0.24, True, "red"),
        (0.5, False, "red"),
        (0.49, False, "yellow"),
        (0.24, False, "green"),
    ],
)
def test_percentages_are_coloured_by_thresholds(fraction, good, colour):
    assert colour_share(fraction, good).style == f"bold {colour}"


def test_a_diverged_loss_and_unknown_results_are_shown(tmp_path):
    view = RunView(run_info(tmp_path), 0.0)
    view.write("train", 1000, {"success_rate": float("nan"), "return": float("nan")}, 1.0)
    view.write("losses", 1000, {"value": 1.0}, 1.0)
    view.write("losses", 2000, {"value": float("nan")}, 2.0)
    text = "\n".join(picture(view, 80, 23))
    assert re.search(r"value +nan", text)
    assert re.search(r"success +- ", text)
    view.write("train", 3000, {"return": 4.5}, 3.0)
    view.write("train", 4000, {"return": float("nan")}, 4.0)
    assert view.value("train/return") == 4.5


def test_live_on_a_recorded_terminal(tmp_path):
    console = make_console(100, 30, color_system="truecolor")
    sink = Dashboard(refresh_per_second=50, console=console)
    sink.open(run_info(tmp_path))
    write_updates(sink, 1, 8)
    sink.event(8000, "saved best_eval")
    sink.close()
    sink.close()
    text = console.file.getvalue()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)[-29 * 103 :]
    assert "ended" in last
    assert "saved best_eval" in last
    assert text.endswith("\x1b[?25h"), "the cursor is given back"


@pytest.mark.parametrize(
    ("terminal", "dumb", "encoding", "kind"),
    [
        (True, False, "utf-8", Dashboard),
        (False, False, "utf-8", ConsoleSink),
        (True, True, "utf-8", ConsoleSink),
        (True, False, "ascii", ConsoleSink),
    ],
)
def test_the_terminal_decides_what_is_shown(monkeypatch, terminal, dumb, encoding, kind):
    class Fake:
        is_terminal, is_dumb_terminal = terminal, dumb

    Fake.encoding = encoding
    monkeypatch.setattr(dashboard, "Console", Fake)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert type(terminal_sink()) is kind
