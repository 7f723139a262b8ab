"""Rebuilds a finished or a running run from one of its checkpoints."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from omegaconf import DictConfig, OmegaConf

from algos.types import PyTree
from jaxmarl_echelon import checkpoints, command_line, optional_packages
from jaxmarl_echelon.selfplay.pool import SNAPSHOT
from jaxmarl_echelon.training.acting.random_streams import run_key
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config import build, input_files
from jaxmarl_echelon.training.config.role_assignment import FROZEN
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.program.agents import make_actors, require_same_worlds
from jaxmarl_echelon.training.program.program import Program, make_program


class SavedRun(NamedTuple):
    """A run's checkpoint with the configuration in which it is rebuilt.

    Attributes:
      folder: the checkpoint.
      facts: its metadata.
      config: its configuration, with overrides.
      typed: names of the files that overrides name.
    """

    folder: Path
    facts: dict[str, Any]
    config: DictConfig
    typed: set[str]


class LoadedRun(NamedTuple):
    """A rebuilt run: checkpoint folder, metadata, configuration, program, and the state for acting."""

    folder: Path
    facts: dict[str, Any]
    config: RunConfig
    program: Program
    state: RunState


def load_snapshots(folder: Path, config: RunConfig, program: Program, like: PyTree) -> dict[int, PyTree]:
    """Loads the snapshots in the pool of a checkpoint by number, oldest first.

    Args:
      folder, config, program: from `load_run`, of a run with a pool.
      like: a policy of the pool's learner, whose dtypes the snapshots get.
    """
    structure = jax.eval_shape(program.init, run_key(config.seed)).pool
    pool, first = checkpoints.restore_state(folder, structure, ".pool"), config.pool.learners
    filled = np.flatnonzero(np.asarray(pool.kind)[: first + config.pool.capacity] == SNAPSHOT)
    numbers = np.asarray(pool.iteration)
    return {
        int(numbers[entry]): jax.tree.map(
            lambda x, y, entry=entry: x[entry - first].astype(y.dtype), pool.bank, like
        )
        for entry in filled[np.argsort(numbers[filled])]
    }


def load_run(path: str, name: str, overrides: Sequence[str] = (), *, policy_only: bool = False) -> LoadedRun:
    """Rebuilds a run from a checkpoint.

    If `overrides` name a frozen policy for a role, that policy replaces the learnt one. Files named in
    `overrides` are read in their current version; all other files must be as the run has read them.

    Args:
      path: a run's folder, its `checkpoints` folder, or one checkpoint.
      name: name of the checkpoint in a run's folder.
      overrides: items `KEY=VALUE` of the run's configuration.
      policy_only: whether the environment is not needed, so that changed files are only reported.

    Returns:
      checkpoint folder, metadata, run configuration, program, and the part of the state for acting.

    Raises:
      ValueError: one line, for a checkpoint or a configuration that cannot be read, or a changed file.
    """
    saved = read_saved_run(path, name, overrides)
    config, program = rebuild_program(saved, policy_only=policy_only)
    state = restore_policies(saved, config, program, policy_shapes(program))
    return LoadedRun(saved.folder, saved.facts, config, program, state)


def load_members(folders: Sequence[Path], name: str, overrides: Sequence[str] = ()) -> Iterator[LoadedRun]:
    """Yields members of a group, each as `load_run` of its folder returns it.

    Neighbours whose configurations differ in seeds only share one program, whose functions are then compiled
    once; variants have their own, as their numbers are constants of it.

    Args:
      folders: the members', with the seeds of a variant one after the other.
      name, overrides: as for `load_run`.

    Raises:
      ValueError: as `load_run`.
    """
    before, built = None, None
    for folder in folders:
        saved = read_saved_run(str(folder), name, overrides)
        settings = OmegaConf.to_container(saved.config, resolve=True) | {"seed": None}
        if built is None or settings != before:
            config, program = rebuild_program(saved)
            before, built = settings, (config, program, policy_shapes(program))
        config, program, like = built
        config = dataclasses.replace(config, seed=saved.config.seed)
        state = restore_policies(saved, config, program, like)
        yield LoadedRun(saved.folder, saved.facts, config, program, state)


def read_saved_run(path: str, name: str, overrides: Sequence[str]) -> SavedRun:
    """Reads a checkpoint's metadata and applies overrides to its configuration; see `load_run`."""
    folder = checkpoints.find_checkpoint(path, name)
    facts = checkpoints.read_metadata(folder)
    checkpoints.require_single_run(folder, facts)
    config, typed = build.read_saved_config(facts), set()
    for override in map(command_line.expand_alias, overrides):
        key, _, value = override.partition("=")
        command_line.set_value(config, key, value)
        typed |= input_files.files_under_key(OmegaConf.to_container(config, resolve=True), key)
    return SavedRun(folder, facts, config, typed)


def rebuild_program(saved: SavedRun, *, policy_only: bool = False) -> tuple[RunConfig, Program]:
    """Builds a saved run's configuration and its program with agents that only act; see `load_run`."""
    folder, facts, config, typed = saved
    optional_packages.require_packages(config, facts["config"]["choices"], ("env",))
    run_config = build.build_run_config(config)
    read = {name: found for name, found in input_files.files_in_metadata(facts).items() if name not in typed}
    held = read if policy_only else input_files.policy_runs_in_state(run_config)
    input_files.require_unchanged_files(
        read, input_files.hash_input_files(run_config, learning=False), folder.parent.parent, held
    )
    agents = make_actors(run_config)
    require_same_worlds(folder, facts, agents)
    return run_config, make_program(run_config, agents)


def policy_shapes(program: Program) -> RunState:
    """Returns the shapes of the part of a run's state for acting, which are the same for all seeds."""
    return jax.eval_shape(program.init_policy, run_key(0))


def restore_policies(saved: SavedRun, config: RunConfig, program: Program, like: RunState) -> RunState:
    """Restores the part of a run's state for acting, of the shapes `like`.

    Frozen policies that overrides name for a role replace learnt ones.
    """
    before = saved.facts["config"].get("controllers") or {}
    other = {
        role: program.world.policies[role]
        for role, actor in config.controllers.items()
        if actor.startswith(FROZEN) and actor != before.get(role)
    }
    own = {name: policy for name, policy in like.policies.items() if name not in other}
    state = checkpoints.restore_state(saved.folder, like.replace(policies=own))
    return state.replace(policies=state.policies | other)
