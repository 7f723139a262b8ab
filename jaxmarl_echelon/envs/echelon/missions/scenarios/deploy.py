"""Initial state of a scenario's mechs."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle.state import EchelonParams, Mechs
from jaxmarl_echelon.envs.echelon.battle.surroundings import chassis_of
from jaxmarl_echelon.envs.echelon.missions.scenarios.draw import DrawnScenario


def deploy_mechs(
    key: jax.Array, drawn: DrawnScenario, simulation: BattleSimulation, params: EchelonParams
) -> Mechs:
    """Returns the mechs before the first decision; empty slots are not alive.

    Args:
      key: random key, for small shifts and turns.
      drawn: the scenario.
      simulation: the battle.
      params: parameters of the battle, with the scenario's classes.
    """
    scenario, chassis = drawn.scenario, chassis_of(params)
    shift_key, turn_key = jax.random.split(key)
    shift = jax.random.uniform(shift_key, scenario.start.shape, minval=-1.0) * params.spawn_jitter
    turn = jax.random.uniform(turn_key, drawn.yaw.shape, minval=-1.0) * params.yaw_jitter
    half = chassis.size[:, :2] / 2
    planar = jnp.clip(scenario.start + shift, half, np.array(simulation.size[:2], np.float32) - half)
    yaw = drawn.yaw + turn
    there = scenario.present
    return simulation.fresh(chassis).replace(
        position=jnp.concatenate([planar, chassis.size[:, 2:] / 2], -1).astype(jnp.float32),
        yaw=yaw - 2 * jnp.pi * jnp.floor((yaw + jnp.pi) / (2 * jnp.pi)),
        hp=jnp.where(there, chassis.hp * drawn.health, 0.0),
        leg_hp=chassis.leg_hp * drawn.health,
        alive=there,
    )
