"""The notebooks: clean sources, an install cell that finds the project, and every cell runs.

Cells run in the process of the tests, and so do the commands that they start: kernels, further processes and
their imports would take most of the time. `make docs EXECUTE=force` runs the notebooks as readers do.
"""

import contextlib
import functools
import importlib
import importlib.util
import io
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import IPython.display
import jax
import matplotlib.pyplot
import nbformat
import numpy as np
import pytest
from commands import TINY
from marked import mark_others

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
PACKAGE = "jaxmarl_echelon"
FILE = "%%writefile "
# Budgets that replace those of the cell tagged `parameters`; F110 is trained as other tests train it.
F110 = ["env=f110", *TINY]
SMALL = {
    "quickstart": {"SOURCE": "", "SETTINGS": F110, "OUTPUT": "outputs", "NAME": "first", "EPISODES": 4},
    "export": {"SOURCE": "", "SETTINGS": F110, "OUTPUT": "outputs", "POLICY": "policy", "EPISODES": 2},
    "own_environment": {
        "SOURCE": "",
        "SETTINGS": ["num_envs=4", "algo.horizon=8", "algo.widths=[8]", "algo.num_minibatches=2"]
        + ["total_env_steps=64", "eval_episodes=4"],
        "SEEDS": 2,
        "OUTPUT": "outputs",
    },
    "language_self_play": {
        "SOURCE": "",
        "SETTINGS": ["+algo=reinforce_lm", "env=textgames/kuhn", "total_env_steps=96", "num_envs=8"]
        + ["algo.horizon=2"]
        + ["algo.fresh={width: 16, layers: 1, heads: 2, kv_heads: 1, head_dim: 8, mlp_width: 16}"],
        "OUTPUT": "outputs",
        "NAME": "language",
    },
    "reward_ablation": {
        "SOURCE": "",
        "F110": [*F110, "seeds=2"],
        "PARTS": ["reward.terminal"],
        "ORDERS": ["env=echelon_missions_small", "env.maps=4", "env.time_limit=2", "curriculum=missions4"]
        + ["num_envs=2", "algo.horizon=8", "algo.widths=[8]", "algo.num_minibatches=2", "algo.epochs=1"]
        + ["total_env_steps=32", "eval_episodes=2", "compilation=quick", "seeds=2"],
        "OUTPUT": "outputs",
        "SQUADS": 2,
    },
}
# Pictures that each shows, and lines that it prints whatever the budget.
PICTURES = {"quickstart": 4, "export": 0, "own_environment": 3, "language_self_play": 3, "reward_ablation": 7}
# Functions that are only traced, in place of the compiled ones.
TRACED = {"reward_ablation": {"played": "play"}}
TOLD = {
    "export": ["the same outcome in 2 of 2 episodes", "2000 decisions of 1: median"],
    "own_environment": ["Ferry keeps the contract", "reward", "ended"],
    "language_self_play": ["the loaded adapter plays exactly as the trained one: True"],
}


def read_cells(name, tag=None):
    found = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    return [cell for cell in code if tag is None or tag in cell.metadata.get("tags", ())]


def assigned(source):
    """Names that a cell assigns at its left margin."""
    found = re.findall(r"^([A-Z][A-Z0-9_, ]*?) =", source, re.MULTILINE)
    return {name for names in found for name in names.split(", ")}


@pytest.mark.parametrize("name", NAMES)
def test_sources_are_clean(name):
    path = FOLDER / f"{name}.ipynb"
    nbformat.validate(nbformat.read(path, as_version=4))
    assert not any(cell.outputs or cell.execution_count for cell in read_cells(name))
    assert path.stat().st_size < 100_000
    (parameters,) = read_cells(name, "parameters")
    assert assigned(parameters.source) == set(SMALL[name])


def test_all_have_the_same_install_cell_after_the_parameters():
    installs = [read_cells(name, "install") for name in NAMES]
    assert {len(cells) for cells in installs} == {1} and len({cells[0].source for cells in installs}) == 1
    for name in NAMES:
        tags = [tag for cell in read_cells(name) for tag in cell.metadata.get("tags", ())]
        assert tags == ["parameters", "install"]


