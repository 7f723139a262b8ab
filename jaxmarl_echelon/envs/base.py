"""The environment contract: roles, time steps and the pure `reset` / `step` pair."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, Protocol

import jax
from flax import struct

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
      success: names of the outcomes that are a success of this role; empty for the environment's own
        `success` if the role is its first, and for none if it is not.
    """

    name: str
    size: int
    observation: Space
    action: Space
    success: tuple[str, ...] = ()

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
      outcomes: names of the outcome codes in `info["outcome"]`; empty where there are none.
      success: name of the outcome that evaluations and curricula count as success, a success of the first
        role; or None.
      tasks: names of the tasks (spawn points, missions) that `info["task"]` numbers.
      components: names of the reward components under `info["reward/NAME"]`.
    """

    name: str
    version: int
    roles: tuple[Role, ...]
    decision_period: float
    episode_limit: int
    outcomes: tuple[str, ...] = ()
    success: str | None = None
    tasks: tuple[str, ...] = ()
    components: tuple[str, ...] = ()

    def role(self, name: str) -> Role:
        """Returns the role called `name`; raises KeyError with the known names otherwise."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(f"no role {name!r} in {self.name}; roles: {', '.join(r.name for r in self.roles)}")

    def succeeded(self, outcome: jax.Array, role: str | None = None) -> jax.Array:
        """Which outcome codes, of any shape, stand for success; none where there is no such thing.

        Args:
          outcome: int codes into `outcomes`, -1 while an episode runs.
          role: whose success; None for the environment's own.
        """
        # No outcome has the number that stands here for none.
        codes = [self.outcomes.index(name) for name in self._successes(role)] or [len(self.outcomes)]
        return reduce(or_, (outcome == code for code in codes))

    def _successes(self, role: str | None) -> tuple[str, ...]:
        headline = () if self.success is None else (self.success,)
        if role is None:
            return headline
        return self.role(role).success or (headline if role == self.roles[0].name else ())


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
        agents that are out of the game; their rewards are 0.
      action_mask: `[A, n]` bool for roles with discrete actions and masks; empty otherwise.
      over: scalar bool; the environment must be reset before the next step.
      info: named scalars, with the same keys after every reset and step. Known names:
        `outcome` (int32 code, -1 while running), `task` (int32), `reward/NAME` (float32).
    """

    obs: dict[str, jax.Array]
    reward: dict[str, jax.Array]
    terminated: dict[str, jax.Array]
    truncated: dict[str, jax.Array]
    alive: dict[str, jax.Array]
    action_mask: dict[str, jax.Array]
    over: jax.Array
    info: dict[str, jax.Array]


class ScriptedPolicy(NamedTuple):
    """A policy that is not learnt, for one environment; it may look at the whole state.

    Attributes:
      init: `() -> memory`, renewed whenever an episode begins.
      act: `(key, memory, env_state, params) -> (memory, action [A, ...])` in the role's action space.
    """

    init: Callable
    act: Callable


class Environment(Protocol):
    """A pure environment: static choices live in the object, everything else in arguments.

    `params` is a pytree of arrays holding whatever may change without recompiling. All
    methods work on one environment; batches come from `jax.vmap`.

    Optional attributes that the training program uses where an environment has them:
    `scripts` (script name -> ScriptedPolicy, as `NAME_ROLE` where it differs between roles),
    `baselines` (names of scripts to compare a learner with), `references` (role -> those whose success
    is shown beside the learner's in any case), `describe()` (lines about what it was built from, which a
    run prints before it begins), `controllers` (role -> default controller name), `blocks` (role ->
    `(name, start, shape, kind)` of what observations consist of, see `algos.types.Block`),
    `evaluation_params(params, index)` (parameters of evaluation episode
    `index`) and `viewer` (`snapshot(env_state, params, time)` is recorded, `picture(path,
    evaluation)` and `animation(path, evaluation, episode)` draw; `replay(path, evaluation,
    episode)`, where there is one, writes a page to scrub).
    """

    spec: EnvSpec

    def default_params(self) -> PyTree:
        """Returns the parameters that the configuration asks for."""
        ...

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        ...

    def step(
        self, key: jax.Array, state: PyTree, actions: dict[str, jax.Array], params: PyTree
    ) -> tuple[PyTree, TimeStep]:
        """Advances one decision. `actions` maps each role to `[A, ...]` in its action space."""
        ...
