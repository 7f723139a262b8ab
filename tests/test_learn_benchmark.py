"""The benchmark of learning says how sure its scores are."""

import math

import pytest
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
