"""Configurations with paths of older versions build the same runs as those with present paths."""

from importlib import import_module
from importlib.util import find_spec

import jax
import numpy as np
import pytest
from commands import TINY
from hydra.utils import get_object
from omegaconf import OmegaConf

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.config import build, moved_targets
from jaxmarl_echelon.training.config.moved_targets import MODULES, OBJECTS, current_target

OLD = {
    "env": "jaxmarl_echelon.envs.f110.env.make",
    "reward": "jaxmarl_echelon.envs.f110.rewards.make_reward",
    "curriculum": "jaxmarl_echelon.curricula.base.fixed",
    "algo": "algos.ppo.PPOConfig",
}


def is_module_file(path):
    """Whether a module that is not a package can be imported by this path."""
    try:
        found = find_spec(path)
    except ModuleNotFoundError:  # for a parent package, or a parent that is a module
        return False
    return found is not None and found.submodule_search_locations is None


@pytest.mark.parametrize("old", OBJECTS)
def test_old_paths_of_objects_build_the_present_objects(old):
    built = build.instantiate_node(OmegaConf.create({"_target_": old}), "node", _partial_=True)
    assert built.func is get_object(OBJECTS[old])


@pytest.mark.parametrize("old", MODULES)
def test_old_modules_are_gone_and_their_contents_have_a_place(old):
    assert not is_module_file(old)
    module = import_module(MODULES[old])
    own = (n for n, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    name = next(own)
    assert get_object(current_target(f"{old}.{name}")) is vars(module)[name]


def test_present_paths_are_unchanged(repository):
    present = {*OBJECTS.values(), *(f"{module}.name" for module in MODULES.values())}
    for file in (repository / "conf").rglob("*.yaml"):
        present |= set(targets_of(OmegaConf.to_container(OmegaConf.load(file))))
    assert len(present) > 100 and all(current_target(path) == path for path in present)


def targets_of(node):
    """Yields every `_target_` in a tree of plain data."""
    if isinstance(node, dict):
        if moved_targets.TARGET in node:
            yield node[moved_targets.TARGET]
        for value in node.values():
            yield from targets_of(value)


def require_same_runs(ours, theirs):
    """Asserts that two run configurations have equal environments, learners and curricula."""
    assert (ours.env.spec, ours.algo) == (theirs.env.spec, theirs.algo)
    assert type(ours.env) is type(theirs.env) and ours.curriculum.func is theirs.curriculum.func
    jax.tree.map(np.testing.assert_array_equal, ours.env.default_params(), theirs.env.default_params())


def test_a_run_is_built_from_old_paths_in_yaml_and_in_metadata():
    config, choices = command_line.compose_config(["env=f110", "algo=ppo", *TINY])
    present = build.build_run_config(config)
    for key, path in OLD.items():
        config[key]["_target_"] = path
    require_same_runs(build.build_run_config(config), present)
    saved = OmegaConf.to_container(config, resolve=True) | {"choices": choices, "precision": "bf16"}
    saved["algo"] |= {"compute_dtype": "bf16"}
    restored = build.read_saved_config({"config": saved})
    restored.precision = config.precision  # settings that refer to others still do
    require_same_runs(build.build_run_config(restored), present)


def test_nested_targets_are_updated_and_nodes_without_old_paths_are_not_copied():
    old, new = next(iter(OBJECTS.items()))
    node = OmegaConf.create({"sinks": [{"_target_": old, "size": 2}], "other": {"_target_": new}})
    updated = moved_targets.update_targets(node)
    assert updated == {"sinks": [{"_target_": new, "size": 2}], "other": {"_target_": new}}
    assert moved_targets.update_targets(updated) is updated
