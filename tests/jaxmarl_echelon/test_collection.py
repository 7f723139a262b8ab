"""Commands collect rarely; programs that import the package keep their own thresholds."""

import subprocess
import sys

import pytest

from jaxmarl_echelon import collection

SAYS = "import gc, jaxmarl_echelon; print(gc.get_threshold())"


@pytest.mark.parametrize(
    ("invoked", "expected"),
    [
        ("-m", True),
        ("/somewhere/bin/jaxmarl-train", True),
        ("jaxmarl-evaluate.exe", True),
        ("-c", False),
        ("", False),
        ("/home/jaxmarl-user/notebook.py", False),
    ],
)
def test_commands_are_told_by_how_they_are_invoked(monkeypatch, invoked, expected):
    monkeypatch.setattr(sys, "argv", [invoked])
    assert collection.is_command() is expected


def thresholds(repository, before):
    command = [sys.executable, "-c", f"import gc, sys; {before}; {SAYS}"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.strip()


def test_a_program_that_imports_the_package_keeps_its_own_thresholds(repository):
    assert thresholds(repository, "gc.set_threshold(701, 11, 12)") == "(701, 11, 12)"
    as_command = thresholds(repository, "sys.argv[0] = '-m'")
    assert as_command == str(collection.THRESHOLDS)
