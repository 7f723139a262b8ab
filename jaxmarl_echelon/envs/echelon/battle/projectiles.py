"""Projectiles: interception, guidance, flight, impact.

Most projectile slots of a battle are empty: slots in use are compacted into chunks, the same number for
all environments of a batch. Reference: docs/reference/echelon.md 6.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarl_echelon.envs.echelon.battle import damage, vectors
from jaxmarl_echelon.envs.echelon.battle.damage import Effects
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import is_shut_down
from jaxmarl_echelon.envs.echelon.battle.smoke import create_clouds
from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH, PROJECTILES_PER_MECH, Mechs, Projectiles, Smoke
from jaxmarl_echelon.envs.echelon.battle.surroundings import Scene
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    AMS_PERIOD,
    AMS_SLOT,
    AUTOCANNON,
    GAUSS,
    HEAVY,
    MISSILE,
    SMOKE,
    SUBSTEP,
    WEAPON,
    WEAPONS,
)
from physics.line_of_sight import find_first_voxel, is_sight_clear
from physics.sparse_batch import ActiveEntries, any_in_batch, compute_where, fold_active
from physics.voxels import box_collides

AMS_RANGE, AMS_CHANCE = 5.5, 0.6
STEERING = 4.0
NEAREST_STEERING = 0.1
# Slots of a mech's projectiles: shells of its cannon in the first two, missiles and smoke in the others.
SHELLS, TUBES = (0, 1), (2, 3)
BODY = 0.1
_STEP_BACK = 1e-4
_CAST_STEPS = 6
_SPLASH_STEPS = 6
_SPLASH_SHARE = 1 / 16


class Impacts(NamedTuple):
    """Impacts of projectiles during a substep.

    Attributes:
      kind: `[M, 4]` int32 kind of the projectile that ended, or -1.
      point: `[M, 4, 3]` position of its end.
      cell: `[M, 4, 3]` int32 voxel that it struck.
      struck: `[M, 4]` bool; it struck a voxel.
    """

    kind: jax.Array
    point: jax.Array
    cell: jax.Array
    struck: jax.Array


class _Shots(NamedTuple):
    """Q projectiles; `place` is their index among the `[M * 4]` slots, or M * 4 for padding."""

    place: jax.Array
    shooter: jax.Array
    position: jax.Array
    velocity: jax.Array
    kind: jax.Array
    target: jax.Array

    @property
    def exists(self) -> jax.Array:
        return self.kind != NO_MECH


class _Ends(NamedTuple):
    """Collisions of Q projectiles in this substep.

    ended `[Q]`: hits something; struck `[Q]`: hits the voxel `cell` `[Q, 3]`; direct `[Q]`: hits the
    mech `victim` `[Q]`; point `[Q, 3]`: position of the hit; centre `[Q, 3]`: of the explosion or cloud.
    """

    ended: jax.Array
    struck: jax.Array
    cell: jax.Array
    direct: jax.Array
    victim: jax.Array
    point: jax.Array
    centre: jax.Array


class _Round(NamedTuple):
    projectiles: Projectiles
    effects: Effects
    ams_ready: jax.Array
    impacts: Impacts
    cloud: jax.Array
    centre: jax.Array


def no_projectiles(mechs: int) -> Projectiles:
    """Returns empty projectile slots for `mechs` mechs."""
    shape = (mechs, PROJECTILES_PER_MECH)
    return Projectiles(
        position=jnp.zeros((*shape, 3)),
        velocity=jnp.zeros((*shape, 3)),
        age=jnp.zeros(shape, jnp.int32),
        kind=jnp.full(shape, NO_MECH, jnp.int32),
        target=jnp.full(shape, NO_MECH, jnp.int32),
    )


def _no_impacts(mechs: int) -> Impacts:
    shape = (mechs, PROJECTILES_PER_MECH)
    return Impacts(
        kind=jnp.full(shape, NO_MECH, jnp.int32),
        point=jnp.zeros((*shape, 3)),
        cell=jnp.zeros((*shape, 3), jnp.int32),
        struck=jnp.zeros(shape, bool),
    )


def move_projectiles(
    scene: Scene, mechs: Mechs, projectiles: Projectiles, smoke: Smoke, draws: jax.Array
) -> tuple[Projectiles, Smoke, Impacts, Effects, jax.Array]:
    """Advances all projectiles by one substep.

    Args:
      scene: surroundings.
      mechs: the mechs; effects are returned, not applied.
      projectiles: projectiles in flight.
      smoke: clouds.
      draws: `[M, 2]` uniform in [0, 1), for interceptions of each mech's two missiles.

    Returns:
      projectiles, smoke, impacts, effects, and bool `[M]`: the mech shot a missile down.
    """
    age = jnp.where(projectiles.kind != NO_MECH, projectiles.age + 1, 0)
    life = jnp.asarray(WEAPON.life)[jnp.maximum(projectiles.kind, 0)]
    kind = jnp.where(age > life, NO_MECH, projectiles.kind)
    projectiles = projectiles.replace(age=age, kind=kind)
    size = mechs.hp.shape[0]
    ready = mechs.alive & ~is_shut_down(mechs, scene.chassis) & (scene.classes == HEAVY)
    ready &= mechs.cooldown[:, AMS_SLOT] <= 0
    start = _Round(
        projectiles=projectiles,
        effects=damage.no_effects(size),
        ams_ready=ready,
        impacts=_no_impacts(size),
        cloud=jnp.zeros(size, bool),
        centre=jnp.zeros((size, 3)),
    )
    reach = _reach(scene, mechs)
    look, painted = damage.heading_vectors(mechs), damage.has_paint_bonus(mechs, scene)

    def work(active, carry):
        return _work(scene, mechs, reach, look, painted, draws, active, carry)

    room = max(4, size * 4 // 5)
    end = fold_active((kind != NO_MECH).ravel(), work, start, room, lockstep=True)
    smoke = create_clouds(smoke, end.cloud, end.centre)
    return end.projectiles, smoke, end.impacts, end.effects, ready & ~end.ams_ready


def start_ams_cooldown(mechs: Mechs, shot_down: jax.Array) -> Mechs:
    """Starts the cooldown of mechs `[M]` that shot a missile down."""
    slot = mechs.cooldown.at[:, AMS_SLOT]
    return mechs.replace(cooldown=slot.set(jnp.where(shot_down, AMS_PERIOD, mechs.cooldown[:, AMS_SLOT])))


def _reach(scene: Scene, _mechs: Mechs) -> jax.Array:
    """Returns the distance `[M]` to a mech's centre within which a projectile hits it."""
    return scene.chassis.size.max(-1) / 2


