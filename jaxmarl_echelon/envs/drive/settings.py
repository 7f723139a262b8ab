"""Settings of driving: per run, and per episode (those that curricula may change)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos.defaults import FROM_FILE
from jaxmarl_echelon.envs.drive import commands, conditioning
from jaxmarl_echelon.envs.drive.codes import VIEW_EDGES, VIEW_LANES
from jaxmarl_echelon.envs.drive.observing import layout
from jaxmarl_echelon.envs.drive.observing.layout import ObservationConfig
from jaxmarl_echelon.envs.drive.state import GOAL_BEHAVIORS, INFRACTION_BEHAVIORS, NEW_GOAL, DriveParams
from jaxmarl_echelon.envs.drive.traffic import motion, scripted_bodies, signals
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.settings import (
    Settings,
    read_choice,
    read_choices,
    read_fields,
    read_interval,
    read_number,
    read_switch,
    read_whole,
    refuse_fixed,
    setting_field,
)
from physics.host_arrays import put_array

OFFROAD_TESTS = ("crossing", "signed")
ANY_SPEED = 1e6
RED_LIGHT = "red_light"
NEVER = "never"
MOST_PARTNERS = 63


def _others(name: str, value) -> str | None:
    """Validates what drives the other bodies; None selects the default of the scenes."""
    return None if value is None else read_choice(name, value, scripted_bodies.KINDS)


def _lights(name: str, value) -> str | None:
    """Validates the traffic-light mode; None disables traffic lights for learners."""
    return None if value is None else read_choice(name, value, signals.KINDS)


def _ratio(name: str, value) -> float | None:
    """Validates the wheelbase as a fraction of the body's length; None selects that of the dynamics."""
    return None if value is None else read_number(name, value, 0.1, 2.0)


@dataclass(frozen=True)
class DrivingSettings(Settings):
    """Settings of the motion of bodies; conf/env/drive.yaml explains each."""

    dynamics: str = setting_field(read_choice, motion.NAMES)
    actions: str = setting_field(read_choice, commands.KINDS)
    wheelbase_ratio: float | None = setting_field(_ratio)
    others: str | None = setting_field(_others)
    steps: int = setting_field(read_whole, 1, 10_000)
    offroad_test: str = setting_field(read_choice, OFFROAD_TESTS)
    lights: str | None = setting_field(_lights)


@dataclass(frozen=True)
class EndingSettings(Settings):
    """Goals and endings; all may change between episodes, except to or from `new_goal` and `never`."""

    goal_behavior: str = FROM_FILE
    goal_radius: float = FROM_FILE
    goal_speed: float | None = FROM_FILE
    goal_distance: Sequence[float] = FROM_FILE
    collision_behavior: str = FROM_FILE
    offroad_behavior: str = FROM_FILE
    early_end: bool | str = FROM_FILE


