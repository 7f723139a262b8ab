"""Builds a run's objects from a composed Hydra configuration, with one-line errors."""

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from fractions import Fraction
from importlib import import_module
from inspect import signature
from math import isfinite
from typing import Any

import jax
import numpy as np
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from algos import checks
from algos.defaults import read_defaults
from algos.on_policy.update_sizes import UpdateSizes
from algos.settings import AUTO, LearnerSettings
from jaxmarl_echelon.config_keys import FOLLOWS, complete_key, restore_following
from jaxmarl_echelon.envs import contract
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.selfplay.credit import TransformSettings
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.config import input_files, moved_targets, role_assignment
from jaxmarl_echelon.training.config.run_config import SIZES, RunConfig, require_run_sizes

BUILT = ("env", "algo", "algos", "curriculum", "controllers", "pool", "transforms")
ELSEWHERE = (
    "precision",
    "reward",
    "tracking",
    "resume",
    "run_name",
    "output_dir",
    "seeds",
    "ablate",
    "variants",
    "sweep",
    "samples",
    "pbt",
    "devices",
    "threads",
    "distributed",
)
# Defaults of keys that configurations of older runs do not have.
PLACE = {
    "devices": None,
    "threads": None,
    "shards": 1,
    "distributed": "off",
    "pool": None,
    "transforms": None,
    "video_every": None,
    "profile": None,
    "replay": False,
    "compilation": "full",
}
TASK = ("env", "reward", "curriculum")
PRECISIONS = ("float32", "bf16")
# The sink that shows replays; named here because training does not import it.
REPORT_SINK = "jaxmarl_echelon.reporting.report_sink.ReportSink"


def update_sizes_of_learners(config: RunConfig) -> dict[str, UpdateSizes]:
    """Returns the `UpdateSizes` of every learner that has one, by role name."""
    found = {name: algo.plan(config.columns(name), config.num_envs) for name, algo in config.algos.items()}
    return {name: plan for name, plan in found.items() if plan is not None}


def build_run_config(config: DictConfig, env: Environment | None = None) -> RunConfig:
    """Builds the objects that a composed configuration names, the environment last.

    Args:
      config: as composed.
      env: an environment to use instead of the configured one.

    Raises:
      ValueError: one line with the key, the value and the allowed values.
    """
    if jax.config.jax_enable_x64:
        raise ValueError("JAX_ENABLE_X64=1: must be off, as runs compute in float32")
    _refuse_strangers(config)
    _refuse_infinities(OmegaConf.to_container(config, resolve=True))
    if config.get("precision", PRECISIONS[0]) not in PRECISIONS:
        raise ValueError(f"precision={config.precision}: must be {' or '.join(PRECISIONS)}")
    _refuse_shapeless(config)
    shards = 1 if config.get("shards") is None else config.shards
    keys = [key for key in RunConfig.__dataclass_fields__ if key not in (*BUILT, "shards", "replay")]
    computed = {"shards": shards, "replay": _wants_replay(config)}
    sizes = {key: config[key] for key in keys if key in config} | computed
    require_run_sizes({key: sizes.get(key, read_defaults("config")[key]) for key in SIZES})
    _refuse_untaken_settings(config.curriculum, "curriculum")
    curriculum = instantiate_node(config.curriculum, "curriculum", _partial_=True)
    pool = PoolSettings() if config.get("pool") is None else instantiate_node(config.pool, "pool")
    chosen = config.get("transforms")
    transforms = TransformSettings() if chosen is None else instantiate_node(chosen, "transforms")
    _refuse_teachers(config)
    if AUTO not in config.algo.values():  # sizes that depend on the environment
        instantiate_node(config.algo, "algo")  # reports errors before minutes are spent on an environment
    env = _build_env(config) if env is None else env
    contract.require_spec(env)
    controllers = OmegaConf.to_container(config.controllers) or {}
    acting = role_assignment.assign_roles(env, controllers)
    learning = (role for role, name in acting.items() if role_assignment.has_learner(role, name))
    agents = {role: role_assignment.agents_per_learner(env, acting, role, pool) for role in learning}
    algo = instantiate_node(_sized(config.algo, config.num_envs, next(iter(agents.values()), None)), "algo")
    _require("algo", config.algo, algo, "make")
    if not transforms and isinstance(own := getattr(algo, "transforms", None), TransformSettings):
        transforms = own
    return RunConfig(
        env=env,
        algo=algo,
        algos=_read_algos(config, agents),
        curriculum=curriculum,
        controllers=controllers,
        pool=pool,
        transforms=transforms,
        **computed,
        **{key: config[key] for key in keys},
    )


