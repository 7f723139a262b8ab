"""Weapons fire: lasers and flamers, missiles, cannons, painters, smoke, in this order.

Reference: docs/reference/echelon.md 5.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarl_echelon.envs.echelon.battle import damage, sensors, vectors
from jaxmarl_echelon.envs.echelon.battle.damage import Effects
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import MechCommands, is_shut_down
from jaxmarl_echelon.envs.echelon.battle.projectiles import SHELLS, TUBES
from jaxmarl_echelon.envs.echelon.battle.smoke import find_smoke_blocked
from jaxmarl_echelon.envs.echelon.battle.state import NO_MECH, Mechs, Projectiles, Smoke, Tally
from jaxmarl_echelon.envs.echelon.battle.surroundings import Scene
from jaxmarl_echelon.envs.echelon.battle.unit_tables import (
    AUTOCANNON,
    COOLDOWNS,
    FLAMER,
    GAUSS,
    LASER,
    MISSILE,
    MISSILE_SIGHT_RANGE,
    PAINTER,
    SMOKE,
    WEAPON,
    WEAPONS,
)
from physics.line_of_sight import is_sight_clear
from physics.sparse_batch import cond_any

FOCUS_CONE, NEAREST_CONE = 0.2, 0.1
SHELL_HEIGHT, TUBE_HEIGHT, LOFT = 0.8, 0.5, 0.5
_BEAMS = (LASER, FLAMER)
_SIGHTED = (LASER, FLAMER, PAINTER, MISSILE)
_SIGHT_SHARE = 1 / 8
_CLOSE = 1e-6
_FAR = np.float32(1e9)


class TargetView(NamedTuple):
    """Geometry and sight between mechs at one instant; `[M, M]` from viewer (first) to target (second).

    Attributes:
      offset: `[M, M, 3]` vector to the target.
      distance: length of the offset.
      planar: length of its x and y part.
      ahead: component of that part along the viewer's heading.
      clear: bool; neither terrain nor smoke in between; tested only for enemies that a weapon could hit.
      quality: `[M]` sensor quality.
    """

    offset: jax.Array
    distance: jax.Array
    planar: jax.Array
    ahead: jax.Array
    clear: jax.Array
    quality: jax.Array

    def within(self, half_arc: float) -> jax.Array:
        """Returns bool `[M, M]`: the bearing error of the target is at most `half_arc` rad."""
        return (self.ahead >= np.cos(half_arc) * self.planar) | (self.planar <= _CLOSE)


class Launch(NamedTuple):
    """Projectiles launched now, at most one per mech; all `[M, ...]`, valid where `fires`."""

    fires: jax.Array
    kind: jax.Array
    position: jax.Array
    velocity: jax.Array
    target: jax.Array


def fire_weapons(
    scene: Scene,
    mechs: Mechs,
    projectiles: Projectiles,
    smoke: Smoke,
    tally: Tally,
    orders: MechCommands,
    draws: jax.Array,
    ordered: bool,
) -> tuple[Mechs, Projectiles, Tally]:
    """Fires all weapons for one substep.

    Args:
      scene: surroundings.
      mechs: the mechs.
      projectiles: projectiles in flight.
      smoke: clouds.
      tally: statistics of the decision so far.
      orders: commands of the mechs.
      draws: `[M]` uniform in [0, 1): low values are leg hits of lasers, high values of flamers.
      ordered: mechs fire one after another in the order of their indices, and each weapon takes
        effect immediately. Otherwise all weapons of the substep see the same state.
    """
    view = _look(scene, mechs, smoke, orders)
    size = mechs.hp.shape[0]
    if not ordered:
        everybody, total = jnp.ones(size, bool), damage.no_effects(size)
        for weapons, stage in _STAGES:
            pulled = orders.triggers[:, weapons].any() & mechs.alive.any()
            mechs, projectiles, tally, effects = cond_any(
                pulled, stage, _rest, scene, view, mechs, projectiles, tally, orders, draws, everybody
            )
            total = damage.add_effects(total, effects)
        mechs, tally = damage.apply_effects(mechs, tally, total, scene)
        return mechs, projectiles, tally

    def turn(carry, who):
        mechs, projectiles, tally = carry
        for _, stage in _STAGES:
            mechs, projectiles, tally, effects = stage(
                scene, view, mechs, projectiles, tally, orders, draws, who
            )
            mechs, tally = damage.apply_effects(mechs, tally, effects, scene)
        return (mechs, projectiles, tally), None

    return lax.scan(turn, (mechs, projectiles, tally), jnp.eye(size, dtype=bool))[0]


def _rest(_scene, _view, mechs, projectiles, tally, _orders, _draws, _who):
    return mechs, projectiles, tally, damage.no_effects(mechs.hp.shape[0])


def _look(scene: Scene, mechs: Mechs, smoke: Smoke, orders: MechCommands) -> TargetView:
    offset = mechs.position - mechs.position[:, None]
    planar = vectors.vector_length(offset[..., :2])
    view = TargetView(
        offset=offset,
        distance=vectors.vector_length(offset),
        planar=planar,
        ahead=vectors.dot(offset[..., :2], damage.heading_vectors(mechs)[:, None]),
        clear=jnp.zeros(planar.shape, bool),
        quality=sensors.compute_sensor_quality(mechs, scene.team, scene.chassis)[0],
    )
    # Longest range and widest arc among a mech's weapons that need a line of sight.
    reach, arc = jnp.full(mechs.hp.shape, -1.0), jnp.ones(mechs.hp.shape)
    for weapon in _SIGHTED:
        fires = _can_fire(scene, mechs, orders, weapon)
        longest = MISSILE_SIGHT_RANGE if weapon == MISSILE else WEAPON.range[weapon]
        reach = jnp.where(fires, jnp.maximum(reach, longest), reach)
        arc = jnp.where(fires, jnp.minimum(arc, np.cos(WEAPON.half_arc[weapon])), arc)
    faces = (view.ahead >= arc[:, None] * planar) | (planar <= _CLOSE)
    wanted = (view.distance <= reach[:, None]) & faces & scene.enemies & mechs.alive
    return view._replace(clear=_sight(scene, mechs.position, smoke, wanted))


def _sight(scene: Scene, position: jax.Array, smoke: Smoke, wanted: jax.Array) -> jax.Array:
    """Returns bool `[M, M]`: the requested lines of sight that are clear."""
    one, other = np.nonzero(np.triu(scene.enemies))
    looks = (wanted | wanted.T)[one, other]
    start = position[one]
    end = jnp.where(looks[:, None], position[other], start)
    clear = looks & is_sight_clear(scene.terrain, start, end, share=_SIGHT_SHARE)
    clear &= ~find_smoke_blocked(smoke, start, end, clear)
    either = jnp.zeros(wanted.shape, bool).at[one, other].set(clear)
    return wanted & (either | either.T)


def _can_fire(scene: Scene, mechs: Mechs, orders: MechCommands, weapon: int) -> jax.Array:
    """Returns bool `[M]`: alive, not shut down, triggered and cooled down."""
    ready = mechs.cooldown[:, WEAPON.slot[weapon]] <= 0
    return orders.triggers[:, weapon] & ready & mechs.alive & ~is_shut_down(mechs, scene.chassis)


def _choose(mechs: Mechs, view: TargetView, passes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the nearest target `[M]` that `passes` `[M, M]` (focus wins ties), and whether one exists."""
    distance = jnp.where(passes, view.distance, _FAR)
    target, nearest = vectors.argmin_and_min(distance, -1)
    focus = jnp.maximum(mechs.focus, 0)
    focused = jnp.take_along_axis(distance, focus[:, None], 1)[:, 0]
    prefers = (mechs.focus != NO_MECH) & (focused <= nearest)
    return jnp.where(prefers, focus, target), nearest < _FAR


