"""Importing the package changes nothing; a folder of the user's own does not hide its parts in silence."""

import os
import subprocess
import sys

import pytest

from jaxmarl_echelon import command_line, installation

IMPORT = """
import atexit, gc, os, sys
gc.set_threshold(701, 11, 12)


def process():
    collector, hooks = (*gc.get_threshold(), gc.get_freeze_count()), (sys.excepthook, sys.displayhook)
    return collector, hooks, list(sys.argv), list(sys.path), dict(os.environ), os.getcwd()


before, calls = process(), atexit._ncallbacks()
import jaxmarl_echelon
assert process() == before and atexit._ncallbacks() == calls
jaxmarl_echelon.make, jaxmarl_echelon.load_policy
after = process()
assert after == before, (before, after)
"""


def test_import_changes_nothing_in_the_process(repository, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, "-m", "jaxmarl_echelon.train", "KEY=VALUE"],
        env=os.environ | {"PYTHONPATH": str(repository)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and not done.stdout, done.stderr


def test_commands_collect_rarely(monkeypatch):
    noted, registered = [], []
    monkeypatch.setattr(command_line.gc, "set_threshold", lambda *thresholds: noted.append(thresholds))
    monkeypatch.setattr(command_line.atexit, "register", registered.append)
    command_line.raise_gc_thresholds.cache_clear()
    assert [command_line.run_guarded(lambda: 7) for _ in range(2)] == [7, 7]
    assert noted == [command_line.GC_THRESHOLDS] and len(registered) == 1


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
    assert installation.is_package_command() is expected


@pytest.mark.parametrize("name", installation.OWN)
def test_shadowing_package_is_named_in_the_error(monkeypatch, tmp_path, name):
    installation.require_own_packages()
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as caught:
        installation.require_own_packages()
    message = str(caught.value)
    assert message.startswith(f"{name}: ") and str(tmp_path / name) in message and "\n" not in message


def test_a_command_ends_in_one_line(monkeypatch, tmp_path, capsys):
    (tmp_path / "algos.py").write_text("")
    monkeypatch.delitem(sys.modules, "algos")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installation, "is_package_command", lambda: True)
    with pytest.raises(SystemExit) as caught:
        installation.require_own_packages()
    assert caught.value.code == 2 and capsys.readouterr().err.count("\n") == 1