def _wants_replay(config: DictConfig) -> Any:
    """The setting `replay`; where it is null, whether a tracking sink writes a report."""
    if (given := config.get("replay")) is not None:
        return given
    sinks = OmegaConf.select(config, "tracking.sinks") or {}
    return any(REPORT_SINK in str(sink) for sink in sinks.values())


def _build_env(config: DictConfig) -> Environment:
    """Builds the environment with its reward."""
    arguments = {}
    if config.get("reward") is not None:
        arguments["reward"] = instantiate_node(config.reward, "reward")
    # A partial, because Hydra converts objects among the arguments to configurations.
    make = instantiate_node(config.env, "env", _partial_=True)
    with report_type_errors("env"):
        env = make(**arguments)
    _require("env", config.env, env, "spec")
    return env


def read_saved_config(metadata: Mapping[str, Any]) -> DictConfig:
    """Reads the configuration in a checkpoint's metadata for `build_run_config`; refuses unknown keys.

    Files that have moved with their project get their current names, see `input_files.relocate_files`.
    """
    plain = input_files.relocate_files(metadata["config"])
    config = OmegaConf.create(PLACE | {k: v for k, v in plain.items() if k not in ("choices", FOLLOWS)})
    # Saved configurations are resolved; restore interpolations, so that overriding `precision` works.
    for node in (config.algo, *(config.get("algos") or {}).values()):
        if "compute_dtype" in node and node.compute_dtype == config.get("precision"):
            node.compute_dtype = "${precision}"
    restore_following(config, plain.get(FOLLOWS) or {})
    OmegaConf.set_struct(config, True)
    return config


def _read_algos(config: DictConfig, agents: Mapping[str, Fraction]) -> dict[str, LearnerSettings]:
    """Builds the settings of single roles: whole algorithms (with a `_target_`), or overrides of `algo`."""
    result = {}
    for role, node in (config.get("algos") or {}).items():
        whole = node if "_target_" in node else OmegaConf.merge(config.algo, node)
        result[role] = instantiate_node(_sized(whole, config.num_envs, agents.get(role)), f"algos.{role}")
    return result


def _sized(node: DictConfig, num_envs: int, agents: Fraction | None) -> DictConfig:
    """Adds the settings derived from the run's sizes to a learner's node; unchanged if `agents` is None."""
    kind = _target(node)
    if agents is None or not isinstance(kind, type) or not issubclass(kind, LearnerSettings):
        return node
    return OmegaConf.merge(
        node, kind.derive_sizes(OmegaConf.to_container(node, resolve=True), num_envs, agents)
    )


def _target(node: DictConfig) -> Any:
    """Imports the `_target_` of a node; None if the import fails, which building the node then reports."""
    path = moved_targets.current_target(str(node.get("_target_")))
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name, None)
    except (ImportError, ValueError):
        return None


def _refuse_strangers(config: DictConfig) -> None:
    """Raises ValueError for unknown top-level keys."""
    known = (*RunConfig.__dataclass_fields__, *ELSEWHERE)
    for key in config:
        if key not in known:
            raise ValueError(f"{key}={config[key]}: unknown key. Allowed: {', '.join(known)}")


def _refuse_untaken_settings(node: DictConfig, where: str) -> None:
    """Raises ValueError for settings that the `_target_` of a node does not take after its first argument.

    Keys of another option of the group reach a node whose file accepts keys of its own.
    """
    kind = _target(node)
    if not callable(kind):
        return
    _, *taken = signature(kind).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in taken):
        given = {key: node[key] for key in node if not str(key).startswith("_")}
        what = f"unknown to {kind.__name__} ({where}=NAME chooses another)"
        checks.require_keys(f"{where}.", given, [one.name for one in taken], what)


