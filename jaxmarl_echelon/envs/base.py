"""The environment contract: roles, results, time steps, and the pure `reset` / `step` pair."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algos.types import Block, Goal
from jaxmarl_echelon.envs import results as results_lib
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.envs.spaces import Space

PyTree = Any


@dataclass(frozen=True)
class Role:
    """A group of agents that share spaces and a controller.

    Attributes:
      name: key of this role in every per-role dictionary.
      size: number of agents A of the role.
      observation: space of one agent's observation.
      action: space of one agent's action.
      score: name of the result, in [0, 1], that is this role's own success; None for the environment's
        `score` if the role is its first, and for none if it is not.
      critic_observation: space of what only critics see, `TimeStep.critic_obs`; None for no more than
        the agent.
    """

    name: str
    size: int
    observation: Space
    action: Space
    score: str | None = None
    critic_observation: Space | None = None

    def fits(self, other: "Role") -> bool:
        """Whether a policy of one role can act for the other: both see and do the same."""
        return (self.observation.shape, self.action) == (other.observation.shape, other.action)


@dataclass(frozen=True)
class EnvSpec:
    """Static facts of an environment.

    Attributes:
      name: the environment's name, for folders and tables.
      version: raised whenever behaviour changes, never otherwise.
      roles: the groups of agents.
      decision_period: seconds of simulated time per decision; 0 where time has no unit.
      episode_limit: decisions after which every episode has ended.
      results: what its episodes report.
      score: name of the result in [0, 1] by which evaluations, curricula and best checkpoints go; None
        where returns are all there is.
      late: whether agents are paid while they do not act: those whose story goes on (not terminated) though
        they are not alive, which wait for their turn or for the end. Their rewards belong to their last
        decision.
    """

    name: str
    version: int
    roles: tuple[Role, ...]
    decision_period: float
    episode_limit: int
    results: tuple[Result, ...] = ()
    score: str | None = None
    late: bool = False

    def role(self, name: str) -> Role:
        """Returns the role called `name`; raises KeyError with the known names otherwise."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(f"no role {name!r} in {self.name}; roles: {', '.join(r.name for r in self.roles)}")

    def result(self, name: str) -> Result:
        """Returns the result called `name`; raises KeyError with the known names otherwise."""
        return results_lib.find(self.results, name)

    def labels(self, name: str) -> tuple[str, ...]:
        """Labels of a code; empty where the environment does not report it."""
        return next((result.labels for result in self.results if result.name == name), ())

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Labels of the result `outcome`: how an episode can end."""
        return self.labels("outcome")

    @property
    def tasks(self) -> tuple[str, ...]:
        """Labels of the result `task`: by which the score is shown."""
        return self.labels("task")

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the reward components."""
        prefix = results_lib.COMPONENT
        names = (result.name for result in self.results)
        return tuple(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    @property
    def good_outcomes(self) -> tuple[str, ...]:
        """The outcomes that are a success, where the score is about outcomes."""
        return () if self.score is None else self.result(self.score).among

    @property
    def measures(self) -> tuple[Result, ...]:
        """Results that are numbers of their own: no codes, no scores, no reward components."""
        scores = {self.score, *(role.score for role in self.roles)}
        plain = (one for one in self.results if one.kind != "code" and one.name not in scores)
        return tuple(one for one in plain if not one.name.startswith(results_lib.COMPONENT))

    @property
    def score_column(self) -> str | None:
        """Name of the score's average among evaluations and rolling statistics; None without a score."""
        return None if self.score is None else self.result(self.score).column

    def scores(self, values: Mapping[str, jax.Array], role: str | None = None) -> jax.Array | None:
        """The score of episodes, `[...]` or, where it is one of a role's agents, `[..., A]`; None without.

        Args:
          values: results by name.
          role: whose own score; None for the environment's.
        """
        name = self.score
        if role is not None:
            name = self.role(role).score or (name if role == self.roles[0].name else None)
        return None if name is None else results_lib.read(self.results, values, name)


@struct.dataclass
class TimeStep:
    """What an environment shows after a reset or a step. Dictionaries map role names to arrays.

    Attributes:
      obs: `[A, ...]` observations of the state that was reached; the last one of an episode
        is a true final observation, never one of the next episode.
      reward: `[A]` float32, for the step that led here (0 after a reset).
      terminated: `[A]` bool; this agent's story is over (crash, goal): nothing is bootstrapped.
      truncated: `[A]` bool; cut by a limit: the value of `obs` is bootstrapped.
      alive: `[A]` bool; this agent acts in the coming decision and learns from it. False for
        agents that are out of the game, or that wait (`EnvSpec.late`).
      action_mask: `[A, n]` bool for roles with discrete actions and masks; empty otherwise.
      over: scalar bool; the environment must be reset before the next step.
      info: named arrays, with the same keys after every reset and step: what `EnvSpec.results` are made of,
        scalars or, of a role, `[A]`, and whatever else there is to know, scalars.
      present: `[A]` bool; the slot is filled. Roles that are left out: those are present that are alive.
      begins: `[A]` bool; a new story of this slot begins here, inside the episode. The one before it, if
        there was one, has terminated in this step or before. Roles that are left out: none begins.
      critic_obs: `[A, ...]` what only critics see, of the roles that have such a thing.
    """

    obs: dict[str, jax.Array]
    reward: dict[str, jax.Array]
    terminated: dict[str, jax.Array]
    truncated: dict[str, jax.Array]
    alive: dict[str, jax.Array]
    action_mask: dict[str, jax.Array]
    over: jax.Array
    info: dict[str, jax.Array]
    present: dict[str, jax.Array] = field(default_factory=dict)
    begins: dict[str, jax.Array] = field(default_factory=dict)
    critic_obs: dict[str, jax.Array] = field(default_factory=dict)

    def filled(self, role: str) -> jax.Array:
        """`[A]` bool; the slots of a role that are filled."""
        return self.present.get(role, self.alive[role])

    def restarts(self, role: str, reset: jax.Array) -> jax.Array:
        """`[..., A]` bool; agents whose memory is cleared before they act.

        Args:
          role: whose.
          reset: `[...]` bool; the episode begins.
        """
        resets = jnp.broadcast_to(reset[..., None], self.alive[role].shape)
        return resets | self.begins[role] if role in self.begins else resets


class ScriptedPolicy(NamedTuple):
    """A policy that is not learnt, for one environment; it may look at the whole state.

    Attributes:
      init: `() -> memory`, renewed whenever an episode begins.
      act: `(key, memory, env_state, params) -> (memory, action [A, ...])` in the role's action space.
    """

    init: Callable
    act: Callable


class Environment:
    """A pure environment: static choices live in the object, everything else in arguments.

    A subclass has `spec` and the methods `default_params`, `reset` and `step`. The rest has defaults.
    `params` is a pytree of arrays holding whatever may change without recompiling. All methods work on one
    environment; batches come from `jax.vmap`.

    Attributes:
      spec: static facts.
      scripts: scripted policies by name, as `NAME_ROLE` where one differs between roles.
      baselines: names of the scripts that a trained policy is compared with.
      references: per role the scripts whose score is shown beside the learner's in any case.
      controllers: who acts for a role unless the run says otherwise; a learner where nothing is said.
      blocks: per role what its observations consist of.
      goals: per role how its goals appear in observations, for hindsight.
      viewer: draws evaluations, or None. `snapshot(env_state, params, time)` is recorded, `picture(path,
        evaluation)` and `animation(path, evaluation, episode)` draw; `replay(path, evaluation, episode)`,
        where there is one, writes a page to scrub.
      ladder: name of the curriculum whose stages grade a policy that was trained without one, or None.
    """

    spec: EnvSpec
    scripts: Mapping[str, ScriptedPolicy] = MappingProxyType({})
    baselines: tuple[str, ...] = ()
    references: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    controllers: Mapping[str, str] = MappingProxyType({})
    blocks: Mapping[str, tuple[Block, ...]] = MappingProxyType({})
    goals: Mapping[str, Goal] = MappingProxyType({})
    viewer: Any = None
    ladder: str | None = None

    def default_params(self) -> PyTree:
        """Returns the parameters that the configuration asks for."""
        raise NotImplementedError

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        raise NotImplementedError

    def step(
        self, key: jax.Array, state: PyTree, actions: dict[str, jax.Array], params: PyTree
    ) -> tuple[PyTree, TimeStep]:
        """Advances one decision. `actions` maps each role to `[A, ...]` in its action space."""
        raise NotImplementedError

    @property
    def world(self) -> PyTree:
        """Arrays that all episodes share and nothing changes (maps, scenes, terrains); `()` for none.

        Programs take them as an argument: they are no constants of compiled code, and are neither donated
        nor saved.
        """
        return ()

    def with_world(self, world: PyTree) -> "Environment":
        """A copy of the environment that computes with these arrays, traced ones as a rule.

        An environment with a world overrides `_place_world`.
        """
        if not jax.tree.leaves(self.world):
            return self
        other = copy.copy(self)
        other._place_world(world)
        return other

    def _place_world(self, world: PyTree) -> None:
        raise NotImplementedError(f"{type(self).__name__} has a world and no _place_world")

    def evaluation_params(self, params: PyTree, index: jax.Array) -> PyTree:
        """Returns the parameters of evaluation episode `index`: those of the task, by default."""
        del index
        return params

    def task_params(self, settings: Mapping[str, Any]) -> PyTree:
        """Returns the default parameters with some settings changed, as curricula ask for.

        Raises:
          ValueError: one line, for settings that are unknown or cannot change within a program.
        """
        raise ValueError(f"{dict(settings)}: {self.spec.name} has no settings that a curriculum can change")

    def describe(self) -> tuple[str, ...]:
        """Returns lines for people about what the environment was built from."""
        return ()
