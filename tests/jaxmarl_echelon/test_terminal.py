"""Output that nobody reads or that fits nowhere, and questions that nobody answers."""

import os
import sys

import pytest

from jaxmarl_echelon import command_line
from jaxmarl_echelon.terminal import without_prompts


def speak(result="done"):
    for _ in range(3):
        print("words", flush=True)
    return result


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_under_the_output_ends_the_command_in_one_line(monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        reached = []
        with pytest.raises(SystemExit) as caught:
            command_line.run_guarded(lambda: reached.append(speak()))
        assert sys.stdout is full
    assert caught.value.code == 1 and reached == ["done"]
    assert capsys.readouterr().err.splitlines() == [
        "standard output: No space left on device; further output is discarded"
    ]


def test_command_continues_after_a_closed_pipe(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert command_line.run_guarded(speak) == "done"
    assert capsys.readouterr().err.splitlines() == [
        "standard output: Broken pipe; further output is discarded"
    ]


def test_errors_of_buffered_output_are_reported_at_the_end(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        command_line.run_guarded(lambda: print("a word that stays in the buffer"))
    assert "Broken pipe" in capsys.readouterr().err


def test_output_that_works_is_left_alone(capsys):
    assert command_line.run_guarded(speak) == "done"
    assert capsys.readouterr() == ("words\n" * 3, "")


def test_libraries_cannot_prompt_the_user(monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    before = sys.stdin
    with without_prompts():
        assert not sys.stdin.isatty() and sys.stdin.readline() == ""
    assert sys.stdin is before