def _work(scene, mechs, reach, look, painted, draws, active: ActiveEntries, carry: _Round) -> _Round:
    """Advances one chunk of active projectiles."""
    size = mechs.hp.shape[0]
    shots = _gather(carry.projectiles, active.index)
    stopped, ready = _intercept(scene, mechs, carry.ams_ready, shots, draws)
    shots = shots._replace(kind=jnp.where(stopped, NO_MECH, shots.kind))
    shots = shots._replace(velocity=_steer(scene, mechs, shots))
    after = shots.position + shots.velocity * SUBSTEP
    ends = _collide(scene, mechs, reach, shots, after)
    effects = _harm(scene, mechs, look, painted, shots, ends)
    puffs = ends.ended & (shots.kind == SMOKE)
    owner = jnp.where(puffs, shots.shooter, size)
    moved = shots._replace(
        position=jnp.where(ends.ended[:, None], ends.point, after),
        kind=jnp.where(ends.ended, NO_MECH, shots.kind),
    )
    return _Round(
        projectiles=_scatter(carry.projectiles, moved),
        effects=damage.add_effects(carry.effects, effects),
        ams_ready=ready,
        impacts=_record(carry.impacts, shots, ends),
        cloud=carry.cloud.at[owner].set(True, mode="drop"),
        centre=carry.centre.at[owner].set(ends.centre, mode="drop"),
    )


def _gather(projectiles: Projectiles, place: jax.Array) -> _Shots:
    def pick(values, fill):
        flat = values.reshape(-1, *values.shape[2:])
        return flat.at[place].get(mode="fill", fill_value=fill)

    return _Shots(
        place=place,
        shooter=jnp.minimum(place, projectiles.kind.size - 1) // PROJECTILES_PER_MECH,
        position=pick(projectiles.position, 0.0),
        velocity=pick(projectiles.velocity, 0.0),
        kind=pick(projectiles.kind, NO_MECH),
        target=pick(projectiles.target, NO_MECH),
    )


def _scatter(projectiles: Projectiles, shots: _Shots) -> Projectiles:
    def put(values, new):
        flat = values.reshape(-1, *values.shape[2:])
        return flat.at[shots.place].set(new, mode="drop").reshape(values.shape)

    return projectiles.replace(
        position=put(projectiles.position, shots.position),
        velocity=put(projectiles.velocity, shots.velocity),
        kind=put(projectiles.kind, shots.kind),
    )


