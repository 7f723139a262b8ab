"""The benchmark of other libraries' tasks refuses settings that would have no effect."""

import pytest
from scripts import load_script


def test_settings_of_a_peer_without_a_command_line_are_refused(repository, monkeypatch, capsys):
    benchmark = load_script(repository / "benchmarks" / "peer_tasks.py")
    monkeypatch.setattr(benchmark, "measure_ours", lambda *_: benchmark.Measured([0.0], 1.0, 1.0))
    monkeypatch.setattr("sys.argv", ["peer_tasks.py", "spread", "pendulum", "--theirs", "learning_rate=1e-4"])
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    message = "--theirs=learning_rate=1e-4: for tasks of JaxMARL; brax's training of pendulum is fixed"
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)
