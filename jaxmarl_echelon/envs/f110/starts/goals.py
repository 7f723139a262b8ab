"""Goals of the adversarial task: desired positions of the target relative to the attacker.

A goal is a position `[forward, left]` of the target in the attacker's frame, in metres. Observations contain
the desired and the achieved goal, so that experience can be relabelled in hindsight (M. Andrychowicz et al.,
"Hindsight Experience Replay", 2017) from flat observations alone. See docs/reference/f110.md 13.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from algos.types import Goal
from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import Environment, EnvSpec, ObservationPart, TimeStep
from jaxmarl_echelon.envs.f110.observing.observe import gaplock_layout
from jaxmarl_echelon.envs.f110.state import F110Params, F110State
from jaxmarl_echelon.envs.settings import read_choice, read_mapping, read_number, read_numbers, read_switch
from jaxmarl_echelon.envs.spaces import Box

ROLE = "attacker"
COMPONENT = "goal"
DEFAULTS = {"low": None, "high": None, "radius": 0.25, "amount": 1.0, "dense": False}


class GoalParams(F110Params):
    """Parameters of the task with goals, which are drawn between `goal_low` and `goal_high`, `[2]` m."""

    goal_low: jax.Array
    goal_high: jax.Array


class GoalState(F110State):
    """State of one episode of the task with goals; `goal` is the desired one, `[2]` m."""

    goal: jax.Array


class F110Goals(Environment):
    """Adversarial task with goals for the target's position relative to the attacker.

    In addition to the plain task, each episode draws a goal, the attacker's observation ends in two more
    features (the goal divided by `position_scale`), and the reward component `goal` is added once per
    decision: `amount` within `radius` metres of the goal, and 0 (or minus the distance in metres) farther
    away. These settings are fixed for a run, because relabelling needs them; the range of the goals is a
    parameter.

    Attributes:
      goals: role name to its Goal.
      plain: the task without goals, which provides all other attributes.
    """

    def __init__(self, env, given: Mapping):
        """Adds goals to a plain task `env`; `given` has keys of `DEFAULTS`, and `low` and `high` are needed.

        Raises:
          ValueError: one line, for a setting that is not allowed.
        """
        chosen = DEFAULTS | _known(given)
        if not env.observe_target:
            raise ValueError(
                f"env.goal={dict(given)}: is read from the target's position; needs env.observe_target=true"
            )
        self.plain = env
        self._scale = float(env.scales.position_scale)
        self._range = {f"goal_{end}": _corner(end, chosen[end], self._scale) for end in ("low", "high")}
        _require_order(self._range)
        parts = gaplock_layout(env.simulation.lidar.beams, env.observe_time)
        goal = make_goal(
            parts["relative_pose"].start,
            self._scale,
            radius=read_number("goal.radius", chosen["radius"], 1e-6),
            amount=read_number("goal.amount", chosen["amount"]),
            dense=read_switch("goal.dense", chosen["dense"]),
        )
        self.goals = {ROLE: goal}
        self.spec = _with_goal(env.spec)
        size = self.spec.role(ROLE).observation.shape[0]
        shown = {"goal": ObservationPart(slice(size - 2, size), ("m",), (self._scale,))}
        self.action_units = env.action_units
        self.parts = env.parts | {ROLE: env.parts[ROLE] | shown}
        self.simulation, self.maps, self.scales = env.simulation, env.maps, env.scales
        self.scripts = env.scripts
        self.baselines, self.controllers, self.ladder = env.baselines, env.controllers, env.ladder
        self.viewer, self.references, self.files = env.viewer, env.references, env.files

    @property
    def world(self):
        """World of the plain task."""
        return self.plain.world

    def _place_world(self, world) -> None:
        self.plain = self.plain.with_world(world)
        self.simulation, self.scripts = self.plain.simulation, self.plain.scripts

    def describe(self) -> tuple[str, ...]:
        """Returns a line of text on each map."""
        return self.plain.describe()

    def evaluation_params(self, params: GoalParams, index: jax.Array) -> GoalParams:
        """Returns the parameters of evaluation episode `index`, as for the plain task."""
        return self.plain.evaluation_params(params, index)

    def default_params(self) -> GoalParams:
        """Returns the configured parameters."""
        return _extended(GoalParams, self.plain.default_params(), **self._range)

    def task_params(self, settings: Mapping) -> GoalParams:
        """Returns the default parameters with changed settings; `goal` may change `low` and `high`."""
        plain = dict(settings)
        ends = read_mapping("goal", plain.pop("goal", None))
        for name in ends:
            read_choice("goal", name, ("low", "high"))
        changed = self._range | {f"goal_{end}": _corner(end, ends[end], self._scale) for end in ends}
        _require_order(changed)
        return _extended(GoalParams, self.plain.task_params(plain), **changed)

    def reset(self, key: jax.Array, params: GoalParams) -> tuple[GoalState, TimeStep]:
        """Starts an episode with a random goal."""
        key_goal, key_plain = jax.random.split(key)
        share = jax.random.uniform(key_goal, (2,))
        wanted = params.goal_low + share * (params.goal_high - params.goal_low)
        state, time = self.plain.reset(key_plain, params)
        return _extended(GoalState, state, goal=wanted), _add_goal_reward(
            self._ask(time, wanted), jnp.float32(0.0)
        )

    def step(
        self, key: jax.Array, state: GoalState, actions: dict[str, jax.Array], params: GoalParams
    ) -> tuple[GoalState, TimeStep]:
        """Advances one decision and adds the goal's reward."""
        state, time = self.plain.step(key, state, actions, params)
        time = self._ask(time, state.goal)
        goal, seen = self.goals[ROLE], time.obs[ROLE][0]
        return state, _add_goal_reward(time, goal.reward(goal.achieved(seen), goal.desired(seen)))

    def _ask(self, time: TimeStep, wanted: jax.Array) -> TimeStep:
        """Appends the goal to the attacker's observation."""
        features = (wanted / self._scale)[None]
        return time.replace(obs=time.obs | {ROLE: jnp.concatenate([time.obs[ROLE], features], axis=-1)})


