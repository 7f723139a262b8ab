"""Rules for resuming a run with changed settings.

`RULES` has a rule for every top-level key of the configuration. Accepted settings are applied in full:
the program is rebuilt from the whole configuration, and `restore` replaces the hyper-parameters and
task parameters in the restored state. See docs/reference/trainer.md 15.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config import build, input_files
from jaxmarl_echelon.training.config.build import TASK
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host.run_record import Progress, environment
from jaxmarl_echelon.training.program.program import Program, adjustable

PyTree = Any

MISSING = "nothing"
LONGEST_SHOWN = 80
# Setting that may change although it is not a number: parameters are float32 in every precision.
PRECISION = "compute_dtype"


class Continuation(NamedTuple):
    """Run to be resumed.

    Attributes:
      before: the checkpoint's configuration.
      after: the requested configuration.
      run: the `RunConfig` of `after`.
      step: environment steps done.
    """

    before: DictConfig
    after: DictConfig
    run: RunConfig
    step: int


def check(
    before: DictConfig,
    after: DictConfig,
    step: int,
    files: Mapping[str, input_files.Digests] = MappingProxyType({}),
) -> None:
    """Refuses changes of settings that a resumed run must keep.

    Args:
      before: the checkpoint's configuration.
      after: the requested configuration.
      step: environment steps of the checkpoint.
      files: files that the run has read; other names of the same files are not changes.

    Raises:
      ValueError: one line with the key, the value and the allowed values.
    """
    old, new = (OmegaConf.to_container(config, resolve=True) for config in (before, after))
    changed = {key: pair for key, pair in changed_settings(old, new, files).items() if key != "resume"}
    if not changed:
        return
    fixed = [key for key in changed if RULES.get(key.partition(".")[0], keeps) is keeps]
    for key in fixed:
        keeps(None, key, *changed[key])
    continuation = Continuation(before, after, build.read(after), step)
    for key, pair in changed.items():
        RULES[key.partition(".")[0]](continuation, key, *pair)


def changed_settings(
    old: Any, new: Any, files: Mapping[str, input_files.Digests]
) -> dict[str, tuple[Any, Any]]:
    """Returns the `differences`, without other names of files that the run has read."""
    return {key: pair for key, pair in differences(old, new).items() if not input_files.same(*pair, files)}


def differences(old: Any, new: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns `(old, new)` by dotted key of every leaf in which two trees of plain data differ.

    `MISSING` marks an absent leaf. Lists are leaves, except lists of mappings of equal length.
    """
    if isinstance(new, Mapping) and new and old == MISSING:
        old = {}
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        pairs = {key: (old.get(key, MISSING), new.get(key, MISSING)) for key in [*old, *new]}
    elif _tables(old) and _tables(new) and len(old) == len(new):
        pairs = dict(enumerate(zip(old, new, strict=True)))
    else:
        same = old == new and isinstance(old, bool) == isinstance(new, bool)
        return {} if same else {path: (old, new)}
    found = {}
    for key, pair in pairs.items():
        found |= differences(*pair, f"{path}.{key}" if path else str(key))
    return found


def _tables(value: Any) -> bool:
    """Whether a value is a list of mappings."""
    return isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value)


def keeps(continuation: Continuation | None, key: str, old: Any, new: Any) -> None:
    """Refuses the key: it determines the initial state or the shapes."""
    raise ValueError(f"{key}={shown(new)}: {kept(key, old)}")


def kept(key: str, old: Any) -> str:
    """Formats the message for a setting that must be kept."""
    return f"a resumed run keeps its {key}={shown(old)}"


def shown(value: Any) -> str:
    """Formats a value for messages, truncated to `LONGEST_SHOWN` characters."""
    text = str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def applies(continuation: Continuation, key: str, old: Any, new: Any) -> None:
    """Accepts any value that is valid for a new run."""


def lasts(continuation: Continuation, key: str, old: Any, new: Any) -> None:
    """Refuses a number of total steps below the steps done."""
    if new < continuation.step:
        raise ValueError(f"{key}={new}: must be at least {continuation.step}, the steps already done")


def divides(continuation: Continuation, key: str, old: Any, new: Any) -> None:
    """Refuses chunk sizes that do not divide the updates done; chunk ends would miss evaluations."""
    done = continuation.step // continuation.run.steps_per_update
    if done % new:
        raise ValueError(f"{key}={new}: must divide the {done} updates that the run has done")


def learns(continuation: Continuation, key: str, old: Any, new: Any) -> None:
    """Accepts hyper-parameters in a learner's state and `PRECISION`; refuses static settings."""
    group, _, name = key.partition(".")
    algo = continuation.run.algo
    if group == "algos":
        role, _, name = name.partition(".")
        algo = continuation.run.algos.get(role, algo)
    names = algo.adjustable()
    if name not in (*names, PRECISION):
        allowed = ", ".join((*names, PRECISION))
        raise ValueError(f"{key}={shown(new)}: {kept(key, old)}; settings that can change: {allowed}")


