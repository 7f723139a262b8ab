"""`python -m jaxmarl_echelon.train +algo=ppo env=f110`: trains, logs, checkpoints, resumes."""

import argparse
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial, update_wrapper
from importlib import import_module
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import hydra
import jax
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from algos.on_policy.update_sizes import UpdateSizes
from jaxmarl_echelon import checkpoints, command_line, optional_packages, processes, run_folders, run_lock
from jaxmarl_echelon.command_line import AUTO, PACKAGED
from jaxmarl_echelon.config_keys import plain_config, unknown_key_message
from jaxmarl_echelon.config_sources import MAIN, Sources
from jaxmarl_echelon.envs import contract
from jaxmarl_echelon.reporting.learning_curve import draw_learning_curve
from jaxmarl_echelon.tracking import tables
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.training.config import base_models, build, input_files
from jaxmarl_echelon.training.host import (
    devices,
    group_members,
    loop,
    memory,
    selection_score,
    threads,
    variants,
    vectorized_runs,
)
from jaxmarl_echelon.training.host import resume as resuming
from jaxmarl_echelon.training.host.devices import DeviceLayout
from jaxmarl_echelon.training.program.program import make_program

USAGE = """usage: {program} [KEY=VALUE ...]      train one run
       {program} -m [KEY=A,B ...]     Hydra sweep over values
       {program} resume=RUN_FOLDER    continue a run, bit for bit
       {program} resume=CHECKPOINT as=NAME   continue it from there in a new folder
       {program} resume=auto run_name=NAME [...]   continue it, or begin it
       {program} --cfg job [-m] [...]      show the configuration and stop

  -c, --cfg job           show the configuration (with -m that of every run) and stop
  -p, --package KEY       with --cfg: only this part of it
  -cd, --config-dir DIR   a folder like conf/ with environments, rewards, algorithms ... of your own
  -cn, --config-name NAME the main configuration, instead of config.yaml; see docs/training.md
  -m, --multirun          one run for each combination of values"""

# Options that may be followed by an equals sign.
OPTIONS = ("--cfg", "--package", "--config-dir", "--config-name")


