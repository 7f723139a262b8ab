"""A folder of the user's own must not hide the project's packages in silence."""

import sys

import pytest

from jaxmarl_echelon import installation


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
