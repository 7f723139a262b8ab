"""Rebuilds a finished or a running run from one of its checkpoints."""

from pathlib import Path

import jax
import numpy as np
from omegaconf import OmegaConf

from algos.types import PyTree
from jaxmarl_echelon import checkpoints, command_line, optional_packages
from jaxmarl_echelon.selfplay.pool import SNAPSHOT
from jaxmarl_echelon.training.acting.random_streams import run_key
from jaxmarl_echelon.training.config import build, input_files
from jaxmarl_echelon.training.config.role_assignment import FROZEN
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.program.agents import make_actors, require_same_worlds
from jaxmarl_echelon.training.program.program import Program, make_program


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


def load_run(path: str, name: str, overrides=(), *, policy_only: bool = False):
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
    folder = checkpoints.find_checkpoint(path, name)
    facts = checkpoints.read_metadata(folder)
    checkpoints.require_single_run(folder, facts)
    config, said = build.read_saved_config(facts), set()
    for override in map(command_line.expand_alias, overrides):
        key, _, value = override.partition("=")
        command_line.set_value(config, key, value)
        said |= input_files.files_under_key(OmegaConf.to_container(config, resolve=True), key)
    optional_packages.require_packages(config, facts["config"]["choices"], ("env",))
    run_config = build.build_run_config(config)
    read = {name: found for name, found in input_files.files_in_metadata(facts).items() if name not in said}
    held = read if policy_only else input_files.policy_runs_in_state(run_config)
    input_files.require_unchanged_files(
        read, input_files.hash_input_files(run_config, learning=False), folder.parent.parent, held
    )
    agents = make_actors(run_config)
    require_same_worlds(folder, facts, agents)
    program = make_program(run_config, agents)
    like = jax.eval_shape(lambda key: program.policy(program.init(key)), run_key(run_config.seed))
    before = facts["config"].get("controllers") or {}
    other = {
        role: program.world.policies[role]
        for role, actor in run_config.controllers.items()
        if actor.startswith(FROZEN) and actor != before.get(role)
    }
    own = {name: policy for name, policy in like.policies.items() if name not in other}
    state = checkpoints.restore_state(folder, like.replace(policies=own))
    return folder, facts, run_config, program, state.replace(policies=state.policies | other)
