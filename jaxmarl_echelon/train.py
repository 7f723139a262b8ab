"""`python -m jaxmarl_echelon.train +algo=ppo env=f110`: trains, logs, checkpoints, resumes."""

import argparse
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
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

from algos.on_policy.update_sizes import Plan
from jaxmarl_echelon import checkpoints, command_line, optional_packages, processes, run_folders
from jaxmarl_echelon.command_line import AUTO, PACKAGED
from jaxmarl_echelon.config_sources import MAIN, Sources
from jaxmarl_echelon.envs import contract
from jaxmarl_echelon.tracking import tables
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.training.config import build, input_files
from jaxmarl_echelon.training.host import devices, loop, memory, variants, vectorized_runs
from jaxmarl_echelon.training.host import resume as resuming
from jaxmarl_echelon.training.host.devices import Layout
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


def start(
    config: DictConfig, choices: dict[str, str], sources: Sources = PACKAGED, folder: Path | None = None
) -> dict[str, Any]:
    """Starts a new run, or a group of runs, from a composed configuration; returns its summary.

    Args:
      config, choices, sources: as composed.
      folder: the run's folder; None for a new one.
    """
    processes.start(config.distributed)
    tracker = make_tracker(config)
    layout = placed(config)
    config.shards = layout.shards if config.shards is None else config.shards
    job = read_job(config, choices, layout)
    if folder is None:
        stamp = processes.first_says(datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
        folder = command_line.new_run_folder(config, choices, stamp)
    for line in command_line.tuning_lines(config, choices, sources) if processes.is_first() else ():
        print(line)
    return execute(job, folder, tracker)


def placed(config: DictConfig) -> Layout:
    """The devices that a configuration asks for; raises ValueError as `devices.choose`."""
    shards = config.shards
    if shards is not None and (isinstance(shards, bool) or not isinstance(shards, int) or shards < 1):
        raise ValueError(f"shards={shards}: must be a whole number of at least 1")
    grouped = variants.is_group(config)
    members = variants.number(config) if grouped else 1
    return devices.choose(config.devices, members, shards, grouped=grouped)


class Continuation(NamedTuple):
    """A run to be resumed: checkpoint, configuration and chosen options."""

    checkpoint: Path
    config: DictConfig
    choices: dict[str, str]


def continuation(path: str | Path, overrides: Sequence[str], sources: Sources = PACKAGED) -> Continuation:
    """Finds a run's checkpoint and overrides its configuration; see `resuming`."""
    checkpoint = checkpoints.find(path, "latest")
    facts = checkpoints.metadata(checkpoint)
    if facts.get("policy_only"):
        raise checkpoints.CheckpointError(f"{path}: holds a policy only; a run continues from `latest`")
    before = build.saved(facts)
    after, choices = command_line.overridden(before, facts["config"]["choices"], overrides, sources)
    processes.start(after.distributed)
    resuming.check(before, after, facts["step"], input_files.of(facts))
    return Continuation(checkpoint, after, choices)


def resume(
    path: str | Path, overrides: Sequence[str], sources: Sources = PACKAGED, name: str | None = None
) -> dict[str, Any]:
    """Resumes a run from its checkpoint, with overrides of its configuration; returns its summary.

    Args:
      path: a run folder or a checkpoint.
      overrides, sources: as for `continuation`.
      name: of a new folder, with a copy of the run at this checkpoint; None to go on where it lies.
    """
    run_folders.require_free(Path(path))
    checkpoint, config, choices = continuation(path, overrides, sources)
    folder = run_folders.run_of(checkpoint)
    if name is None:
        run_folders.require_newest(checkpoint, path)
    else:
        config.run_name = name
        folder = command_line.new_run_folder(config, choices, name)
    tracker = make_tracker(config)
    job = read_job(config, choices, placed(config))
    read = input_files.of(checkpoints.metadata(checkpoint))
    input_files.require_same(read, job.resolved[input_files.KEY], checkpoint.parent.parent, job.held)
    # A trial restore, so that an unreadable checkpoint raises before anything is written.
    job.restore(checkpoint)
    return execute(job, folder, tracker, checkpoint)


def continue_or_start(
    config: DictConfig, choices: dict[str, str], overrides: Sequence[str], sources: Sources = PACKAGED
) -> dict[str, Any]:
    """Resumes the run `run_name` from its checkpoint, or starts it if it has none; returns its summary.

    Args:
      config, choices, sources: as composed from `overrides`.
    """
    if config.run_name is None:
        raise command_line.UsageError(f"resume={AUTO}: must come with run_name=NAME, the run's folder")
    folder = command_line.run_folder(config, choices, config.run_name)
    if not checkpoints.exists(folder, "latest"):
        return start(config, choices, sources, folder)
    # These two only locate the folder.
    said = [o for o in overrides if not o.startswith(("run_name=", "output_dir="))]
    return resume(folder, said, sources)


def make_tracker(config: DictConfig) -> Tracker:
    """Builds the sinks of a configuration; of several processes only the first has any."""
    tracker = build.build(config.tracking, "tracking")
    return tracker if processes.is_first() else Tracker({})


class Job(NamedTuple):
    """A run, or a group of runs, ready to execute.

    Attributes:
      resolved: the composed configuration as plain data, with the groups' `choices`.
      train: `(folder, tracker, checkpoint) -> summary`.
      restore: `(checkpoint) -> state`, to check that a checkpoint can be resumed.
      replay_bytes: size of the replay buffers in bytes.
      members: names of a group's members, whose folders lie in its folder; empty for a single run.
      score: name of the score, or None.
      plans: role name to `Plan`, for roles that learn from segments.
      layout: the devices.
      held: see `files.held`.
    """

    resolved: dict
    train: Callable
    restore: Callable
    replay_bytes: int
    members: tuple[str, ...]
    score: str | None
    plans: dict[str, Plan]
    layout: Layout
    held: Collection[str] = ()


def read_job(config: DictConfig, choices: dict[str, str], layout: Layout = devices.ALONE) -> Job:
    """Reads and validates the configuration; raises a one-line ValueError before anything is written."""
    optional_packages.require(config, choices)
    # Processes are started anew whenever the run continues, and each has settings of its own.
    own = {"choices": choices, "distributed": processes.OFF}
    resolved = OmegaConf.to_container(config, resolve=True) | own
    if variants.is_group(config):
        members = variants.members(config, choices)
        read = {name: found for one in members for name, found in input_files.read_by(one.config).items()}
        resolved = input_files.named_absolutely(resolved, read)
        contract.require_traces(members[0].config.env)
        needed = memory.check_replay(members[0].config, len(members), layout)
        program = make_program(members[0].config, tuned=True)
        together = partial(vectorized_runs.train_group, members, resolved, layout=layout)
        restore = partial(vectorized_runs.read_checkpoint, members, program)
        score = program.env.spec.score
        plans = build.plans(members[0].config)
        names = tuple(member.name for member in members)
        held = input_files.held(members[0].config)
        return Job(resolved, together, restore, needed, names, score, plans, layout, held)
    run = build.read(config)
    resolved = input_files.named_absolutely(resolved, input_files.read_by(run))
    contract.require_traces(run.env)
    needed = memory.check_replay(run, layout=layout)
    program = make_program(run, tuned=True)
    alone = partial(loop.train, run, program, resolved, layout=layout)
    restore = partial(resuming.read_checkpoint, run, program)
    score = program.env.spec.score
    plans = build.plans(run)
    return Job(resolved, alone, restore, needed, (), score, plans, layout, input_files.held(run))


def execute(job: Job, folder: Path, tracker: Tracker, checkpoint: Path | None = None) -> dict[str, Any]:
    """Runs the loop and returns its summary.

    Process 0 writes the configuration, the summary and the plots to the folder.

    Args:
      job: the run or group.
      folder: where it is written.
      tracker: receives its metrics.
      checkpoint: to continue from; one that lies elsewhere is copied first, with its run.

    Raises:
      LockedError: if another process is writing into the folder.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    run_folders.require_shared(folder)
    with run_folders.locked((folder, *(folder / name for name in job.members))):
        if checkpoint is not None and run_folders.run_of(checkpoint) != folder:
            checkpoint = run_folders.copy_run(checkpoint, folder)
        return execute_locked(job, folder, tracker, checkpoint, missing)


def execute_locked(
    job: Job, folder: Path, tracker: Tracker, checkpoint: Path | None, missing: Sequence[Path]
) -> dict[str, Any]:
    """`execute` in a folder that is this process's; `missing` are the folders that were not there before."""
    first = processes.is_first()
    gone = f"{processes.GONE}; continue with resume={folder}"
    if processes.several():
        processes.on_abort(gone)
    if first:
        announce(job, folder)
    processes.meet("run begins")
    try:
        summary = job.train(folder, tracker, checkpoint)
    except memory.MemoryPlanError:
        if first and missing:
            run_folders.discard(*missing)
        raise
    except checkpoints.CheckpointError as error:
        if processes.lost(error.__cause__):
            processes.end(processes.shortened(gone, error.__cause__))
        if processes.several():
            processes.end(str(error))
        raise
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        if processes.lost(error):
            processes.end(processes.shortened(gone, error))
        if not isinstance(error, ValueError):
            raise
        # The configuration is valid at this point, so this is not a user error.
        raise RuntimeError(f"the run failed: {error}") from error
    except loop.DivergedError as error:
        if first:
            print(f"stopped: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    if first:
        conclude(job, folder, summary)
    return summary


def announce(job: Job, folder: Path) -> None:
    """Writes the configuration, and says what is known before the run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(job.resolved)))
    print(f"device: {devices.describe_devices(job.layout.number)}")
    if job.layout.number > 1:
        print(job.layout.describe(job.resolved["shards"]))
    if job.replay_bytes:
        print(f"replay buffer: {job.replay_bytes / 1e6:,.1f} MB")
    for role, plan in job.plans.items():
        Console().print(tables.plan(role, plan))


def conclude(job: Job, folder: Path, summary: dict) -> None:
    """Draws the plots and prints the tables."""
    # Importing matplotlib takes as long as importing jax, and not every process draws.
    from jaxmarl_echelon.tracking import plots, pool_plot

    tables_read = (folder / "metrics.csv", folder / "eval.csv")
    plots.learning_curve(folder / "learning_curve.png", *tables_read, score=job.score)
    if (folder / "pool.csv").exists():
        pool_plot.pool_plot(folder / "pool.png", folder / "pool.csv")
    if job.members:
        plots.variants_plot(folder / "variants.png", summary["variants"])
        Console().print(tables.variants(summary["variants"]))
    print(f"run folder: {folder}")
    if summary["status"] == "stopped":
        print(f"stopped; continue with {shlex.quote(f'resume={folder}')}")


def without_dashes(argument: str) -> str:
    """`KEY=VALUE` of `--KEY=VALUE`, as sweeps of W&B pass overrides; options stay as they are."""
    is_override = argument.startswith("--") and "=" in argument and argument.partition("=")[0] not in OPTIONS
    return argument.removeprefix("--") if is_override else argument


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a command line: Hydra's options and overrides."""
    parser = command_line.Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("-p", "--package")
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-cn", "--config-name", default=MAIN)
    parser.add_argument("overrides", nargs="*", default=[])
    read = parser.parse_intermixed_args([without_dashes(one) for one in arguments])
    if read.package is not None and read.cfg is None:
        raise command_line.UsageError(f"--package={read.package}: goes with --cfg job")
    return read


def main() -> None:
    """Entry point; see `USAGE`."""
    arguments = parse(sys.argv[1:])
    if arguments.help:
        usage = USAGE.format(program=command_line.program("jaxmarl_echelon.train", "jaxmarl-train"))
        print(f"{usage}\n\ngroups: {', '.join(command_line.groups())}")
        return
    command_line.use_compilation_cache()
    sources = Sources(arguments.config_dir, arguments.config_name)
    overrides = command_line.plain(arguments.overrides, sources)
    if arguments.cfg is not None:
        show(overrides, sources, arguments.package, multirun=arguments.multirun)
    elif arguments.multirun:
        sweep(overrides, sources)
    else:
        where, name, overrides = command_line.split_resume(overrides)
        if where in (None, AUTO):
            launch(where, *command_line.compose_config(overrides, sources), overrides, sources)
        else:
            # Overrides apply to the saved configuration, whose keys may differ from the default's.
            resume(where, overrides, sources, name)


def show(overrides: Sequence[str], sources: Sources, package: str | None, *, multirun: bool) -> None:
    """Prints the configuration of the run, or of every run of a sweep, as YAML documents.

    Args:
      overrides, sources: of the run.
      package: dotted key of the part to print; None for all.
      multirun: whether overrides may be sweeps.
    """
    runs = command_line.combinations(overrides, sources) if multirun else [list(overrides)]
    shown = []
    for chosen in runs:
        where, _, chosen = command_line.split_resume(chosen)
        if where in (None, AUTO):
            config, _ = command_line.compose_config(chosen, sources)
        else:
            config = continuation(where, chosen, sources).config
        part = config if package is None else OmegaConf.select(config, package)
        if part is None:
            raise command_line.UsageError(command_line.unknown(f"--package={package}", package, config))
        shown.append(OmegaConf.to_yaml(part, resolve=True) if OmegaConf.is_config(part) else f"{part}\n")
    print("---\n".join(shown), end="")


def launch(
    where: str | None,
    config: DictConfig,
    choices: dict[str, str],
    overrides: Sequence[str],
    sources: Sources = PACKAGED,
) -> dict[str, Any]:
    """Starts a run (`where` is None), or resumes or starts it (`auto`); returns its summary."""
    if where is None:
        return start(config, choices, sources)
    if where == AUTO:
        return continue_or_start(config, choices, overrides, sources)
    raise command_line.UsageError(f"resume={where}: must be {AUTO} in a sweep, whose runs are several")


def sweep(overrides: Sequence[str], sources: Sources) -> None:
    """Runs a Hydra sweep, after checking that all combinations can be composed."""
    optional_packages.require_plugins(overrides)
    for chosen in command_line.combinations(overrides, sources):
        optional_packages.require(*command_line.compose_config(chosen, sources))
    # By its importable name, so that a launcher can hand it to other machines.
    task = import_module("jaxmarl_echelon.train").swept
    start_all = hydra.main(
        config_path=str(sources.main_folder()), config_name=sources.name, version_base="1.3"
    )
    sys.argv[1:] = ["--multirun", *overrides, *sources.searched()]
    start_all(update_wrapper(partial(task, sources), task))()


def swept(sources: Sources, config: DictConfig) -> float:
    """One run of a sweep, as Hydra composed it; returns `best_score` for sweepers that search."""
    command_line.use_compilation_cache()
    chosen = HydraConfig.get().runtime.choices
    choices = {key: option for key, option in chosen.items() if "hydra" not in key}
    where, typed = command_line.split_key("resume", HydraConfig.get().overrides.task)
    config.resume = None
    return best_score(command_line.guarded(lambda: launch(where, config, choices, typed, sources)))


def best_score(summary: Mapping[str, Any]) -> float:
    """Score of the best evaluation (its return, without a score); of a group the mean over its runs."""
    runs = summary.get("members", {"": summary}).values()
    return fmean(run["best"].get("best_eval", [nan])[0] for run in runs)


def script() -> None:
    """The console script."""
    command_line.guarded(main)


if __name__ == "__main__":
    script()
