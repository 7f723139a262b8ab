import io
import math
import re

import pytest
from rich.cells import cell_len
from rich.console import Console
from tracking_runs import OUTCOMES, run_info, write_updates

from jaxmarl_echelon.tracking.panels import compose_dashboard
from jaxmarl_echelon.tracking.panels.curriculum import collect_criteria
from jaxmarl_echelon.tracking.panels.layout import event_style
from jaxmarl_echelon.tracking.panels.parts import draw_stacked_outcomes
from jaxmarl_echelon.tracking.panels.results import draw_recent_outcomes
from jaxmarl_echelon.tracking.view import RunView

PHASE = {
    "current_stage": 3.0, "phase_name": "1_lock300", "rolling_success": 0.61, "episodes_in_stage": 140.0,
    "phase_success_rate": 0.634, "avg_reward": 42.75, "self_crash_rate": 0.2, "collision_rate": 0.11,
    "target_finish_rate": 0.0, "criteria_success_rate": 0.7, "criteria_min_episodes": 100.0,
    "criteria_avg_reward": 40.0, "criteria_eval_success_rate": 1.0, "criteria_eval_required_runs": 4.0,
    "eval_success_streak": 1.0, "patience": 1000.0, "total_phases": 26.0, "progress": 3 / 26,
    "advances": 4.0, "forced_advances": 1.0, "regressions": 2.0,
}  # fmt: skip
TASKS = dict(
    pinch_right=0.9,
    pinch_left=0.8,
    pinch_ahead=0.6,
    center=0.3,
    left=0.1,
    right=math.nan,
)
SIZES = [(100, 30), (120, 40), (80, 24), (80, 16), (200, 60), (96, 24), (60, 12), (40, 8), (20, 3)]


class ViewSink:
    """Lets the made-up run write into a view."""

    def __init__(self, view):
        self.view = view

    def write(self, namespace, step, values):
        self.view.write(namespace, step, values, 0.0)

    def flush(self):
        pass


def evaluation(**changes):
    shares = dict(zip(OUTCOMES, (0.62, 0.2, 0.1, 0.05, 0.03, 0.0), strict=True))
    return {
        "success_rate": 0.62,
        "success_low": 0.5,
        "success_high": 0.73,
        "avg_reward": 71.25,
        "std_reward": 88.5,
        "avg_episode_length": 312.5,
        "num_episodes": 64.0,
        "phase_success_rate": 0.75,
        **{f"outcome/{name}": share for name, share in shares.items()},
        **{f"task/{name}": share for name, share in TASKS.items()},
        **changes,
    }


def make_view(folder, phase=PHASE, scores=None):
    view = RunView(run_info(folder), 0.0)
    write_updates(ViewSink(view), 1, 12)
    for i in range(60):
        view.write("episodes", 12_000, {"episode": i, "outcome": OUTCOMES[i % 3], "return": 1.0}, 0.0)
    view.write("eval_agg", 13_000, evaluation() if scores is None else scores, 0.0)
    if phase:
        view.write("curriculum", 13_000, phase, 0.0)
    view.events.append((13_000, "phase 2 -> 3: 1_lock300 (success 74 %)"))
    return view


