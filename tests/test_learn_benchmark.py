"""The benchmark of learning says how sure its scores are."""

import importlib.util
import math

import pytest


@pytest.fixture(scope="module")
def learn(repository):
    spec = importlib.util.spec_from_file_location("learn", repository / "benchmarks" / "learn.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_single_seed_has_no_interval(learn):
    """Every resample would repeat it, so that it would look certain."""
    middle, low, high = learn.interval([0.25])
    assert middle == 0.25 and math.isnan(low) and math.isnan(high)
    assert learn.shown([0.25]) == "0.25"
    assert learn.shown([0.5, 0.5]) == "0.5 [0.5, 0.5]"
