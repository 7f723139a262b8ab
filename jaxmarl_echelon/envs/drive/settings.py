"""Settings of driving: those of a run, and those that may change between episodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive import commands, conditioning
from jaxmarl_echelon.envs.drive.codes import VIEW_EDGES, VIEW_LANES
from jaxmarl_echelon.envs.drive.observing import layout
from jaxmarl_echelon.envs.drive.observing.layout import View
from jaxmarl_echelon.envs.drive.state import GOAL_BEHAVIORS, INFRACTION_BEHAVIORS, NEW_GOAL, DriveParams
from jaxmarl_echelon.envs.drive.traffic import motion, scripted_bodies, signals
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.settings import (
    Settings,
    choice,
    choices,
    interval,
    number,
    read_fields,
    refuse_fixed,
    setting,
    switch,
    whole,
)

OFFROAD_TESTS = ("crossing", "signed")
ANY_SPEED = 1e6
RED_LIGHT = "red_light"
MOST_PARTNERS = 63


def _others(name: str, value) -> str | None:
    """Reads what drives other bodies; None for the default of the scenes."""
    return None if value is None else choice(name, value, scripted_bodies.KINDS)


def _lights(name: str, value) -> str | None:
    """Reads what lights are to learners; None for nothing."""
    return None if value is None else choice(name, value, signals.KINDS)


def _ratio(name: str, value) -> float | None:
    """Reads a wheelbase in lengths of the body; None for that of the dynamics."""
    return None if value is None else number(name, value, 0.1, 2.0)


@dataclass(frozen=True)
class Driving(Settings):
    """How bodies move; conf/env/drive.yaml explains each setting here."""

    dynamics: str = setting("classic", choice, motion.NAMES)
    actions: str = setting("discrete", choice, commands.KINDS)
    wheelbase_ratio: float | None = setting(None, _ratio)
    others: str | None = setting(None, _others)
    steps: int = setting(90, whole, 1, 10_000)
    offroad_test: str = setting("crossing", choice, OFFROAD_TESTS)
    lights: str | None = setting(None, _lights)


@dataclass(frozen=True)
class Rules(Settings):
    """Goals and endings; all of them may change between episodes, but for `new_goal`."""

    goal_behavior: str = "respawn"
    goal_radius: float = 2.0
    goal_speed: float | None = None
    goal_distance: Sequence[float] = (20.0, 60.0)
    collision_behavior: str = "ignore"
    offroad_behavior: str = "ignore"
    early_end: bool = False


@dataclass(frozen=True)
class Observing(Settings):
    """What learners are shown."""

    layout: str = setting("compact", choice, layout.LAYOUTS)
    partners: int = setting(12, whole, 0, MOST_PARTNERS)
    lanes: int = setting(VIEW_LANES, whole, 0, VIEW_LANES)
    edges: int = setting(VIEW_EDGES, whole, 0, VIEW_EDGES)
    reach: float = setting(50.0, number, 1.0)
    observe_time: bool = setting(False, switch)
    condition: Sequence[str] = setting((), choices, tuple(conditioning.BOUNDS))

    def view(self, driving: Driving, control: str, init_step: int) -> View:
        """The layout of observations."""
        return View(
            layout=self.layout,
            partners=self.partners,
            lanes=self.lanes,
            edges=self.edges,
            reach=self.reach,
            jerk=driving.dynamics == "jerk",
            types=control == "agents",
            time=self.observe_time,
            condition=self.condition,
            lights=None if driving.lights is None else init_step,
        )


class Limits(NamedTuple):
    """What settings are checked against.

    Attributes:
      new_goals: whether learners of this program may get new goals.
    """

    new_goals: bool


Reader = tuple[str, Callable[[Any, Limits], jax.Array]]


def _goal_behavior(value, limits: Limits) -> jax.Array:
    code = GOAL_BEHAVIORS.index(choice("goal_behavior", value, GOAL_BEHAVIORS))
    if (code == NEW_GOAL) != limits.new_goals:
        allowed = "new_goal" if limits.new_goals else "respawn, stop or remove"
        raise ValueError(f"env.goal_behavior={value!r}: must be {allowed} in this run")
    return jnp.int32(code)


def _infraction(name: str) -> Reader:
    def read(value, limits: Limits) -> jax.Array:
        return jnp.int32(INFRACTION_BEHAVIORS[choice(name, value, tuple(INFRACTION_BEHAVIORS))])

    return name, read


def _goal_speed(value, limits: Limits) -> jax.Array:
    return jnp.float32(ANY_SPEED if value is None else number("goal_speed", value, 0.0, ANY_SPEED))


READERS: dict[str, Reader] = {
    "goal_behavior": ("goal_behavior", _goal_behavior),
    "collision_behavior": _infraction("collision_behavior"),
    "offroad_behavior": _infraction("offroad_behavior"),
    "goal_radius": (
        "goal_radius",
        lambda value, _: jnp.float32(number("goal_radius", value, 0.1, 100.0)),
    ),
    "goal_speed": ("goal_speed", _goal_speed),
    "goal_distance": (
        "goal_distance",
        lambda value, _: jnp.asarray(interval("goal_distance", value, 1.0, 1000.0), jnp.float32),
    ),
    "early_end": ("early_end", lambda value, _: jnp.bool_(switch("early_end", value))),
}


@dataclass(frozen=True)
class DriveSettings:
    """All settings of driving but those of the scenes."""

    driving: Driving = field(default_factory=Driving)
    rules: Rules = field(default_factory=Rules)
    observing: Observing = field(default_factory=Observing)


def change(params: DriveParams, given: Mapping[str, Any], limits: Limits, reward: Reward) -> DriveParams:
    """Changes some settings of the parameters, on the host.

    Args:
      params: the environment's default parameters.
      given: settings as in the environment's configuration: those of `READERS`, and `reward`
        (`{component: {weight name: value}}`).
      limits: what values are checked against.
      reward: the reward that `params.reward` belongs to.

    Raises:
      ValueError: one line, for a setting that is unknown, would need another program, or has a value that
        `make` would refuse.
    """
    plain = dict(given)
    weights = plain.pop("reward", None)
    refuse_fixed(plain, (*READERS, "reward"))
    fields = read_fields(READERS, plain, limits)
    return params.replace(**fields, reward=reward.change(params.reward, weights))


def check_lights(lights: str | None, reward: Reward) -> None:
    """Raises a one-line ValueError for lights that are enforced by a reward that does not charge for them."""
    if lights == signals.ENFORCE and RED_LIGHT not in reward.names:
        component = f"+reward.components.{RED_LIGHT}={{weight: -0.5}}"
        raise ValueError(f"env.lights={lights}: the reward has no component {RED_LIGHT}; add {component}")


def check_condition(names: Sequence[str], reward: Reward) -> None:
    """Raises a one-line ValueError for conditioned weights of components that the reward lacks."""
    for name in names:
        component = conditioning.BOUNDS[name].component
        if component and component not in reward.names:
            raise ValueError(f"env.condition={name}: the reward has no component {component}")
