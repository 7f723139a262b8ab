"""`python -m jaxmarl_echelon.sweep env=f110 'sweep={...}' --trials 64`: searches settings with Optuna."""

import argparse
import math
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from jaxmarl_echelon import command_line, optional_packages, processes, run_folders, run_lock
from jaxmarl_echelon.config_keys import plain_config
from jaxmarl_echelon.config_sources import MAIN, Sources
from jaxmarl_echelon.envs import contract
from jaxmarl_echelon.searching import best_settings, trial_tables
from jaxmarl_echelon.searching.studies import OBJECTIVES, PRUNERS, SearchSettings, Study, import_optuna
from jaxmarl_echelon.searching.trial_groups import CourseWatch, TrialWatch, name_trial, require_measure
from jaxmarl_echelon.train import make_tracker
from jaxmarl_echelon.training.config import base_models, input_files
from jaxmarl_echelon.training.config.build import change_settings
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.config.search_space import read_space
from jaxmarl_echelon.training.host import devices, loop, memory, selection_score, variants, vectorized_runs
from jaxmarl_echelon.training.host.group_members import Member
from jaxmarl_echelon.training.host.run_record import evaluation_columns
from jaxmarl_echelon.training.program.program import make_program

# File with the command of a search, by which it continues.
COMMAND = "sweep.yaml"
# Folder of the best trials that are trained again, and their values.
FINALS = "finalists"
FINAL_SCORES = "finalists.csv"
# Settings that a search which continues may change.
CHANGEABLE = ("trials", "finalists")
KEPT = "a search that continues keeps its"
# Keys whose work a search does by its own options.
OWN = {"seeds": "--seeds", "samples": "--trials", "pbt": "train", "ablate": "train", "variants": "train"}


