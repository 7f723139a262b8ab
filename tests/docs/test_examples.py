"""Every command of the documents can be typed, and every Python block compiles and imports what exists."""

import ast
import importlib
import re
import shlex
import sys
from functools import cache

import documented
import pytest

from algos.defaults import config_directory
from jaxmarl_echelon import (
    command_line,
    compare,
    evaluate,
    exploit,
    export,
    models,
    report,
    sweep,
    tournament,
    train,
)
from jaxmarl_echelon.__main__ import list_commands
from jaxmarl_echelon.envs.drive.scenes import __main__ as scenes

PARSERS = {
    "train": train.parse_train_arguments,
    "evaluate": evaluate.parse_evaluate_arguments,
    "export": export.parse_export_arguments,
    "compare": compare.parse_compare_arguments,
    "report": report.parse_report_arguments,
    "tournament": tournament.parse_tournament_arguments,
    "exploit": exploit.parse_exploit_arguments,
    "models": models.parse_models_arguments,
    "sweep": sweep.parse_sweep_arguments,
    "envs.drive.scenes": scenes.parse_scene_arguments,
}
# Overrides that name what only a reader has: a package of another launcher, configurations of their own.
FOREIGN = re.compile(r"\+?hydra[./]")
FOLDER = re.compile(r"outputs/(?:\w+/)*?(\w+?)/(\w+)/[A-Z]")
PACKAGE = "jaxmarl_echelon."
OWN = ("jaxmarl_echelon", "algos", "physics")


@pytest.fixture(scope="module")
def pages(repository):
    return documented.find_pages(repository)


@pytest.fixture(scope="module")
def commands(pages, repository):
    return [command for page in pages for command in documented.find_commands(page, repository)]


def typed(name, arguments):
    """Arguments without the brackets around optional ones, and of a run without what stands for several."""
    bare = [word if "=" in word else word.strip("[]") for word in arguments]
    several = documented.PLACEHOLDER.fullmatch
    return ["1" if word == "N" else word for word in bare if name != "train" or not several(word)]


