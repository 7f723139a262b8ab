"""Commands collect rarely; programs that import the package keep their own thresholds."""

import gc
import os
import subprocess
import sys

import pytest

from jaxmarl_echelon import collection, command_line

# Imported by Python before any other module.
SAYS = "import atexit, gc; atexit.register(lambda: print(gc.get_threshold()))"


@pytest.mark.parametrize(
    ("invoked", "started", "expected"),
    [
        ("-m", ["python", "-m", "jaxmarl_echelon.train", "env=f110"], True),
        ("-m", ["python", "-W", "error", "-m", "jaxmarl_echelon.evaluate"], True),
        ("-m", ["python", "-m", "mine.train"], False),
        ("-m", ["python", "-m", "jaxmarl_echelon_extras.train"], False),
        ("/somewhere/bin/jaxmarl-train", ["python", "/somewhere/bin/jaxmarl-train"], True),
        ("jaxmarl-evaluate.exe", ["jaxmarl-evaluate.exe"], True),
        ("jaxmarl-mine.py", ["python", "jaxmarl-mine.py", "-m", "jaxmarl_echelon.train"], False),
        ("-c", ["python", "-c", "import jaxmarl_echelon"], False),
        ("", ["python"], False),
        ("/home/jaxmarl-user/notebook.py", ["python", "/home/jaxmarl-user/notebook.py"], False),
    ],
)
def test_commands_are_recognised_by_their_invocation(monkeypatch, invoked, started, expected):
    monkeypatch.setattr(sys, "argv", [invoked])
    monkeypatch.setattr(sys, "orig_argv", started)
    assert collection.is_package_command() is expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-m", "jaxmarl_echelon.train", "--help"), collection.THRESHOLDS),
        (("-m", "mine"), (701, 11, 12)),
        (("-c", "import jaxmarl_echelon"), (701, 11, 12)),
    ],
)
def test_programs_that_import_the_package_keep_their_thresholds(repository, tmp_path, arguments, expected):
    (tmp_path / "sitecustomize.py").write_text(f"{SAYS}; gc.set_threshold(701, 11, 12)\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import jaxmarl_echelon\n")
    (tmp_path / "mine" / "__main__.py").write_text("")
    paths = os.pathsep.join(map(str, (tmp_path, repository)))
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(expected)


def test_a_launcher_that_runs_commands_in_its_own_process_collects_rarely():
    before = gc.get_threshold()
    collection.raise_gc_thresholds.cache_clear()
    gc.set_threshold(701, 11, 12)
    try:
        command_line.run_guarded(gc.get_threshold)
        assert gc.get_threshold() == collection.THRESHOLDS
    finally:
        gc.set_threshold(*before)
