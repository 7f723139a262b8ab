import json
import math
import re
import sys

import numpy as np
import pytest
from recorded_runs import check_loads_nothing, write_group, write_run

from jaxmarl_echelon import command_line, report
from jaxmarl_echelon.reporting import charts, run_page
from jaxmarl_echelon.reporting.changed_settings import ChangedSetting, find_changed_settings
from jaxmarl_echelon.reporting.learning_curve import LearningCurveSink
from jaxmarl_echelon.reporting.paced_sink import PAUSE
from jaxmarl_echelon.reporting.report_sink import ReportSink
from jaxmarl_echelon.tracking.base import RunInfo, Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink, CsvTable
from jaxmarl_echelon.tracking.formats import format_finite
from jaxmarl_echelon.tracking.statistics import student_interval
from jaxmarl_echelon.tracking.view import RunView

NONE = ()


def write_rich_run(folder):
    """A run with a curriculum, outcomes, reward components, a pool and a replay."""
    write_run(folder, (0.1, 0.4, 0.8), run_name="<b>")
    metrics, evaluations = CsvTable(folder / "metrics.csv"), CsvTable(folder / "eval.csv")
    pool = CsvTable(folder / "pool.csv")
    for index, step in enumerate((1000, 2000, 3000)):
        row = {"losses/policy_loss": 0.1 * index, "curriculum/current_stage": index // 2}
        row |= {"curriculum/phase_name": f"phase<{index // 2}>", "curriculum/decided_success": 0.75}
        row |= {"train/reward_components/pressure": 0.5, "train/reward_components/pressure/left": 0.25}
        row |= {"train/success_rate": 0.2 * index, "time/train_seconds": 3.0 * index}
        metrics.append(
            step, row | {"train/outcome/crash": 1 - 0.2 * index, "train/outcome/goal": 0.2 * index}
        )
        score = {"success_rate": 0.3 * index, "success_low": 0.25 * index, "success_high": 0.35 * index}
        score |= {"avg_reward": 1.0, "std_reward": 2.0, "num_episodes": 16.0, "task/left": 0.5}
        evaluations.append(step, score | {"outcome/crash": 1 - 0.3 * index, "outcome/goal": 0.3 * index})
        for entry, kind in enumerate(("learner", "snapshot", "fixed")):
            names = {"entry": entry, "name": f"{kind} & {entry}", "kind": kind, "iteration": 0}
            played = {"wins": 7, "draws": 20, "losses": 300, "score": 0.5}
            pool.append(step, names | {"mu": 20.0 + index, "sigma": 2.0} | played)
    (folder / "replay.html").write_text('<!DOCTYPE html><p class="x">played & won</p>')
    return folder


def headlines(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_a_report_shows_all_that_a_run_recorded(tmp_path):
    folder = write_rich_run(tmp_path / "run")
    changed = [ChangedSetting("algo.gamma", "0.99", "0.5")]
    page = run_page.write_report(folder, changed=changed).read_text()
    check_loads_nothing(page)
    assert headlines(page) == [
        "Learning curves", "Curriculum", "Outcomes", "Reward components", "Opponent pool", "Replay",
        "Losses and speed", "Configuration",
    ]  # fmt: skip
    # The last evaluation, the phase entered, the rating, the changed setting, and the replay as it is.
    for text in (
        "<b>60.0 % [50.0, 70.0]</b>",
        "<td>0 to 1</td><td>phase&lt;1&gt;</td><td>75.0 %</td>",
        "<td>learner &amp; 0</td><td>learner</td><td>22.00</td>",
        "<td>2.00</td><td>327</td><td>0.50</td>",
        "<td>algo.gamma</td><td>0.99</td><td>0.5</td>",
        "&lt;p class=&quot;x&quot;&gt;played &amp; won",
        "<td>task: left</td><td>0.5000</td>",
    ):
        assert text in page, text
    assert "<script>" not in page and "<b>&lt;b&gt;</b>" not in page


def test_charts_show_what_changes_and_small_components_apart(tmp_path):
    folder = write_run(tmp_path / "run", (0.1, 0.4))
    metrics = CsvTable(folder / "metrics.csv")
    for step in (1000, 2000):
        paid = {"terminal": step / 10.0, "pinch": 1.0, "idle": 0.0}
        row = {f"train/reward_components/{name}": value for name, value in paid.items()}
        row |= {"train/return/fox": 1.0, "train/return/hound": 2.0}
        row |= {"train/outcome/crash": 0.5, "train/outcome/goal": 0.5}
        row |= {"curriculum/eval_success_streak": step / 1000, "curriculum/criteria_eval_required_runs": 0}
        row |= dict.fromkeys(("curriculum/rolling_success", "curriculum/phase_success_rate"), step / 4000)
        metrics.append(step, row | {"losses/clip": 0.2, "losses/value": step / 1e4})
    evaluations = CsvTable(folder / "eval.csv", resume_step=3000)
    shares = {"outcome/crash": 0.0, "outcome/goal": 1.0}
    measured = {"invalid_rate": 0.0, "bodies": 8.0, "won": 0.5, "win_rate": 0.5, "avg_reward": 1.0}
    evaluations.append(3000, shares | measured)
    evaluations.append(4000, shares)
    page = run_page.write_report(folder, changed=NONE).read_text()
    titles = re.findall(r"<figcaption><b>(.*?)</b> (.*?)</figcaption>", page)
    named = {title: re.findall(r">(\w+)</span>", legend) for title, legend in titles}
    assert named["components of the return, in training"] == ["terminal"]
    assert named["its smaller components"] == ["pinch"]
    assert "value" in named and "clip" not in named
    # Evaluations are not counted for a curriculum that does not ask for them; of two names one is drawn.
    assert "rolling success" in named and not {"eval success streak", "phase success rate"} & set(named)
    # Each learner has its return, and an outcome has one colour.
    assert re.findall(r">(training, \w+)</span>", dict(titles)["return"]) == [
        "training, fox",
        "training, hound",
    ]
    for kind in ("evaluations", "training"):
        assert '<span class="c1">goal</span>' in dict(titles)[f"outcomes of {kind}"]
    # Rates come first, what is 0 or equal to them not at all.
    measures = [title for title, _ in titles if title in ("bodies", "won", "win rate", "invalid rate")]
    assert measures == ["win rate", "bodies"]


def test_only_pages_of_running_runs_reload(tmp_path):
    write_run(tmp_path / "run", (0.1, 0.2))
    for running in (True, False):
        page = run_page.write_report(tmp_path / "run", running=running, changed=NONE).read_text()
        assert ("location.reload()" in page) == running
        assert ("<b>running</b>" in page) == running


def test_a_group_in_several_phases_has_their_mean_and_no_changes(tmp_path):
    """Its members have changes: the mean of their numbers is no phase."""
    folder = write_group(tmp_path / "group", [(0.1, 0.2, 0.3)] * 3)
    metrics = CsvTable(folder / "metrics.csv")
    for step, stage in ((0, 0.0), (1000, 1 / 3), (2000, 1.0)):
        metrics.append(step, {"curriculum/current_stage": stage})
    CsvTable(folder / "eval.csv").append(2000, {"success_rate": 0.3, "avg_reward": 3.0})
    page = run_page.write_report(folder, changed=NONE).read_text()
    assert "<b>phase</b>" in page and "phases entered" not in page and 'class="mark' not in page
    view = RunView(RunInfo(folder, None, 4000, resume_step=1000), now=0.0)
    assert view.phase[0] == "0.3" and not view.events


def test_the_status_is_not_that_before_a_run_continued(tmp_path):
    """A resumed run that is killed, or diverges, leaves the summary of its first end."""
    folder = write_run(tmp_path / "run", (0.1, 0.2, 0.3))
    for step, status in ((2000, "finished"), (1000, "unfinished")):
        (folder / "summary.json").write_text(json.dumps({"status": "finished", "env_steps": step}))
        page = run_page.write_report(folder, changed=NONE).read_text()
        assert f"status<b>{status}</b>" in page


def test_a_group_shows_its_members(tmp_path):
    folder = write_group(tmp_path / "group", [(0.0, 0.2), (0.0, 0.6)])
    means = CsvTable(folder / "eval.csv")
    for step, mean in ((0, 0.0), (1000, 0.4)):
        means.append(
            step, {"success_rate": mean, "success_low": mean, "success_high": mean + 0.05, "avg_reward": 0.0}
        )
    page = run_page.write_report(folder, changed=NONE).read_text()
    assert "Members" in headlines(page)
    # The interval of the group's own table, not Student's, which has no width where all seeds score 0.
    assert "<title>0: 0.0 % [0.0 %, 5.0 %]</title>" in page
    assert "<title>1.00 k: 40.0 % [40.0 %, 45.0 %]</title>" in page
    assert "<td>seed_1</td><td>1</td><td>60.0 %</td><td>60.0 %</td>" in page
    assert "mean of 2 seeds" in page and "<b>0, 1</b>" in page
    member = run_page.write_report(folder / "seed_1", changed=NONE).read_text()
    assert "group seed_1</h1>" in member and "<b>60.0 % [50.0, 70.0]</b>" in member


def test_members_that_were_evaluated_no_more_are_told_with_their_last_step(tmp_path):
    """Their last scores are not of the step of the others', as those of pruned trials."""
    folder = write_group(tmp_path / "group", [(0.0, 0.2), (0.0, 0.6, 0.4), (0.1, 0.2, 0.3)])
    mean = {"success_rate": 0.35, "success_low": 0.0, "success_high": 1.0, "avg_reward": 0.0}
    CsvTable(folder / "eval.csv").append(2000, mean)
    page = run_page.write_report(folder, changed=NONE).read_text()
    assert re.findall(r"<td>(seed_\d[^<]*)</td>", page) == ["seed_0 (until 1.00 k)", "seed_1", "seed_2"]


def test_a_group_of_variants_says_what_is_a_mean_over_all_of_them(tmp_path):
    folder = write_group(tmp_path / "group", [(0.0, 0.2), (0.0, 0.6)])
    mean = {"success_rate": 0.4, "success_low": math.nan, "success_high": math.nan, "avg_reward": 0.0}
    CsvTable(folder / "eval.csv").append(0, mean)
    said = run_page.OVER_VARIANTS.format(count=2)
    assert said not in run_page.write_report(folder, changed=NONE).read_text()
    for seed, variant in enumerate(("baseline", "terminal")):
        (folder / f"seed_{seed}").rename(folder / f"{variant}_seed_{seed}")
    assert said in run_page.write_report(folder, changed=NONE).read_text()


def test_the_last_evaluation_is_not_an_earlier_one_that_had_a_score(tmp_path):
    folder = write_group(tmp_path / "group", [(0.2, 0.8, math.nan)])
    shown = {"success_rate": 0.8, "success_low": 0.7, "success_high": 0.9, "avg_reward": 8.0}
    CsvTable(folder / "eval.csv").append(1000, shown | {"task/left": 0.25, "reward_components/gap": 4.5})
    CsvTable(folder / "eval.csv", resume_step=1000).append(2000, dict.fromkeys(shown, math.nan))
    page = run_page.write_report(folder, changed=NONE).read_text()
    assert f"last evaluation<b>{run_page.UNSCORED}</b>" in page and "highest<b>80.0 %</b>" in page
    assert "<td>seed_0</td><td>0</td><td>-</td><td>80.0 %</td>" in page
    assert "0.2500" not in page and "4.500" not in page


def test_the_interval_of_a_return_is_student_s_over_episodes(tmp_path):
    """A single episode has none."""
    folder = write_run(tmp_path / "run", (0.0,))
    returns = [1.0, 2.0, 6.0]
    row = {"avg_reward": 3.0, "std_reward": float(np.std(returns)), "num_episodes": 3.0}
    CsvTable(folder / "eval.csv", resume_step=-1).append(0, row)
    CsvTable(folder / "eval.csv", resume_step=0).append(1000, row | {"std_reward": 0.0, "num_episodes": 1.0})
    page = run_page.write_report(folder, changed=NONE).read_text()
    low, high = map(format_finite, student_interval(returns))
    assert f"<title>0: 3 [{low}, {high}]</title>" in page and "<title>1.00 k: 3</title>" in page


@pytest.mark.parametrize("end", [(math.nan,), ()], ids=["quarantined", "diverged"])
def test_seeds_without_a_sound_episode_are_left_out_of_a_group_s_curve(tmp_path, end):
    """Also those without evaluations since they have diverged."""
    folder = write_group(tmp_path / "group", [(0.2, 0.2), (0.6, 0.4), (0.7, *end), (0.5, *end)])
    alone = write_group(tmp_path / "alone", [(0.2, 0.4), (math.nan, math.nan)])
    for place in (folder, alone):
        mean = {"success_rate": 0.5, "success_low": 0.0, "success_high": 1.0, "avg_reward": 0.0}
        CsvTable(place / "eval.csv").append(0, mean)
    page = run_page.write_report(folder, changed=NONE).read_text()
    low, high = (100.0 * end for end in student_interval([0.2, 0.6, 0.7, 0.5]))
    assert f"<title>0: 50.0 % [{low:.1f} %, {high:.1f} %]</title>" in page
    # Two seeds are left: their interval is cut to [0, 1].
    assert "<title>1.00 k: 30.0 % [0.0 %, 100.0 %]</title>" in page
    # A single seed has none.
    page = run_page.write_report(alone, changed=NONE).read_text()
    assert "<title>1.00 k: 40.0 %</title>" in page and "nan" not in page


def test_a_group_without_an_interval_shows_its_mean(tmp_path):
    """Of several variants, whose mean is not that of a sample."""
    folder = write_group(tmp_path / "group", [(0.0, 0.2), (0.0, 0.6)])
    mean = {"success_rate": 0.4, "success_low": math.nan, "success_high": math.nan, "avg_reward": 0.0}
    CsvTable(folder / "eval.csv").append(0, mean)
    page = run_page.write_report(folder, changed=NONE).read_text()
    assert "success rate, last evaluation" in page and "<b>40.0 %</b>" in page and "nan" not in page


def test_the_members_of_one_population_have_no_interval_over_seeds(tmp_path):
    """Also where an older version has written one."""
    pbt = {"pbt": {"every": 2, "keys": ["algo.learning_rate"]}}
    folder = write_group(tmp_path / "group", [(0.0, 0.2), (0.0, 0.6)], **pbt)
    for step, rate in ((0, 0.0), (1000, 0.4)):
        mean = {"success_rate": rate, "success_low": 0.0, "success_high": 1.0, "avg_reward": 0.0}
        CsvTable(folder / "eval.csv", step).append(step, mean)
    page = run_page.write_report(folder, changed=NONE).read_text()
    assert "<title>1.00 k: 40.0 %</title>" in page and 'class="band' not in page


def test_changed_settings_are_those_that_differ_from_the_defaults():
    overrides = command_line.normalize_overrides(["env=f110", "algo.gamma=0.5", "seed=3", "tuning=none"])
    config, choices = command_line.compose_config(overrides)
    found = find_changed_settings({**config, "choices": choices})
    assert found == [("algo.gamma", "0.99", "0.5"), ("seed", "0", "3")]
    tuned, choices = command_line.compose_config(command_line.normalize_overrides(["env=f110"]))
    keys = [one.key for one in find_changed_settings({**tuned, "choices": choices})]
    assert "algo.learning_rate" in keys and "seed" not in keys
    # An environment of the user's own has no defaults here; the rest has.
    own = find_changed_settings({**config, "env": {"size": 3}, "choices": {**choices, "env": "mine"}})
    assert [one.key for one in own if one.key.startswith("env")] == []
    assert ("algo.gamma", "0.99", "0.5") in own


class Clock:
    """A clock that moves on by `step` seconds at every look."""

    def __init__(self, step=1.0):
        self.time, self.step = 0.0, step

    def __call__(self):
        self.time += self.step
        return self.time


def evaluated(tracker, step, value):
    tracker.log(
        "eval_agg",
        step,
        {"success_rate": value, "success_low": value, "success_high": value, "avg_reward": 0.0},
    )
    tracker.flush()


def info(folder):
    """Facts of a run whose configuration is that of a composed one."""
    config, choices = command_line.compose_config(["env=f110"])
    write_run(folder, (), env="f110")
    return RunInfo(folder, None, 2000, {**config, "choices": choices})


def test_a_report_follows_evaluations_within_its_share_of_the_time(tmp_path):
    clock = Clock()
    tracker = Tracker({"csv": CsvSink(), "report": ReportSink(now=clock)})
    tracker.open(info(tmp_path / "run"))
    path, written = tmp_path / "run/report.html", []
    for index in range(4):
        evaluated(tracker, 1000 * index, 0.1 * index)
        written.append(path.read_text())
        clock.time += 0.6 * PAUSE
    assert "<b>0.0 % [0.0, 0.0]</b>" in written[0] and "<b>running</b>" in written[0]
    assert written[1] == written[0] and "<b>20.0 % [20.0, 20.0]</b>" in written[2] == written[3]
    tracker.replay(3000, lambda page: page.write_text("the last episode"))
    tracker.close()
    assert "<b>30.0 % [30.0, 30.0]</b>" in path.read_text() and "the last episode" in path.read_text()
    assert "location.reload" not in path.read_text()


def test_the_picture_of_the_curve_follows_evaluations(tmp_path):
    tracker = Tracker({"csv": CsvSink(), "curve": LearningCurveSink(now=Clock())})
    tracker.open(info(tmp_path / "run"))
    evaluated(tracker, 0, 0.1)
    path = tmp_path / "run/learning_curve.png"
    first = path.read_bytes()
    evaluated(tracker, 1000, 0.9)
    assert path.read_bytes() == first
    for step in range(2000, 2000 + 1000 * int(PAUSE), 1000):
        evaluated(tracker, step, 0.9)
    assert path.read_bytes() != first
    assert [one.name for one in path.parent.glob("*.png")] == [path.name]
    tracker.close()


def test_a_report_that_cannot_be_written_ends_no_run(tmp_path, capsys):
    tracker = Tracker({"csv": CsvSink(), "report": ReportSink()})
    tracker.open(info(tmp_path / "run"))
    (tmp_path / "run/report.html").mkdir()
    for step in (0, 1000):
        evaluated(tracker, step, 0.5)
    assert tracker.active == ("csv",)
    tracker.close()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("tracking: report failed in flush and is disabled")


def test_a_report_of_an_old_run_is_written_by_the_command(monkeypatch, capsys, tmp_path):
    write_rich_run(tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["jaxmarl-report", str(tmp_path / "run")])
    report.main()
    assert capsys.readouterr().out == f"report: {tmp_path / 'run/report.html'}\n"
    assert "played" in (tmp_path / "run/report.html").read_text()
    monkeypatch.setattr(sys, "argv", ["jaxmarl-report", str(tmp_path / "run"), "--replay", "play"])
    report.main()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("no replay: ") and second.startswith("report: ")
    monkeypatch.setattr(sys, "argv", ["jaxmarl-report", str(tmp_path)])
    with pytest.raises(SystemExit):
        command_line.run_guarded(report.main)
    assert capsys.readouterr().err == f"error: {tmp_path}: not a run folder: it has no config.yaml\n"


def test_ticks_are_round_and_inside():
    assert charts.find_ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert charts.find_ticks(-30.0, 480.0) == [0.0, 200.0, 400.0]
    assert charts.find_ticks(2.0, 2.0) == [2.0]
    tiny = charts.find_ticks(0.0, 5e-15)
    assert tiny == [0.0, 1e-15, 2e-15, 3e-15, 4e-15, 5e-15] and len(set(charts.label_ticks(tiny))) == 6


def test_labels_of_an_axis_tell_its_ticks_apart():
    assert charts.label_ticks([-99.36, -99.355, -99.35]) == ["-99.360", "-99.355", "-99.350"]
    assert charts.label_ticks([0.0, 20_000.0, 40_000.0]) == ["0", "20k", "40k"]
    assert charts.label_ticks([500_000.0, 1_000_000.0]) == ["0.5M", "1.0M"]
    assert charts.label_ticks([4.6e-4, 4.7e-4]) == ["4.6e-4", "4.7e-4"]
    assert charts.label_ticks([5e-5, 1e-4]) == ["0.5e-4", "1.0e-4"]


def test_thinned_curves_keep_means_and_skip_gaps():
    x = np.arange(1000.0)
    y = np.where(x == 500, np.nan, 3.0 * x)
    short, low = charts.thin_curve(x, y, 100)
    assert len(short) == 100
    np.testing.assert_allclose(low, 3.0 * short)
    np.testing.assert_array_equal(charts.thin_curve(x[:5], y[:5]), (x[:5], y[:5]))


def test_charts_draw_values_where_they_belong():
    line = charts.Line("a & b", np.array([0.0, 10.0, np.nan]), np.array([0.0, 1.0, 5.0]))
    drawn = charts.draw_chart("title", [line], bounds=(0.0, 1.0))
    bottom, right = charts.HEIGHT - charts.BOTTOM, charts.WIDTH - charts.RIGHT
    assert f'points="{charts.LEFT}.0,{bottom}.0 {right}.0,{charts.TOP}.0"' in drawn
    assert "a &amp; b" in drawn
    assert charts.draw_chart("title", [charts.Line("", np.full(2, np.nan), np.zeros(2))]) == ""
    shares = {"crash": np.array([1.0, 0.25]), "goal": np.array([0.0, 0.75])}
    areas = charts.draw_shares("ends", np.array([0.0, 1.0]), shares, {"crash": 0, "goal": 1})
    quarter = bottom - 0.25 * (bottom - charts.TOP)
    assert f"{right}.0,{quarter:.1f}" in areas and areas.count("<polygon") == 2
