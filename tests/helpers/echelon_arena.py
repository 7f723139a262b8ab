"""A small arena for tests of Echelon's mechanics: two against two, one substep per decision."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from echelon_battles import SIZE, make_battle, make_mechs, make_params

from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle.state import Battle
from jaxmarl_echelon.envs.echelon.battle.unit_tables import ACTIONS
from jaxmarl_echelon.envs.echelon.terrain.bank import stack_maps
from jaxmarl_echelon.envs.echelon.terrain.layout import make_map
from physics.voxels import DIRT, GLASS, LAVA, SOLID, WATER, empty_overlay

SUBSTEPS = 100
FLAT, LAVA_FIELD, WATER_FIELD, LEDGE, WALL, TALL_WALL, GLASS_WALL = range(7)
PAGES, DAMAGED = 12, 8
FAR = (38.0, 38.0, 1.0)


def _grids() -> list[np.ndarray]:
    grids = [np.zeros(SIZE[::-1], np.uint8) for _ in range(7)]
    for grid, floor in zip(grids, (DIRT, LAVA, WATER, DIRT, DIRT, DIRT, DIRT), strict=True):
        grid[0] = floor
    grids[LEDGE][0, :, 15:] = SOLID
    grids[WALL][:2, :, 15:] = SOLID
    grids[TALL_WALL][:12, :, 15] = SOLID
    grids[GLASS_WALL][:12, :, 15] = GLASS
    return grids


@cache
def arena(original: bool = False) -> BattleSimulation:
    """Simulation of 2 against 2 on the maps named above."""
    bank = stack_maps([make_map(grid, (20.0, 20.0, 5.0), team_size=2) for grid in _grids()])
    return BattleSimulation(bank, (2, 2), substeps=1, original=original, pages=PAGES, damaged=DAMAGED)


def at_start(bodies, map_index: int = FLAT, packs=(0, 0, 0, 0), **changes):
    """A battle and its parameters.

    Args:
      bodies: per mech (class, x, y, z, yaw), or None for one that is dead.
      map_index: terrain.
      packs: of the mechs.
      changes: other fields of Mechs.
    """
    placed = [(0, *FAR, 0.0) if body is None else body for body in bodies]
    classes = [body[0] for body in placed]
    alive = [body is not None for body in bodies]
    changes = {"alive": alive, "yaw": [body[4] for body in placed], **changes}
    mechs = make_mechs([body[1:4] for body in placed], classes, **changes)
    battle = make_battle(mechs, map_index=map_index).replace(
        overlay=empty_overlay(SIZE[::-1], PAGES, DAMAGED)
    )
    return battle, make_params(classes, packs)


def told(*actions: dict[str, float]) -> np.ndarray:
    """Commands `[4, 9]`, one dictionary of actions per mech; the last mechs do nothing."""
    commands = np.zeros((4, len(ACTIONS)), np.float32)
    for row, named in zip(commands, actions, strict=False):
        for name, value in named.items():
            row[ACTIONS.index(name)] = value
    return commands


@partial(jax.jit, static_argnames="simulation")
def _run(keys, battle, params, commands, simulation):
    def step(battle, inputs):
        battle = simulation.decide(inputs[0], battle, inputs[1], params)
        return battle, battle

    return jax.lax.scan(step, battle, (keys, commands))[1]


def run(start, commands, seed: int = 0, original: bool = False) -> Battle:
    """Battles after each of 100 substeps, with a leading axis of time; commands `[4, 9]` or `[100, 4, 9]`."""
    battle, params = jax.device_get(start)  # NumPy has no weak types, so that there is one trace
    commands = jnp.broadcast_to(jnp.asarray(commands), (SUBSTEPS, 4, len(ACTIONS)))
    keys = jax.random.split(jax.random.key(seed), SUBSTEPS)
    return jax.device_get(_run(keys, battle, params, commands, arena(original)))