def make_goal(start: int, scale: float, *, radius: float, amount: float, dense: bool) -> Goal:
    """Builds the Goal of observations that hold the relative position at `start` and end in the goal.

    Observations are clipped, so that a position beyond their scale counts as one at the scale.

    Args:
      start: index of the first of the two features forward and left.
      scale: metres that a feature of 1 stands for.
      radius: metres within which a goal counts as reached.
      amount: reward of a goal that is reached.
      dense: whether the reward of a goal that is not reached is minus its distance in metres.
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


def _add_goal_reward(time: TimeStep, paid: jax.Array) -> TimeStep:
    return time.replace(
        reward=time.reward | {ROLE: time.reward[ROLE] + paid},
        info=time.info | {f"reward/{COMPONENT}": paid},
    )


def _known(given: Mapping) -> Mapping:
    for name in read_mapping("goal", given):
        read_choice("goal", name, tuple(DEFAULTS))
    return given


def _corner(end: str, value, scale: float) -> jax.Array:
    """Reads one end of the goals' range, `[2]` metres."""
    position = read_numbers(f"goal.{end}", value, 2)
    if max(map(abs, position)) > scale:
        raise ValueError(f"env.goal.{end}={value}: must lie within env.position_scale={scale:g} m")
    return jnp.asarray(position, jnp.float32)


def _require_order(ends: Mapping[str, jax.Array]) -> None:
    if not bool((ends["goal_low"] <= ends["goal_high"]).all()):
        low, high = (ends[name].tolist() for name in ("goal_low", "goal_high"))
        raise ValueError(f"env.goal.low={low}: must not exceed env.goal.high={high}")


def _with_goal(spec: EnvSpec) -> EnvSpec:
    """Returns the plain task's spec with two more features for the attacker and one more component."""

    def widened(role):
        if role.name != ROLE:
            return role
        low = (*role.observation.low, -1.0, -1.0)
        return dataclasses.replace(role, observation=Box((len(low),), low, role.observation.high))

    roles = tuple(widened(role) for role in spec.roles)
    paid = results.standard_results(components=(COMPONENT,))
    return dataclasses.replace(spec, roles=roles, results=(*spec.results, *paid))


def _extended(kind: type, base, **more):
    """Builds a dataclass with more fields from an instance of its base class."""
    return kind(**{field.name: getattr(base, field.name) for field in dataclasses.fields(base)}, **more)
