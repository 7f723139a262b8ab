"""The benchmark of learning says how sure its scores are."""

import math

import pytest
from recorded_runs import write_evaluation, write_group
from scripts import load_script


@pytest.fixture(scope="module")
def learn(repository):
    return load_script(repository / "benchmarks" / "learn.py")


def test_a_single_seed_has_no_interval(learn):
    """Every resample would repeat it, so that it would look certain."""
    middle, low, high = learn.interval([0.25])
    assert middle == 0.25 and math.isnan(low) and math.isnan(high)
    assert learn.shown([0.25]) == "0.25"
    assert learn.shown([0.5, 0.5]) == "0.5 [0.5, 0.5]"


def test_scores_are_those_that_evaluate_wrote_and_fill_the_table(learn, tmp_path):
    group = write_group(tmp_path / "group", [(0.1,), (0.2,)])
    for seed, score in enumerate((0.5, 0.75)):
        write_evaluation(group / f"seed_{seed}", score)
    measure, scores = learn.read_scores(group, "latest")
    assert (measure, scores) == ("success", [0.5, 0.75])
    page, kept = tmp_path / "page.md", "| `memory_lstm` | return | 5 | 1 | 1 | 1 | 258 |"
    page.write_text(f"before\n<!-- learn: begin -->\n{kept}\n<!-- learn: end -->\nafter\n")
    learn.write_table(page, {"f110": learn.Scores(measure, scores, scores, 12.4)})
    lines = page.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and lines[4] == kept
    assert lines[5].startswith("| `f110` | success | 2 | 0.625 [0.5, 0.75] | ")
    assert lines[5].endswith(" | 0.5, 0.75 | 12 |")