def _spend(mechs: Mechs, tally: Tally, weapon: int, fires: jax.Array) -> tuple[Mechs, Tally]:
    """Adds heat and cooldown of a shot, and counts it."""
    slot = WEAPON.slot[weapon]
    waiting = fires[:, None] & (np.arange(len(COOLDOWNS)) == slot)
    shots = fires[:, None] & (np.arange(len(WEAPONS)) == weapon)
    spent = mechs.replace(
        heat=mechs.heat + jnp.where(fires, WEAPON.heat[weapon], 0.0),
        cooldown=jnp.where(waiting, WEAPON.period[weapon], mechs.cooldown),
    )
    return spent, tally.replace(shots=tally.shots + shots)


def _launch(projectiles: Projectiles, launch: Launch, places: tuple[int, int]) -> Projectiles:
    """Stores new projectiles in the first free one of two slots."""
    place = jnp.where(projectiles.kind[:, places[0]] == NO_MECH, *places)
    here = launch.fires[:, None] & (place[:, None] == np.arange(projectiles.kind.shape[1]))
    return Projectiles(
        position=jnp.where(here[..., None], launch.position[:, None], projectiles.position),
        velocity=jnp.where(here[..., None], launch.velocity[:, None], projectiles.velocity),
        age=jnp.where(here, 0, projectiles.age),
        kind=jnp.where(here, launch.kind[:, None], projectiles.kind),
        target=jnp.where(here, launch.target[:, None], projectiles.target),
    )


