"""`python -m jaxmarl_echelon.train +algo=ppo env=f110`: trains, logs, checkpoints, resumes."""

import sys
from datetime import datetime
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from jaxmarl_echelon import checkpoints, command_line
from jaxmarl_echelon.config_path import config_directory
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.tracking.plots import learning_curve
from jaxmarl_echelon.training import config as config_lib
from jaxmarl_echelon.training import loop
from jaxmarl_echelon.training.program import make_program

USAGE = """usage: python -m jaxmarl_echelon.train [KEY=VALUE ...]      train one run
       python -m jaxmarl_echelon.train -m [KEY=A,B ...]     Hydra sweep over values
       python -m jaxmarl_echelon.train resume=RUN_FOLDER    continue a run, bit for bit
       python -m jaxmarl_echelon.train --cfg job [...]      show the configuration and stop"""


def start(config: DictConfig, choices: dict[str, str]) -> None:
    """Starts a new run from a composed configuration."""
    run = config_lib.read(config)
    folder = command_line.run_folder(config, choices, datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    tracker = make_tracker(config)
    resolved = OmegaConf.to_container(config, resolve=True) | {"choices": choices}
    execute(run, resolved, folder, tracker, None)


def resume(path: str, overrides: list[str]) -> None:
    """Continues a run from its checkpoint; values may be overridden, groups may not."""
    checkpoint = checkpoints.find(path, "latest")
    saved = checkpoints.metadata(checkpoint)["config"]
    choices = saved.pop("choices")
    config = OmegaConf.create(saved)
    OmegaConf.set_struct(config, True)
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key in command_line.groups() and key != "tracking":
            raise command_line.UsageError(f"{override}: a resumed run keeps its {key}={choices.get(key)}")
        command_line.set_value(config, key, value)
    run = config_lib.read(config)
    resolved = OmegaConf.to_container(config, resolve=True) | {"choices": choices}
    execute(run, resolved, checkpoint.parent.parent, make_tracker(config), checkpoint)


def make_tracker(config: DictConfig) -> Tracker:
    """Builds the sinks of a configuration."""
    return config_lib.build(config.tracking, "tracking")


def execute(run, resolved, folder: Path, tracker: Tracker, checkpoint: Path | None) -> None:
    """Runs the loop and leaves the configuration, the summary and the learning curve in the folder."""
    program = make_program(run)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(resolved)))
    try:
        loop.train(run, program, resolved, folder, tracker, checkpoint)
    except checkpoints.CheckpointError:
        raise
    except ValueError as error:
        # By now the configuration was read: this is no slip of the person at the keyboard.
        raise RuntimeError(f"the run failed: {error}") from error
    except loop.DivergedError as error:
        print(f"stopped: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    learning_curve(folder / "learning_curve.png", folder / "metrics.csv", folder / "eval.csv")
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
    config, choices = command_line.compose_config(arguments)
    if config.resume is not None:
        resume(config.resume, [a for a in arguments if not a.startswith("resume=")])
    else:
        start(config, choices)


def sweep() -> None:
    """Hands the arguments to Hydra, which starts one run per combination of values."""

    @hydra.main(config_path=str(config_directory()), config_name="config", version_base="1.3")
    def job(config):
        choices = dict(HydraConfig.get().runtime.choices)
        command_line.guarded(lambda: start(config, {k: v for k, v in choices.items() if "hydra" not in k}))

    job()


if __name__ == "__main__":
    command_line.guarded(main)
