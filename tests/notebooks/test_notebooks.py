"""The notebooks: clean sources, an install cell that fits the project, and every cell runs."""

import ast
import re
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from jaxmarl_echelon import command_line

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = ("quickstart", "reward_ablation", "language_self_play")
# Budgets that replace those of the cell tagged `parameters`.
SMALL = {
    "quickstart": """
SETTINGS = ["env=f110", "env.lidar_beams=12", "env.max_steps=80", "num_envs=4", "total_env_steps=1024",
            "algo.horizon=32", "algo.widths=[8]", "algo.num_minibatches=2"]
OUTPUT, NAME = "outputs", "quickstart"
EPISODES = 4
""",
    "reward_ablation": """
SETTINGS = ["env=f110", "reward=gaplock_full", "env.lidar_beams=12", "env.max_steps=80", "num_envs=4",
            "total_env_steps=256", "algo.horizon=32", "algo.widths=[8]", "algo.num_minibatches=2"]
PARTS = ["forcing"]
SEEDS = 2
OUTPUT = "outputs"
EPISODES = 4
SQUADS = 2
""",
    "language_self_play": """
SETTINGS = ["+algo=reinforce_lm", "env=textgames/kuhn", "total_env_steps=96", "num_envs=8", "algo.horizon=2",
            "algo.fresh={width: 16, layers: 1, heads: 2, kv_heads: 1, head_dim: 8, mlp_width: 16}"]
OUTPUT, NAME = "outputs", "language"
""",
}


@pytest.fixture
def notebook(name):
    return name, nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def cells(notebook, tag):
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


@pytest.mark.parametrize("name", NAMES)
def test_sources_are_clean(notebook):
    name, found = notebook
    nbformat.validate(found)
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 100_000
    assert len(cells(found, "parameters")) == 1
    assert _names(cells(found, "parameters")[0].source) == _names(SMALL[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_install_cell_agrees_with_the_project(notebook, repository):
    _, found = notebook
    (install,) = cells(found, "install")
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    (least,) = re.findall(r"^jax(>=[\d.]+)", "\n".join(project["dependencies"]), re.MULTILINE)
    assert re.search(rf'"jax{re.escape(least)},<[\d.]+"', install.source)
    assert project["name"] in install.source


@pytest.mark.parametrize("name", NAMES)
def test_cells_can_be_read_and_their_settings_compose(notebook):
    name, found = notebook
    assigned = {}
    for source in (cells(found, "parameters")[0].source, SMALL[name]):
        exec(source, assigned)
        command_line.compose_config(command_line.normalize_overrides(assigned["SETTINGS"]))
    for cell in found.cells:
        if cell.cell_type == "code":
            tree = ast.parse(re.sub(r"^[%!].*$", "pass", cell.source, flags=re.MULTILINE))
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("jaxmarl_echelon"):
                    exec(ast.unparse(node), {})


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_runs(notebook, tmp_path, repository, monkeypatch):
    """Half a minute each: processes that start, and programs that compile, even at the smallest budgets."""
    name, found = notebook
    monkeypatch.setenv("PYTHONPATH", str(repository))
    (parameters,) = cells(found, "parameters")
    parameters.source = SMALL[name]
    NotebookClient(found, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    pictures = [
        output
        for cell in found.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 3


def _names(source: str) -> set[tuple[str, str]]:
    """What a cell assigns at its left margin."""
    return set(re.findall(r"^([A-Z]+)(?:, ([A-Z]+))? =", source, re.MULTILINE))
