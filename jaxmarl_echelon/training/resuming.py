"""What a run may be told when it continues: which settings apply from then on, and which it keeps.

`RULES` has a rule for every top-level key of the configuration. A setting that is not refused is
applied in full: the program is built anew from the whole configuration, and the numbers that live in
the run's state are put into the restored one by `restore`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.training import config as config_lib
from jaxmarl_echelon.training.config import TASK, RunConfig
from jaxmarl_echelon.training.program import Program, adjustable
from jaxmarl_echelon.training.record import Progress, environment
from jaxmarl_echelon.training.types import RunState

PyTree = Any

MISSING = "nothing"
LONGEST_SHOWN = 80
# Applied by the rebuilt program although it is no number: parameters are float32 in every precision.
PRECISION = "compute_dtype"


class Continuation(NamedTuple):
    """A run that is to continue.

    Attributes:
      before: its configuration so far.
      after: the one that it is to have from now on.
      run: what `after` stands for.
      step: environment steps that are done.
    """

    before: DictConfig
    after: DictConfig
    run: RunConfig
    step: int


def check(before: DictConfig, after: DictConfig, step: int) -> None:
    """Refuses what a run cannot be told any more.

    Args:
      before: the configuration of the checkpoint.
      after: the one asked for.
      step: environment steps of the checkpoint.

    Raises:
      ValueError: one line with the key, the value and what is allowed.
    """
    old, new = (OmegaConf.to_container(config, resolve=True) for config in (before, after))
    changed = {key: pair for key, pair in differences(old, new).items() if key != "resume"}
    if not changed:
        return
    fixed = [key for key in changed if RULES.get(key.partition(".")[0], keeps) is keeps]
    for key in fixed:
        keeps(None, key, *changed[key])
    continuation = Continuation(before, after, config_lib.read(after), step)
    for key, pair in changed.items():
        RULES[key.partition(".")[0]](continuation, key, *pair)


def differences(old: Any, new: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Key to `(old, new)` of every leaf in which two trees of plain data differ; `MISSING` stands for none.

    Lists are leaves, but for lists of mappings of the same length.
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
    return isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value)


def keeps(continuation: Continuation | None, key: str, old: Any, new: Any) -> None:
    """Refuses the key: it belongs to the run's beginning or is part of its shapes."""
    raise ValueError(f"{key}={shown(new)}: {kept(key, old)}")


def kept(key: str, old: Any) -> str:
    """What a message says of a setting that stays."""
    return f"a resumed run keeps its {key}={shown(old)}"


def shown(value: Any) -> str:
    """A value as a message shows it: the beginning of a long one."""
    text = str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def applies(continuation: Continuation, key: str, old: Any, new: Any) -> None:
    """Takes any value that a new run would take."""


def lasts(continuation: Continuation, key: str, old: Any, new: Any) -> None:
    """Refuses an end that already lies behind the run."""
    if new < continuation.step:
        raise ValueError(f"{key}={new}: must be at least {continuation.step}, which the run has done already")


def divides(continuation: Continuation, key: str, old: Any, new: Any) -> None:
    """Refuses chunks of updates at whose ends the run would never be where it is to be evaluated."""
    done = continuation.step // continuation.run.steps_per_update
    if done % new:
        raise ValueError(f"{key}={new}: must divide the {done} updates that the run has done")


def learns(continuation: Continuation, key: str, old: Any, new: Any) -> None:
    """Takes the numbers that live in a learner's state; refuses what its program or its shapes consist of."""
    group, _, name = key.partition(".")
    algo = continuation.run.algo
    if group == "algos":
        role, _, name = name.partition(".")
        algo = continuation.run.algos.get(role, algo)
    names = algo.adjustable()
    if name not in (*names, PRECISION):
        allowed = ", ".join((*names, PRECISION))
        raise ValueError(f"{key}={shown(new)}: {kept(key, old)}; what may change: {allowed}")


def poses(continuation: Continuation, key: str, old: Any, new: Any) -> None:
    """Takes the numbers of the task; refuses what shapes or the program depend on."""
    ours, theirs = alone(continuation, key, old, new)
    if not alike(ours, theirs):
        raise ValueError(f"{key}={shown(new)}: changes more than numbers; {kept(key, old)}")
    if key.startswith("curriculum."):
        return
    if config_lib.same_arrays(ours.env.default_params(), theirs.env.default_params()):
        reason = "is no number that may change between episodes"
        raise ValueError(f"{key}={shown(new)}: {reason}; {kept(key, old)}")


def alike(ours: RunConfig, theirs: RunConfig) -> bool:
    """Whether two runs have the same roles, spaces, outcomes and stages, and tasks of the same shapes."""
    first, second = (run.curriculum(run.env) for run in (ours, theirs))
    shapes = config_lib.same_shapes(
        *((course.init(), course.tickets(ours.num_envs)) for course in (first, second))
    )
    return shapes and ours.env.spec == theirs.env.spec and first.stages == second.stages


def alone(continuation: Continuation, key: str, old: Any, new: Any) -> tuple[RunConfig, RunConfig]:
    """Two configurations that differ in this key: as before and with it, else as asked for and without it.

    Several keys may have to change together; then both are wrong by themselves, and the whole
    configurations are compared.
    """
    before, after = continuation.before, continuation.after
    for base, value in ((before, new), (after, old)):
        try:
            other = config_lib.read(config_lib.changed(base, {key: value}))
            return config_lib.read(base), other
        except (ValueError, OmegaConfBaseException):
            continue
    return config_lib.read(before), continuation.run


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
}


def restore(program: Program, checkpoint: Path, like: RunState) -> RunState:
    """Restores a run's state under the numbers of its present configuration.

    Args:
      program: the run's program.
      checkpoint: as returned by `checkpoints.find`.
      like: the state's structure, shapes and dtypes.

    Raises:
      CheckpointError: as `checkpoints.restore`, and for a run in another version of its environment.
    """
    require_environment(program, checkpoint)
    return program.renewed(checkpoints.restore(checkpoint, without_numbers(program, like)))


def require_environment(program: Program, checkpoint: Path) -> None:
    """Refuses to go on in an environment that behaves otherwise than the one that the run began in.

    Raises:
      CheckpointError: one line with both versions.
    """
    present = environment(program.env.spec)
    found = checkpoints.metadata(checkpoint).get("environment", present)
    if found != present:
        raise checkpoints.CheckpointError(
            f"{checkpoint}: a run in {found}, here it is {present} and behaves otherwise; it can be evaluated"
        )


def read_checkpoint(config: RunConfig, program: Program, checkpoint: Path) -> RunState:
    """Restores a run's state where nothing is compiled yet; see `restore`."""
    return restore(program, checkpoint, jax.eval_shape(program.init, jax.random.key(config.seed)))


def without_numbers(program: Program, like: RunState) -> RunState:
    """The structure of a state without what `Program.renewed` puts in: a setting may be new in there."""
    policies = {
        name: state.replace(hyper={}) if adjustable(program.agents, name) else state
        for name, state in like.policies.items()
    }
    return like.replace(policies=policies)


def carried(progress: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> Progress:
    """Where a run stands when it continues.

    Args:
      progress: what its checkpoint says.
      before, after: its configurations, as plain data. Where the task differs, the best scores begin
        anew: those of another task cannot be compared with what comes.
    """
    same = all(before.get(key) == after.get(key) for key in TASK)
    return Progress(**(progress if same else {**progress, "best": {}}))