def start_run(
    config: DictConfig,
    choices: dict[str, str],
    sources: Sources = PACKAGED,
    folder: Path | None = None,
    key: str = run_lock.PLACE,
) -> dict[str, Any]:
    """Starts a new run, or a group of runs, from a composed configuration; returns its summary.

    Args:
      config, choices, sources: as composed.
      folder: the run's folder; None for a new one.
      key: setting or option that chose where it lies, for messages.
    """
    processes.join_processes(config.distributed)
    tracker = make_tracker(config)
    layout = configured_devices(config)
    config.shards = layout.shards if config.shards is None else config.shards
    job = read_job(config, choices, layout)
    if folder is None:
        stamp = processes.broadcast_first(datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
        folder = command_line.new_run_folder(config, choices, stamp)
    for line in command_line.tuning_lines(config, choices, sources) if processes.is_first_process() else ():
        print(line)
    return execute_job(job, folder, tracker, key=key)


def configured_devices(config: DictConfig) -> DeviceLayout:
    """Chooses the threads and devices that a configuration requests.

    Raises:
      ValueError: as `threads.provide_threads` and `devices.choose_layout`.
    """
    shards = config.shards
    if shards is not None and (isinstance(shards, bool) or not isinstance(shards, int) or shards < 1):
        raise ValueError(f"shards={shards}: must be a whole number of at least 1")
    grouped = variants.is_group(config)
    members = variants.count_members(config) if grouped else 1
    if not HydraConfig.initialized():
        # A sweep runs all its jobs in this process, with the threads of the first.
        threads.provide_threads(config, members)
    return devices.choose_layout(config.devices, members, shards, grouped=grouped)


class ResumePoint(NamedTuple):
    """A run to be resumed: checkpoint, configuration and chosen options."""

    checkpoint: Path
    config: DictConfig
    choices: dict[str, str]


def find_resume_point(path: str | Path, overrides: Sequence[str], sources: Sources = PACKAGED) -> ResumePoint:
    """Finds a run's checkpoint and applies overrides to its configuration; see `training.host.resume`."""
    checkpoint = checkpoints.find_checkpoint(path, "latest")
    facts = checkpoints.read_metadata(checkpoint)
    if facts.get("policy_only"):
        raise checkpoints.CheckpointError(f"{path}: has only a policy; a run continues from `latest`")
    before = build.read_saved_config(facts)
    after, choices = command_line.apply_overrides(before, facts["config"]["choices"], overrides, sources)
    processes.join_processes(after.distributed)
    resuming.check_changes(before, after, facts["step"], input_files.files_in_metadata(facts))
    return ResumePoint(checkpoint, after, choices)


def resume_run(
    path: str | Path, overrides: Sequence[str], sources: Sources = PACKAGED, name: str | None = None
) -> dict[str, Any]:
    """Resumes a run from its checkpoint, with overrides of its configuration; returns its summary.

    Args:
      path: a run folder or a checkpoint.
      overrides, sources: as for `find_resume_point`.
      name: name of a new folder, for a copy of the run at this checkpoint; None to continue in place.
    """
    run_folders.require_free(Path(path))
    checkpoint, config, choices = find_resume_point(path, overrides, sources)
    folder = run_folders.run_of(checkpoint)
    if name is None:
        run_folders.require_newest(checkpoint, path)
    else:
        config.run_name = name
        config.output_dir = run_folders.output_dir_of(checkpoint, config, choices)
        folder = command_line.new_run_folder(config, choices, name)
    tracker = make_tracker(config)
    job = read_job(config, choices, configured_devices(config))
    read = input_files.files_in_metadata(checkpoints.read_metadata(checkpoint))
    input_files.require_unchanged_files(
        read, job.resolved[input_files.KEY], checkpoint.parent.parent, job.held
    )
    # Restored here as a test, so that an unreadable checkpoint raises before files are written.
    job.restore(checkpoint)
    return execute_job(job, folder, tracker, checkpoint, "resume" if name is None else run_lock.PLACE)


def continue_or_start(
    config: DictConfig, choices: dict[str, str], overrides: Sequence[str], sources: Sources = PACKAGED
) -> dict[str, Any]:
    """Resumes the run `run_name` from its checkpoint, or starts it if it has none; returns its summary.

    Args:
      config, choices, sources: as composed from `overrides`.
    """
    if config.run_name is None:
        raise command_line.UsageError(f"resume={AUTO}: needs run_name=NAME, the run's folder")
    folder = command_line.run_folder(config, choices, config.run_name)
    if not checkpoints.has_checkpoint(folder, "latest"):
        return start_run(config, choices, sources, folder)
    # These two only locate the folder.
    said = [o for o in overrides if not o.startswith(("run_name=", "output_dir="))]
    return resume_run(folder, said, sources)


def make_tracker(config: DictConfig) -> Tracker:
    """Builds the tracker of a configuration; only the first of several processes has sinks."""
    tracker = build.instantiate_node(config.tracking, "tracking")
    return tracker if processes.is_first_process() else Tracker({})


class Job(NamedTuple):
    """A run, or a group of runs, ready to execute.

    Attributes:
      resolved: the composed configuration as plain data, with the groups' `choices`.
      train: `(folder, tracker, checkpoint) -> summary`.
      restore: `(checkpoint) -> state`, to check that a checkpoint can be resumed.
      replay_bytes: size of the replay buffers in bytes.
      members: names of a group's members, which are its subfolders; empty for a single run.
      plans: role name to `UpdateSizes`, for roles that learn from segments.
      layout: the devices.
      held: see `input_files.policy_runs_in_state`.
      store: `(folder)`, writes what the run has made for itself into its folder, such as base models.
      steps: environment steps of the run, or of each member, in whole chunks.
    """

    resolved: dict
    train: Callable
    restore: Callable
    replay_bytes: int
    members: tuple[str, ...]
    plans: dict[str, UpdateSizes]
    layout: DeviceLayout
    held: Collection[str] = ()
    store: Callable[[Path], None] = lambda _folder: None
    steps: int = 0


def read_job(config: DictConfig, choices: dict[str, str], layout: DeviceLayout = devices.ALONE) -> Job:
    """Reads and validates the configuration; raises a one-line ValueError before files are written."""
    optional_packages.require_packages(config, choices)
    # Not saved: processes are started again when the run continues, each with its own settings.
    resolved = plain_config(config, choices) | {"distributed": processes.OFF}
    if variants.is_group(config):
        members = variants.expand_members(config, choices)
        read = {
            name: found for one in members for name, found in input_files.hash_input_files(one.config).items()
        }
        resolved = input_files.with_absolute_paths(resolved, read)
        contract.require_traces(members[0].config.env)
        selection_score.require_scored_learner(members[0].config)
        needed = memory.check_replay(members[0].config, len(members), layout)
        base, plan = variants.scored_run(config, members), variants.plan_population(config, members)
        program = make_program(base)
        together = partial(
            vectorized_runs.train_group, members, resolved, layout=layout, base=base, plan=plan
        )
        restore = partial(group_members.read_group_checkpoint, members, program, plan=plan)
        plans = build.update_sizes_of_learners(members[0].config)
        names = tuple(member.name for member in members)
        held = input_files.policy_runs_in_state(members[0].config)
        store = partial(base_models.store_bases, members[0].config, resolved)
        return Job(resolved, together, restore, needed, names, plans, layout, held, store, base.steps)
    run = build.build_run_config(config)
    resolved = input_files.with_absolute_paths(resolved, input_files.hash_input_files(run))
    contract.require_traces(run.env)
    selection_score.require_scored_learner(run)
    needed = memory.check_replay(run, layout=layout)
    program = make_program(run)
    alone = partial(loop.train_run, run, program, resolved, layout=layout)
    restore = partial(resuming.read_checkpoint, run, program)
    plans = build.update_sizes_of_learners(run)
    held = input_files.policy_runs_in_state(run)
    store = partial(base_models.store_bases, run, resolved)
    return Job(resolved, alone, restore, needed, (), plans, layout, held, store, run.steps)


def execute_job(
    job: Job, folder: Path, tracker: Tracker, checkpoint: Path | None = None, key: str = run_lock.PLACE
) -> dict[str, Any]:
    """Runs the loop and returns its summary.

    Process 0 writes the configuration, the summary and the plots to the folder.

    Args:
      job: the run or group.
      folder: the folder of the results.
      tracker: receives the metrics.
      checkpoint: checkpoint to continue from; if it is in another run, that run is copied first.
      key: setting or option that chose the folder, for messages.

    Raises:
      LockedError: if another process is writing into the folder, or it cannot be created.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    run_folders.require_shared(folder)
    with run_folders.lock_run_folders((folder, *(folder / name for name in job.members)), key):
        if checkpoint is not None and run_folders.run_of(checkpoint) != folder:
            checkpoint = run_folders.copy_run(checkpoint, folder)
        return execute_locked_job(job, folder, tracker, checkpoint, missing)


def execute_locked_job(
    job: Job, folder: Path, tracker: Tracker, checkpoint: Path | None, missing: Sequence[Path]
) -> dict[str, Any]:
    """Runs `execute_job` in a locked folder; `missing` lists the folders that did not exist before."""
    first = processes.is_first_process()
    gone = f"{processes.GONE}; continue with resume={folder}"
    if processes.has_several():
        processes.end_on_abort(gone)
    if first:
        announce_job(job, folder)
    processes.wait_for_all("run begins")
    try:
        with end_process_on_lost_connection(gone):
            summary = job.train(folder, tracker, checkpoint)
    except memory.MemoryPlanError:
        if first and missing:
            run_folders.discard_folders(*missing)
        raise
    except loop.DivergedError as error:
        if first:
            print(f"stopped: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    if first:
        conclude_job(job, folder, summary)
    return summary


@contextmanager
def end_process_on_lost_connection(gone: str) -> Iterator[None]:
    """Context of a run: ends the process if others are gone, and marks errors that are not a user's.

    Args:
      gone: what to print if other processes are gone.
    """
    try:
        yield
    except memory.MemoryPlanError:
        raise
    except checkpoints.CheckpointError as error:
        if processes.is_connection_lost(error.__cause__):
            processes.end_process(processes.append_error(gone, error.__cause__))
        if processes.has_several():
            processes.end_process(str(error))
        raise
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        if processes.is_connection_lost(error):
            processes.end_process(processes.append_error(gone, error))
        if not isinstance(error, ValueError):
            raise
        # The configuration is valid at this point, so this is not a user error.
        raise RuntimeError(f"the run failed: {error}") from error


def announce_job(job: Job, folder: Path) -> None:
    """Writes the configuration, and prints devices and sizes of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    job.store(folder)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(job.resolved)))
    print(f"device: {devices.describe_devices(job.layout.number)}")
    if job.layout.number > 1:
        print(job.layout.describe(job.resolved["shards"]))
    if (line := describe_rounding(job.resolved, job.steps)) is not None:
        print(line)
    if job.replay_bytes:
        print(f"replay buffer: {job.replay_bytes / 1e6:,.1f} MB")
    for role, plan in job.plans.items():
        Console().print(tables.update_size_table(role, plan))


