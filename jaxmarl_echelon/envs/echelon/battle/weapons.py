"""Firing: lasers and flamers, missiles, cannons, painters, smoke, in this order.

Source: spec sections 3.2, 3.3 and 3.5.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmarl_echelon.envs.echelon.battle import damage, sensors, vectors
from jaxmarl_echelon.envs.echelon.battle.damage import Effects
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import Orders, is_shut_down
from jaxmarl_echelon.envs.echelon.battle.projectiles import SHELLS, TUBES
from jaxmarl_echelon.envs.echelon.battle.smoke import smoked
from jaxmarl_echelon.envs.echelon.battle.state import NOBODY, Mechs, Projectiles, Smoke, Tally
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
from physics.line_of_sight import sight_clear
from physics.sparse_batch import cond_any

FOCUS_CONE, NEAREST_CONE = 0.2, 0.1
SHELL_HEIGHT, TUBE_HEIGHT, LOFT = 0.8, 0.5, 0.5
_BEAMS = (LASER, FLAMER)
_SIGHTED = (LASER, FLAMER, PAINTER, MISSILE)
_SIGHT_SHARE = 1 / 8
_CLOSE = 1e-6
_FAR = np.float32(1e9)


class View(NamedTuple):
    """Geometry and sight between mechs at one instant; `[M, M]` each, from the first to the second.

    Attributes:
      offset: `[M, M, 3]` to the other.
      distance: in space.
      planar: along the ground.
      ahead: along the ground in the direction in which one looks.
      clear: bool; neither terrain nor smoke is in between, for enemies that a weapon may want to fire at.
      quality: `[M]` of the sensors.
    """

    offset: jax.Array
    distance: jax.Array
    planar: jax.Array
    ahead: jax.Array
    clear: jax.Array
    quality: jax.Array

    def within(self, half_arc: float) -> jax.Array:
        """`[M, M]` bool; the bearing error is at most `half_arc` rad."""
        return (self.ahead >= np.cos(half_arc) * self.planar) | (self.planar <= _CLOSE)


class Launch(NamedTuple):
    """Projectiles that start now, one per mech at most; all `[M, ...]`, valid where `fires`."""

    fires: jax.Array
    kind: jax.Array
    position: jax.Array
    velocity: jax.Array
    target: jax.Array


def fire(
    scene: Scene,
    mechs: Mechs,
    projectiles: Projectiles,
    smoke: Smoke,
    tally: Tally,
    orders: Orders,
    draws: jax.Array,
    ordered: bool,
) -> tuple[Mechs, Projectiles, Tally]:
    """One substep of all weapons.

    Args:
      scene: surroundings.
      mechs: the mechs.
      projectiles: those in flight.
      smoke: clouds.
      tally: of the decision so far.
      orders: commands of the mechs.
      draws: `[M]` uniform in [0, 1): whether lasers (near 0) and flamers (near 1) hit legs.
      ordered: mechs fire one after another in the order of their indices, and each weapon takes
        effect at once. Otherwise all see the state before any fired.
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
            total = damage.together(total, effects)
        mechs, tally = damage.apply(mechs, tally, total, scene)
        return mechs, projectiles, tally

    def turn(carry, who):
        mechs, projectiles, tally = carry
        for _, stage in _STAGES:
            mechs, projectiles, tally, effects = stage(
                scene, view, mechs, projectiles, tally, orders, draws, who
            )
            mechs, tally = damage.apply(mechs, tally, effects, scene)
        return (mechs, projectiles, tally), None

    return lax.scan(turn, (mechs, projectiles, tally), jnp.eye(size, dtype=bool))[0]


def _rest(scene, view, mechs, projectiles, tally, orders, draws, who):
    return mechs, projectiles, tally, damage.no_effects(mechs.hp.shape[0])


def _look(scene: Scene, mechs: Mechs, smoke: Smoke, orders: Orders) -> View:
    offset = mechs.position - mechs.position[:, None]
    planar = vectors.length(offset[..., :2])
    view = View(
        offset=offset,
        distance=vectors.length(offset),
        planar=planar,
        ahead=vectors.dot(offset[..., :2], damage.heading(mechs)[:, None]),
        clear=jnp.zeros(planar.shape, bool),
        quality=sensors.quality(mechs, scene.team, scene.chassis)[0],
    )
    # Of a mech's weapons that need sight, the longest range and the widest arc.
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
    """`[M, M]` bool; the wanted lines of sight that are clear."""
    one, other = np.nonzero(np.triu(scene.enemies))
    looks = (wanted | wanted.T)[one, other]
    start = position[one]
    end = jnp.where(looks[:, None], position[other], start)
    clear = looks & sight_clear(scene.terrain, start, end, share=_SIGHT_SHARE)
    clear &= ~smoked(smoke, start, end, clear)
    either = jnp.zeros(wanted.shape, bool).at[one, other].set(clear)
    return wanted & (either | either.T)


