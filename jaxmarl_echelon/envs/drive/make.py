"""Builds the environment of driving from settings and scenes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs import settings as readers
from jaxmarl_echelon.envs.drive import settings
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.codes import BIKE_LANE
from jaxmarl_echelon.envs.drive.commands import Actions
from jaxmarl_echelon.envs.drive.env import Drive
from jaxmarl_echelon.envs.drive.motion import dynamics
from jaxmarl_echelon.envs.drive.others import IDM
from jaxmarl_echelon.envs.drive.settings import DriveSettings, Limits
from jaxmarl_echelon.envs.drive.simulation import Simulation
from jaxmarl_echelon.envs.drive.types import DriveParams
from jaxmarl_echelon.envs.rewards import Reward


def assemble(
    reward: Reward,
    bank: SceneBank,
    kinds: tuple[str, ...],
    *,
    train: int,
    held_out: tuple[int, int],
    given: Mapping[str, Any],
    control: str = "vehicles",
    init_step: int = 0,
    lines: tuple[str, ...] = (),
) -> Drive:
    """Builds the environment on a bank of scenes.

    Args:
      reward: what is paid.
      bank: the scenes.
      kinds: names of the kinds of scenes.
      train: scenes to train on, the first of the bank.
      held_out: first scene of evaluations, and their number.
      given: settings but those of the scenes, as in `conf/env/drive.yaml`.
      control: who may learn.
      init_step: sample of the recording at which episodes begin.
      lines: description of the scenes.

    Raises:
      ValueError: a setting has a value that is not allowed; one line says which.
    """
    chosen = readers.from_flat(DriveSettings, given)
    driving, rules, observing = chosen.driving, chosen.rules, chosen.observing
    settings.check_condition(observing.condition, reward)
    limits = Limits(new_goals=rules.goal_behavior == "new_goal")
    params = DriveParams(
        reward=reward.params(),
        first_scene=jnp.int32(0),
        scenes=jnp.int32(train),
        **readers.read_all(settings.READERS, chosen, limits),
    )
    moves = dynamics(driving.dynamics)
    simulation = Simulation(
        bank=bank,
        dynamics=moves,
        actions=Actions(driving.actions, jerk=driving.dynamics == "jerk"),
        others=driving.others or IDM,
        agents=bank.learner.shape[1],
        init_step=init_step,
        wheelbase=driving.wheelbase_ratio or moves.wheelbase,
        signed=driving.offroad_test == "signed",
        bikes=bool((np.asarray(bank.segment_kind) == BIKE_LANE).any()),
    )
    return Drive(
        simulation,
        observing.view(driving.dynamics, control),
        reward,
        params,
        steps=driving.steps,
        held_out=held_out,
        kinds=kinds,
        change=partial(settings.change, limits=limits, reward=reward),
        lines=lines,
    )
