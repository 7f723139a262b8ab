import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image
from tracking_runs import run_info, write_updates

from jaxmarl_echelon.tracking import plots
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.tracking.plots import ladder_plot, learning_curve, moving_mean, variants_plot


def colours(path, colour):
    """Number of pixels close to a `#rrggbb` colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return int((np.abs(pixels - wanted).max(-1) < 12).sum())


def draw(folder, **settings):
    path = folder / "learning_curve.png"
    learning_curve(path, folder / "metrics.csv", folder / "eval.csv", **settings)
    return path


def test_training_and_evaluations_are_drawn(tmp_path):
    sink = CsvSink()
    sink.open(run_info(tmp_path))
    write_updates(sink, 1, 20)
    sink.close()
    path = draw(tmp_path, title="f110 ppo")
    assert Image.open(path).size[0] >= 1000
    assert colours(path, plots.TRAINING) > 500
    assert colours(path, plots.EVALUATION) > 500
    (tmp_path / "eval.csv").unlink()
    assert colours(draw(tmp_path), plots.EVALUATION) == 0


def titles(monkeypatch, folder, **settings):
    """Titles of the panels of a learning curve."""
    drawn = []
    monkeypatch.setattr(plots.Figure, "savefig", lambda figure, path: drawn.extend(figure.axes))
    draw(folder, **settings)
    return [axes.get_title(loc="left") for axes in drawn]


def test_a_run_that_has_just_begun_says_so(tmp_path):
    path = draw(tmp_path)
    assert colours(path, plots.TRAINING) == colours(path, plots.EVALUATION) == 0
    assert colours(path, plots.PHASE) > 50


def test_quantities_without_values_have_no_panel(tmp_path, monkeypatch):
    (tmp_path / "metrics.csv").write_text("step,train/success_rate,losses/value,losses/kl\n10,nan,0.5,nan\n")
    assert titles(monkeypatch, tmp_path) == ["value"]
    (tmp_path / "eval.csv").write_text("step,avg_reward,success_rate\n0,1.5,nan\n")
    assert titles(monkeypatch, tmp_path) == ["return", "value"]
    assert titles(monkeypatch, tmp_path, score=None) == ["return", "value"]
    (tmp_path / "eval.csv").write_text("step,avg_reward,success_rate\n0,1.5,0.5\n")
    assert titles(monkeypatch, tmp_path) == ["success rate", "return", "value"]


def test_moving_mean_skips_gaps_and_keeps_constants():
    values = np.array([1.0, np.nan, 3.0, 5.0, np.nan, np.nan])
    np.testing.assert_allclose(moving_mean(values, 2), [1.0, 1.0, 3.0, 4.0, 5.0, np.nan])
    np.testing.assert_array_equal(moving_mean(np.full(50, 0.1), 7), np.full(50, 0.1))


@pytest.mark.parametrize("column", ["train/success_rate", "losses/value"])
def test_gaps_in_the_data_are_skipped(tmp_path, column):
    (tmp_path / "metrics.csv").write_text(f"step,{column}\n0,\n10,nan\n20,0.5\n30,0.75\n")
    assert colours(draw(tmp_path), plots.TRAINING) > 20


def phases(folder, stages):
    rows = "".join(f"{10 * i},0.5,phase {stage},{stage}\n" for i, stage in enumerate(stages))
    header = "step,train/success_rate,curriculum/phase_name,curriculum/current_stage\n"
    (folder / "metrics.csv").write_text(header + rows)


def test_phase_transitions_are_lines_with_the_number_of_the_phase(tmp_path, monkeypatch):
    drawn, numbers = [], []
    monkeypatch.setattr(Axes, "axvline", lambda axes, x, **style: drawn.append((x, style["color"])))
    monkeypatch.setattr(Axes, "annotate", lambda axes, text, place, **style: numbers.append((text, place[0])))
    phases(tmp_path, ["0.0", "0.0", "1.0", "nan", "", "1.0", "3.0", "2.0"])
    draw(tmp_path)
    assert drawn == [(20, plots.PHASE), (60, plots.PHASE), (70, plots.BACK)]
    assert numbers == [("1", 20), ("3", 60), ("2", 70)]


def test_numbers_of_phases_do_not_overlap(tmp_path, monkeypatch):
    numbers = []
    monkeypatch.setattr(Axes, "annotate", lambda axes, text, place, **style: numbers.append(text))
    phases(tmp_path, [f"{stage}.0" for stage in range(26)] + ["25.0"] * 400)
    draw(tmp_path)
    assert numbers == ["1", "12", "23"]


def test_transitions_change_the_picture_and_one_phase_does_not(tmp_path):
    phases(tmp_path, ["4.0"] * 8)
    plain = np.asarray(Image.open(draw(tmp_path)))
    phases(tmp_path, ["nan"] * 8)
    np.testing.assert_array_equal(np.asarray(Image.open(draw(tmp_path))), plain)
    phases(tmp_path, ["4.0"] * 4 + ["3.0"] * 4)
    assert (np.asarray(Image.open(draw(tmp_path))) != plain).any()


ROWS = [
    {"name": "0  1_lock800", "success": 0.9, "low": 0.8, "high": 0.95},
    {"name": "1  1_lock600", "success": 0.3},
    {"name": "2  1_lock400", "success": float("nan"), "low": 0.0, "high": 1.0},
    {"name": "3  1_lock200", "success": 0.0, "low": 0.0, "high": 0.06},
]


def test_a_ladder_has_a_bar_per_phase_from_the_top(tmp_path):
    ladder_plot(tmp_path / "ladder.png", ROWS, title="f110")
    pixels = np.asarray(Image.open(tmp_path / "ladder.png").convert("RGB")).astype(int)
    wanted = [int(plots.TRAINING[i : i + 2], 16) for i in (1, 3, 5)]
    widths = (np.abs(pixels - wanted).max(-1) < 12).sum(1)
    bars = [int(widths[run].max()) for run in np.split(np.arange(len(widths)), stretches(widths > 20))]
    assert len([width for width in bars if width > 20]) == 2
    long, short = (width for width in bars if width > 20)
    assert 2.7 < long / short < 3.1


def stretches(flags):
    """Where a run of equal flags ends and the next begins."""
    return np.flatnonzero(np.diff(flags.astype(int))) + 1


@pytest.mark.parametrize("number", [0, 1, 40])
def test_ladders_grow_with_their_phases(tmp_path, number):
    ladder_plot(tmp_path / "ladder.png", ROWS[:1] * number)
    assert Image.open(tmp_path / "ladder.png").size[1] >= 130 + 30 * number


@pytest.mark.parametrize("variants", [1, 12, 30])
def test_variants_are_drawn_with_and_without_their_courses(tmp_path, variants):
    rows = [{**ROWS[i % 4], "name": f"variant {i}"} for i in range(variants)]
    variants_plot(tmp_path / "bars.png", rows)
    curves = np.linspace(0.0, 1.0, 24).reshape(3, 8)
    curves[1, 2:4] = np.nan
    rows[0] |= {"steps": np.arange(8) * 1000, "curves": curves}
    variants_plot(tmp_path / "both.png", rows, title="sweep")
    bars, both = (Image.open(tmp_path / name) for name in ("bars.png", "both.png"))
    assert both.size[0] > bars.size[0]


def test_returns_of_variants_are_not_drawn_as_shares(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots.Figure, "savefig", lambda figure, path: drawn.extend(figure.axes))
    rows = [{"name": "a", "success": 59.25, "low": -166.0, "high": 284.0, "measure": "avg_reward"}]
    variants_plot(tmp_path / "v.png", rows)
    (axes,) = drawn
    assert [text.get_text() for text in axes.texts] == ["59.25"] and axes.get_xlabel() == "return"
    assert axes.get_xlim()[0] < -166.0 and axes.get_xlim()[1] > 284.0


def test_the_mean_course_ignores_gaps(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Axes, "plot", lambda axes, x, y, **style: drawn.append((np.array(y), style)))
    row = {**ROWS[0], "steps": [0, 1, 2], "curves": [[0.0, 1.0, np.nan], [1.0, np.nan, np.nan]]}
    monkeypatch.setattr(Axes, "legend", lambda axes, **style: None)
    variants_plot(tmp_path / "v.png", [row])
    (mean,) = [y for y, style in drawn if style.get("label") == row["name"]]
    np.testing.assert_array_equal(mean, [0.5, 1.0, np.nan])
    assert len(drawn) == 3
