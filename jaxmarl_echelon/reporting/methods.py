"""Sorts runs into the methods that are compared, and the tasks on which they are."""

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxmarl_echelon.config_keys import flatten_leaves
from jaxmarl_echelon.reporting.recorded_runs import RecordedRun, read_runs

# Settings that do not make another method: seeds and variants are told apart by members, the rest says where
# and how a run is executed and recorded.
_APART = (
    "seed", "seeds", "ablate", "variants", "sweep", "samples", "run_name", "output_dir", "resume",
    "distributed", "devices", "threads", "shards", "tracking", "choices", "files", "follows",
    "updates_per_chunk", "compilation", "checkpoint_every", "eval_every", "eval_episodes", "episode_rows",
    "replay", "video_every", "profile",
)  # fmt: skip
_MOST_KEYS = 3
# Algorithm and variant to the numbers of their settings, which are those in which methods differ.
Kinds = dict[str, dict[frozenset, int]]


@dataclass
class Method:
    """Runs that differ in seeds and tasks only.

    Attributes:
      name: its name.
      tasks: name of a task to its runs, by increasing seed.
    """

    name: str
    tasks: dict[str, list[RecordedRun]] = field(default_factory=dict)

    def seeds(self, task: str) -> list[int]:
        """Seeds of its runs on a task."""
        return [run.seed for run in self.tasks[task]]


def find_runs(arguments: Sequence[str]) -> list[tuple[str, RecordedRun]]:
    """Reads the runs named by arguments `[NAME=]PATH`; a path may be a glob.

    Returns:
      the name that was given to each run, empty without one, and the run.

    Raises:
      ValueError: one line, for a path without runs.
    """
    found = []
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or "/" in name or Path(argument).exists():
            name, path = "", argument
        places = [Path(path)] if Path(path).exists() else [Path(one) for one in sorted(glob.glob(path))]
        if not places:
            raise ValueError(f"{path}: no such folder")
        runs = [run for place in places for run in read_runs(place)]
        several = len({run.variant for run in runs}) > 1
        found += [(f"{name} {run.variant}" if name and several else name, run) for run in runs]
    return found


def sort_runs(named: Sequence[tuple[str, RecordedRun]], task_keys: Sequence[str] = ()) -> list[Method]:
    """Sorts runs into methods, in order of appearance, by their names or else by their settings.

    Args:
      named: names and runs, see `find_runs`.
      task_keys: keys whose values make another task, in addition to the environment.

    Raises:
      ValueError: one line, if a run occurs twice, or methods have different tasks.
    """
    tasks: dict[str, list[tuple[str, RecordedRun]]] = {}
    for name, run in named:
        tasks.setdefault(_name_task(run, task_keys), []).append((name, run))
    methods: dict[str, Method] = {}
    kinds: Kinds = {}
    for task, mine in tasks.items():
        for name, run in zip(_name_methods(mine, task_keys, kinds), (run for _, run in mine), strict=True):
            runs = methods.setdefault(name, Method(name)).tasks.setdefault(task, [])
            if twin := next((other for other in runs if other.seed == run.seed), None):
                raise ValueError(f"{run.folder}: has the settings and the seed {run.seed} of {twin.folder}")
            runs.append(run)
    for method in methods.values():
        _require_tasks(method, tasks)
        for runs in method.tasks.values():
            runs.sort(key=lambda run: run.seed)
    return list(methods.values())


def _require_tasks(method: Method, tasks: Mapping[str, Any]) -> None:
    for task, (first, *_) in tasks.items():
        if task not in method.tasks:
            theirs = next(iter(method.tasks))
            raise ValueError(
                f"{method.tasks[theirs][0].folder}: different tasks: {method.name!r} has runs on {theirs}, "
                f"but none on {task}, as {first[1].folder}"
            )


def _name_task(run: RecordedRun, keys: Sequence[str]) -> str:
    """Names a run's task: its environment, and the values of further keys."""
    settings = flatten_leaves(run.config)
    for key in keys:
        if key not in settings:
            raise ValueError(f"--task-keys={key}: no such key in the configuration of {run.folder}")
    return " ".join([str(run.config["choices"]["env"]), *(f"{key}={settings[key]}" for key in keys)])


def _method_settings(run: RecordedRun, apart: Sequence[str]) -> dict[str, str]:
    """The settings that make a method, as text; a member's variant is one of them."""
    settings = {
        key: str(value)
        for key, value in flatten_leaves(run.config).items()
        if key.split(".")[0] not in _APART and key not in apart
    }
    return settings | {"variant": run.variant}


def differing_settings(runs: Sequence[RecordedRun]) -> list[str]:
    """Lists the keys in which runs differ, other than seeds and settings of execution."""
    return _differing_keys([_method_settings(run, ()) for run in runs])


def _differing_keys(found: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for one in found for key in one)
    return [key for key in keys if len({one.get(key) for one in found}) > 1]


def _name_methods(named: Sequence[tuple[str, RecordedRun]], apart: Sequence[str], kinds: Kinds) -> list[str]:
    """Names the method of each run of a task: as given, or by its algorithm, variant and settings.

    Settings that are too many for a name have a number, in `kinds`, which has those of earlier tasks: the
    same settings have the same number on every task, in whatever order their runs are listed.
    """
    # Variants of different groups may have one name and other settings, such as those that a sweep draws.
    settings = [_method_settings(run, apart) | run.changes for _, run in named]
    heads = [f"{run.config['choices'].get('algo', '')} {run.variant}".strip() for _, run in named]
    names = [given or head for (given, _), head in zip(named, heads, strict=True)]
    for name in dict.fromkeys(head for head, (given, _) in zip(heads, named, strict=True) if not given):
        alike = [i for i, (given, _) in enumerate(named) if not given and heads[i] == name]
        keys = _differing_keys([settings[i] for i in alike])
        numbers = kinds.setdefault(name, {})
        for i in alike:
            values = {key: settings[i].get(key) for key in keys}
            number = numbers.setdefault(frozenset(values.items()), len(numbers) + 1)
            shown = [f"{key}={value}" for key, value in values.items()]
            more = [f"(settings {number})"] if len(keys) > _MOST_KEYS else []
            names[i] = " ".join([name, *shown[: 0 if more else None], *more])
    return names