def describe_rounding(resolved: Mapping[str, Any], steps: int) -> str | None:
    """Formats the line of a run that is at least a tenth longer than asked for; None for others."""
    if steps < 1.1 * resolved.get("total_env_steps", steps):
        return None
    chunk = resolved["updates_per_chunk"]
    unit = "update" if chunk == 1 else f"chunk of updates_per_chunk={chunk} updates"
    return (
        f"total_env_steps={resolved['total_env_steps']}: rounded up to {steps:,}, as the last {unit} is whole"
    )


def conclude_job(job: Job, folder: Path, summary: dict) -> None:
    """Draws the plots and prints the tables."""
    # Importing matplotlib takes as long as importing jax, and not every process draws.
    from jaxmarl_echelon.tracking import plots, pool_plot

    draw_learning_curve(folder)
    if (folder / "pool.csv").exists():
        pool_plot.pool_plot(folder / "pool.png", folder / "pool.csv")
    if job.members:
        plots.variants_plot(folder / "variants.png", summary["variants"])
        Console().print(tables.variant_table(summary["variants"]))
    print(f"run folder: {folder}")
    if summary["status"] == "stopped":
        print(f"stopped; continue with {shlex.quote(f'resume={folder}')}")


def strip_dashes(argument: str) -> str:
    """Converts `--KEY=VALUE`, the form of W&B sweeps, to `KEY=VALUE`; options are unchanged."""
    is_override = argument.startswith("--") and "=" in argument and argument.partition("=")[0] not in OPTIONS
    return argument.removeprefix("--") if is_override else argument