def _can_fire(scene: Scene, mechs: Mechs, orders: Orders, weapon: int) -> jax.Array:
    """`[M]` bool; alive, not shut down, triggered and cooled down."""
    ready = mechs.cooldown[:, WEAPON.slot[weapon]] <= 0
    return orders.triggers[:, weapon] & ready & mechs.alive & ~is_shut_down(mechs, scene.chassis)


def _choose(mechs: Mechs, view: View, passes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The nearest target `[M]` that `passes` `[M, M]`, the focus among equals; and whether there is one."""
    distance = jnp.where(passes, view.distance, _FAR)
    target, nearest = vectors.lowest(distance, -1)
    focus = jnp.maximum(mechs.focus, 0)
    focused = jnp.take_along_axis(distance, focus[:, None], 1)[:, 0]
    prefers = (mechs.focus != NOBODY) & (focused <= nearest)
    return jnp.where(prefers, focus, target), nearest < _FAR


def _spend(mechs: Mechs, tally: Tally, weapon: int, fires: jax.Array) -> tuple[Mechs, Tally]:
    """Adds heat, cooldown and count of a shot."""
    slot = WEAPON.slot[weapon]
    waiting = fires[:, None] & (np.arange(len(COOLDOWNS)) == slot)
    shots = fires[:, None] & (np.arange(len(WEAPONS)) == weapon)
    spent = mechs.replace(
        heat=mechs.heat + jnp.where(fires, WEAPON.heat[weapon], 0.0),
        cooldown=jnp.where(waiting, WEAPON.period[weapon], mechs.cooldown),
    )
    return spent, tally.replace(shots=tally.shots + shots)


def _launch(projectiles: Projectiles, launch: Launch, places: tuple[int, int]) -> Projectiles:
    """Puts new projectiles into the first free one of two places."""
    place = jnp.where(projectiles.kind[:, places[0]] == NOBODY, *places)
    here = launch.fires[:, None] & (place[:, None] == np.arange(projectiles.kind.shape[1]))
    return Projectiles(
        position=jnp.where(here[..., None], launch.position[:, None], projectiles.position),
        velocity=jnp.where(here[..., None], launch.velocity[:, None], projectiles.velocity),
        age=jnp.where(here, 0, projectiles.age),
        kind=jnp.where(here, launch.kind[:, None], projectiles.kind),
        target=jnp.where(here, launch.target[:, None], projectiles.target),
    )


def _above(mechs: Mechs, scene: Scene, share: float, extra: float = 0.0) -> jax.Array:
    """Points `[M, 3]` above the centres by a share of half the height, and `extra`."""
    return mechs.position.at[:, 2].add(share * scene.chassis.size[:, 2] / 2 + extra)


def _beams(scene, view, mechs, projectiles, tally, orders, draws, who):
    able = [who & _can_fire(scene, mechs, orders, weapon) for weapon in _BEAMS]
    look, painted = damage.heading(mechs), damage.on_painted(mechs, scene)
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
        total = damage.together(total, effects)
    return mechs, projectiles, tally, total


def _burn(mechs, view, look, painted, weapon, fires, target, legs) -> Effects:
    """Effects of a laser or a flamer."""
    size = mechs.hp.shape[0]
    hit = fires[:, None] & (target[:, None] == np.arange(size))
    offset = jnp.take_along_axis(view.offset, target[:, None, None], 1)[:, 0]
    bonus = jnp.take_along_axis(painted, target[:, None], 1)[:, 0]
    whole = WEAPON.damage[weapon] * damage.from_behind(look[target], offset)
    whole = whole * jnp.where(bonus, 1 + damage.PAINT_BONUS, 1.0)
    body = whole * jnp.where(legs, damage.LEG_SHARE, 1.0)
    painter = mechs.painter[target]
    helps = fires & bonus & (painter != np.arange(size))
    hits = fires[:, None] & (np.arange(len(WEAPONS)) == weapon)
    return damage.no_effects(size)._replace(
        damage=jnp.where(hit, body[:, None], 0.0),
        legs=vectors.total(jnp.where(hit & legs[:, None], whole[:, None], 0.0), 0),
        heat=vectors.total(jnp.where(hit, WEAPON.target_heat[weapon], 0.0), 0),
        assists=((painter[:, None] == np.arange(size)) & helps[:, None]).sum(0, dtype=jnp.int32),
        hits=hits.astype(jnp.int32),
    )


def _missiles(scene, view, mechs, projectiles, tally, orders, draws, who):
    painted = damage.on_painted(mechs, scene) & (view.quality >= sensors.LOCK_QUALITY)[:, None]
    locks = (painted & (view.distance <= WEAPON.range[MISSILE])) | (
        view.clear & (view.distance <= MISSILE_SIGHT_RANGE)
    )
    passes = scene.enemies & mechs.alive & locks & view.within(WEAPON.half_arc[MISSILE])
    target, found = _choose(mechs, view, passes)
    fires = who & found & _can_fire(scene, mechs, orders, MISSILE)
    offset = jnp.take_along_axis(view.offset, target[:, None, None], 1)[:, 0]
    velocity = vectors.unit(vectors.unit(offset).at[:, 2].add(LOFT)) * WEAPON.speed[MISSILE]
    launch = Launch(
        fires=fires,
        kind=jnp.full_like(target, MISSILE),
        position=_above(mechs, scene, 1.0, TUBE_HEIGHT),
        velocity=velocity,
        target=target,
    )
    mechs, tally = _spend(mechs, tally, MISSILE, fires)
    return mechs, _launch(projectiles, launch, TUBES), tally, damage.no_effects(mechs.hp.shape[0])


def _cannons(scene, view, mechs, projectiles, tally, orders, draws, who):
    standing = who & (mechs.fallen == 0)
    gauss = standing & _can_fire(scene, mechs, orders, GAUSS)
    autocannon = standing & _can_fire(scene, mechs, orders, AUTOCANNON)
    kind = jnp.where(gauss, GAUSS, AUTOCANNON)
    target, found = _aim(scene, view, mechs, jnp.asarray(WEAPON.range)[kind])
    start = _above(mechs, scene, SHELL_HEIGHT)
    aim = mechs.position[target] - start
    speed = jnp.asarray(WEAPON.speed)[kind]
    drop = 0.5 * scene.gravity * vectors.square(aim) / (speed * speed)
    aim = aim.at[:, 2].add(jnp.where(gauss, drop, 0.0))
    level = jnp.concatenate([damage.heading(mechs), jnp.zeros((kind.size, 1))], -1)
    velocity = vectors.unit(jnp.where(found[:, None], aim, level)) * speed[:, None]
    launch = Launch(gauss | autocannon, kind, start, velocity, jnp.full_like(target, NOBODY))
    mechs, tally = _spend(mechs, tally, GAUSS, gauss)
    mechs, tally = _spend(mechs, tally, AUTOCANNON, autocannon & ~gauss)
    return mechs, _launch(projectiles, launch, SHELLS), tally, damage.no_effects(kind.size)


def _aim(scene, view, mechs, reach) -> tuple[jax.Array, jax.Array]:
    """Targets of cannons: the focus in a wide cone, or an enemy in a narrow one that is nearer."""
    enemies = scene.enemies & mechs.alive
    is_focus = (mechs.focus[:, None] == np.arange(reach.size)) & enemies
    in_reach = view.distance <= reach[:, None]
    focus = is_focus & in_reach & view.within(FOCUS_CONE)
    nearer = enemies & ~is_focus & in_reach & view.within(NEAREST_CONE)
    return _choose(mechs, view, focus | nearer)


def _painters(scene, view, mechs, projectiles, tally, orders, draws, who):
    passes = scene.enemies & mechs.alive & view.clear & (view.distance <= WEAPON.range[PAINTER])
    target, found = _choose(mechs, view, passes & view.within(WEAPON.half_arc[PAINTER]))
    fires = who & found & _can_fire(scene, mechs, orders, PAINTER)
    mechs, tally = _spend(mechs, tally, PAINTER, fires)
    size = target.size
    hit = fires[:, None] & (target[:, None] == np.arange(size))
    painter = jnp.where(hit, np.arange(size, dtype=np.int32)[:, None], NOBODY).max(0)
    return mechs, projectiles, tally, damage.no_effects(size)._replace(painter=painter)


def _smokes(scene, view, mechs, projectiles, tally, orders, draws, who):
    fires = who & _can_fire(scene, mechs, orders, SMOKE)
    focus = jnp.maximum(mechs.focus, 0)
    offset = jnp.take_along_axis(view.offset, focus[:, None, None], 1)[:, 0]
    distance, planar = (jnp.take_along_axis(v, focus[:, None], 1)[:, 0] for v in (view.distance, view.planar))
    aims = (
        (mechs.focus != NOBODY) & mechs.alive[focus] & (distance <= WEAPON.range[SMOKE]) & (planar > _CLOSE)
    )
    direction = jnp.where(aims[:, None], vectors.unit(offset[:, :2]), damage.heading(mechs))
    launch = Launch(
        fires=fires,
        kind=jnp.full_like(focus, SMOKE),
        position=_above(mechs, scene, 1.0),
        velocity=jnp.concatenate([direction, jnp.zeros((focus.size, 1))], -1) * WEAPON.speed[SMOKE],
        target=jnp.full_like(focus, NOBODY),
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