def _record(impacts: Impacts, shots: _Shots, ends: _Ends) -> Impacts:
    place = jnp.where(ends.ended, shots.place, impacts.kind.size)

    def put(values, new):
        flat = values.reshape(-1, *values.shape[2:])
        return flat.at[place].set(new, mode="drop").reshape(values.shape)

    return Impacts(
        kind=put(impacts.kind, shots.kind),
        point=put(impacts.point, ends.centre),
        cell=put(impacts.cell, ends.cell),
        struck=put(impacts.struck, ends.struck),
    )


def _intercept(scene, mechs, ready, shots: _Shots, draws) -> tuple[jax.Array, jax.Array]:
    """Returns bool `[Q]`, missiles shot down, and bool `[M]`, mechs still ready to intercept.

    At one missile after the other each defender in range that is still ready tries in turn: one geometric
    draw per missile selects the one that succeeds, if any.
    """
    apart = mechs.position - shots.position[:, None]
    near = vectors.squared_length(apart) <= AMS_RANGE**2
    defends = near & ready & (shots.kind == MISSILE)[:, None] & _enemies(scene, shots.shooter)
    draw = draws[shots.shooter, shots.place % len(TUBES)]
    failures = jnp.floor(jnp.log1p(-draw) / np.log(1 - AMS_CHANCE))[:, None]

    def shoot(spent):
        free = defends & ~spent
        return free & (_counted_before(free) == failures)

    def spend(succeeds):
        return _counted_before(succeeds.T).T > 0

    def settle(loop):
        spent = spend(loop[0])
        succeeds = shoot(spent)
        return succeeds, jnp.any((spend(succeeds) != spent) & defends)

    # Who has succeeded at an earlier missile does not try at later ones. Every pass settles at least one more
    # missile; where no two missiles have a defender in common, as mostly, there is none to be made.
    first = shoot(jnp.zeros_like(defends))
    succeeds, _ = lax.while_loop(
        lambda loop: any_in_batch(loop[1]), settle, (first, jnp.any(spend(first) & defends))
    )
    return succeeds.any(-1), ready & ~succeeds.any(0)


def _counted_before(mask: jax.Array) -> jax.Array:
    """Returns the number of true entries before each one along the last axis."""
    size = mask.shape[-1]
    return jnp.matmul(mask.astype(jnp.float32), np.triu(np.ones((size, size), np.float32), 1))


def _enemies(scene: Scene, shooter: jax.Array) -> jax.Array:
    """Returns bool `[Q, M]`: the mech is an enemy of the shooter `[Q]`."""
    return jnp.asarray(scene.team)[shooter][:, None] != scene.team


def _steer(scene, mechs, shots: _Shots) -> jax.Array:
    """Returns velocities after guidance and gravity."""
    target = jnp.maximum(shots.target, 0)
    to = mechs.position[target] - shots.position
    distance = vectors.vector_length(to)[:, None]
    speed = jnp.asarray(WEAPON.speed)[jnp.maximum(shots.kind, 0)][:, None]
    share = STEERING * SUBSTEP
    turned = (1 - share) * shots.velocity + share * speed * to / jnp.maximum(distance, NEAREST_STEERING)
    turned = vectors.unit_vectors(turned) * speed
    guided = (shots.kind == MISSILE) & (shots.target != NO_MECH) & mechs.alive[target]
    guided = guided[:, None] & (distance > NEAREST_STEERING)
    drop = jnp.where(shots.kind == GAUSS, scene.gravity * SUBSTEP, 0.0)
    return jnp.where(guided, turned, shots.velocity.at[:, 2].add(-drop))


