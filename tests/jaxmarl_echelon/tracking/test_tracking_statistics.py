import math

import numpy as np
import pytest

from jaxmarl_echelon.tracking.formats import (
    draw_bar,
    draw_sparkline,
    format_clock,
    format_count,
    format_number,
    format_percent,
)
from jaxmarl_echelon.tracking.statistics import (
    Pace,
    Trend,
    score_interval,
    student_interval,
    sum_scores,
    wilson_interval,
)


@pytest.mark.parametrize(("wins", "n"), [(0, 10), (3, 10), (64, 64), (499, 1000)])
def test_wilson_bounds_solve_their_defining_equation(wins, n):
    z, p = 1.959963984540054, wins / n
    for bound in wilson_interval(wins, n):
        assert (p - bound) ** 2 == pytest.approx(z**2 * bound * (1 - bound) / n, abs=1e-12)


def test_wilson_known_values_and_ends():
    assert wilson_interval(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 7)[0] == 0.0
    assert wilson_interval(7, 7)[1] == 1.0
    low, high = wilson_interval(3, 20)
    assert wilson_interval(17, 20) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(("wins", "n"), [(-1, 5), (6, 5)])
def test_wilson_refuses_impossible_counts(wins, n):
    with pytest.raises(ValueError, match=f"successes={wins}"):
        wilson_interval(wins, n)


def test_equal_scores_are_not_certain():
    """Fifteen draws, or fifteen games of two agents without a success, do not make the next one the same."""
    ones = np.ones(15)
    assert score_interval(sum_scores(0.5 * ones, ones)) == wilson_interval(7.5, 15)
    assert score_interval(sum_scores(0.3 * ones, ones)) == pytest.approx(wilson_interval(4.5, 15))
    assert score_interval(sum_scores(0.0 * ones, 2.0 * ones)) == wilson_interval(0, 15)
    assert score_interval(sum_scores(2.0 * ones, 2.0 * ones)) == wilson_interval(15, 15)
    graded = np.array([0.5, 0.25, 0.75, 0.5])
    assert score_interval(sum_scores(graded, np.ones(4))) == pytest.approx(student_interval(graded.tolist()))


def test_trend_keeps_the_mean_in_bounded_memory():
    trend = Trend(capacity=16)
    for value in range(1024):
        trend.add(float(value))
    points = trend.points(8)
    assert len(points) == 8
    assert points == sorted(points)
    assert sum(points) / 8 == pytest.approx(511.5)
    assert len(trend.points(1000)) <= 16


def test_trend_with_few_values_shows_each_and_skips_nan():
    trend = Trend()
    for value in (3.0, math.nan, 1.0):
        trend.add(value)
    assert trend.points(10) == [3.0, 1.0]
    assert Trend().points(5) == []


def test_pace_counts_from_where_the_run_resumed():
    pace = Pace(total=1000, start=400)
    assert pace.fraction == 0.4
    assert math.isnan(pace.remaining(0.0))
    pace.report(10.0, 500)
    pace.report(20.0, 600)
    assert pace.speed == pytest.approx(10.0)
    assert pace.remaining(25.0) == pytest.approx(35.0)
    pace.report(30.0, 1000)
    assert (pace.fraction, pace.remaining(31.0)) == (1.0, 0.0)


def test_pace_takes_the_updates_of_a_chunk_together():
    pace = Pace(total=10_000)
    for second in range(4):
        for part in range(1, 6):
            pace.report(float(second) + part * 1e-4, second * 500 + part * 100)
    assert pace.speed == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.6, "1.00 k"), (12_345, "12.3 k"), (999_600, "1.00 M"), (4.2e6, "4.20 M"),
     (99.96e6, "100 M"), (2.5e9, "2.50 G"), (7e15, "7000 T"), (math.nan, "-")],
)  # fmt: skip
def test_count(value, text):
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-26.0, "-26"), (0.01234, "0.0123"), (-123.456, "-123.5"), (3.14159, "3.142"),
     (1.5e-7, "1.50e-07"), (123456.5, "1.23e+05"), (math.nan, "nan"), (-math.inf, "-inf")],
)  # fmt: skip
def test_number(value, text):
    assert format_number(value) == text
    assert len(text) <= 9


def test_other_formats():
    assert [format_clock(s) for s in (0, 59.9, 61, 3661, math.nan)] == [
        "0:00",
        "0:59",
        "1:01",
        "1:01:01",
        "-",
    ]
    assert [format_percent(f) for f in (0.0, 0.4126, 1.0, math.nan)] == ["0.0 %", "41.3 %", "100.0 %", "-"]
    assert draw_sparkline([0.0, 0.5, 1.0], 0.0, 1.0) == "▁▅█"
    assert draw_sparkline([2.0, 2.0]) == "▄▄"
    assert draw_sparkline([]) == ""
    assert [draw_bar(f, 4) for f in (0.0, 0.5, 0.53125, 1.0, 2.0, math.nan)] == [
        "    ",
        "██  ",
        "██▏ ",
        "████",
        "████",
        "    ",
    ]