def parse(name, arguments, monkeypatch):
    """Reads the arguments as the command does."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    parser = PARSERS[name]
    return parser(arguments) if name in ("train", "envs.drive.scenes") else parser()


def problem_of_run(overrides, *, sweep=False):
    """What `train` says of the overrides of a run, or of one of its sweep; None if they compose."""
    return compose_once(tuple(one for one in overrides if not FOREIGN.match(one)), sweep)


@cache
def compose_once(overrides, sweep):
    """Composes the options of groups, once for all runs with the same, and then sets the other values."""
    try:
        chosen = command_line.normalize_overrides(overrides)
        for run in command_line.expand_sweep(chosen) if sweep else [chosen]:
            options = [one for one in run if is_option(one)]
            composed = compose_options(tuple(options))
            command_line.apply_overrides(*composed, [one for one in run if one not in options])
    except command_line.UsageError as error:
        return str(error)
    return None


def is_option(override):
    key = override.lstrip("+").partition("=")[0]
    return key in command_line.config_groups() or "@" in key


compose_options = cache(command_line.compose_config)


def run_of(path):
    """Environment and algorithm of the folder of a run, as overrides; empty where it does not say."""
    found = FOLDER.match(path)
    names = {str(one).replace("/", "_"): one for one in command_line.PACKAGED.options("env")}
    return [f"env={names[found[1]]}", f"algo={found[2]}"] if found and found[1] in names else []


def problem_of_training(read):
    if read.config_dir or read.config_name != train.MAIN:
        return None
    where, _, overrides = command_line.split_resume(read.overrides)
    saved = run_of(where) if where not in (None, "auto") else []
    if where in (None, "auto") or saved:
        return problem_of_run([*saved, *overrides], sweep=read.multirun)
    return None


def problem_of_evaluation(read):
    saved = run_of(read.path)
    if not read.overrides or saved:
        return problem_of_run([*saved, *read.overrides])
    # The run's environment is not said: one of them has to know the overrides.
    names = (f"env={name}" for name in command_line.PACKAGED.options("env") if "/" not in name)
    problems = (problem_of_run([name, *read.overrides]) for name in names)
    # Those that know them are not asked after the first.
    first = next(problems)
    return None if first is None or None in problems else first


@cache
def modules_of_scripts():
    """Modules by console script: read once, as every module of a command is parsed for it."""
    return {script: module for script, (module, _) in list_commands().items()}


def problem(command, repository, monkeypatch):
    """What is wrong with a documented command; None if nothing is."""
    if command.program.endswith(".py"):
        return None if (repository / command.program).is_file() else "no such file"
    name = modules_of_scripts().get(command.program, command.program).removeprefix(PACKAGE)
    if name not in PARSERS:
        return f"unknown command {name}"
    try:
        if not command.arguments:  # the command is only mentioned
            return None
        read = parse(name, typed(name, command.arguments), monkeypatch)
    except (command_line.UsageError, SystemExit) as error:
        return str(error)
    if name == "train":
        return problem_of_training(read)
    return problem_of_evaluation(read) if name == "evaluate" else None


def test_every_command_can_be_typed(commands, repository, monkeypatch):
    assert {command.program.removeprefix(PACKAGE) for command in commands} > set(PARSERS)
    found = [(command, problem(command, repository, monkeypatch)) for command in commands]
    assert len(found) > 150
    assert [f"{one.page}: {shlex.join(one.arguments)}: {wrong}" for one, wrong in found if wrong] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("python -m jaxmarl_echelon.train env=f110 algo=ppo seed=1", None),
        ("python -m jaxmarl_echelon.train env=f11", "env=f11: unknown env; did you mean f110"),
        ("jaxmarl-train env=f110 \\\n        env.lidar_beems=3", "did you mean env.lidar_beams"),
        ("python -m jaxmarl_echelon.train -m env=f110,drive env.cars=3", "env.cars=3: unknown key"),
        ("python -m jaxmarl_echelon.train resume=outputs/f110/ppo/RUN env.agents=3", "env.agents=3"),
        ("python -m jaxmarl_echelon.evaluate RUN --baseline-s", "--baseline-s"),
        ("python -m jaxmarl_echelon.evaluate outputs/drive/ppo/RUN env.lidar_beams=3", "env.lidar_beams=3"),
        ("python -m jaxmarl_echelon.evaluate RUN env.nothing=3", "env.nothing=3"),
        ("python -m jaxmarl_echelon.exploit RUN [--role ROLE]", None),
        ("python -m jaxmarl_echelon.explore RUN", "unknown command explore"),
        ("python benchmarks/none.py", "no such file"),
    ],
)
def test_a_wrong_command_is_reported(tmp_path, repository, monkeypatch, line, said):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\nText:\n\n    {line}\n\nMore text.\n")
    (command,) = documented.find_commands(page, tmp_path)
    answer = problem(command, repository, monkeypatch)
    assert answer is None if said is None else said in answer


def recipes(repository):
    """Rows of the tables of docs/recipes.md: the lists of overrides, of each code that has nothing else."""
    for line in (repository / "docs" / "recipes.md").read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| To"):
            codes = [shlex.split(code) for code in re.findall(r"`([^`]+)`", line.split(" | ", 1)[1])]
            yield [words for words in codes if all(re.match(r"[\w.@]+=", word) for word in words)]


def problem_of_recipe(words, others):
    """What is wrong with overrides that fit to one environment at least, or to other overrides of the row."""
    words = [word for word in words if not word.startswith(("resume=", "as=", "run_name="))]
    alone = problem_of_run(words)
    names = [[f"env={name}"] for name in ("f110_race", "echelon", "echelon_missions")]
    fits = (problem_of_run([*given, *words]) is None for given in [*others, *names])
    return None if alone is None or any(fits) else alone


@pytest.mark.thorough
def test_the_overrides_of_recipes_compose(repository):
    rows = list(recipes(repository))
    assert sum(map(len, rows)) > 40
    problems = [
        problem_of_recipe(words, [one for one in row if one != words]) for row in rows for words in row
    ]
    assert [one for one in problems if one] == []


def test_python_blocks_compile_and_import_what_exists(pages):
    blocks = [(page.name, block) for page in pages for block in documented.python_blocks(page.read_text())]
    assert len(blocks) >= 11
    for name, block in blocks:
        tree = ast.parse(block, name)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OWN:
                module = importlib.import_module(node.module)
                assert [one.name for one in node.names if not hasattr(module, one.name)] == [], name
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "je":
                assert hasattr(importlib.import_module("jaxmarl_echelon"), node.attr), (name, node.attr)


def test_configurations_that_pages_name_exist(pages, repository):
    """Files of `conf/` in the text, such as `conf/env/f110.yaml`."""
    named = {
        (page.name, file)
        for page in pages
        for file in re.findall(r"`(conf/[\w/.-]+\.yaml)`", page.read_text())
    }
    assert len(named) > 10
    real = sorted(one for one in named if not re.search("[A-Z]{2}", one[1]))
    assert [one for one in real if not (config_directory().parent / one[1]).is_file()] == []