def test_the_install_cell_agrees_with_the_project(repository):
    (install,) = read_cells("quickstart", "install")
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    (least,) = re.findall(r"^jax(>=[\d.]+)$", "\n".join(project["dependencies"]), re.MULTILINE)
    newest = max(re.findall(r'jax: "(\d+\.\d+)', (repository / ".github/workflows/tests.yml").read_text()))
    above = f"0.{int(newest.split('.')[1]) + 1}"
    assert f'"jax{least},<{above}"' in install.source
    assert project["name"] in install.source


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Runs the install cell in a folder where the package is not installed; returns what pip was given."""
    (cell,) = read_cells("quickstart", "install")

    def installed(source):
        monkeypatch.chdir(tmp_path)
        given = []
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(subprocess, "run", lambda command, **_: given.append(command[3:]))
        exec(cell.source, {"SOURCE": source})
        (command,) = given
        return command

    return installed


def test_a_given_source_is_installed(install, capsys):
    assert install("git+https://...")[:3] == ["install", "-q", "git+https://..."]
    assert not capsys.readouterr().out  # jax is imported, in the version that is installed


def test_another_jax_that_is_imported_asks_for_a_restart(install, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(__version__="0.1"))
    install("here")
    assert "restart the kernel" in capsys.readouterr().out


def test_a_checkout_around_the_notebook_is_installed(install, tmp_path, repository, monkeypatch):
    (tmp_path / PACKAGE).symlink_to(repository / PACKAGE)
    assert install("")[2] == "."
    (tmp_path / PACKAGE).unlink()
    monkeypatch.setattr(Path, "is_file", lambda path: path == Path("..", PACKAGE, "train.py"))
    assert install("")[2] == ".."


def test_without_a_source_the_message_says_where_to_set_it(install):
    with pytest.raises(RuntimeError, match="set SOURCE in the cell above"):
        install("")


@pytest.mark.parametrize("name", NAMES)
def test_cells_that_train_can_run_again(name, tmp_path):
    """Readers change a setting and run the cell; a run never overwrites another."""
    (cell,) = [cell for cell in read_cells(name) if "def train(" in cell.source]
    names = {"OUTPUT": tmp_path, "Path": Path}
    exec(cell.source[cell.source.index("def train(") :], names)
    names["run"] = lambda *given: (tmp_path / "env" / "ppo" / given[-1].removeprefix("run_name=")).mkdir(
        parents=True
    )
    assert [names["train"]("first").name for _ in range(3)] == ["first", "first_2", "first_3"]
    assert sum(other.source.count('run("train"') for other in read_cells(name)) == 1


class Command(contextlib.AbstractContextManager):
    """A command of the package, run in this process where a notebook starts one of its own."""

    def __init__(self, command, monkeypatch):
        executable, option, module, *arguments = command
        assert (executable, option) == (sys.executable, "-m") and module.startswith(PACKAGE)
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            importlib.import_module(module).main()
        self.stdout, self.returncode = io.StringIO(said.getvalue()), 0

    def __exit__(self, *_):
        return None


class Book:
    """Runs the cells of a notebook in a folder; `shown` counts its pictures."""

    def __init__(self, monkeypatch):
        self.names, self.shown = {"__name__": "__main__"}, 0
        start, plots = subprocess.Popen, matplotlib.pyplot
        monkeypatch.setattr(subprocess, "Popen", lambda command, **options: (
            Command(command, monkeypatch) if "-m" in command else start(command, **options)
        ))  # fmt: skip
        plots.switch_backend("Agg")
        monkeypatch.setattr(plots, "show", lambda: self._show())
        monkeypatch.setattr(IPython.display, "display", self._display)

    def run(self, source):
        head, _, body = source.partition("\n")
        if head.startswith(FILE):
            Path(head.removeprefix(FILE)).write_text(body)
        else:
            exec(compile(source, "<cell>", "exec"), self.names)

    def _show(self):
        self.shown += len(matplotlib.pyplot.get_fignums())
        for number in matplotlib.pyplot.get_fignums():
            matplotlib.pyplot.figure(number).canvas.draw()
        matplotlib.pyplot.close("all")

    def _display(self, *shown):
        self.shown += sum(isinstance(one, IPython.display.Image) and bool(one.data) for one in shown)


@pytest.fixture
def book(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield Book(monkeypatch)
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def only_traced(function):
    """The function's results as zeros: it is traced, once, and not compiled, which takes most of a minute."""

    @functools.cache
    def shapes():
        return jax.eval_shape(function, *given)

    def call(*arguments):
        given[:] = arguments
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes())

    given = []
    return call


@pytest.mark.parametrize("name", mark_others(NAMES, "quickstart"))
def test_every_cell_runs(name, book, capsys):
    for cell in read_cells(name):
        if "parameters" in cell.metadata.get("tags", ()):
            book.run("\n".join(f"{key} = {value!r}" for key, value in SMALL[name].items()))
        else:
            book.run(cell.source)
        for plain, compiled in TRACED.get(name, {}).items():
            if f"{compiled} = " in cell.source:
                book.names[compiled] = only_traced(book.names[plain])
    assert book.shown >= PICTURES[name]
    told = capsys.readouterr().out
    for line in TOLD.get(name, ()):
        assert line in told