def parse_sweep_arguments() -> argparse.Namespace:
    """Reads the command line; options that were not given are None."""
    program = command_line.invoked_command("jaxmarl_echelon.sweep", "jaxmarl-sweep")
    parser = command_line.Parser(prog=program, description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for train, with sweep={...}")
    parser.add_argument("--space", type=Path, help="YAML file with the mapping that sweep={...} would have")
    parser.add_argument("--output", type=Path, help="folder; a search that is in it continues")
    defaults = SearchSettings()
    for name, text in (
        ("trials", "trials in total"),
        ("batch", "trials that one program trains"),
        ("seeds", "runs of each trial"),
    ):
        parser.add_argument(f"--{name}", type=int, help=f"{text} (default: {getattr(defaults, name)})")
    parser.add_argument("--measure", help="column of eval.csv that counts (default: the score)")
    parser.add_argument(
        "--objective", choices=OBJECTIVES, help=f"evaluation that counts (default: {defaults.objective})"
    )
    parser.add_argument("--pruner", choices=PRUNERS, help=f"(default: {defaults.pruner})")
    for name, text in (
        ("trial-steps", "decisions of a trial, the first ones of a run (default: total_env_steps)"),
        ("finalists", f"best trials that train again, for total_env_steps (default: {defaults.finalists})"),
        ("final-seeds", f"runs of a finalist, with seeds of their own (default: {defaults.final_seeds})"),
    ):
        parser.add_argument(f"--{name}", type=int, help=text)
    parser.add_argument("-cd", "--config-dir", help="folder with configurations of your own")
    parser.add_argument("-cn", "--config-name", help="main configuration")
    return parser.parse_intermixed_args()


@dataclass(frozen=True)
class SearchCommand:
    """Command of a search, stored in its folder.

    Attributes:
      overrides: of the configuration, as returned by `normalize_overrides`.
      settings: of the search.
      config_dir, config_name: see `Sources`.
    """

    overrides: tuple[str, ...]
    settings: SearchSettings
    config_dir: str | None = None
    config_name: str = MAIN

    @cached_property
    def sources(self) -> Sources:
        """Sources of the configuration."""
        return Sources(self.config_dir, self.config_name)

    def write(self, path: Path) -> None:
        """Stores the command."""
        plain = asdict(self) | {"overrides": list(self.overrides)}
        path.write_text(yaml.safe_dump(plain, sort_keys=False))


def read_command(path: Path) -> SearchCommand:
    """Reads a stored command; raises a one-line UsageError for another file."""
    try:
        plain = yaml.safe_load(path.read_text())
        settings = SearchSettings(**plain["settings"])
        return SearchCommand(tuple(plain["overrides"]), settings, plain["config_dir"], plain["config_name"])
    except (yaml.YAMLError, TypeError, KeyError) as error:
        raise command_line.UsageError(f"{path}: not the file of a search") from error


def space_overrides(path: Path) -> list[str]:
    """Returns the override of a file with a search space; raises a one-line UsageError."""
    if not path.is_file():
        raise command_line.UsageError(f"--space={path}: no such file")
    try:
        given = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise command_line.UsageError(f"--space={path}: {str(error).splitlines()[0]}") from error
    if not isinstance(given, dict) or not given:
        raise command_line.UsageError(f"--space={path}: must map keys to ranges or lists")
    parts = (f"{key}: {value}" for key, value in given.items())
    return [f"sweep={{{', '.join(parts)}}}"]


def given_command(arguments: argparse.Namespace) -> SearchCommand:
    """Returns the command of a new search as typed."""
    typed = {name: getattr(arguments, name) for name in SearchSettings.__dataclass_fields__}
    settings = SearchSettings(**{name: value for name, value in typed.items() if value is not None})
    sources = Sources(arguments.config_dir, arguments.config_name or MAIN)
    overrides = [*arguments.overrides, *(space_overrides(arguments.space) if arguments.space else ())]
    return SearchCommand(
        tuple(command_line.normalize_overrides(overrides, sources)),
        settings,
        None if sources.folder is None else str(sources.folder),
        sources.name,
    )


def continued_command(arguments: argparse.Namespace, stored: SearchCommand) -> SearchCommand:
    """Returns the command of a search that continues; only the numbers of trials and finalists may change.

    Raises:
      UsageError: one line, for other settings than the stored ones.
    """
    typed = given_command(arguments)
    for name, kept in asdict(stored.settings).items():
        value = getattr(arguments, name)
        if name not in CHANGEABLE and value not in (None, kept):
            option = name.replace("_", "-")
            raise command_line.UsageError(f"--{option}={value}: {KEPT} {option}={kept}")
    if (arguments.overrides or arguments.space) and typed.overrides != stored.overrides:
        raise command_line.UsageError(f"{shlex.join(typed.overrides)}: {KEPT} {shlex.join(stored.overrides)}")
    changed = {name: value for name in CHANGEABLE if (value := getattr(arguments, name)) is not None}
    return replace(stored, settings=replace(stored.settings, **changed))


class Search:
    """A search: its configuration, the study, and the groups that train trials.

    Args:
      command: what was asked for.

    Raises:
      ValueError: one line, for invalid settings.
    """

    def __init__(self, command: SearchCommand):
        self.command, self.settings = command, command.settings
        config, self.choices = command_line.compose_config(command.overrides, command.sources)
        for key, instead in OWN.items():
            if config.get(key):
                raise command_line.UsageError(f"{key}={config[key]}: not for a search; see {instead}")
        if config.resume is not None:
            raise command_line.UsageError(f"resume={config.resume}: a search continues by --output=FOLDER")
        if config.distributed != processes.OFF:
            raise command_line.UsageError(f"distributed={config.distributed}: a search runs in one process")
        self.space = read_space(config)
        if not self.space:
            raise command_line.UsageError("sweep={}: must map keys to ranges, or give --space FILE")
        optional_packages.require_packages(config, self.choices)
        seeds = self.settings.seeds if self.settings.seeds > 1 else None
        config.shards = 1 if config.shards is None else config.shards
        self.config = change_settings(config, {"sweep": None, "seeds": seeds})
        best_settings.split_overrides(command.overrides)
        self._require_ends()
        self._require_measure()

    def _require_ends(self) -> None:
        """Checks that the runs at both ends of every range can be built."""
        ends = {"low": 0.0, "high": 1.0 - 1e-9}
        samples = {
            name: {key: dimension.value(share) for key, dimension in self.space.items()}
            for name, share in ends.items()
        }
        one = change_settings(self.config, {"seeds": None})
        members = variants.expand_members(one, self.choices, samples)
        contract.require_traces(members[0].config.env)
        selection_score.require_scored_learner(members[0].config)
        self.base = variants.scored_run(one, members)
        variants.require_varying_keys(one, self.base, samples)
        variants.require_read_numbers(self.base, dict.fromkeys(self.space, "sweep"))

    def _require_measure(self) -> None:
        """Checks that evaluations can have the column that counts."""
        if self.settings.measure is not None:
            env, role = self.base.env, next(iter(self.base.algos))
            staged = bool(self.base.curriculum(env).stages)
            require_measure(self.settings.measure, evaluation_columns(env.spec, role, staged=staged))

    def folder(self) -> Path:
        """Returns a new folder for the search."""
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        return command_line.run_folder(self.config, self.choices, f"sweep_{stamp}")

    def run(self, folder: Path) -> str:
        """Trains groups of trials until all are finished; returns "finished" or "stopped"."""
        study = Study(folder, self.space, self.settings, self.config.seed)
        if restarted := study.restart_killed():
            print(f"trials that were interrupted and start again: {restarted}")
        watch = TrialWatch(
            make_program(self.base), study, self.settings, self.trial_updates(), self.base.eval_every
        )
        status = "finished"
        while status == "finished" and len(study.finished()) < self.settings.trials:
            status = self.train_trials(folder, study, watch)
            self.write_results(folder, study, watch.column)
        finalists = study.best(self.settings.finalists)
        if status == "finished" and finalists and not self.final_scores(folder, study):
            self.write_results(folder, study, watch.column)
            status = self.train_finalists(folder, study)
        self.write_results(folder, study, watch.column, shown=True)
        return status

    def trial_updates(self) -> int:
        """Returns the updates of a trial, at most those of a run."""
        steps = self.settings.trial_steps
        return (
            self.base.updates
            if steps is None
            else min(self.base.updates, replace(self.base, total_env_steps=steps).updates)
        )

    def final_scores(self, folder: Path, study: Study) -> dict[str, float]:
        """Returns the values of the finalists by name, empty unless those of now have been trained."""
        names = {name_trial(trial) for trial in study.best(self.settings.finalists)}
        scores = trial_tables.read_scores(folder / FINAL_SCORES)
        return scores if scores.keys() == names else {}

    def train_trials(self, folder: Path, study: Study, watch: TrialWatch) -> str:
        """Trains the next group; returns "finished" or "stopped"."""
        trials = study.ask()
        samples = {name_trial(trial): study.values(trial) for trial in trials}
        members = variants.expand_members(self.config, self.choices, samples)
        watch.begin(trials, members)
        place = folder / "groups" / f"{trials[0].number:04d}_{trials[-1].number:04d}"
        print(f"trials {trials[0].number} to {trials[-1].number}: {place}")
        try:
            summary = self.train_members(place, members, watch, self.config, self.base)
        except loop.DivergedError as error:
            print(f"every trial of the group has diverged: {error}", file=sys.stderr)
            watch.conclude([member.name for member in members])
            return "finished"
        if summary["status"] == "finished":
            watch.conclude(summary["diverged"])
        return summary["status"]

    def train_finalists(self, folder: Path, study: Study) -> str:
        """Trains the best trials for a whole run, with seeds that chose none of them.

        Returns "finished" or "stopped". What an interrupted search left of them is removed first.

        Raises:
          ValueError: one line, if all runs diverge.
        """
        trials, place = study.best(self.settings.finalists), folder / FINALS
        settings = {name_trial(trial): study.values(trial) for trial in trials}
        first = self.config.seed + self.settings.seeds
        config = change_settings(
            self.config, {"seeds": list(range(first, first + self.settings.final_seeds))}
        )
        members = variants.expand_members(config, self.choices, settings)
        base = variants.scored_run(config, members)
        watch = CourseWatch(make_program(base), self.settings)
        watch.begin_courses(settings, members)
        print(f"finalists {', '.join(settings)}, {self.settings.final_seeds} seeds from {first} on: {place}")
        shutil.rmtree(place, ignore_errors=True)
        try:
            summary = self.train_members(place, members, watch, config, base)
        except loop.DivergedError as error:
            raise ValueError(f"every run of the finalists has diverged: {error}") from error
        if summary["status"] == "finished":
            scores = {name: watch.judge(name, summary["diverged"]) for name in settings}
            trial_tables.write_trials(
                folder / FINAL_SCORES, trial_tables.final_rows(trials, scores, study.values)
            )
        return summary["status"]

    def train_members(
        self, place: Path, members: Sequence[Member], watch: CourseWatch, config: DictConfig, base: RunConfig
    ) -> dict[str, Any]:
        """Trains the runs of a group in a folder of its own; returns the summary.

        Args:
          place: the folder.
          members: the runs.
          watch: follows their evaluations.
          config: of the group.
          base: the run on whose task they are scored.
        """
        layout = devices.choose_layout(config.devices, len(members), config.shards, grouped=True)
        memory.check_replay(members[0].config, len(members), layout)
        read = [input_files.hash_input_files(member.config) for member in members]
        plain = plain_config(config, self.choices)
        resolved = input_files.with_absolute_paths(plain, {k: v for one in read for k, v in one.items()})
        place.mkdir(parents=True, exist_ok=True)
        base_models.store_bases(members[0].config, resolved, place)
        (place / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(resolved)))
        return vectorized_runs.train_group(
            members, resolved, place, make_tracker(config), layout=layout, base=base, watch=watch
        )

    def write_results(self, folder: Path, study: Study, measure: str, *, shown: bool = False) -> None:
        """Writes `trials.csv` and `best.yaml`; if `shown`, also the picture, and prints the best trials."""
        rows = trial_tables.trial_rows(study.finished(), study.values)
        if not rows:
            return
        trial_tables.write_trials(folder / "trials.csv", rows)
        scores, complete = self.final_scores(folder, study), study.best(len(rows))
        finals = trial_tables.final_rows(complete, scores, study.values)
        if complete:
            found = next((row for row in finals if math.isfinite(row["value"])), None)
            name = name_trial(complete[0]) if found is None else found["trial"]
            best = next(trial for trial in complete if name_trial(trial) == name)
            contents = best_settings.compose_best(
                self.command.overrides, study.values(best), self.command.sources
            )
            told = f"{name} of {len(rows)}: {self.settings.objective} {measure} {best.value:.4g}"
            if found is not None:
                told += f", as one of {len(finals)} finalists {found['value']:.4g}"
            best_settings.write_best(folder / "best.yaml", contents, told)
        if shown:
            trial_tables.trials_plot(folder / "sweep.png", rows, self.space, measure)
            console = Console(width=None if sys.stdout.isatty() else 120)
            console.print(trial_tables.best_trials_table(rows, measure))
            if finals:
                title = f"finalists, {self.settings.final_seeds} runs each"
                console.print(trial_tables.values_table(title, finals, measure))