def parse_train_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a command line: Hydra's options and overrides."""
    parser = command_line.Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("-p", "--package")
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-cn", "--config-name", default=MAIN)
    parser.add_argument("overrides", nargs="*", default=[])
    read = parser.parse_intermixed_args([strip_dashes(one) for one in arguments])
    if read.package is not None and read.cfg is None:
        raise command_line.UsageError(f"--package={read.package}: needs --cfg job")
    return read


def main() -> None:
    """Trains, continues or shows runs by the command line; see `USAGE`."""
    arguments = parse_train_arguments(sys.argv[1:])
    if arguments.help:
        usage = USAGE.format(program=command_line.invoked_command("jaxmarl_echelon.train", "jaxmarl-train"))
        print(f"{usage}\n\ngroups: {', '.join(command_line.config_groups())}")
        return
    command_line.use_compilation_cache()
    sources = Sources(arguments.config_dir, arguments.config_name)
    overrides = command_line.normalize_overrides(arguments.overrides, sources)
    if arguments.cfg is not None:
        show_config(overrides, sources, arguments.package, multirun=arguments.multirun)
    elif arguments.multirun:
        run_sweep(overrides, sources)
    else:
        where, name, overrides = command_line.split_resume(overrides)
        if where in (None, AUTO):
            launch_run(where, *command_line.compose_config(overrides, sources), overrides, sources)
        else:
            # Overrides apply to the saved configuration, whose keys may differ from the default's.
            resume_run(where, overrides, sources, name)


