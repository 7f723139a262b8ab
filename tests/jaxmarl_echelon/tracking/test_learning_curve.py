import numpy as np
import pytest
from PIL import Image
from tracking_runs import run_info, write_updates

from jaxmarl_echelon.tracking import plots
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.tracking.plots import learning_curve, moving_mean


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


def test_a_run_without_files_draws_empty_axes(tmp_path):
    path = draw(tmp_path)
    assert colours(path, plots.TRAINING) == colours(path, plots.EVALUATION) == 0
    assert colours(path, "#000000") > 100


def test_moving_mean_skips_gaps_and_keeps_constants():
    values = np.array([1.0, np.nan, 3.0, 5.0, np.nan, np.nan])
    np.testing.assert_allclose(moving_mean(values, 2), [1.0, 1.0, 3.0, 4.0, 5.0, np.nan])
    np.testing.assert_array_equal(moving_mean(np.full(50, 0.1), 7), np.full(50, 0.1))


@pytest.mark.parametrize("column", ["train/success_rate", "losses/value"])
def test_gaps_in_the_data_are_no_error(tmp_path, column):
    (tmp_path / "metrics.csv").write_text(f"step,{column}\n0,\n10,nan\n20,0.5\n30,0.75\n")
    assert colours(draw(tmp_path), plots.TRAINING) > 20