def picture(view, width, height):
    """The lines of a frame on a terminal of that size, as the dashboard draws it."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, height=height)
    console.print(compose_dashboard(view, width, height - 1, 100.0), height=height - 1)
    return console.file.getvalue().splitlines()


def columns(lines):
    """The text of each panel of the middle row at three panels beside each other."""
    middle = [line for line in lines if line.startswith("│") and line.count("│") == 6]
    return ["\n".join(line.split("│")[1 + 2 * i].strip() for line in middle) for i in range(3)]


@pytest.mark.parametrize(("width", "height"), [(100, 30), (120, 40), (160, 50)])
def test_the_curriculum_stands_beside_training_and_evaluation(tmp_path, width, height):
    lines = picture(make_view(tmp_path), width, height)
    (titles,) = [line for line in lines if "─ training ─" in line]
    assert titles.index("─ training ─") < titles.index("─ evaluation ─") < titles.index("─ curriculum ─")
    curriculum = columns(lines)[2].splitlines()
    assert curriculum[0] == "phase 3/26  1_lock300"
    assert curriculum[1].endswith("11.5 %")
    shown = [" ".join(line.split()) for line in curriculum[2:]]
    assert shown[:5] == [
        "success 63.4 % / 70 % ✗",
        "reward 42.75 / 40 ✓",
        "episodes 140 / 100 ✓",
        "eval ≥100 % 1 / 4 ✗",
        "patience 140 / 1.00 k",
    ]
    assert shown[5].endswith("forced 1 regressions 2")
    assert shown[6:9] == ["self_crash 20 %", "collision 11 %", "target_finish 0 %"]
    assert "…" not in "\n".join(columns(lines))


def test_a_narrow_terminal_has_the_curriculum_below(tmp_path):
    lines = picture(make_view(tmp_path), 80, 24)
    (titles,) = [line for line in lines if "─ training ─" in line]
    assert "curriculum" not in titles
    text = "\n".join(lines)
    assert all(name in text for name in (*OUTCOMES, "phase 3/26  1_lock300", "─ events ─"))
    assert re.search(r"success +63\.4 % / 70 % +✗", text)
    assert re.search(r"eval ≥100 % +1 / 4 +✗", text), "what is missing comes before what is met"


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pictures_stay_within_their_terminal(tmp_path, width, height):
    long = {
        **PHASE,
        "phase_name": "4_" + "very_" * 20 + "light",
        "patience": 1e9,
        "episodes_in_stage": 98765.0,
    }
    extreme = evaluation(avg_reward=-123456.7, success_high=1.0, success_rate=1.0, success_low=0.94)
    for view in (make_view(tmp_path), make_view(tmp_path, long, extreme)):
        lines = picture(view, width, height)
        assert len(lines) == height - 1
        assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("gone", [*PHASE, "all"])
def test_unknown_values_never_break_the_picture(tmp_path, gone):
    names = tuple(PHASE) if gone == "all" else (gone,)
    absent = {name: value for name, value in PHASE.items() if name not in names}
    unknown = {**PHASE, **dict.fromkeys(names, math.nan)}
    for phase in (absent, unknown):
        for width, height in ((100, 30), (80, 24)):
            lines = picture(make_view(tmp_path, phase), width, height)
            assert len(lines) == height - 1
            assert "nan" not in "\n".join(lines)


@pytest.mark.parametrize("value", [math.nan, None])
@pytest.mark.parametrize("gone", [*evaluation()])
def test_evaluations_with_gaps_never_break_the_picture(tmp_path, gone, value):
    scores = {key: x for key, x in evaluation().items() if key != gone}
    scores |= {} if value is None else {gone: value}
    text = "\n".join(picture(make_view(tmp_path, scores=scores), 120, 40))
    assert "─ evaluation ─" in text
    assert "nan" not in text


def test_no_curriculum_no_panel(tmp_path):
    text = "\n".join(picture(make_view(tmp_path, phase=None), 120, 40))
    assert "─ curriculum ─" not in text
    assert "─ training ─" in text


def test_a_curriculum_of_other_values_shows_them(tmp_path):
    text = "\n".join(picture(make_view(tmp_path, {"temperature": 0.25, "level": "maze"}), 120, 40))
    assert re.search(r"temperature +0\.25", text)
    assert re.search(r"level +maze", text)


def test_staged_curriculum_is_shown_like_a_phased_one(tmp_path):
    stages = {
        "current_stage": 1.0,
        "stage": 1.0,
        "total_stages": 4.0,
        "rolling_success": 0.5,
        "cooldown": 7.0,
    }
    lines = picture(make_view(tmp_path, {**stages, "enable_rate": 0.75, "timeout_rate": 0.25}), 100, 30)
    shown = [" ".join(line.split()) for line in columns(lines)[2].splitlines()]
    assert shown[0] == "phase 1/4"
    assert shown[1].endswith(" 25.0 %")
    assert shown[2:5] == ["success 50 % / 75 % ✗", "timeout 25 %", "cooldown 7"]
    assert not any(shown[5:])


def test_criteria_follow_the_present_phase(tmp_path):
    view = make_view(tmp_path)
    changes = {
        "phase_success_rate": math.nan,
        "rolling_success": 0.7,
        "criteria_avg_reward": math.nan,
        "criteria_eval_required_runs": 0.0,
    }
    view.write("curriculum", 14_000, {**PHASE, **changes}, 0.0)
    found = {item.name: item for item in collect_criteria(view)}
    assert (found["success"].value, found["success"].met) == ("70 %", True)
    assert (found["reward"].limit, found["reward"].met) == ("", None)
    assert list(found) == ["success", "reward", "episodes", "patience"]


@pytest.mark.parametrize(("most", "limit", "met"), [(0.2, "≤ 20 %", True), (0.125, "≤ 12.5 %", False)])
def test_caps_of_outcomes_stand_among_the_criteria(tmp_path, most, limit, met):
    caps = {"criteria_max_self_crash_rate": most, "criteria_max_collision_rate": math.nan}
    view = make_view(tmp_path, PHASE | caps)
    found = {item.name: item for item in collect_criteria(view)}
    assert found["self_crash"][:4] == ("self_crash", "20 %", limit, met)
    assert "collision" not in found, "this phase has no cap on it"
    text = columns(picture(view, 120, 40))[2]
    assert text.count("self_crash") == text.count("collision") == 1 and "criteria" not in text


@pytest.mark.parametrize(("episodes", "mark"), [(999.0, ""), (1000.0, "!")])
def test_exhausted_patience_is_not_marked_as_met(tmp_path, episodes, mark):
    view = make_view(tmp_path, {**PHASE, "episodes_in_stage": episodes})
    patience = collect_criteria(view)[-1]
    assert (patience.name, patience.met, patience.mark[0]) == ("patience", None, mark)


def test_the_way_is_counted_in_phases_where_progress_is_unknown(tmp_path):
    phase = {"current_stage": 13.0, "total_phases": 26.0}
    curriculum = columns(picture(make_view(tmp_path, phase), 100, 30))[2]
    assert curriculum.splitlines()[1].endswith(" 50.0 %")


def test_last_evaluation_is_shown_by_outcome_and_task(tmp_path):
    _, text, _ = columns(picture(make_view(tmp_path), 120, 40))
    assert "best 62.0 % at 13.0 k" in text
    assert re.search(r"this phase 75\.0 % +64 episodes", text)
    for name, share in zip(OUTCOMES, (62, 20, 10, 5, 3, 0), strict=True):
        assert re.search(rf"{name} .* {share}\.0 %", text)
    places = [text.index(f"\n{name} ") for name in TASKS]
    assert places == sorted(places)
    lengths = [text.split(f"\n{name} ")[1].split("\n")[0].count("█") for name in TASKS]
    assert lengths[0] > lengths[1] > lengths[2] > lengths[3] > lengths[4] > lengths[5] == 0


def test_the_hardest_tasks_are_shown_where_there_is_no_room_for_all(tmp_path):
    lines = picture(make_view(tmp_path), 80, 24)
    text = "\n".join(line[40:] for line in lines)
    places = [text.index(f"│ {name} ") for name in ("left", "center", "pinch_ahead")]
    assert places == sorted(places)
    assert "pinch_right" not in text
    assert re.search(r"│ +62 % +20 % +│", text), "outcomes share one bar"


def test_a_shared_bar_is_in_proportion_and_coloured():
    line = draw_stacked_outcomes(
        [("target_crash", 0.5), ("self_crash", 0.25), ("collision", math.nan), ("timeout", 0.25)], 40
    )
    sizes = {str(span.style): span.end - span.start for span in line.spans}
    assert sizes == {"black on green": 20, "black on red": 10, "black on blue": 10}
    assert line.plain.split() == ["50", "%", "25", "%", "25", "%"]
    assert draw_stacked_outcomes([("a", 0.7), ("b", 0.7)], 10).cell_len == 10


@pytest.mark.parametrize(("width", "cells"), [(29, 21), (38, 30), (80, 40)])
def test_the_newest_outcomes_are_cells_of_their_colours(tmp_path, width, cells):
    line = draw_recent_outcomes(make_view(tmp_path), width)
    assert line.cell_len == len("recent  ") + cells
    # The made-up episodes repeat success, crash, collision and end on a collision.
    assert line.plain.endswith("▇▃▃▇▃▃")
    assert [span.style for span in line.spans[-3:]] == ["not dim green", "not dim red", "not dim yellow"]
    (shown,) = [row for row in picture(make_view(tmp_path), 100, 30) if "recent" in row]
    assert "▇▃▃ │" in shown


def test_episodes_without_outcome_leave_no_cells(tmp_path):
    view = RunView(run_info(tmp_path), 0.0)
    view.write("episodes", 1, {"episode": 1, "outcome": "", "return": 2.0}, 0.0)
    view.write("eval", 1, {"episode": 1, "outcome": "timeout"}, 0.0)
    assert not view.recent
    assert "recent" not in "\n".join(picture(view, 100, 30))


@pytest.mark.parametrize(
    ("text", "style"),
    [
        ("phase 3 -> 4: 1_lock200 (success 74 %)", "bold cyan"),
        ("phase 3 -> 4: 1_lock200 (forced after 500 episodes)", "yellow"),
        ("phase 10 -> 9: 2_speed015", "red"),
        ("phase 9 -> 10: 2_speed005 (success 71 %)", "bold cyan"),
        ("regression to 1_lock400", "red"),
        ("best_eval: 0.62", "green"),
        ("saved best_eval_phase_3", "green"),
        ("compiling the program", ""),
    ],
)
def test_events_are_coloured_by_what_they_say(text, style):
    assert event_style(text) == style


JUDGED = {
    "current_stage": 1.0, "phase_name": "objective", "total_phases": 4.0, "progress": 0.31,
    "episodes_in_stage": 1234.0, "criteria_min_episodes": 500.0, "advances": 1.0, "regressions": 0.0,
    **{f"criteria/window/{field}": value for field, value in (("count", 500.0), ("at_least", 500.0))},
    **{f"criteria/completion/{field}": value for field, value in dict(
        rate=0.622, low=0.5793, high=0.6647, above=0.6, effect=0.045, least_effect=0.1, met=0.0).items()},
    **{f"criteria/efficiency/{field}": value for field, value in dict(
        rate=0.55, low=0.52, high=0.58, above=0.5, effect=0.15, least_effect=0.1, met=1.0).items()},
    **{f"criteria/survival/{field}": value for field, value in dict(
        rate=0.9, low=0.88, high=0.92, above=math.nan, effect=math.nan, met=math.nan).items()},
    "criteria/variance/number": 0.0312, "criteria/variance/at_most": math.nan,
    "weights/terminal": 0.25,
}  # fmt: skip


def lines_of(view, width=100, height=30):
    return [" ".join(line.split()) for line in columns(picture(view, width, height))[2].splitlines()]


def test_criteria_that_say_what_they_measure_are_shown_with_their_intervals(tmp_path):
    shown = lines_of(make_view(tmp_path, JUDGED))
    assert shown[0] == "phase 1/4 objective"
    assert shown[2:9] == [
        "episodes 1.23 k / 500 ✓",
        "window 500 / 500 ✓",
        "completion 62.2 % > 60 % ✗",
        "57.9–66.5 % needs +2.1 %",
        "efficiency 55 % > 50 % ✓",
        "52–58 %",
        "advances 1 regressions 0",
    ]
    assert shown[9:12] == ["survival 90 %", "variance 0.0312", "weights/terminal 0.2500"]


def test_an_interval_that_is_high_enough_may_still_lack_effect(tmp_path):
    near = JUDGED | {"criteria/completion/low": 0.601, "criteria/completion/rate": 0.643}
    assert "60.1–66.5 % needs d 0.04" in lines_of(make_view(tmp_path, near))


def test_without_room_unmet_criteria_come_first_and_without_intervals(tmp_path):
    text = "\n".join(picture(make_view(tmp_path, JUDGED), 80, 24))
    assert re.search(r"completion +62\.2 % > 60 % +✗", text) and "57.9" not in text


def test_an_upper_bound_is_met_below_it(tmp_path):
    for value, mark in ((0.1, "✓"), (0.2, "✓"), (0.21, "✗")):
        given = JUDGED | {"criteria/variance/number": value, "criteria/variance/at_most": 0.2}
        (line,) = [line for line in lines_of(make_view(tmp_path, given)) if line.startswith("variance")]
        assert line.endswith(f"≤ 0.2000 {mark}")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_criteria_with_intervals_stay_within_their_terminal(tmp_path, width, height):
    unknown = dict.fromkeys((name for name in JUDGED if name.startswith("criteria/")), math.nan)
    for phase in (JUDGED, JUDGED | unknown):
        lines = picture(make_view(tmp_path, phase), width, height)
        assert len(lines) == height - 1 and max(map(cell_len, lines)) <= width
        assert "nan" not in "\n".join(lines)