def main() -> None:
    """Searches by the command line."""
    arguments = parse_sweep_arguments()
    import_optuna()
    command_line.use_compilation_cache()
    stored = None if arguments.output is None else arguments.output / COMMAND
    if stored is not None and stored.is_file():
        command = continued_command(arguments, read_command(stored))
    elif arguments.output is not None and arguments.output.exists():
        raise command_line.UsageError(f"--output={arguments.output}: exists, and is no folder of a search")
    elif arguments.output is not None and not arguments.overrides and arguments.space is None:
        raise command_line.UsageError(
            f"--output={arguments.output}: no search to continue; a new one needs sweep={{KEY: RANGE}}"
        )
    else:
        command = given_command(arguments)
    search = Search(command)
    folder = arguments.output or search.folder()
    with run_folders.lock_run_folders((folder,), "--output" if arguments.output else run_lock.PLACE):
        command.write(folder / COMMAND)
        status = search.run(folder)
    say_how_to_go_on(folder, status, command.sources)


def say_how_to_go_on(folder: Path, status: str, sources: Sources) -> None:
    """Prints where the results are, and the command that trains with the best settings."""
    print(f"folder of the search: {folder}")
    if (folder / "best.yaml").exists():
        there = folder if sources.folder is None else sources.folder
        moved = "" if sources.folder is None else f" (after copying {folder / 'best.yaml'} there)"
        command = f"--config-dir {shlex.quote(str(there))} --config-name best"
        print(f"train with the best settings: python -m jaxmarl_echelon.train {command}{moved}")
    if status == "stopped":
        print(f"stopped; continue with {shlex.quote(f'--output={folder}')}")


def script() -> None:
    """Runs the console script."""
    command_line.run_guarded(main)


if __name__ == "__main__":
    script()
