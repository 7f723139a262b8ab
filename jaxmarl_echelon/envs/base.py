"""Environment contract: roles, results, time steps, and the pure `reset` / `step` pair."""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos.types import Block, Goal, PyTree
from jaxmarl_echelon.envs import results as results_lib
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.envs.spaces import Space
from jaxmarl_echelon.language.language import Language


@dataclass(frozen=True)
class Role:
    """A group of agents that share spaces and a controller.

    Attributes:
      name: key of this role in every per-role dictionary.
      size: number of agents A of the role.
      observation: space of one agent's observation.
      action: space of one agent's action.
      score: name of the result in [0, 1] that is this role's own score; None means the environment's
        `score` for the first role, and no score for others.
      critic_observation: space of `TimeStep.critic_obs`, privileged observations of critics, or None.
    """

    name: str
    size: int
    observation: Space
    action: Space
    score: str | None = None
    critic_observation: Space | None = None

    def fits(self, other: "Role") -> bool:
        """Tells whether a policy of one role can act for the other: observation shapes and actions agree."""
        return (self.observation.shape, self.action) == (other.observation.shape, other.action)


@dataclass(frozen=True)
class EnvSpec:
    """Static facts of an environment.

    Attributes:
      name: the environment's name, for folders and tables.
      version: incremented if and only if behaviour changes.
      roles: the groups of agents.
      decision_period: seconds of simulated time per decision; 0 where time has no unit.
      episode_limit: decisions after which every episode has ended.
      results: results reported per episode.
      score: name of the result in [0, 1] used by evaluations, curricula and best checkpoints; None to use
        returns only.
      late: delayed rewards: agents that are not alive but have neither terminated nor been truncated receive
        rewards, which are credited to their last decision. With `turns` such agents wait for their turn, and
        discounts count their own decisions; without `turns` they are out of the game, and discounts count
        steps.
      ends_with_team: whether an episode is over once no agent of one of the roles is alive. Value learners
        of whole teams need this where rewards are delayed: a team then always has an agent that acts.
      turns: number N of agents of the only role, if they decide strictly one after another: at decision t
        of an episode only agent t mod N may be alive; no agent is alive where the turn passes by itself.
        0: all agents decide simultaneously. Requires `late` and the results `score/i`, the final scores by
        seat.
      hidden: imperfect information: agents of one game observe different things. Evaluations then sample
        actions, because a predictable policy can be exploited.
      stakes: largest amount (chips, margin) that a seat of a turn-based game can win or lose, if games
        differ in it: a score s then means that (2 s - 1) times this amount was won. 0: the score only says
        who won.
      constant_sum: whether the scores of all agents of a game have a constant sum, so that their mean
        carries no information about a policy that plays all seats.
      won_by_invalid: name of the per-agent result that counts wins by another's invalid action; None where
        actions cannot be invalid.
    """

    name: str
    version: int
    roles: tuple[Role, ...]
    decision_period: float
    episode_limit: int
    results: tuple[Result, ...] = ()
    score: str | None = None
    late: bool = False
    ends_with_team: bool = False
    turns: int = 0
    hidden: bool = False
    stakes: float = 0.0
    constant_sum: bool = False
    won_by_invalid: str | None = None

    def role(self, name: str) -> Role:
        """Returns the role called `name`; raises KeyError with the known names otherwise."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(f"no role {name!r} in {self.name}; roles: {', '.join(r.name for r in self.roles)}")

    def result(self, name: str) -> Result:
        """Returns the result called `name`; raises KeyError with the known names otherwise."""
        return results_lib.find_result(self.results, name)

    def labels(self, name: str) -> tuple[str, ...]:
        """Returns the labels of a code; empty if the environment does not report it."""
        return next((result.labels for result in self.results if result.name == name), ())

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Labels of the result `outcome`, the ways in which an episode can end."""
        return self.labels("outcome")

    @property
    def tasks(self) -> tuple[str, ...]:
        """Labels of the result `task`, by which the score is grouped."""
        return self.labels("task")

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the reward components."""
        prefix = results_lib.COMPONENT
        names = (result.name for result in self.results)
        return tuple(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    @property
    def good_outcomes(self) -> tuple[str, ...]:
        """Outcomes that make the score 1; empty if the score does not derive from outcomes."""
        return () if self.score is None else self.result(self.score).among

    @property
    def measures(self) -> tuple[Result, ...]:
        """Results other than codes, scores and reward components."""
        scores = {self.score, *(role.score for role in self.roles)}
        plain = (one for one in self.results if one.kind != "code" and one.name not in scores)
        return tuple(one for one in plain if not one.name.startswith(results_lib.COMPONENT))

    @property
    def score_column(self) -> str | None:
        """Name of the score's average in evaluations and rolling statistics; None without a score."""
        return None if self.score is None else self.result(self.score).column

    def judged_by(self, learners: Collection[str]) -> str | None:
        """Returns the column of the average by which a run's policies are compared; None without a score.

        This is the environment's score if the first role learns, else the first learner's own score, if any.
        """
        own = (self.role(name).score for name in learners)
        name = self.score if self.roles[0].name in learners else next(filter(None, own), self.score)
        return None if name is None else self.result(name).column

    def scores(self, values: Mapping[str, jax.Array], role: str | None = None) -> jax.Array | None:
        """Returns the score of episodes, `[...]` or, for a per-agent result, `[..., A]`; None without one.

        Args:
          values: results by name.
          role: the role whose own score is read; None for the environment's.
        """
        name = self.score if role is None else self.score_name(role)
        return None if name is None else results_lib.read_result(self.results, values, name)

    def score_name(self, role: str) -> str | None:
        """Returns the name of the result that is a role's own score; None without one."""
        return self.role(role).score or (self.score if role == self.roles[0].name else None)

    @property
    def graded(self) -> bool:
        """True if scores of turn-based games are graded, by stakes or by ranks, instead of win or loss."""
        return self.stakes > 0 or self.turns > 2

    def beaten(self, values: Mapping[str, jax.Array]) -> jax.Array:
        """Returns the share `[..., N]` of the others that each seat has beaten; ties count one half."""
        return results_lib.share_beaten(jnp.stack([values[f"score/{i}"] for i in range(self.turns)], axis=-1))


