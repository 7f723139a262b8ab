"""Builds the environment of driving from settings and scenes."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs import settings as readers
from jaxmarl_echelon.envs.drive import settings
from jaxmarl_echelon.envs.drive.codes import BIKE_LANE
from jaxmarl_echelon.envs.drive.commands import Actions
from jaxmarl_echelon.envs.drive.env import Drive
from jaxmarl_echelon.envs.drive.motion import dynamics
from jaxmarl_echelon.envs.drive.observing.layout import PUFFER
from jaxmarl_echelon.envs.drive.observing.spiral import spiral_tables
from jaxmarl_echelon.envs.drive.others import IDM, REPLAY
from jaxmarl_echelon.envs.drive.scenes import library
from jaxmarl_echelon.envs.drive.scenes.library import Scenes
from jaxmarl_echelon.envs.drive.scenes.settings import SceneSettings
from jaxmarl_echelon.envs.drive.settings import DriveSettings, Limits
from jaxmarl_echelon.envs.drive.signals import ENFORCE
from jaxmarl_echelon.envs.drive.simulation import Simulation
from jaxmarl_echelon.envs.drive.types import DriveParams
from jaxmarl_echelon.envs.rewards import Reward


def make(reward: Reward, *, scenes: Scenes | str = "generated", **given) -> Drive:
    """Builds the environment; `given` are keys of `conf/env/drive.yaml`, which explains each.

    Args:
      reward: what is paid.
      scenes: where they come from, or scenes to use as they are.
      given: settings that differ from the defaults.

    Raises:
      ValueError: a setting has a value that is not allowed, or a scene is faulty; one line says which.
    """
    names = {one.name for one in fields(SceneSettings)}
    world = {key: value for key, value in given.items() if key in names}
    rest = {key: value for key, value in given.items() if key not in names}
    if isinstance(scenes, Scenes):
        return assemble(reward, scenes, SceneSettings(**world), rest)
    chosen = SceneSettings(scenes=scenes, **world)
    readers.from_flat(DriveSettings, rest)  # before minutes are spent on scenes
    env = assemble(reward, library.scenes(chosen), chosen, rest)
    env.files = library.files(chosen)
    return env


def assemble(reward: Reward, scenes: Scenes, world: SceneSettings, given: Mapping[str, Any]) -> Drive:
    """Builds the environment on scenes.

    Args:
      reward: what is paid.
      scenes: the scenes.
      world: their settings.
      given: the other settings, as in `conf/env/drive.yaml`.

    Raises:
      ValueError: a setting has a value that is not allowed; one line says which.
    """
    chosen = readers.from_flat(DriveSettings, given)
    driving, rules, observing = chosen.driving, chosen.rules, chosen.observing
    settings.check_condition(observing.condition, reward)
    settings.check_lights(driving.lights, reward)
    limits = Limits(new_goals=rules.goal_behavior == "new_goal")
    params = DriveParams(
        reward=reward.params(),
        first_scene=jnp.int32(0),
        scenes=jnp.int32(scenes.train),
        **readers.read_all(settings.READERS, chosen, limits),
    )
    bank = scenes.bank
    if observing.layout == PUFFER:
        tables = bank.segment, bank.segment_kind, bank.origin, bank.cells
        shape = bank.near_lanes.shape[1:3]
        bank = bank.replace(spiral=spiral_tables(*map(np.asarray, tables), shape))
    bank = jax.tree.map(jnp.asarray, bank)
    moves = dynamics(driving.dynamics)
    simulation = Simulation(
        bank=bank,
        dynamics=moves,
        actions=Actions(driving.actions, jerk=driving.dynamics == "jerk"),
        others=driving.others or (REPLAY if world.is_folder else IDM),
        agents=bank.learner.shape[1],
        init_step=world.init_step,
        wheelbase=driving.wheelbase_ratio or moves.wheelbase,
        signed=driving.offroad_test == "signed",
        enforces=driving.lights == ENFORCE,
        bikes=bool((np.asarray(bank.segment_kind) == BIKE_LANE).any()),
    )
    return Drive(
        simulation,
        observing.view(driving, world.control, world.init_step),
        reward,
        params,
        steps=driving.steps,
        held_out=scenes.held_out,
        kinds=scenes.kinds,
        change=partial(settings.change, limits=limits, reward=reward),
        lines=scenes.lines,
    )