def _refuse_teachers(config: DictConfig) -> None:
    """Raises ValueError for a teacher of an algorithm that cannot imitate one."""
    nodes = {"algo": config.algo}
    nodes |= {f"algos.{role}": node for role, node in (config.get("algos") or {}).items()}
    for where, node in nodes.items():
        kind = _target(node if "_target_" in node else config.algo)
        known = isinstance(kind, type) and is_dataclass(kind)
        if node.get("teacher") is not None and known and "teacher" not in {x.name for x in fields(kind)}:
            raise ValueError(
                f"{where}.teacher={node.teacher}: {kind.__name__} cannot imitate; must be null, or for "
                "algo=ppo or ppo_rnn"
            )


def _refuse_shapeless(config: DictConfig) -> None:
    """Raises ValueError unless nodes are mappings and controller names are strings."""
    needed = {"env": config.env, "algo": config.algo, "curriculum": config.curriculum}
    optional = {key: config.get(key) for key in ("reward", "controllers", "algos", "pool", "transforms")}
    needed |= {key: value for key, value in optional.items() if value is not None}
    roles = optional["algos"].items() if OmegaConf.is_dict(optional["algos"]) else ()
    needed |= {f"algos.{role}": value for role, value in roles}
    for key, value in needed.items():
        if not OmegaConf.is_dict(value):
            raise ValueError(f"{key}={value}: must be a mapping")
    for role, name in (optional["controllers"] or {}).items():
        if name is not None and not isinstance(name, str):
            raise ValueError(f"controllers.{role}={name}: must be the name of a controller")


def _require(where: str, node: DictConfig, built: Any, needed: str) -> None:
    """Raises ValueError if a built object lacks the attribute `needed`."""
    if not hasattr(built, needed):
        named = node.get("_target_")
        raise ValueError(f"{where}._target_={named}: no valid {where}; the result has no {needed}")


@contextmanager
def report_type_errors(where: str):
    """Converts a constructor's TypeError or AttributeError into a one-line ValueError."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{where}: {str(error).splitlines()[0]}") from error


def _refuse_infinities(values: Any, path: str = "") -> None:
    """Raises ValueError for infinite or NaN values."""
    if isinstance(values, Mapping | list):
        pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
        for key, value in pairs:
            _refuse_infinities(value, f"{path}.{key}" if path else str(key))
    elif isinstance(values, float) and not isfinite(values):
        raise ValueError(f"{path}={values}: must be a finite number, or null where that is allowed")


def change_settings(config: DictConfig, changes: Mapping[str, Any]) -> DictConfig:
    """Copies a configuration with changed values, by dotted key."""
    own = OmegaConf.create(OmegaConf.to_container(config))
    for key, value in changes.items():
        OmegaConf.update(own, key, value)
    return own


def same_shapes(ours: Any, theirs: Any) -> bool:
    """Whether two trees of arrays have the same structure and shapes."""
    if jax.tree.structure(ours) != jax.tree.structure(theirs):
        return False
    return all(np.shape(a) == np.shape(b) for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True))


def same_arrays(ours: Any, theirs: Any) -> bool:
    """Whether two trees of arrays of the same structure have equal values; NaN equals NaN."""
    pairs = zip(*map(jax.tree.leaves, (ours, theirs)), strict=True)
    return all(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc") for a, b in pairs)


def instantiate_node(node: DictConfig, where: str, **arguments):
    """Instantiates a node with a `_target_`; unwraps Hydra's exception into a ValueError.

    Paths of older versions are accepted, see `moved_targets`.
    """
    try:
        return instantiate(moved_targets.update_targets(node), **arguments, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ValueError | OSError):
            raise ValueError(
                complete_key(str(cause), OmegaConf.to_container(node, resolve=True), where)
            ) from error
        if isinstance(cause, ImportError):  # The reason is in its second line.
            raise ValueError(f"{where}: {' '.join(str(cause).split())[:300]}") from error
        if isinstance(cause, TypeError | AttributeError):
            raise ValueError(f"{where}: {str(cause).splitlines()[0]}") from error
        raise