def _above(mechs: Mechs, scene: Scene, share: float, extra: float = 0.0) -> jax.Array:
    """Returns points `[M, 3]` above the centres, by a share of half the height plus `extra`."""
    return mechs.position.at[:, 2].add(share * scene.chassis.size[:, 2] / 2 + extra)


def _beams(scene, view, mechs, projectiles, tally, orders, draws, who):
    able = [who & _can_fire(scene, mechs, orders, weapon) for weapon in _BEAMS]
    look, painted = damage.heading_vectors(mechs), damage.has_paint_bonus(mechs, scene)
    targets = scene.enemies & mechs.alive & view.clear
    total = damage.no_effects(mechs.hp.shape[0])
    before = mechs
    legs = draws < damage.LEG_CHANCE, draws >= 1 - damage.LEG_CHANCE
    for beam, (weapon, ready) in enumerate(zip(_BEAMS, able, strict=True)):
        near = (view.distance <= WEAPON.range[weapon]) & view.within(WEAPON.half_arc[weapon])
        target, found = _choose(before, view, targets & near)
        fires = ready & found
        mechs, tally = _spend(mechs, tally, weapon, fires)
        effects = _burn(before, view, look, painted, weapon, fires, target, legs[beam])
        total = damage.add_effects(total, effects)
    return mechs, projectiles, tally, total


def _burn(mechs, view, look, painted, weapon, fires, target, legs) -> Effects:
    """Returns the effects of a laser or a flamer."""
    size = mechs.hp.shape[0]
    hit = fires[:, None] & (target[:, None] == np.arange(size))
    offset = jnp.take_along_axis(view.offset, target[:, None, None], 1)[:, 0]
    bonus = jnp.take_along_axis(painted, target[:, None], 1)[:, 0]
    whole = WEAPON.damage[weapon] * damage.rear_damage_factor(look[target], offset)
    whole = whole * jnp.where(bonus, 1 + damage.PAINT_BONUS, 1.0)
    body = whole * jnp.where(legs, damage.LEG_SHARE, 1.0)
    painter = mechs.painter[target]
    helps = fires & bonus & (painter != np.arange(size))
    hits = fires[:, None] & (np.arange(len(WEAPONS)) == weapon)
    return damage.no_effects(size)._replace(
        damage=jnp.where(hit, body[:, None], 0.0),
        legs=vectors.sum_pairwise(jnp.where(hit & legs[:, None], whole[:, None], 0.0), 0),
        heat=vectors.sum_pairwise(jnp.where(hit, WEAPON.target_heat[weapon], 0.0), 0),
        assists=((painter[:, None] == np.arange(size)) & helps[:, None]).sum(0, dtype=jnp.int32),
        hits=hits.astype(jnp.int32),
    )


def _missiles(scene, view, mechs, projectiles, tally, orders, _draws, who):
    painted = damage.has_paint_bonus(mechs, scene) & (view.quality >= sensors.LOCK_QUALITY)[:, None]
    locks = (painted & (view.distance <= WEAPON.range[MISSILE])) | (
        view.clear & (view.distance <= MISSILE_SIGHT_RANGE)
    )
    passes = scene.enemies & mechs.alive & locks & view.within(WEAPON.half_arc[MISSILE])
    target, found = _choose(mechs, view, passes)
    fires = who & found & _can_fire(scene, mechs, orders, MISSILE)
    offset = jnp.take_along_axis(view.offset, target[:, None, None], 1)[:, 0]
    velocity = vectors.unit_vectors(vectors.unit_vectors(offset).at[:, 2].add(LOFT)) * WEAPON.speed[MISSILE]
    launch = Launch(
        fires=fires,
        kind=jnp.full_like(target, MISSILE),
        position=_above(mechs, scene, 1.0, TUBE_HEIGHT),
        velocity=velocity,
        target=target,
    )
    mechs, tally = _spend(mechs, tally, MISSILE, fires)
    return mechs, _launch(projectiles, launch, TUBES), tally, damage.no_effects(mechs.hp.shape[0])


