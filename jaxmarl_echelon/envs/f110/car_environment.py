"""Shared parts of the F110 environments: world, parameters, and rewards per physics step."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.base import Environment, ScriptedPolicy
from jaxmarl_echelon.envs.f110 import episode_settings
from jaxmarl_echelon.envs.f110.cars.simulation import CarSimulation
from jaxmarl_echelon.envs.f110.gap_parameters import FTGOptions
from jaxmarl_echelon.envs.f110.observing import track_position
from jaxmarl_echelon.envs.f110.rewards import CarRewardInputs, CarRewardMemory
from jaxmarl_echelon.envs.rewards import Reward, Weights
from jaxmarl_echelon.envs.settings import Readers

PyTree = Any


class CarEnvironment(Environment):
    """Environment of F1TENTH cars on maps, whose rewards are paid per physics step.

    Attributes:
      readers: table of the settings that may change between episodes.
      simulation: the cars' physics and sensing.
      maps: the maps, as loaded.
      reward: components and default weights.
    """

    readers: ClassVar[Readers]

    def __init__(
        self,
        simulation: CarSimulation,
        maps: Sequence,
        reward: Reward,
        limits: episode_settings.F110Limits,
        params: PyTree,
        ftg_options: FTGOptions,
    ):
        self.simulation, self.maps, self.reward = simulation, maps, reward
        self._params, self._limits, self._ftg_options = params, limits, ftg_options
        distance = simulation.dt * simulation.repeat * float(params.car.v_max)
        self._window = track_position.search_window(simulation.bank, distance)

    @property
    def world(self) -> PyTree:
        """Map bank."""
        return self.simulation.bank

    def _place_world(self, world: PyTree) -> None:
        self.simulation = dataclasses.replace(self.simulation, bank=world)
        self.scripts = self._make_scripts()

    def default_params(self) -> PyTree:
        """Returns the configured parameters."""
        return self._params

    def describe(self) -> tuple[str, ...]:
        """Returns a line of text on each map: its centreline's direction, length and source."""
        return tuple(grid.describe() for grid in self.maps)

    def _make_scripts(self) -> dict[str, ScriptedPolicy]:
        """Returns the scripted policies by name, for the current world."""
        raise NotImplementedError

    def task_params(self, settings: Mapping) -> PyTree:
        """Returns the default parameters with some settings changed; see `change_f110_params`."""
        return episode_settings.change_f110_params(
            self.readers, self._params, settings, self._limits, self.reward, self._ftg_options
        )

    def _pay_car(
        self,
        weights: dict[str, Weights],
        situation: CarRewardInputs,
        memory: CarRewardMemory,
        drove: jax.Array,
    ) -> tuple[CarRewardMemory, dict[str, jax.Array]]:
        """Computes one car's memory and components of a physics step; without effect unless it `drove`."""
        values, renewed = self.reward(weights, situation, memory)
        memory = jax.tree.map(lambda new, old: jnp.where(drove, new, old), renewed, memory)
        return memory, {name: jnp.where(drove, value, 0.0) for name, value in values.items()}

    def _pay_steps(
        self, pay: Callable, memory: CarRewardMemory, steps: PyTree
    ) -> tuple[CarRewardMemory, dict[str, jax.Array]]:
        """Pays the physics steps of a decision in order.

        Args:
          pay: `(memory, step) -> (memory, components)`.
          memory: before the first step.
          steps: inputs of `pay`, stacked.

        Returns:
          The memory after the last step, and the sum of each component over the steps.
        """
        memory, values = jax.lax.scan(pay, memory, steps)
        return memory, {name: jnp.sum(value, axis=0) for name, value in values.items()}
