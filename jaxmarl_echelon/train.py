"""`python -m jaxmarl_echelon.train +algo=ppo env=f110`: trains, logs, checkpoints, resumes."""

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from algos.on_policy.plan import Plan
from jaxmarl_echelon import checkpoints, command_line
from jaxmarl_echelon.config_path import config_directory
from jaxmarl_echelon.tracking import plots, tables
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.tracking.plots import learning_curve
from jaxmarl_echelon.training import config as config_lib
from jaxmarl_echelon.training import group, loop, memory, resuming, variants
from jaxmarl_echelon.training.program import make_program

USAGE = """usage: python -m jaxmarl_echelon.train [KEY=VALUE ...]      train one run
       python -m jaxmarl_echelon.train -m [KEY=A,B ...]     Hydra sweep over values
       python -m jaxmarl_echelon.train resume=RUN_FOLDER    continue a run, bit for bit
       python -m jaxmarl_echelon.train resume=auto run_name=NAME [...]   continue it, or begin it
       python -m jaxmarl_echelon.train --cfg job [...]      show the configuration and stop"""

AUTO = "auto"


def start(config: DictConfig, choices: dict[str, str], folder: Path | None = None) -> None:
    """Starts a new run, or a group of runs, from a composed configuration.

    Args:
      config, choices: as composed.
      folder: where; None for a new folder.
    """
    tracker = make_tracker(config)
    job = read_job(config, choices)
    if folder is None:
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        folder = command_line.new_run_folder(config, choices, stamp)
    for line in command_line.tuning_lines(config, choices):
        print(line)
    execute(job, folder, tracker, None)


def resume(path: str | Path, overrides: Sequence[str]) -> None:
    """Continues a run from its checkpoint, with values of its configuration overridden; see `resuming`."""
    checkpoint = checkpoints.find(path, "latest")
    facts = checkpoints.metadata(checkpoint)
    if facts.get("policy_only"):
        raise checkpoints.CheckpointError(f"{path}: holds a policy only; a run continues from `latest`")
    before = config_lib.saved(facts)
    after, choices = command_line.overridden(before, facts["config"]["choices"], overrides)
    resuming.check(before, after, facts["step"])
    tracker = make_tracker(after)
    job = read_job(after, choices)
    # Whether the checkpoint can be read is known only by reading it, and it must be known before writing.
    job.restore(checkpoint)
    execute(job, checkpoint.parent.parent, tracker, checkpoint)


def continue_or_start(config: DictConfig, choices: dict[str, str], overrides: Sequence[str]) -> None:
    """Continues the run of this name from its checkpoint, or begins it where it has none.

    Args:
      config, choices: as composed from the overrides.
      overrides: what was typed.
    """
    if config.run_name is None:
        raise command_line.UsageError(f"resume={AUTO}: must come with run_name=NAME, the run's folder")
    folder = command_line.run_folder(config, choices, config.run_name)
    if not checkpoints.exists(folder, "latest"):
        start(config, choices, folder)
        return
    # These two only say where it lies.
    resume(folder, [o for o in overrides if not o.startswith(("run_name=", "output_dir="))])


def make_tracker(config: DictConfig) -> Tracker:
    """Builds the sinks of a configuration."""
    return config_lib.build(config.tracking, "tracking")


class Job(NamedTuple):
    """What is to be run.

    Attributes:
      resolved: the composed configuration as plain data, with the groups' `choices`.
      train: `(folder, tracker, checkpoint) -> summary`.
      restore: `(checkpoint) -> state`, to see whether a run can continue from it.
      replay_bytes: memory of the replay buffers.
      group: whether it is several runs in one program.
      score: name of the result that is the score, or None.
      plans: role name to the sizes of its updates, of the roles that learn from segments.
    """

    resolved: dict
    train: Callable
    restore: Callable
    replay_bytes: int
    group: bool
    score: str | None
    plans: dict[str, Plan]


def read_job(config: DictConfig, choices: dict[str, str]) -> Job:
    """Reads and checks everything; raises ValueError with one line before anything is written."""
    resolved = OmegaConf.to_container(config, resolve=True) | {"choices": choices}
    if variants.is_group(config):
        members = variants.members(config, choices)
        needed = memory.check_replay(members[0].config, len(members))
        program = make_program(members[0].config, tuned=True)
        together = partial(group.train_group, members, resolved)
        restore = partial(group.read_checkpoint, members, program)
        score = program.env.spec.score
        return Job(resolved, together, restore, needed, True, score, config_lib.plans(members[0].config))
    run = config_lib.read(config)
    needed = memory.check_replay(run)
    program = make_program(run, tuned=True)
    alone = partial(loop.train, run, program, resolved)
    restore = partial(resuming.read_checkpoint, run, program)
    return Job(resolved, alone, restore, needed, False, program.env.spec.score, config_lib.plans(run))


def execute(job: Job, folder: Path, tracker: Tracker, checkpoint: Path | None) -> None:
    """Runs the loop and leaves the configuration, the summary and the pictures in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(job.resolved)))
    if job.replay_bytes:
        print(f"replay buffer: {job.replay_bytes / 1e6:,.1f} MB")
    for role, plan in job.plans.items():
        Console().print(tables.plan(role, plan))
    try:
        summary = job.train(folder, tracker, checkpoint)
    except checkpoints.CheckpointError:
        raise
    except ValueError as error:
        # By now the configuration was read: this is no slip of the person at the keyboard.
        raise RuntimeError(f"the run failed: {error}") from error
    except loop.DivergedError as error:
        print(f"stopped: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    tables_read = (folder / "metrics.csv", folder / "eval.csv")
    learning_curve(folder / "learning_curve.png", *tables_read, score=job.score)
    if job.group:
        plots.variants_plot(folder / "variants.png", summary["variants"])
        Console().print(tables.variants(summary["variants"]))
    print(f"run folder: {folder}")


def main() -> None:
    """Entry point; see `USAGE`."""
    arguments = command_line.plain(sys.argv[1:])
    if {"-h", "--help"} & set(arguments):
        print(f"{USAGE}\n\ngroups: {', '.join(command_line.groups())}")
        return
    command_line.use_compilation_cache()
    if {"-m", "--multirun", "--cfg", "-c"} & set(arguments):
        sys.argv[1:] = arguments
        sweep()
        return
    where, overrides = command_line.split_resume(arguments)
    if where not in (None, AUTO):
        # The keys are those of the run, which a configuration composed anew need not have.
        resume(where, overrides)
    else:
        launch(where, *command_line.compose_config(overrides), overrides)


def launch(where: str | None, config: DictConfig, choices: dict[str, str], overrides: Sequence[str]) -> None:
    """Starts a run, or continues it if that is what `resume` says: None, or `auto`."""
    if where is None:
        start(config, choices)
    elif where == AUTO:
        continue_or_start(config, choices, overrides)
    else:
        raise command_line.UsageError(f"resume={where}: must be {AUTO} in a sweep, whose runs are several")


def sweep() -> None:
    """Hands the arguments to Hydra, which starts one run per combination of values."""

    @hydra.main(config_path=str(config_directory()), config_name="config", version_base="1.3")
    def job(config):
        chosen = HydraConfig.get().runtime.choices
        choices = {key: option for key, option in chosen.items() if "hydra" not in key}
        where, overrides = command_line.split_resume(HydraConfig.get().overrides.task)
        config.resume = None
        command_line.guarded(lambda: launch(where, config, choices, overrides))

    job()


if __name__ == "__main__":
    command_line.guarded(main)
