"""The memory of jobs is that of docs/training.md."""

import subprocess
import sys

import pytest
from marked import thorough

BELOW = ["| `cartpole` | 0.1 | 0.0 | 0.2 | 0.0 | 0.30 |"]


def measure(repository, jobs, page):
    command = [sys.executable, str(repository / "benchmarks" / "memory.py"), *jobs, "--against", str(page)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.needs("gymnax")
@pytest.mark.parametrize(
    "jobs",
    [["cartpole", "kuhn"], thorough(["f110", "phased26", "tqc", "ppo_rnn", "missions", "drive", "kuhn_lm"])],
)
def test_no_job_needs_a_tenth_more_memory_than_the_page_says(repository, jobs):
    done = measure(repository, jobs, repository / "docs" / "training.md")
    assert done.returncode == 0, done.stderr
    assert all(f"`{job}`" in done.stdout for job in jobs)


@pytest.mark.thorough
@pytest.mark.needs("gymnax")
def test_a_job_that_grew_is_named(repository, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("\n".join(BELOW))
    done = measure(repository, ["cartpole"], page)
    assert done.returncode == 1 and done.stderr.startswith("cartpole: ") and "0.30 before" in done.stderr
