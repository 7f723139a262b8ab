"""Simulation of mech battles in voxel terrain.

A decision is `substeps` steps of 0.05 s. Order within each: age of smoke clouds; timers, heat,
hazards and stability; projectiles; weapons; terrain changes; movement. All weapons of one substep
take effect simultaneously, unless `original` is set. Reference: docs/reference/echelon.md 1.3.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarl_echelon.envs.echelon.battle import (
    damage,
    heat_and_stability,
    movement,
    projectiles,
    terrain_destruction,
    weapons,
)
from jaxmarl_echelon.envs.echelon.battle.movement import NearbyColumns
from jaxmarl_echelon.envs.echelon.battle.smoke import age_smoke, no_smoke
from jaxmarl_echelon.envs.echelon.battle.state import (
    NO_MECH,
    Battle,
    EchelonParams,
    Mechs,
    Projectiles,
    Smoke,
    Tally,
)
from jaxmarl_echelon.envs.echelon.battle.surroundings import Scene, chassis_of, scene_of
from jaxmarl_echelon.envs.echelon.battle.unit_tables import COOLDOWNS, MAX_STABILITY, SCOUT, SECONDARY
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank
from physics.voxels import WATER, Overlay, Terrain, empty_overlay, material_at

MARGIN, SPACING, COLUMNS = 2.0, 3.5, 5
# Random numbers per mech and substep: two interceptions, one leg hit, one for the order of moving.
_DRAWS = 4


class _Step(NamedTuple):
    """The carry of the scan over substeps."""

    mechs: Mechs
    projectiles: Projectiles
    smoke: Smoke
    tally: Tally
    overlay: Overlay
    ground: NearbyColumns


@dataclass(frozen=True, eq=False)
class BattleSimulation:
    """Static configuration of a battle, with its transition functions.

    Attributes:
      bank: terrains.
      teams: mechs of blue and of red.
      substeps: steps of 0.05 s per decision.
      original: reproduces three defects of the original, for comparison: mechs fire one after
        another, blue first, each with immediate effect; mechs may step up onto other mechs; and
        mechs that overlap at the start, which formations allow, can never separate.
      pages: capacity for changed tiles of 4 x 4 columns; 0 for static terrain without wrecks.
      damaged: capacity for damaged voxels that still stand; a missile's explosion reaches up to 81.
      logged: whether tallies have a log.
    """

    bank: TerrainBank
    teams: tuple[int, int]
    substeps: int = 5
    original: bool = False
    pages: int = 64
    damaged: int = 96
    logged: bool = False

    @cached_property
    def team(self) -> np.ndarray:
        """`[M]` int32; 0 for blue, 1 for red."""
        return np.repeat(np.arange(2, dtype=np.int32), self.teams)

    @property
    def size(self) -> tuple[int, int, int]:
        """Voxels along x, y and z."""
        return self.bank.voxels.material.shape[:0:-1]

    def terrain(self, battle: Battle) -> Terrain:
        """Returns the battle's terrain with its present changes."""
        return Terrain(self.bank.voxels, battle.map_index, battle.overlay)

    def scene(self, battle: Battle, params: EchelonParams) -> Scene:
        """Returns the constants of a substep: terrain, chassis and relations between mechs."""
        return scene_of(self.terrain(battle), self.team, params)

    def start(self, key: jax.Array, map_index: jax.Array, params: EchelonParams) -> Battle:
        """Returns a battle before its first decision, with the teams in opposite corners.

        Mechs stand in rows of five. Each is shifted away from the corner by up to
        `params.spawn_jitter`, limited to the free room of its place, and faces the zone with an
        error of up to `params.yaw_jitter`. With `original` the shift has either sign and no limit.
        """
        chassis = chassis_of(params)
        shift_key, turn_key = jax.random.split(key)
        number = np.concatenate([np.arange(count) for count in self.teams])
        place = MARGIN + SPACING * np.stack([number % COLUMNS, number // COLUMNS], -1)
        shift = jax.random.uniform(shift_key, place.shape, minval=-1.0 if self.original else 0.0)
        shift = shift * params.spawn_jitter
        if not self.original:
            shift = jnp.clip(shift, 0.0, SPACING - chassis.size[:, :2])
        inset = place + shift + chassis.size[:, :2] / 2
        corner = self.bank.corners[map_index][self.team]
        far = jnp.stack([corner & 1, corner >> 1], -1) == 1
        planar = jnp.where(far, jnp.asarray(self.size[:2], jnp.float32) - inset, inset)
        towards = self.bank.zone[map_index, :2] - planar
        turn = jax.random.uniform(turn_key, number.shape, minval=-1.0) * params.yaw_jitter
        mechs = self.fresh(chassis).replace(
            position=jnp.concatenate([planar, chassis.size[:, 2:] / 2], -1).astype(jnp.float32),
            yaw=jnp.arctan2(towards[:, 1], towards[:, 0]) + turn,
        )
        return self.opened(map_index, mechs)

    def opened(self, map_index: jax.Array, mechs: Mechs) -> Battle:
        """Returns a battle of `mechs` before its first decision, on terrain `map_index`."""
        size = len(self.team)
        return Battle(
            mechs=mechs,
            projectiles=projectiles.no_projectiles(size),
            smoke=no_smoke(size),
            overlay=empty_overlay(self.bank.voxels.material.shape[1:], self.pages, self.damaged),
            map_index=jnp.asarray(map_index, jnp.int32),
            tally=damage.no_tally(size, self.logged),
        )

    def decide(self, key: jax.Array, battle: Battle, commands: jax.Array, params: EchelonParams) -> Battle:
        """Advances a battle by one decision.

        Args:
          key: random key, for leg hits, interceptions, the order of moving and wrecks.
          battle: the battle; `battle.mechs.focus` holds the preferred targets.
          commands: `[M, 9 or more]` in the order of `unit_tables.ACTIONS`; clipped to [-1, 1], non-finite
            numbers count as 0.
          params: parameters.
        """
        scene = self.scene(battle, params)
        orders = heat_and_stability.parse_commands(commands, params)
        mechs = _emit(battle.mechs, orders.base[:, SECONDARY], params)
        size = len(self.team)
        draws = jax.random.bits(key, (self.substeps + 1, _DRAWS, size), jnp.uint16).astype(jnp.int32)
        loose = _share(draws[0, 0]) >= scene.chassis.heavy_debris

        def substep(step, draws):
            return self._substep(scene, orders, loose, step, draws), None

        step = _Step(
            mechs=mechs,
            projectiles=battle.projectiles,
            smoke=battle.smoke,
            tally=damage.no_tally(size, self.logged),
            overlay=battle.overlay,
            ground=movement.ground_around(scene.terrain, mechs.position, self.substeps),
        )
        step, _ = lax.scan(substep, step, draws[1:])
        return battle.replace(
            mechs=step.mechs,
            projectiles=step.projectiles,
            smoke=step.smoke,
            overlay=step.overlay,
            tally=step.tally,
        )

    def _substep(self, scene: Scene, orders, loose: jax.Array, step: _Step, draws: jax.Array) -> _Step:
        scene = scene._replace(terrain=scene.terrain._replace(overlay=step.overlay))
        mechs, tally, flying = step.mechs, step.tally, step.projectiles
        smoke = age_smoke(step.smoke)
        foot = mechs.position.at[:, 2].add(-scene.chassis.size[:, 2] / 2)
        material = material_at(scene.terrain, foot.astype(jnp.int32))
        mechs, burnt = heat_and_stability.update_condition(mechs, scene.chassis, orders, material)
        mechs, tally = damage.mark_dead(mechs, tally.replace(taken=tally.taken + burnt))

        flying, smoke, impacts, effects, shot_down = projectiles.move_projectiles(
            scene, mechs, flying, smoke, _share(draws[:2].T)
        )
        mechs = projectiles.start_ams_cooldown(mechs, shot_down)
        tally = tally.replace(intercepted=tally.intercepted + shot_down)
        mechs, tally = damage.apply_effects(mechs, tally, effects, scene)

        mechs, flying, tally = weapons.fire_weapons(
            scene, mechs, flying, smoke, tally, orders, _share(draws[2]), self.original
        )
        died = step.mechs.alive & ~mechs.alive
        overlay, ground = terrain_destruction.update_terrain(scene, step.ground, mechs, died, loose, impacts)
        mechs = movement.accelerate_mechs(mechs, scene.chassis, orders, material == WATER, scene.gravity)
        mechs = movement.move_mechs(mechs, scene.chassis, ground, draws[3], self.size[:2], self.original)
        mechs = mechs.replace(noise=movement.movement_noise(mechs, scene.chassis))
        return _Step(mechs, flying, smoke, tally, overlay, ground)

    def fresh(self, chassis) -> Mechs:
        """Returns undamaged mechs at the origin."""
        size = len(self.team)
        nothing, timer, never = jnp.zeros(size), jnp.zeros(size, jnp.int32), jnp.zeros(size, bool)
        return Mechs(
            position=jnp.zeros((size, 3)),
            velocity=jnp.zeros((size, 3)),
            yaw=nothing,
            hp=chassis.hp,
            leg_hp=chassis.leg_hp,
            heat=nothing,
            stability=jnp.full(size, MAX_STABILITY, jnp.float32),
            fallen=timer,
            suppressed=timer,
            painted=timer,
            painter=jnp.full(size, NO_MECH, jnp.int32),
            cooldown=jnp.zeros((size, len(COOLDOWNS)), jnp.int32),
            focus=jnp.full(size, NO_MECH, jnp.int32),
            ecm=never,
            eccm=never,
            alive=~never,
            noise=nothing,
        )


def _share(draws: jax.Array) -> jax.Array:
    """Returns numbers in [0, 1) from 16 random bits each."""
    return draws.astype(jnp.float32) / 2**16


def _emit(mechs: Mechs, command: jax.Array, params: EchelonParams) -> Mechs:
    """Sets scouts' emitters: ECM for a secondary trigger in (0, 0.5], ECCM above 0.5."""
    scout = (params.classes == SCOUT) & mechs.alive
    return mechs.replace(ecm=scout & (command > 0) & (command <= 0.5), eccm=scout & (command > 0.5))