def _collide(scene, mechs, reach, shots: _Shots, after: jax.Array) -> _Ends:
    """Returns the first collision of each projectile on the way to `after`."""
    way = after - shots.position
    to = mechs.position - shots.position[:, None]
    square = jnp.maximum(vectors.squared_length(way), 1e-12)
    share = jnp.clip(vectors.dot(to, way[:, None]) / square[:, None], 0.0, 1.0)
    miss = to - share[..., None] * way[:, None]
    meets = vectors.squared_length(miss) <= reach * reach
    meets &= _enemies(scene, shots.shooter) & mechs.alive & shots.exists[:, None]
    share = jnp.where(meets, share, 2.0)
    victim, share = vectors.argmin_and_min(share, -1)
    met = share <= 1
    closest = shots.position + jnp.where(met, share, 1.0)[:, None] * way
    end = jnp.where(met[:, None], closest, after)

    struck, entry, cell = find_first_voxel(scene.terrain, shots.position, end, steps=_CAST_STEPS)
    struck &= shots.exists
    touches = box_collides(scene.terrain, after - BODY, after + BODY, reach=2) & shots.exists & ~met & ~struck
    before = jnp.maximum(entry - _STEP_BACK, 0.0)[:, None]
    point = jnp.where(struck[:, None], shots.position + before * (end - shots.position), end)
    direct = met & ~struck
    return _Ends(
        ended=struck | direct | touches,
        struck=struck,
        cell=cell,
        direct=direct,
        victim=victim,
        point=point,
        centre=jnp.where(direct[:, None], mechs.position[victim], point),
    )


def _harm(scene, mechs, look, painted, shots: _Shots, ends: _Ends) -> Effects:
    """Returns the effects of direct hits and explosions on mechs."""
    size = mechs.hp.shape[0]
    kind = jnp.maximum(shots.kind, 0)
    victims = (ends.victim[:, None] == np.arange(size)) & ends.direct[:, None]
    factor = damage.rear_damage_factor(look[ends.victim], shots.velocity)
    base = jnp.asarray(WEAPON.damage)[kind] * factor
    feet = (mechs.position[:, 2] - scene.chassis.size[:, 2] / 2)[ends.victim]
    legs = ends.point[:, 2] < feet + damage.LEG_HEIGHT * scene.chassis.size[:, 2][ends.victim]
    bonus = painted[shots.shooter, ends.victim]
    body = base * jnp.where(legs, damage.LEG_SHARE, 1.0) * jnp.where(bonus, 1 + damage.PAINT_BONUS, 1.0)
    stability = jnp.asarray(WEAPON.stability)[kind]
    splashed = _splash(scene, mechs, shots, ends, victims)
    splash = jnp.asarray(WEAPON.splash_scale * WEAPON.damage)[kind]
    shock = jnp.asarray(WEAPON.splash_scale * WEAPON.stability)[kind]

    done = jnp.where(victims, body[:, None], 0.0) + jnp.where(splashed, splash[:, None], 0.0)
    shaken = jnp.where(victims, (stability * factor)[:, None], 0.0) + jnp.where(splashed, shock[:, None], 0.0)
    harmful = ends.direct & (shots.kind != SMOKE)
    weapons = (kind[:, None] == np.arange(len(WEAPONS))) & harmful[:, None]
    columns = jnp.concatenate([done, weapons.astype(jnp.float32)], -1)
    by_shooter = jnp.zeros((size, columns.shape[1])).at[shots.shooter].add(columns)
    painter = mechs.painter[ends.victim]
    helps = harmful & bonus & (painter != shots.shooter)
    return damage.no_effects(size)._replace(
        damage=by_shooter[:, :size],
        legs=vectors.sum_pairwise(jnp.where(victims & (legs & harmful)[:, None], base[:, None], 0.0), 0),
        stability=vectors.sum_pairwise(shaken, 0),
        suppressor=jnp.where(
            victims & (shots.kind == AUTOCANNON)[:, None], shots.shooter[:, None], NO_MECH
        ).max(0),
        assists=((painter[:, None] == np.arange(size)) & helps[:, None]).sum(0, dtype=jnp.int32),
        hits=by_shooter[:, size:].astype(jnp.int32),
    )


def _splash(scene, mechs, shots: _Shots, ends: _Ends, victims: jax.Array) -> jax.Array:
    """Returns bool `[Q, M]`: the mech is within an explosion's radius, with no opaque voxel in between."""
    explodes = ends.ended & ((shots.kind == MISSILE) | (shots.kind == GAUSS))
    radius = jnp.asarray(WEAPON.splash_radius)[jnp.maximum(shots.kind, 0)][:, None]
    apart = mechs.position - ends.centre[:, None]
    near = (vectors.squared_length(apart) <= radius * radius) & explodes[:, None] & mechs.alive & ~victims

    def uncovered(terrain, centre, position, near):
        ends = jnp.where(near[..., None], position, centre[:, None])
        return near & is_sight_clear(terrain, centre[:, None], ends, steps=_SPLASH_STEPS)

    return compute_where(
        uncovered,
        near.any(),
        jnp.zeros_like(near),
        scene.terrain,
        ends.centre,
        mechs.position,
        near,
        share=_SPLASH_SHARE,
    )