@dataclass(frozen=True)
class ObservationSettings(Settings):
    """Settings of the observations."""

    layout: str = setting_field(read_choice, layout.LAYOUTS)
    partners: int = setting_field(read_whole, 0, MOST_PARTNERS)
    lanes: int = setting_field(read_whole, 0, VIEW_LANES)
    edges: int = setting_field(read_whole, 0, VIEW_EDGES)
    reach: float = setting_field(read_number, 1.0)
    observe_time: bool = setting_field(read_switch)
    condition: Sequence[str] = setting_field(read_choices, tuple(conditioning.BOUNDS))

    def view(self, driving: DrivingSettings, control: str, init_step: int) -> ObservationConfig:
        """Returns the layout of the observations."""
        return ObservationConfig(
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


class DriveLimits(NamedTuple):
    """Constraints on the values of settings.

    Attributes:
      new_goals: whether learners of this program may get new goals.
      ends_early: whether episodes of this program may end before the last decision.
      drawn: names of the numbers that every learner draws (`env.condition`).
    """

    new_goals: bool
    ends_early: bool
    drawn: tuple[str, ...] = ()


DriveReader = tuple[str, Callable[[Any, DriveLimits], jax.Array]]


def _goal_behavior(value, limits: DriveLimits) -> jax.Array:
    code = GOAL_BEHAVIORS.index(read_choice("goal_behavior", value, GOAL_BEHAVIORS))
    if (code == NEW_GOAL) != limits.new_goals:
        allowed = "new_goal" if limits.new_goals else "respawn, stop or remove"
        raise ValueError(f"env.goal_behavior={value}: must be {allowed} in this run")
    return jnp.int32(code)


def _infraction(name: str) -> DriveReader:
    def read(value, _limits: DriveLimits) -> jax.Array:
        return jnp.int32(INFRACTION_BEHAVIORS[read_choice(name, value, tuple(INFRACTION_BEHAVIORS))])

    return name, read


def _goal_speed(value, _limits: DriveLimits) -> jax.Array:
    return jnp.float32(ANY_SPEED if value is None else read_number("goal_speed", value, 0.0, ANY_SPEED))


def _early_end(value, limits: DriveLimits) -> jax.Array:
    if value == NEVER and limits.ends_early:
        raise ValueError(f"env.early_end={value}: must be true or false in this run")
    return put_array(value != NEVER and read_switch("early_end", value))


READERS: dict[str, DriveReader] = {
    "goal_behavior": ("goal_behavior", _goal_behavior),
    "collision_behavior": _infraction("collision_behavior"),
    "offroad_behavior": _infraction("offroad_behavior"),
    "goal_radius": (
        "goal_radius",
        lambda value, _: jnp.float32(read_number("goal_radius", value, 0.1, 100.0)),
    ),
    "goal_speed": ("goal_speed", _goal_speed),
    "goal_distance": (
        "goal_distance",
        lambda value, _: put_array(read_interval("goal_distance", value, 1.0, 1000.0), np.float32),
    ),
    "early_end": ("early_end", _early_end),
}


@dataclass(frozen=True)
class DriveSettings:
    """All settings of driving except those of the scenes."""

    FILE: ClassVar[str] = "env/drive"

    driving: DrivingSettings
    rules: EndingSettings
    observing: ObservationSettings


def change_drive_params(
    params: DriveParams, given: Mapping[str, Any], limits: DriveLimits, reward: Reward
) -> DriveParams:
    """Changes some settings of the parameters, on the host.

    Args:
      params: the environment's default parameters.
      given: settings as in the environment's configuration: keys of `READERS`, and `reward` (`{component:
        {weight name: value}}`).
      limits: constraints on the values.
      reward: the reward that `params.reward` belongs to.

    Raises:
      ValueError: one line, for a setting that is unknown, would need another program, has no effect because
        learners draw it, or has a value that `make` would refuse.
    """
    plain = dict(given)
    weights = plain.pop("reward", None)
    refuse_fixed(plain, (*READERS, "reward"))
    fields = read_fields(READERS, plain, limits)
    changed = reward.change(params.reward, weights)
    conditioning.refuse_conditioned(limits.drawn, plain, weights or {})
    return params.replace(**fields, reward=changed)


def check_lights(lights: str | None, reward: Reward) -> None:
    """Raises a one-line ValueError if lights are enforced but the reward has no red-light component."""
    if lights == signals.ENFORCE and RED_LIGHT not in reward.names:
        component = f"+reward.components.{RED_LIGHT}={{weight: -0.5}}"
        raise ValueError(f"env.lights={lights}: the reward has no component {RED_LIGHT}; add {component}")


def check_condition(names: Sequence[str], reward: Reward) -> None:
    """Raises a one-line ValueError for conditioned weights whose components the reward lacks."""
    for name in names:
        component = conditioning.BOUNDS[name].component
        if component and component not in reward.names:
            raise ValueError(f"env.condition={name}: the reward has no component {component}")
