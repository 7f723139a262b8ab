"""The project as a whole: style, import directions, the wheel and a run from it."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from commands import TINY
from marked import thorough


def call(*command, cwd, **changes) -> str:
    """Runs a command to success and returns what it printed; fails the test with its output otherwise."""
    environment = {**os.environ, **changes}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=repository)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The interpreter of a fresh environment that holds the wheel and borrows its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    call(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", wheel)
    call(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    return python


def test_ruff_finds_nothing(repository):
    call(sys.executable, "-m", "ruff", "check", "--no-cache", ".", cwd=repository)


def test_imports_point_one_way(repository):
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    call(sys.executable, "-c", command, "--no-cache", cwd=repository)


def test_wheel_holds_every_module_and_the_configuration(repository, wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        str(path.relative_to(repository))
        for package in ("jaxmarl_echelon", "physics", "algos")
        for path in (repository / package).rglob("*.py")
    }
    configuration = (path for path in (repository / "conf").rglob("*.yaml"))
    expected |= {f"jaxmarl_echelon/{path.relative_to(repository)}" for path in configuration}
    expected |= {f"{package}/py.typed" for package in ("jaxmarl_echelon", "physics", "algos")}
    assert "jaxmarl_echelon/conf/tracking/default.yaml" in expected
    assert expected <= packed, sorted(expected - packed)
    assert not [name for name in packed if name.startswith(("tests/", "conf/"))]


def test_installed_package_finds_its_own_configuration(installed, repository, tmp_path):
    command = "from algos.defaults import config_directory; print(config_directory())"
    found = Path(call(installed, "-c", command, cwd=tmp_path).strip())
    assert (found / "tracking" / "default.yaml").is_file()
    assert repository / "conf" != found
    assert installed.parent.parent in found.parents


@pytest.mark.parametrize(
    ("script", "wrong", "line"),
    [
        ("jaxmarl-train", "algo=ddpg", "error: algo=ddpg: unknown algo; allowed: a2c, "),
        thorough("jaxmarl-evaluate", "nowhere", "error: nowhere: no such folder\n"),
        thorough("jaxmarl-export", "nowhere", "error: nowhere: no such folder\n"),
    ],
)
def test_console_scripts(installed, tmp_path, script, wrong, line):
    command = installed.parent / script
    assert call(command, "--help", cwd=tmp_path).startswith(f"usage: {script} ")
    done = subprocess.run([command, wrong], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(line) and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_training_from_the_wheel_in_another_folder(installed, tmp_path):
    train = (installed, "-m", "jaxmarl_echelon.train", "+algo=ppo", "env=f110", *TINY)
    call(*train, cwd=tmp_path, JAX_PLATFORMS="cpu", JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")
    (run,) = (tmp_path / "outputs" / "f110" / "ppo").iterdir()
    assert (run / "config.yaml").is_file()
    assert (run / "metrics.csv").is_file()
