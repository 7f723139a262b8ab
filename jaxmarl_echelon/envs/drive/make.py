"""Builds the driving environment from settings and scenes."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs import settings as readers
from jaxmarl_echelon.envs.drive import settings
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import BIKE_LANE
from jaxmarl_echelon.envs.drive.commands import Actions
from jaxmarl_echelon.envs.drive.conditioning import GOAL_RADIUS, clear_conditioned_weights
from jaxmarl_echelon.envs.drive.env import Drive
from jaxmarl_echelon.envs.drive.observing.layout import PUFFER
from jaxmarl_echelon.envs.drive.observing.spiral import spiral_rows, spiral_tables
from jaxmarl_echelon.envs.drive.scenes import library
from jaxmarl_echelon.envs.drive.scenes.arrays import make_nearest_edge_tables
from jaxmarl_echelon.envs.drive.scenes.library import Scenes
from jaxmarl_echelon.envs.drive.scenes.raw_scene import NO_LIMIT
from jaxmarl_echelon.envs.drive.scenes.settings import SceneSettings
from jaxmarl_echelon.envs.drive.settings import DriveLimits, DriveSettings
from jaxmarl_echelon.envs.drive.state import DT, DriveParams
from jaxmarl_echelon.envs.drive.traffic.motion import make_dynamics
from jaxmarl_echelon.envs.drive.traffic.scripted_bodies import IDM, REPLAY
from jaxmarl_echelon.envs.drive.traffic.signals import ENFORCE
from jaxmarl_echelon.envs.drive.traffic.simulation import TrafficSimulation
from jaxmarl_echelon.envs.rewards import Reward
from physics.sparse_batch import on_accelerator

FULL = 0.75  # share of filled slots above which empty ones may cost as much as full ones
CHUNK = 1 / 32


def make(reward: Reward, **given) -> Drive:
    """Builds the environment; `given` are keys of `conf/env/drive.yaml`, which explains each.

    Args:
      reward: reward function.
      given: settings that differ from the defaults; `scenes` may be the scenes themselves.

    Raises:
      ValueError: one line, for a setting with an invalid value or a faulty scene.
    """
    scenes = given.pop("scenes") if isinstance(given.get("scenes"), Scenes) else None
    names = {one.name for one in fields(SceneSettings)}
    chosen = SceneSettings(**{key: value for key, value in given.items() if key in names})
    # Scenes depend on the length of episodes, too: goals of files lie within it.
    rest = {key: value for key, value in given.items() if key not in names or key == "steps"}
    if scenes is not None:
        return _assemble_environment(reward, scenes, chosen, rest)
    _read_settings(reward, rest)  # before the scenes, which take minutes
    env = _assemble_environment(reward, library.load_scenes(chosen), chosen, rest)
    env.files = library.list_scene_files(chosen)
    return env


def _read_settings(
    reward: Reward, given: Mapping[str, Any]
) -> tuple[DriveSettings, DriveLimits, dict[str, Any]]:
    """Reads all settings that do not depend on scenes, and the values of the parameters."""
    chosen = readers.unflatten_settings(DriveSettings, given)
    settings.check_condition(chosen.observing.condition, reward)
    settings.check_lights(chosen.driving.lights, reward)
    limits = DriveLimits(
        new_goals=chosen.rules.goal_behavior == "new_goal",
        ends_early=chosen.rules.early_end != settings.NEVER,
        drawn=tuple(chosen.observing.condition),
    )
    return chosen, limits, readers.read_all(settings.READERS, chosen, limits)


def _assemble_environment(
    reward: Reward, scenes: Scenes, world: SceneSettings, given: Mapping[str, Any]
) -> Drive:
    """Builds the environment on given scenes.

    Args:
      reward: reward function.
      scenes: the scenes.
      world: settings of the scenes.
      given: the other settings, as in `conf/env/drive.yaml`.

    Raises:
      ValueError: one line, for a setting with an invalid value.
    """
    chosen, limits, changeable = _read_settings(reward, given)
    driving, observing = chosen.driving, chosen.observing
    # Numbers that learners draw are 0 here: a variant or a resumed run that changes them is then refused.
    if GOAL_RADIUS in limits.drawn:
        changeable["goal_radius"] = jnp.float32(0.0)
    params = DriveParams(
        reward=clear_conditioned_weights(reward.params(), limits.drawn),
        first_scene=jnp.int32(0),
        scenes=jnp.int32(scenes.train),
        **changeable,
    )
    bank = scenes.bank
    if observing.layout == PUFFER:
        segment, kind, *grid = map(np.asarray, (bank.whole, bank.whole_kind, bank.origin, bank.cells))
        tables = spiral_tables(segment, kind, *grid, bank.near_lanes.shape[1:3])
        bank = bank.replace(spiral=tables, spiral_row=spiral_rows(segment, kind))
    signed = driving.offroad_test == "signed"
    if signed:
        bank = bank.replace(nearest_edges=make_nearest_edge_tables(bank))
    bank = jax.device_put(bank)
    moves, share = make_dynamics(driving.dynamics), choose_chunk_share(scenes.bank, observing.layout)
    simulation = TrafficSimulation(
        bank=bank,
        dynamics=moves,
        actions=Actions(driving.actions, jerk=driving.dynamics == "jerk"),
        others=driving.others or (REPLAY if world.is_folder else IDM),
        agents=bank.learner.shape[1],
        init_step=world.init_step,
        wheelbase=driving.wheelbase_ratio or moves.wheelbase,
        signed=signed,
        enforces_lights=driving.lights == ENFORCE,
        share=share,
        bikes=bool((np.asarray(bank.segment_kind) == BIKE_LANE).any()),
    )
    return Drive(
        simulation,
        observing.view(driving, world.control, world.init_step)._replace(share=share),
        reward,
        params,
        steps=driving.steps,
        ends_early=limits.ends_early,
        held_out=scenes.held_out,
        kinds=scenes.kinds,
        change=partial(settings.change_drive_params, limits=limits, reward=reward),
        lines=(*scenes.lines, *describe_unreachable_goals(scenes.bank, world.init_step, driving.steps)),
    )


def choose_chunk_share(bank: SceneBank, layout: str) -> float | None:
    """Fraction of a batch's learners to compute at a time on a CPU; None for all slots at once.

    Chunks cost a few per cent where all slots are filled. They pay off where many slots are empty, and with
    the long rows of the `puffer` layout, of which a whole batch exceeds the cache.
    """
    full = float(np.mean(bank.learner)) >= FULL and layout != PUFFER
    return None if full or on_accelerator() else CHUNK


def describe_unreachable_goals(bank: SceneBank, start: int, steps: int) -> tuple[str, ...]:
    """Returns a line about learners that cannot reach their goals in time; empty if all can.

    A goal is out of reach if it is farther away than an episode takes a learner at the highest speed of its
    recording, or at `NO_LIMIT` if that is higher.
    """
    recording, learner, goal = (np.asarray(one) for one in (bank.recording, bank.learner, bank.goal))
    own = recording[:, :, : learner.shape[1]]
    away = np.hypot(*np.moveaxis(goal[:, : learner.shape[1]] - own[:, start, :, :2], -1, 0))
    speed = np.maximum(np.abs(own[:, start:, :, 3]).max(1), NO_LIMIT)
    far = learner & (away > speed * steps * DT)
    if not far.any():
        return ()
    return (
        f"scenes: goals of {far.sum()} of {learner.sum()} learners are out of reach in {steps} steps: up to "
        f"{away[far].max():.0f} m away, {(speed * steps * DT)[far].min():.0f} m can be driven",
    )
