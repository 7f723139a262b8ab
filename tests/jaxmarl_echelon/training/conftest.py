"""Runs on several devices, which more than one file reads."""

import fcntl
import functools
import os
import subprocess
import sys

import pytest
from sharded_runs import DEVICES, compiler_flags


@pytest.fixture(scope="session")
def ran(repository, tmp_path_factory):
    """`(part) -> folder` with the output of a part of `sharded_runs`, which runs once."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    @functools.cache
    def run(part):
        folder, done = base / f"sharded_{part}", base / f"sharded_{part}.done"
        with (base / f"sharded_{part}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file closes
            if not done.exists():
                folder.mkdir(exist_ok=True)
                run_part(part, folder)
                done.touch()
        return folder

    def run_part(part, folder):
        paths = os.pathsep.join(map(str, (repository, repository / "tests" / "helpers")))
        done = subprocess.run(
            [sys.executable, repository / "tests" / "helpers" / "sharded_runs.py", part, folder],
            env=os.environ | {"PYTHONPATH": paths, "XLA_FLAGS": compiler_flags(DEVICES)},
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-4000:]

    return run
