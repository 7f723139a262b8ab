"""Builds the objects of a run from a composed Hydra configuration, with one-line errors."""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from math import isfinite
from typing import Any

import jax
import numpy as np
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from algos.on_policy.plan import Plan
from algos.settings import LearnerSettings
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.selfplay.credit import TransformSettings
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training import seating
from jaxmarl_echelon.training.controllers import action_spec

POSITIVE = (
    "total_env_steps",
    "num_envs",
    "eval_every",
    "eval_episodes",
    "checkpoint_every",
    "updates_per_chunk",
    "window",
    "episode_rows",
    "shards",
)
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
    "devices",
    "distributed",
)
# Where a run lies, in configurations of runs from before these keys.
PLACE = {"devices": None, "shards": 1, "distributed": "off", "pool": None, "transforms": None}
TASK = ("env", "reward", "curriculum")
PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True)
class RunConfig:
    """The static choices of a run.

    Attributes:
      env: the environment.
      algo: settings of the learners, see `algos.settings.LearnerSettings`.
      algos: role name to its own settings, where they differ from `algo`.
      curriculum: `(env) -> Curriculum`.
      controllers: role name to "learner", "learner:per_agent" (one policy per agent), "shared:ROLE"
        (that role's learner, which then learns from both), "frozen:PATH" or "frozen:PATH@ROLE" (the policy
        of this role, or of ROLE, in another run), "pool:ROLE" (a pool of past policies of that role's
        learner, see docs/selfplay.md), or the name of one of the environment's scripts.
      total_env_steps: decisions to train for, summed over environments; rounded up to whole chunks of
        updates.
      num_envs: parallel environments E.
      shards: equal parts of the environments, see `algos.axis`; divides `num_envs` and `eval_episodes`.
      seed: root of every random key of the run.
      eval_every, checkpoint_every: in updates; multiples of `updates_per_chunk`.
      eval_episodes: episodes N of an evaluation.
      updates_per_chunk: updates per call of the compiled program.
      stagger: cut first episodes at random times, to decorrelate the episode phases of environments that
        start together; those episodes bootstrap and are not counted.
      window: episodes in the rolling statistics.
      episode_rows: finished episodes per update written to `episodes.csv`, at most.
      pool: of past policies, where a role is played by one.
      transforms: of rewards, from which learners have their advantages; none by default.
    """

    env: Environment
    algo: "LearnerSettings"
    curriculum: Callable[[Environment], Curriculum]
    total_env_steps: int
    num_envs: int
    shards: int = 1
    seed: int = 0
    eval_every: int = 10
    eval_episodes: int = 64
    checkpoint_every: int = 10
    updates_per_chunk: int = 1
    stagger: bool = True
    window: int = 256
    episode_rows: int = 1024
    controllers: dict[str, str] = field(default_factory=dict)
    algos: dict[str, "LearnerSettings"] = field(default_factory=dict)
    pool: PoolSettings = field(default_factory=PoolSettings)
    transforms: TransformSettings = field(default_factory=TransformSettings)

    def __post_init__(self):
        for key in POSITIVE:
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{key}={value}: must be a whole number of at least 1")
        if not isinstance(self.stagger, bool):
            raise ValueError(f"stagger={self.stagger}: must be true or false")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed}: must be a whole number from 0 to {2**32 - 1}")
        for key in ("eval_every", "checkpoint_every"):
            if getattr(self, key) % self.updates_per_chunk:
                chunk = f"updates_per_chunk={self.updates_per_chunk}"
                raise ValueError(f"{key}={getattr(self, key)}: must be a multiple of {chunk}")
        for key in ("num_envs", "eval_episodes"):
            if getattr(self, key) % self.shards:
                raise ValueError(f"{key}={getattr(self, key)}: must be a multiple of shards={self.shards}")
        object.__setattr__(self, "controllers", seating.checked(self.env, self.controllers))
        object.__setattr__(self, "algos", self._all_algos())
        if self.pooled is not None:
            seating.require_pool(self.env, self.controllers, self.pool, self.num_envs, self.shards)
            if self.env.spec.turns and self.algos[self.pooled].replays:
                where = f"controllers.{self.pooled}={self.controllers[self.pooled]}"
                raise ValueError(f"{where}: a learner with a replay cannot play turn games against a pool")
        self._require_credit()

    @property
    def pooled(self) -> str | None:
        """The role that a pool plays; None without one."""
        return seating.pooled(self.controllers)

    @property
    def rival(self) -> str:
        """The learner that plays against the pool; see `seating.rival`."""
        return seating.rival(self.controllers, self.pooled)

    def _all_algos(self) -> dict[str, "LearnerSettings"]:
        learners = [role for role, name in self.controllers.items() if seating.learns(role, name)]
        for role in self.algos:
            if role not in learners:
                raise ValueError(f"algos.{role}: learns nothing here; learners: {', '.join(learners)}")
        chosen = {role: self.algos.get(role, self.algo) for role in learners}
        for role, algo in chosen.items():
            if self.env.spec.role(role).critic_observation is not None and not algo.critics_apart:
                name = getattr(algo, "NAME", type(algo).__name__)
                raise ValueError(f"algo={name}: cannot learn {role}, whose critics see more than its agents")
        lengths = {role: algo.horizon * algo.segments for role, algo in chosen.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{role} {length}" for role, length in lengths.items())
            raise ValueError(f"horizon of {found}: learners of one run need rollouts of one length")
        numbers = {role: algo.segments for role, algo in chosen.items()}
        if len(set(numbers.values())) > 1:
            found = ", ".join(f"{role} {number}" for role, number in numbers.items())
            raise ValueError(f"segments_per_agent of {found}: learners of one run need the same number")
        return chosen

    def _require_credit(self) -> None:
        """Demands learners and an environment that reward transforms can serve."""
        if self.transforms.whole_games and not self.env.spec.turns:
            raise ValueError(
                f"transforms.whole_games=true: {self.env.spec.name} is no game in which seats take turns"
            )
        for role, algo in self.algos.items() if self.transforms else ():
            if algo.replays:
                name = getattr(algo, "NAME", type(algo).__name__)
                raise ValueError(
                    f"algo={name}: {role} learns from a replay, which has no place for advantages"
                )

    def learner_task(self, name: str) -> tuple[tuple, dict[str, Any]]:
        """Positional and keyword arguments of `make` and `memory` for a role's learner."""
        role = self.env.spec.role(name)
        sizes = {
            "samples": self.columns(name),
            "episode_limit": self.env.spec.episode_limit,
            "goal": self.env.goals.get(name),
            "blocks": tuple(self.env.blocks.get(name, ())),
            "observation_dtype": role.observation.dtype,
        }
        if self.env.spec.late:
            sizes["late"] = True
        if self.shards > 1:
            sizes["shards"] = self.shards
        if role.critic_observation is not None:
            sizes["critic_shape"] = role.critic_observation.shape
        return (role.observation.shape, action_spec(role.action)), sizes

    def agents(self, learner: str) -> int:
        """Agents per environment of a learner's policy, or of each of its policies."""
        return seating.agents(self.env, self.controllers, learner)

    def columns(self, learner: str) -> int:
        """Agents side by side from whose decisions a learner learns, over all environments."""
        return int(self.num_envs * seating.share(self.env, self.controllers, learner, self.pool))

    def seats(self, learner: str) -> int:
        """Seats of a turn game, or roles, that a learner plays and learns from."""
        if self.env.spec.turns:
            return self.env.spec.turns
        plays = (seating.SHARED + learner, seating.POOL + learner)
        return 1 + sum(name in plays for role, name in self.controllers.items() if role != learner)

    def policies(self, learner: str) -> int:
        """Number of policies of a learner: 1, or one per agent."""
        return self.env.spec.role(learner).size if self.controllers[learner] == seating.PER_AGENT else 1

    @property
    def segments(self) -> int:
        """Segments per rollout, the same for all learners."""
        return next(iter(self.algos.values())).segments

    @property
    def horizon(self) -> int:
        """Decisions per rollout, the same for all learners."""
        return self.segments * next(iter(self.algos.values())).horizon

    @property
    def steps_per_update(self) -> int:
        """Environment steps per update; in turn games, where a row is a seat's own decision, one per seat."""
        replays = any(algo.replays for algo in self.algos.values())
        plies = 1 if replays else max(self.env.spec.turns, 1)
        return self.num_envs * self.horizon * plies

    @property
    def updates(self) -> int:
        """Updates of the whole run, rounded up to whole chunks."""
        chunk = self.steps_per_update * self.updates_per_chunk
        return -(-self.total_env_steps // chunk) * self.updates_per_chunk


def plans(config: RunConfig) -> dict[str, Plan]:
    """Role name to `Plan`, for learners that have one."""
    found = {name: algo.plan(config.columns(name), config.num_envs) for name, algo in config.algos.items()}
    return {name: plan for name, plan in found.items() if plan is not None}


def read(config: DictConfig) -> RunConfig:
    """Builds the objects that a composed configuration names.

    Raises:
      ValueError: one line with the key, the value and what is allowed.
    """
    _refuse_strangers(config)
    _refuse_infinities(OmegaConf.to_container(config, resolve=True))
    if config.get("precision", PRECISIONS[0]) not in PRECISIONS:
        raise ValueError(f"precision={config.precision}: must be {' or '.join(PRECISIONS)}")
    _refuse_shapeless(config)
    env_arguments = {}
    if config.get("reward") is not None:
        env_arguments["reward"] = build(config.reward, "reward")
    # A partial, because Hydra converts objects among the arguments to configurations.
    make = build(config.env, "env", _partial_=True)
    with misfits_named("env"):
        env = make(**env_arguments)
    _require("env", config.env, env, "spec")
    keys = [key for key in RunConfig.__dataclass_fields__ if key not in (*BUILT, "shards")]
    controllers = OmegaConf.to_container(config.controllers) or {}
    acting = seating.of_roles(env, controllers)
    pool = PoolSettings() if config.get("pool") is None else build(config.pool, "pool")
    chosen = config.get("transforms")
    transforms = TransformSettings() if chosen is None else build(chosen, "transforms")
    learning = (role for role, name in acting.items() if seating.learns(role, name))
    agents = {role: seating.share(env, acting, role, pool) for role in learning}
    algo = build(_sized(config.algo, config.num_envs, next(iter(agents.values()), None)), "algo")
    _require("algo", config.algo, algo, "make")
    return RunConfig(
        env=env,
        algo=algo,
        algos=_read_algos(config, agents),
        curriculum=build(config.curriculum, "curriculum", _partial_=True),
        controllers=controllers,
        pool=pool,
        transforms=transforms,
        shards=1 if config.get("shards") is None else config.shards,
        **{key: config[key] for key in keys},
    )


def saved(metadata: Mapping[str, Any]) -> DictConfig:
    """The configuration in a checkpoint's metadata, as input of `read`; unknown keys are refused."""
    config = OmegaConf.create(PLACE | {k: v for k, v in metadata["config"].items() if k != "choices"})
    # Saved configurations are resolved; restore the interpolation, so that overriding `precision` works.
    for node in (config.algo, *(config.get("algos") or {}).values()):
        if "compute_dtype" in node and node.compute_dtype == config.get("precision"):
            node.compute_dtype = "${precision}"
    OmegaConf.set_struct(config, True)
    return config


def _read_algos(config: DictConfig, agents: Mapping[str, Fraction]) -> dict[str, LearnerSettings]:
    """Settings of single roles: whole algorithms (with a `_target_`), or overrides of `algo`."""
    result = {}
    for role, node in (config.get("algos") or {}).items():
        whole = node if "_target_" in node else OmegaConf.merge(config.algo, node)
        result[role] = build(_sized(whole, config.num_envs, agents.get(role)), f"algos.{role}")
    return result


def _sized(node: DictConfig, num_envs: int, agents: Fraction | None) -> DictConfig:
    """A learner's node with settings derived from the run's sizes; unchanged if `agents` is None."""
    kind = _target(node)
    if agents is None or not isinstance(kind, type) or not issubclass(kind, LearnerSettings):
        return node
    return OmegaConf.merge(node, kind.sized(OmegaConf.to_container(node, resolve=True), num_envs, agents))


def _target(node: DictConfig) -> Any:
    """The imported `_target_` of a node; None if the import fails, which building it then reports."""
    module, _, name = str(node.get("_target_")).rpartition(".")
    try:
        return getattr(import_module(module), name, None)
    except (ImportError, ValueError):
        return None


def _refuse_strangers(config: DictConfig) -> None:
    known = (*RunConfig.__dataclass_fields__, *ELSEWHERE)
    for key in config:
        if key not in known:
            raise ValueError(f"{key}={config[key]}: unknown key. Allowed: {', '.join(known)}")


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
    if not hasattr(built, needed):
        named = node.get("_target_")
        raise ValueError(f"{where}._target_={named}: makes no {where}, as what it makes has no {needed}")


@contextmanager
def misfits_named(where: str):
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
        raise ValueError(f"{path}={values}: must be a finite number, or null where there may be none")


def changed(config: DictConfig, changes: Mapping[str, Any]) -> DictConfig:
    """A copy of the configuration with changed values, by dotted key."""
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
    """Whether two trees of arrays of the same structure have equal values."""
    return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True))


def build(node: DictConfig, where: str, **arguments):
    """Instantiates a node with a `_target_`; unwraps Hydra's exception into a ValueError."""
    try:
        return instantiate(node, **arguments, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ValueError | OSError):
            raise ValueError(str(cause)) from error
        if isinstance(cause, TypeError | AttributeError | ImportError):
            raise ValueError(f"{where}: {str(cause).splitlines()[0]}") from error
        raise