def _cannons(scene, view, mechs, projectiles, tally, orders, _draws, who):
    standing = who & (mechs.fallen == 0)
    gauss = standing & _can_fire(scene, mechs, orders, GAUSS)
    autocannon = standing & _can_fire(scene, mechs, orders, AUTOCANNON)
    kind = jnp.where(gauss, GAUSS, AUTOCANNON)
    target, found = _aim(scene, view, mechs, jnp.asarray(WEAPON.range)[kind])
    start = _above(mechs, scene, SHELL_HEIGHT)
    aim = mechs.position[target] - start
    speed = jnp.asarray(WEAPON.speed)[kind]
    drop = 0.5 * scene.gravity * vectors.squared_length(aim) / (speed * speed)
    aim = aim.at[:, 2].add(jnp.where(gauss, drop, 0.0))
    level = jnp.concatenate([damage.heading_vectors(mechs), jnp.zeros((kind.size, 1))], -1)
    velocity = vectors.unit_vectors(jnp.where(found[:, None], aim, level)) * speed[:, None]
    launch = Launch(gauss | autocannon, kind, start, velocity, jnp.full_like(target, NO_MECH))
    mechs, tally = _spend(mechs, tally, GAUSS, gauss)
    mechs, tally = _spend(mechs, tally, AUTOCANNON, autocannon & ~gauss)
    return mechs, _launch(projectiles, launch, SHELLS), tally, damage.no_effects(kind.size)


def _aim(scene, view, mechs, reach) -> tuple[jax.Array, jax.Array]:
    """Returns targets of cannons: the focus within a wide cone, or a nearer enemy within a narrow one."""
    enemies = scene.enemies & mechs.alive
    is_focus = (mechs.focus[:, None] == np.arange(reach.size)) & enemies
    in_reach = view.distance <= reach[:, None]
    focus = is_focus & in_reach & view.within(FOCUS_CONE)
    nearer = enemies & ~is_focus & in_reach & view.within(NEAREST_CONE)
    return _choose(mechs, view, focus | nearer)


def _painters(scene, view, mechs, projectiles, tally, orders, _draws, who):
    passes = scene.enemies & mechs.alive & view.clear & (view.distance <= WEAPON.range[PAINTER])
    target, found = _choose(mechs, view, passes & view.within(WEAPON.half_arc[PAINTER]))
    fires = who & found & _can_fire(scene, mechs, orders, PAINTER)
    mechs, tally = _spend(mechs, tally, PAINTER, fires)
    size = target.size
    hit = fires[:, None] & (target[:, None] == np.arange(size))
    painter = jnp.where(hit, np.arange(size, dtype=np.int32)[:, None], NO_MECH).max(0)
    return mechs, projectiles, tally, damage.no_effects(size)._replace(painter=painter)


def _smokes(scene, view, mechs, projectiles, tally, orders, _draws, who):
    fires = who & _can_fire(scene, mechs, orders, SMOKE)
    focus = jnp.maximum(mechs.focus, 0)
    offset = jnp.take_along_axis(view.offset, focus[:, None, None], 1)[:, 0]
    distance, planar = (jnp.take_along_axis(v, focus[:, None], 1)[:, 0] for v in (view.distance, view.planar))
    aims = (
        (mechs.focus != NO_MECH) & mechs.alive[focus] & (distance <= WEAPON.range[SMOKE]) & (planar > _CLOSE)
    )
    direction = jnp.where(aims[:, None], vectors.unit_vectors(offset[:, :2]), damage.heading_vectors(mechs))
    launch = Launch(
        fires=fires,
        kind=jnp.full_like(focus, SMOKE),
        position=_above(mechs, scene, 1.0),
        velocity=jnp.concatenate([direction, jnp.zeros((focus.size, 1))], -1) * WEAPON.speed[SMOKE],
        target=jnp.full_like(focus, NO_MECH),
    )
    mechs, tally = _spend(mechs, tally, SMOKE, fires)
    return mechs, _launch(projectiles, launch, TUBES), tally, damage.no_effects(focus.size)


_STAGES = (
    (np.array(_BEAMS), _beams),
    (np.array([MISSILE]), _missiles),
    (np.array([GAUSS, AUTOCANNON]), _cannons),
    (np.array([PAINTER]), _painters),
    (np.array([SMOKE]), _smokes),
)
