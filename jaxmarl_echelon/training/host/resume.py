"""Rules for resuming a run with changed settings.

`RULES` has a rule for every top-level key of the configuration. Accepted settings are applied in full:
the program is rebuilt from the whole configuration, and `restore_run` replaces the hyper-parameters and
task parameters in the restored state. See docs/reference/trainer.md 15.
"""

import dataclasses
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
from jaxmarl_echelon.training.host.run_record import RunProgress, versioned_name
from jaxmarl_echelon.training.program.agents import require_same_worlds
from jaxmarl_echelon.training.program.program import Program
from jaxmarl_echelon.training.program.state import has_traced_hyperparameters

MISSING = "nothing"
LONGEST_SHOWN = 80
# Setting that may change although it is not a number: parameters are float32 in every precision.
PRECISION = "compute_dtype"


class ResumedRun(NamedTuple):
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


def check_changes(
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
    fixed = [key for key in changed if RULES.get(key.partition(".")[0], refuse_change) is refuse_change]
    for key in fixed:
        refuse_change(None, key, *changed[key])
    continuation = ResumedRun(before, after, build.build_run_config(after), step)
    for key, pair in changed.items():
        RULES[key.partition(".")[0]](continuation, key, *pair)


def changed_settings(
    old: Any, new: Any, files: Mapping[str, input_files.Digests]
) -> dict[str, tuple[Any, Any]]:
    """Returns the `find_differences`, without other names of files that the run has read."""
    return {
        key: pair
        for key, pair in find_differences(old, new).items()
        if not input_files.same_files(*pair, files)
    }


def find_differences(old: Any, new: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
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
        found |= find_differences(*pair, f"{path}.{key}" if path else str(key))
    return found


def _tables(value: Any) -> bool:
    """Whether a value is a list of mappings."""
    return isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value)


def refuse_change(_continuation: ResumedRun | None, key: str, old: Any, new: Any) -> None:
    """Refuses the key: it determines the initial state or the shapes."""
    raise ValueError(f"{key}={shorten_text(new)}: {kept_setting_message(key, old)}")


def kept_setting_message(key: str, old: Any) -> str:
    """Formats the message for a setting that must be kept."""
    return f"a resumed run keeps its {key}={shorten_text(old)}"


def shorten_text(value: Any) -> str:
    """Formats a value for messages, truncated to `LONGEST_SHOWN` characters."""
    text = str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def accept_change(continuation: ResumedRun, key: str, old: Any, new: Any) -> None:
    """Accepts any value that is valid for a new run."""


def check_total_steps(continuation: ResumedRun, key: str, _old: Any, new: Any) -> None:
    """Refuses a number of total steps below the steps done."""
    if new < continuation.step:
        raise ValueError(f"{key}={new}: must be at least {continuation.step}, the steps already done")


def check_chunk_size(continuation: ResumedRun, key: str, _old: Any, new: Any) -> None:
    """Refuses chunk sizes that do not divide the updates done; chunk ends would miss evaluations."""
    done = continuation.step // continuation.run.steps_per_update
    if done % new:
        raise ValueError(f"{key}={new}: must divide the {done} updates that the run has done")


def check_hyperparameter(continuation: ResumedRun, key: str, old: Any, new: Any) -> None:
    """Accepts hyper-parameters in a learner's state and `PRECISION`; refuses static settings."""
    group, _, name = key.partition(".")
    algo = continuation.run.algo
    if group == "algos":
        role, _, name = name.partition(".")
        algo = continuation.run.algos.get(role, algo)
    names = algo.adjustable()
    if name not in (*names, PRECISION):
        allowed = ", ".join((*names, PRECISION))
        raise ValueError(
            f"{key}={shorten_text(new)}: {kept_setting_message(key, old)}; "
            f"settings that can change: {allowed}"
        )
    if continuation.after.get("pbt") and name not in (PRECISION, "total_updates"):
        raise ValueError(f"{key}={shorten_text(new)}: must stay as it was in population based training (pbt)")


def check_task_parameter(continuation: ResumedRun, key: str, old: Any, new: Any) -> None:
    """Accepts changes of task parameters and refuses changes of shapes or of the program."""
    ours, theirs = isolate_change(continuation, key, old, new)
    if not same_structure(ours, theirs):
        raise ValueError(
            f"{key}={shorten_text(new)}: changes more than numbers; {kept_setting_message(key, old)}"
        )
    if key.startswith("curriculum."):
        return
    if build.same_arrays(ours.env.default_params(), theirs.env.default_params()):
        reason = "is not a number that can change between episodes"
        raise ValueError(f"{key}={shorten_text(new)}: {reason}; {kept_setting_message(key, old)}")


def same_structure(ours: RunConfig, theirs: RunConfig) -> bool:
    """Whether two runs have equal specs and stages, and curriculum states of the same shapes."""
    first, second = (run.curriculum(run.env) for run in (ours, theirs))
    shapes = build.same_shapes(
        *((course.init(), course.tickets(ours.num_envs)) for course in (first, second))
    )
    return shapes and ours.env.spec == theirs.env.spec and first.stages == second.stages


def isolate_change(continuation: ResumedRun, key: str, old: Any, new: Any) -> tuple[RunConfig, RunConfig]:
    """Returns two runs that differ only in this key: `before` without and with it, else `after` likewise.

    Keys that must change together are invalid alone; then `before` and `after` are returned.
    """
    before, after = continuation.before, continuation.after
    for base, value in ((before, new), (after, old)):
        try:
            other = build.build_run_config(build.change_settings(base, {key: value}))
            return build.build_run_config(base), other
        except (ValueError, OmegaConfBaseException):
            continue
    return build.build_run_config(before), continuation.run


Rule = Callable[[ResumedRun, str, Any, Any], None]
RULES: dict[str, Rule] = {
    "total_env_steps": check_total_steps,
    "updates_per_chunk": check_chunk_size,
    "compilation": accept_change,
    "eval_every": accept_change,
    "eval_episodes": accept_change,
    "checkpoint_every": accept_change,
    "episode_rows": accept_change,
    "replay": accept_change,
    "precision": accept_change,
    "tracking": accept_change,
    "video_every": accept_change,
    "profile": accept_change,
    "algo": check_hyperparameter,
    "algos": check_hyperparameter,
    "env": check_task_parameter,
    "reward": check_task_parameter,
    "curriculum": check_task_parameter,
    "num_envs": refuse_change,
    "seed": refuse_change,
    "stagger": refuse_change,
    "window": refuse_change,
    "controllers": refuse_change,
    "run_name": refuse_change,
    "output_dir": refuse_change,
    "seeds": refuse_change,
    "ablate": refuse_change,
    "variants": refuse_change,
    "sweep": refuse_change,
    "samples": refuse_change,
    "pbt": refuse_change,
    "shards": refuse_change,
    "pool": refuse_change,
    "transforms": refuse_change,
    "devices": accept_change,
    "threads": accept_change,
    "distributed": accept_change,
}


def restore_run(program: Program, checkpoint: Path, like: RunState) -> RunState:
    """Restores a run's state with the hyper-parameters and tasks of its current configuration.

    Args:
      program: the run's program.
      checkpoint: as returned by `checkpoints.find_checkpoint`.
      like: the state's structure, shapes and dtypes.

    Raises:
      CheckpointError: as `restore_run`, and for another version of the environment.
    """
    require_environment(program, checkpoint)
    require_same_worlds(checkpoint, checkpoints.read_metadata(checkpoint), program.agents)
    return program.renewed(checkpoints.restore_state(checkpoint, without_hyperparameters(program, like)))


def require_environment(program: Program, checkpoint: Path) -> None:
    """Checks that the checkpoint's environment name and version match the program's.

    Raises:
      CheckpointError: one line with both versions.
    """
    present = versioned_name(program.env.spec)
    found = checkpoints.read_metadata(checkpoint).get("environment", present)
    if found != present:
        raise checkpoints.CheckpointError(
            f"{checkpoint}: trained in {found}, not {present}, which behaves differently; it can be evaluated"
        )


def read_checkpoint(config: RunConfig, program: Program, checkpoint: Path) -> RunState:
    """Restores a run's state without a compiled program, with the structure from `jax.eval_shape`."""
    return restore_run(program, checkpoint, jax.eval_shape(program.init, jax.random.key(config.seed)))


def without_hyperparameters(program: Program, like: RunState) -> RunState:
    """Removes hyper-parameters from a state's structure: `Program.renewed` sets them, some may be new."""
    policies = {
        name: state.replace(hyper={}) if has_traced_hyperparameters(program.agents, name) else state
        for name, state in like.policies.items()
    }
    league = None if like.league is None else without_hyperparameters(program, like.league)
    return like.replace(policies=policies, league=league)


def resume_progress(
    folder: Path, facts: Mapping[str, Any], progress: Mapping[str, Any], resolved: Mapping[str, Any]
) -> RunProgress:
    """Returns the progress of a run that is resumed in its folder.

    A best score without its checkpoint would keep all lower ones from being saved: a copy of a run at an
    earlier checkpoint lacks the later ones, and the best of before has been removed for them. Those of a
    variant are of the baseline's task, which a member that continues alone is not scored on.

    Args:
      folder: of the run.
      facts: metadata of the checkpoint.
      progress: of the run, among these.
      resolved: the current configuration as plain data.
    """
    carried = carry_progress(progress, facts["config"], resolved)
    saved = checkpoints.names_until(folder / "checkpoints", facts["step"])
    kept = {name: rank for name, rank in carried.best.items() if name in saved}
    if facts.get("scored_on"):
        kept = _without_evaluations(kept)
    return dataclasses.replace(carried, best=kept)


def _without_evaluations(best: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Best scores other than those of evaluations."""
    return {name: rank for name, rank in best.items() if not name.startswith("best_eval")}


def changed_groups(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns the groups of the task in which two configurations, plain data, differ."""
    files = before.get(input_files.KEY) or {}
    return [key for key in TASK if changed_settings(before.get(key), after.get(key), files)]


def describe_kept_replay(
    run: RunConfig, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns lines on experience of the time before a resume in the replays of a run, or `()`.

    Rewards are stored, so that numbers of the task apply only to transitions that are still to come; delayed
    rewards are stored with their discounts.

    Args:
      run: the run.
      before, after: configurations of the checkpoint and of the resumed run, as plain data.
    """
    if not run.replays:
        return ()
    lines = []
    if changed := changed_groups(before, after):
        lines.append(
            f"the replay keeps what was stored before {' and '.join(changed)} changed, with the rewards of "
            "that task, until new transitions have replaced it"
        )
    if changes_gamma(before, after) and stores_discounts(run):
        lines.append(
            "the replay keeps delayed rewards as they were discounted before gamma changed, until new "
            "transitions have replaced them"
        )
    return tuple(lines)


def stores_discounts(run: RunConfig) -> bool:
    """Tells whether replays of a run hold rewards discounted by time, of agents that are out of the game."""
    spec = run.env.spec
    return spec.late and not spec.turns and any(one.replays and not one.teams for one in run.algos.values())


def changes_gamma(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Tells whether the discount of a learner differs between two configurations, plain data."""
    found = [find_differences(before.get(key), after.get(key), key) for key in ("algo", "algos")]
    return any(name.endswith(".gamma") for changes in found for name in changes)


def carry_progress(
    progress: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> RunProgress:
    """Returns the progress of a resumed run.

    Args:
      progress: from its checkpoint.
      before, after: its configurations as plain data. If the task differs, best scores are reset, as they
        are not comparable between tasks, and training scores wait for a window of the new task; if the
        number of evaluated episodes differs, the best scores of evaluations are reset.
    """
    progress = {"scored": progress.get("episodes", 0), **progress}
    if changed_groups(before, after):
        return RunProgress(**{**progress, "best": {}, "entered": progress["scored"]})
    carried = RunProgress(**progress)
    # The maximum over estimates from few episodes is biased more than that from many.
    if before.get("eval_episodes") != after.get("eval_episodes"):
        return dataclasses.replace(carried, best=_without_evaluations(carried.best))
    return carried