def show_config(overrides: Sequence[str], sources: Sources, package: str | None, *, multirun: bool) -> None:
    """Prints the configuration of the run, or of every run of a sweep, as YAML documents.

    Args:
      overrides, sources: of the run.
      package: dotted key of the part to print; None for all.
      multirun: whether overrides may be sweeps.
    """
    runs = command_line.expand_sweep(overrides, sources) if multirun else [list(overrides)]
    shown = []
    for chosen in runs:
        where, _, chosen = command_line.split_resume(chosen)
        if where in (None, AUTO):
            config, _ = command_line.compose_config(chosen, sources)
        else:
            config = find_resume_point(where, chosen, sources).config
        part = config if package is None else OmegaConf.select(config, package)
        if part is None:
            raise command_line.UsageError(unknown_key_message(f"--package={package}", package, config))
        shown.append(OmegaConf.to_yaml(part, resolve=True) if OmegaConf.is_config(part) else f"{part}\n")
    print("---\n".join(shown), end="")


def launch_run(
    where: str | None,
    config: DictConfig,
    choices: dict[str, str],
    overrides: Sequence[str],
    sources: Sources = PACKAGED,
) -> dict[str, Any]:
    """Starts a run (`where` is None), or resumes or starts one (`auto`); returns its summary."""
    if where is None:
        return start_run(config, choices, sources)
    if where == AUTO:
        return continue_or_start(config, choices, overrides, sources)
    raise command_line.UsageError(f"resume={where}: must be {AUTO} in a sweep")


def run_sweep(overrides: Sequence[str], sources: Sources) -> None:
    """Runs a Hydra sweep, after checking that all combinations can be composed."""
    optional_packages.require_plugins(overrides)
    for chosen in command_line.expand_sweep(overrides, sources):
        optional_packages.require_packages(*command_line.compose_config(chosen, sources))
    # Imported by name, so that a launcher can pickle it for other machines.
    task = import_module("jaxmarl_echelon.train").swept
    start_all = hydra.main(
        config_path=str(sources.main_folder()), config_name=sources.name, version_base="1.3"
    )
    sys.argv[1:] = ["--multirun", *overrides, *sources.searched()]
    start_all(update_wrapper(partial(task, sources), task))()


def swept(sources: Sources, config: DictConfig) -> float:
    """Runs one configuration of a sweep, composed by Hydra; returns `best_score` for searching sweepers."""
    command_line.use_compilation_cache()
    chosen = HydraConfig.get().runtime.choices
    choices = {key: option for key, option in chosen.items() if "hydra" not in key}
    where, typed = command_line.split_key("resume", HydraConfig.get().overrides.task)
    config.resume = None
    return best_score(command_line.run_guarded(lambda: launch_run(where, config, choices, typed, sources)))


def best_score(summary: Mapping[str, Any]) -> float:
    """Returns the score of the best evaluation (the return, without a score); a mean over a group.

    NaN if a member has diverged, whose best evaluation was before: such trials fail in our own searches, too.
    """
    if summary.get("diverged"):
        return nan
    runs = summary.get("members", {"": summary}).values()
    return fmean(run["best"].get("best_eval", [nan])[0] for run in runs)


def script() -> None:
    """Runs the console script."""
    command_line.run_guarded(main)


if __name__ == "__main__":
    script()