class TimeStep(struct.PyTreeNode):
    """Output of a reset or a step. Dictionaries map role names to arrays.

    An agent's trajectory ends within the episode if it terminates, and a new one may begin in its slot.

    Attributes:
      obs: `[A, ...]` observations of the state reached; the last one of an episode is its true final
        observation, never the first of the next episode. With `EnvSpec.late`, critics value the remaining
        rewards of agents that are out of the game by these agents' observations.
      reward: `[A]` float32, for the step that led here (0 after a reset).
      terminated: `[A]` bool; this agent's trajectory has ended (crash, goal): no bootstrapping.
      truncated: `[A]` bool; cut by a limit: the value of `obs` is bootstrapped.
      alive: `[A]` bool; this agent acts in the coming decision and learns from it. False for agents out
        of the game or waiting (`EnvSpec.late`).
      action_mask: `[A, n]` bool for roles with discrete actions and masks; empty otherwise. It allows an
        action to agents that are alive, and to those that are truncated: the best one is bootstrapped.
      over: scalar bool; the environment must be reset before the next step.
      info: named arrays, with the same keys after every reset and step: the entries of `EnvSpec.results`,
        scalars or per agent `[A]`, and any further scalars.
      present: `[A]` bool; the slot is filled. Defaults to `alive` for omitted roles. With `EnvSpec.late`, an
        agent that is truncated without being present has left the game before: no value is bootstrapped
        from an action of it, as learners with a replay do.
      begins: `[A]` bool; a new trajectory of this slot begins here, within the episode; the slot's previous
        trajectory, if any, terminated in this step or before. Defaults to False for omitted roles.
      critic_obs: `[A, ...]` privileged observations of critics, for roles with a `critic_observation`.
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
        """Returns the slots of a role that are filled, bool `[A]`."""
        return self.present.get(role, self.alive[role])

    def restarts(self, role: str, reset: jax.Array) -> jax.Array:
        """Returns the agents whose recurrent state is reset before they act, bool `[..., A]`.

        Args:
          role: the role.
          reset: `[...]` bool; the episode begins.
        """
        resets = jnp.broadcast_to(reset[..., None], self.alive[role].shape)
        return resets | self.begins[role] if role in self.begins else resets


class ObservationPart(NamedTuple):
    """A named part of a flat observation, for readers of exported policies; encoders use `Block`.

    Attributes:
      where: its features.
      units: unit of what a feature shows, one for all or one for each; "" for a number without one.
      scales: the value in these units that a feature shows as 1, likewise.
    """

    where: slice
    units: tuple[str, ...] = ("",)
    scales: tuple[float, ...] = (1.0,)


class ScriptedPolicy(NamedTuple):
    """A hand-written policy of one environment, with access to the full state.

    Attributes:
      init: `() -> memory`, called at the start of every episode.
      act: `(key, memory, env_state, params) -> (memory, action [A, ...])` in the role's action space.
      teach: as `act`, of the script as a teacher: without what handicaps it as an opponent; None for `act`.
      teaches: whether learners may imitate it: False if its actions, beyond the role's space, have the
        environment move the agents.
    """

    init: Callable
    act: Callable
    teach: Callable | None = None
    teaches: bool = True


class Viewer:
    """Renders recorded evaluations of an environment.

    Attributes:
      snapshot: `(env_state, params, time) -> frame`, a pytree of arrays; pure, recorded at each decision.
      draws: whether the viewer makes pictures.
      tells: whether it writes episodes as text.
    """

    snapshot: Callable
    draws: bool = True
    tells: bool = False

    def _episode(self, evaluation, index: int) -> Any:
        """Returns the recorded frames of one episode, NumPy arrays `[T, ...]`, from its start to its end."""
        length = int(evaluation.length[index]) + 1
        return jax.tree.map(lambda x: np.asarray(x[:length, index]), evaluation.frames)

    def picture(self, path: Path, evaluation) -> None:
        """Draws all recorded episodes as one picture."""
        raise NotImplementedError

    def picture_with(self, path: Path, evaluation, episode: int | None) -> None:
        """Draws as `picture`, with one episode among those shown; where all are, that is `picture`."""
        del episode
        self.picture(path, evaluation)

    def animation(self, path: Path, evaluation, episode: int) -> None:
        """Draws one recorded episode as a GIF."""
        raise NotImplementedError

    def replay(self, path: Path, evaluation, episode: int) -> None:
        """Writes one recorded episode as an interactive page; writes nothing by default."""

    def text(self, evaluation, episode: int) -> str:
        """Returns one recorded episode as lines of text, if it `tells`."""
        raise NotImplementedError

    def row(self, evaluation, episode: int) -> dict[str, str]:
        """Returns a summary of one recorded episode, as columns of a table, if it `tells`."""
        raise NotImplementedError


class Comparison:
    """Compares rollouts of policies with recordings of the same episodes.

    Attributes:
      settings: keys of the environment's configuration that rollouts need, with their values.
      episodes: number of evaluation episodes to play, beginning with the first.
      rollouts: number of rollouts of each episode, with sampled actions.
      snapshot: `(env_state, params, time) -> frame`, a pytree of arrays; pure, recorded at each decision.
    """

    settings: Mapping[str, Any]
    episodes: int
    rollouts: int
    snapshot: Callable

    def scores(self, frames: Sequence[PyTree]) -> dict[str, float]:
        """Returns named scores from the frames of each rollout, leaves `[T, episodes, ...]`."""
        raise NotImplementedError


class Environment:
    """A pure environment: static choices are attributes of the object, all else is an argument.

    Subclasses define `spec`, `default_params`, `reset` and `step`; the rest has defaults. `params` is a
    pytree of the arrays that may change without recompiling. All methods are unbatched; use `jax.vmap`.

    Attributes:
      spec: static facts.
      scripts: scripted policies by name; `NAME_ROLE` for a script specific to a role.
      baselines: names of the scripts that a trained policy is compared with.
      references: per role the scripts whose score is always reported together with the learner's.
      controllers: default controllers by role; a learner for omitted roles.
      opponents: per role with `EnvSpec.turns` the script that plays all seats but one in evaluations; the
        scored seat is the episode's index modulo N. Without an entry, one controller plays all seats.
      blocks: per role the structure of its observations.
      parts: per role named parts of its observations, with units; empty where `blocks` or nothing names them.
      action_units: per role the units of its action's numbers, for readers of exported policies.
      goals: per role the location of goals in observations, for hindsight relabelling.
      language: per role the prompts and answers of agents whose observations are token ids.
      viewer: renders evaluations, or None.
      comparison: compares rollouts with recordings, or None without recordings.
      ladder: name of the curriculum whose stages grade policies trained without one, or None.
      files: name in the environment's settings to the files that were read for it. Runs store the absolute
        path and the contents' digests, and detect changed files.
    """

    spec: EnvSpec
    scripts: Mapping[str, ScriptedPolicy] = MappingProxyType({})
    baselines: tuple[str, ...] = ()
    references: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    controllers: Mapping[str, str] = MappingProxyType({})
    opponents: Mapping[str, str] = MappingProxyType({})
    blocks: Mapping[str, tuple[Block, ...]] = MappingProxyType({})
    parts: Mapping[str, Mapping[str, ObservationPart]] = MappingProxyType({})
    action_units: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    goals: Mapping[str, Goal] = MappingProxyType({})
    language: Mapping[str, Language] = MappingProxyType({})
    viewer: Viewer | None = None
    comparison: Comparison | None = None
    ladder: str | None = None
    files: Mapping[str, tuple[Path, ...]] = MappingProxyType({})

    def __repr__(self) -> str:
        """Returns a one-line summary: the name, and per role its agents, observations and actions."""
        roles = ", ".join(
            f"{role.name}: {role.size} x {list(role.observation.shape)} -> {type(role.action).__name__}"
            for role in self.spec.roles
        )
        return f"{type(self).__name__}({self.spec.name}; {roles}; {self.spec.episode_limit} decisions)"

    def default_params(self) -> PyTree:
        """Returns the configured parameters."""
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
        """Constant arrays shared by all episodes (maps, scenes, terrains); `()` for none.

        Programs take them as an argument that is neither donated nor checkpointed, so that they are not
        constants of the compiled code.
        """
        return ()

    def with_world(self, world: PyTree) -> "Environment":
        """Returns a copy of the environment with these, typically traced, arrays as its world.

        Environments with a world override `_place_world`.
        """
        if not jax.tree.leaves(self.world):
            return self
        other = copy.copy(self)
        other._place_world(world)
        return other

    def _place_world(self, world: PyTree) -> None:
        raise NotImplementedError(f"{type(self).__name__} has a world but does not define _place_world")

    def evaluation_params(self, params: PyTree, index: jax.Array) -> PyTree:
        """Returns the parameters of evaluation episode `index`: `params` by default."""
        del index
        return params

    def task_params(self, settings: Mapping[str, Any]) -> PyTree:
        """Returns the default parameters with some settings changed, for curricula.

        Raises:
          ValueError: one line, for settings that are unknown or static.
        """
        if not settings:
            return self.default_params()
        raise ValueError(f"{dict(settings)}: {self.spec.name} has no settings that a curriculum can change")

    def describe(self) -> tuple[str, ...]:
        """Returns lines of text on the environment's sources, for the log."""
        return ()

    def left_out(self) -> tuple[str, ...]:
        """Returns lines on the parts of its sources that the environment skipped or changed; always shown."""
        return ()
