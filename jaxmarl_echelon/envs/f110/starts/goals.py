"""Goals of the adversarial task: where the attacker should have the target, as seen from its own car.

A goal is a relative position `[forward, left]` of the target in the attacker's frame, in metres. What was
asked for is shown in the observation and what was reached can be read from it, so that experience can be
relabelled in hindsight with flat observations alone.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import struct

from algos.types import Goal
from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import Environment, EnvSpec, TimeStep
from jaxmarl_echelon.envs.f110.observing.observe import layout
from jaxmarl_echelon.envs.f110.state import F110Params, F110State
from jaxmarl_echelon.envs.settings import choice, mapping, number, numbers, switch
from jaxmarl_echelon.envs.spaces import Box

ROLE = "attacker"
COMPONENT = "goal"
DEFAULTS = {"low": None, "high": None, "radius": 0.25, "amount": 1.0, "dense": False}


@struct.dataclass
class GoalParams(F110Params):
    """Parameters of the task with goals, which are drawn from between `goal_low` and `goal_high`, `[2]` m."""

    goal_low: jax.Array
    goal_high: jax.Array


@struct.dataclass
class GoalState(F110State):
    """One episode of the task with goals; `goal` is the one asked for, `[2]` m."""

    goal: jax.Array


class F110Goals(Environment):
    """The adversarial task in which the attacker is asked for a relative position of the target.

    Besides what the plain task does, each episode draws a goal, the attacker's observation ends
    in two more features (the goal divided by `position_scale`), and the component `goal` pays once per
    decision: `amount` within `radius` metres of the goal, and nothing (or minus the distance in metres)
    farther away. These three numbers are fixed for a run, as hindsight has to know them; the range
    of the goals is a parameter.

    Attributes:
      goals: role name to its Goal.
      others: as of the plain task.
    """

    def __init__(self, env, given: Mapping):
        """Adds goals to a plain task `env`; `given` has the keys of `DEFAULTS`, of which `low` and `high`
        are needed. Raises ValueError in one line for a setting that is not allowed.
        """
        chosen = DEFAULTS | _known(given)
        self.plain = env
        self._scale = float(env.scales.position_scale)
        self._range = {f"goal_{end}": _corner(end, chosen[end], self._scale) for end in ("low", "high")}
        _require_order(self._range)
        parts = layout(env.simulation.lidar.beams, env.observe_time)
        goal = make_goal(
            parts["relative_pose"].start,
            self._scale,
            radius=number("goal.radius", chosen["radius"], 1e-6),
            amount=number("goal.amount", chosen["amount"]),
            dense=switch("goal.dense", chosen["dense"]),
        )
        self.goals = {ROLE: goal}
        self.spec = _with_goal(env.spec)
        self.simulation, self.maps, self.scales = env.simulation, env.maps, env.scales
        self.baselines, self.controllers, self.ladder = env.baselines, env.controllers, env.ladder
        self.viewer, self.references, self.files = env.viewer, env.references, env.files

    @property
    def scripts(self):
        """Scripted policies by name, those of the plain task."""
        return self.plain.scripts

    @property
    def world(self):
        """The maps."""
        return self.plain.world

    def _place_world(self, world) -> None:
        self.plain = self.plain.with_world(world)
        self.simulation = self.plain.simulation

    def describe(self) -> tuple[str, ...]:
        """Returns a line for people about each map."""
        return self.plain.describe()

    def evaluation_params(self, params: GoalParams, index: jax.Array) -> GoalParams:
        """Returns the parameters of evaluation episode `index`, as for the plain task."""
        return self.plain.evaluation_params(params, index)

    def default_params(self) -> GoalParams:
        """Returns the parameters that the configuration asks for."""
        return _extended(GoalParams, self.plain.default_params(), **self._range)

    def task_params(self, given: Mapping) -> GoalParams:
        """Returns the default parameters with some settings changed; of `goal` these are `low` and `high`."""
        plain = dict(given)
        ends = mapping("goal", plain.pop("goal", None))
        for name in ends:
            choice("goal", name, ("low", "high"))
        changed = self._range | {f"goal_{end}": _corner(end, ends[end], self._scale) for end in ends}
        _require_order(changed)
        return _extended(GoalParams, self.plain.task_params(plain), **changed)

    def reset(self, key: jax.Array, params: GoalParams) -> tuple[GoalState, TimeStep]:
        """Starts an episode with a goal of its own."""
        key_goal, key_plain = jax.random.split(key)
        share = jax.random.uniform(key_goal, (2,))
        wanted = params.goal_low + share * (params.goal_high - params.goal_low)
        state, time = self.plain.reset(key_plain, params)
        return _extended(GoalState, state, goal=wanted), _pay(self._ask(time, wanted), jnp.float32(0.0))

    def step(
        self, key: jax.Array, state: GoalState, actions: dict[str, jax.Array], params: GoalParams
    ) -> tuple[GoalState, TimeStep]:
        """Advances one decision and pays for the goal."""
        state, time = self.plain.step(key, state, actions, params)
        time = self._ask(time, state.goal)
        goal, seen = self.goals[ROLE], time.obs[ROLE][0]
        return state, _pay(time, goal.reward(goal.achieved(seen), goal.desired(seen)))

    def _ask(self, time: TimeStep, wanted: jax.Array) -> TimeStep:
        """Shows the goal to the attacker."""
        features = (wanted / self._scale)[None]
        return time.replace(obs=time.obs | {ROLE: jnp.concatenate([time.obs[ROLE], features], axis=-1)})


def make_goal(start: int, scale: float, *, radius: float, amount: float, dense: bool) -> Goal:
    """The goals of observations that hold the relative position at `start` and end in the goal.

    Observations are clipped, so that what is reached beyond their scale counts as being there.

    Args:
      start: index of the first of the two features forward and left.
      scale: metres that a feature of 1 stands for.
      radius: metres within which a goal counts as reached.
      amount: paid for a goal that is reached.
      dense: whether a goal that is not reached costs its distance in metres.
    """

    def reward(achieved, desired):
        distance = jnp.linalg.norm(achieved - desired, axis=-1)
        missed = -distance if dense else jnp.zeros_like(distance)
        return jnp.where(distance <= radius, amount, missed)

    return Goal(
        achieved=lambda obs: obs[..., start : start + 2] * scale,
        desired=lambda obs: obs[..., -2:] * scale,
        replace=lambda obs, goal: jnp.concatenate([obs[..., :-2], (goal / scale).astype(obs.dtype)], axis=-1),
        reward=reward,
    )


def _pay(time: TimeStep, paid: jax.Array) -> TimeStep:
    return time.replace(
        reward=time.reward | {ROLE: time.reward[ROLE] + paid},
        info=time.info | {f"reward/{COMPONENT}": paid},
    )


def _known(given: Mapping) -> Mapping:
    for name in mapping("goal", given):
        choice("goal", name, tuple(DEFAULTS))
    return given


def _corner(end: str, value, scale: float) -> jax.Array:
    """One end of the goals' range, `[2]` metres."""
    position = numbers(f"goal.{end}", value, 2)
    if max(map(abs, position)) > scale:
        raise ValueError(f"env.goal.{end}={value}: must lie within env.position_scale={scale:g} m")
    return jnp.asarray(position, jnp.float32)


def _require_order(ends: Mapping[str, jax.Array]) -> None:
    if not bool((ends["goal_low"] <= ends["goal_high"]).all()):
        low, high = (ends[name].tolist() for name in ("goal_low", "goal_high"))
        raise ValueError(f"env.goal.low={low}: must not exceed env.goal.high={high}")


def _with_goal(spec: EnvSpec) -> EnvSpec:
    """The plain task's spec with two more features for the attacker and one more component."""

    def widened(role):
        if role.name != ROLE:
            return role
        low = (*role.observation.low, -1.0, -1.0)
        return dataclasses.replace(role, observation=Box((len(low),), low, role.observation.high))

    roles = tuple(widened(role) for role in spec.roles)
    paid = results.standard(components=(COMPONENT,))
    return dataclasses.replace(spec, roles=roles, results=(*spec.results, *paid))


def _extended(kind: type, base, **more):
    """A dataclass with more fields than the one it derives from."""
    return kind(**{field.name: getattr(base, field.name) for field in dataclasses.fields(base)}, **more)