def poses(continuation: Continuation, key: str, old: Any, new: Any) -> None:
    """Accepts changes of task parameters and refuses changes of shapes or of the program."""
    ours, theirs = alone(continuation, key, old, new)
    if not alike(ours, theirs):
        raise ValueError(f"{key}={shown(new)}: changes more than numbers; {kept(key, old)}")
    if key.startswith("curriculum."):
        return
    if build.same_arrays(ours.env.default_params(), theirs.env.default_params()):
        reason = "is not a number that can change between episodes"
        raise ValueError(f"{key}={shown(new)}: {reason}; {kept(key, old)}")


def alike(ours: RunConfig, theirs: RunConfig) -> bool:
    """Whether two runs have equal specs and stages, and curriculum states of the same shapes."""
    first, second = (run.curriculum(run.env) for run in (ours, theirs))
    shapes = build.same_shapes(
        *((course.init(), course.tickets(ours.num_envs)) for course in (first, second))
    )
    return shapes and ours.env.spec == theirs.env.spec and first.stages == second.stages


def alone(continuation: Continuation, key: str, old: Any, new: Any) -> tuple[RunConfig, RunConfig]:
    """Returns two runs that differ only in this key: `before` without and with it, else `after` likewise.

    Keys that must change together are invalid alone; then `before` and `after` are returned.
    """
    before, after = continuation.before, continuation.after
    for base, value in ((before, new), (after, old)):
        try:
            other = build.read(build.changed(base, {key: value}))
            return build.read(base), other
        except (ValueError, OmegaConfBaseException):
            continue
    return build.read(before), continuation.run


Rule = Callable[[Continuation, str, Any, Any], None]
RULES: dict[str, Rule] = {
    "total_env_steps": lasts,
    "updates_per_chunk": divides,
    "eval_every": applies,
    "eval_episodes": applies,
    "checkpoint_every": applies,
    "episode_rows": applies,
    "precision": applies,
    "tracking": applies,
    "algo": learns,
    "algos": learns,
    "env": poses,
    "reward": poses,
    "curriculum": poses,
    "num_envs": keeps,
    "seed": keeps,
    "stagger": keeps,
    "window": keeps,
    "controllers": keeps,
    "run_name": keeps,
    "output_dir": keeps,
    "seeds": keeps,
    "ablate": keeps,
    "variants": keeps,
    "shards": keeps,
    "pool": keeps,
    "transforms": keeps,
    "devices": applies,
    "distributed": applies,
}


def restore(program: Program, checkpoint: Path, like: RunState) -> RunState:
    """Restores a run's state with the hyper-parameters and tasks of its current configuration.

    Args:
      program: the run's program.
      checkpoint: as returned by `checkpoints.find`.
      like: the state's structure, shapes and dtypes.

    Raises:
      CheckpointError: as `checkpoints.restore`, and for another version of the environment.
    """
    require_environment(program, checkpoint)
    return program.renewed(checkpoints.restore(checkpoint, without_numbers(program, like)))


def require_environment(program: Program, checkpoint: Path) -> None:
    """Checks that the checkpoint's environment name and version match the program's.

    Raises:
      CheckpointError: one line with both versions.
    """
    present = environment(program.env.spec)
    found = checkpoints.metadata(checkpoint).get("environment", present)
    if found != present:
        raise checkpoints.CheckpointError(
            f"{checkpoint}: trained in {found}, not {present}, which behaves differently; it can be evaluated"
        )


def read_checkpoint(config: RunConfig, program: Program, checkpoint: Path) -> RunState:
    """Restores a run's state without a compiled program, with the structure from `jax.eval_shape`."""
    return restore(program, checkpoint, jax.eval_shape(program.init, jax.random.key(config.seed)))


def without_numbers(program: Program, like: RunState) -> RunState:
    """Removes hyper-parameters from a state's structure: `Program.renewed` sets them, some may be new."""
    policies = {
        name: state.replace(hyper={}) if adjustable(program.agents, name) else state
        for name, state in like.policies.items()
    }
    league = None if like.league is None else without_numbers(program, like.league)
    return like.replace(policies=policies, league=league)


def carried(progress: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> Progress:
    """Returns the progress of a resumed run.

    Args:
      progress: from its checkpoint.
      before, after: its configurations as plain data. If the task differs, best scores are reset: they
        are not comparable between tasks.
    """
    files = before.get(input_files.KEY) or {}
    same = not any(changed_settings(before.get(key), after.get(key), files) for key in TASK)
    return Progress(**(progress if same else {**progress, "best": {}}))
