"""Jobs in one process and in several give the same results and the same errors."""

import math

import pytest

from jaxmarl_echelon.envs.workers import run_jobs


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_jobs_and_errors_of_the_first(workers):
    how = {"label": "roots", "per_worker": 1, "workers": workers}
    assert run_jobs(math.sqrt, [(4.0,), (9.0,), (16.0,)], **how) == [2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="expected a nonnegative input, got -1.0|math domain error"):
        run_jobs(math.sqrt, [(1.0,), (-1.0,), (-2.0,)], **how)
