"""Staged orders: the present order, readiness for the follow-on, and the change at GO.

The time of GO is not observable in advance. Reference: docs/reference/echelon.md 15.5.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos.masks import expand_mask
from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CLASSES, COOLDOWNS, TRIGGERS, WEAPON, ChassisTable
from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.measures.facts import AREA
from jaxmarl_echelon.envs.echelon.missions.state import NEVER, PARAMETERS, MechFacts, Order, Orders, TeamFacts
from jaxmarl_echelon.envs.echelon.settings import PERIOD

# Distance (voxels) to the new objective at which the squad's centre has arrived. The expected time of a
# follow-on is SLACK times the travel time at the slowest mech's speed, plus REACTION seconds.
ARRIVAL, SLACK, REACTION = 6.0, 1.5, 2.0
# Cooldowns in use by each class, `[4, 5]`: those of its weapons.
_USED = np.zeros((len(CLASSES), len(COOLDOWNS)), bool)
for _class, _weapon in np.argwhere(TRIGGERS >= 0):
    _USED[_class, WEAPON.slot[_weapon]] = True

# Facts of a stage, which are reset at GO; all others cover the whole episode.
_OF_STAGE = ("dealt", "rear", "pinning", "held", "shots", "hits", "seen_cover", "lone_cover")
_OF_TEAM_STAGE = (
    "elapsed", "capture", "captured", "alone", "contested", "covered", "exposure", "supported", "engaged",
    "waited", "tracked", "met", "entered",
)  # fmt: skip


class Readiness(NamedTuple):
    """Readiness of each squad for GO at present, `[K]` each, in [0, 1].

    Attributes:
      arrived: proximity of its centre to the objective.
      ready: mean over living mechs of heat headroom, hit points and share of cooled-down weapons.
      form: formation relative to the spacing of the order.
    """

    arrived: jax.Array
    ready: jax.Array
    form: jax.Array


def present_orders(orders: Orders, decision: jax.Array) -> Order:
    """Returns the present orders of both teams, after `decision` decisions."""
    went = decision >= orders.go
    stage = went.astype(jnp.int32)[:, None]

    def pick(values):
        index = expand_mask(stage, values.ndim)
        return jnp.take_along_axis(values, index, axis=1)[:, 0]

    zone = jnp.concatenate([pick(orders.objective), pick(orders.radius)[:, None]], axis=-1)
    return Order(pick(orders.verb), orders.parameters, zone, pick(orders.complexity), went)


def desired_spacing(parameters: jax.Array) -> jax.Array:
    """Returns the desired spacing `[K]` of orders with parameters `[K, 4]`, voxels."""
    values = dict(zip(PARAMETERS, parameters.T, strict=True))
    none = jnp.zeros_like(values["risk"])
    return weights.compute_order_terms(none, none, values["grouping"], jnp.float32(1)).spacing


def measure_readiness(
    mechs: Mechs, chassis: ChassisTable, classes: jax.Array, order: Order, teams: squads.TeamSizes
) -> Readiness:
    """Computes the readiness of both squads."""
    middle = squads.squad_centres(mechs.position, mechs.alive, teams)
    near = jnp.maximum(order.zone[:, 2], AREA)
    gap = vectors.vector_length(middle - order.zone[:, :2])
    used = jnp.asarray(_USED)[classes]
    cool = jnp.sum(used & (mechs.cooldown <= 0), axis=1) / jnp.maximum(jnp.sum(used, axis=1), 1)
    headroom = jnp.clip(1.0 - mechs.heat / chassis.heat_capacity, 0.0, 1.0)
    body = jnp.clip(mechs.hp / chassis.hp, 0.0, 1.0)
    own = jnp.where(mechs.alive, (headroom + body + cool) / 3.0, 0.0)
    living = squads.sum_by_team(mechs.alive, teams)
    _, mean = squads.squad_spread(mechs.position, mechs.alive, teams)
    some = living > 0
    return Readiness(
        arrived=jnp.where(some, jnp.clip(1.0 - (gap - near) / near, 0.0, 1.0), 0.0),
        ready=squads.sum_by_team(own, teams) / jnp.maximum(living, 1),
        form=jnp.where(
            some,
            jnp.clip(1.0 - jnp.maximum(mean / desired_spacing(order.parameters) - 1.0, 0.0), 0.0, 1.0),
            0.0,
        ),
    )


def first_act_done(
    act: jax.Array, mechs: Mechs, order: Order, by_team: TeamFacts, teams: squads.TeamSizes
) -> jax.Array:
    """Returns bool `[K]`: the present order's first act is done; with no enemy left, contact is arrival.

    Args:
      act: `[K]` int32 index into `verbs.verb.ACTS`.
      mechs: the mechs.
      order: present orders.
      by_team: facts of the stage.
      teams: mechs of both teams.
    """
    middle = squads.squad_centres(mechs.position, mechs.alive, teams)
    there = vectors.vector_length(middle - order.zone[:, :2]) < order.zone[:, 2] + ARRIVAL
    there &= squads.any_by_team(mechs.alive, teams)
    contact = by_team.met | (there & ~squads.any_by_team(mechs.alive, teams)[::-1])
    return jnp.stack([contact, by_team.entered, there])[act, np.arange(2)]


def update_stage(
    orders: Orders,
    order: Order,
    decision: jax.Array,
    act: jax.Array,
    mechs: Mechs,
    chassis: ChassisTable,
    classes: jax.Array,
    by_mech: MechFacts,
    by_team: TeamFacts,
    teams: squads.TeamSizes,
) -> tuple[MechFacts, TeamFacts]:
    """Records readiness until GO, resets the facts of the stage at GO, and times the follow-on's first act.

    Args:
      orders: orders of the episode.
      order: present orders at the start of the decision.
      decision: decisions taken.
      act: `[K]` index into `verbs.verb.ACTS` of the present verbs.
      mechs: after the decision.
      chassis: rows per mech.
      classes: `[M]`.
      by_mech: facts after the decision.
      by_team: facts after the decision.
      teams: mechs of both teams.
    """
    now = measure_readiness(mechs, chassis, classes, order, teams)
    goes = (decision >= orders.go) & ~order.went
    begins = order.went & (by_team.transit == NEVER) & first_act_done(act, mechs, order, by_team, teams)
    later = present_orders(orders, decision)
    by_team = by_team.replace(
        arrived=jnp.where(order.went, by_team.arrived, now.arrived),
        ready=jnp.where(order.went, by_team.ready, now.ready),
        form=jnp.where(order.went, by_team.form, now.form),
        transit=jnp.where(begins, by_team.elapsed, by_team.transit),
        reference=jnp.where(goes, _reference(mechs, chassis, later, teams), by_team.reference),
    )
    mine = goes[squads.team_numbers(teams)]
    gap = vectors.vector_length(mechs.position[:, :2] - later.zone[squads.team_numbers(teams), :2])
    by_mech = _anew(by_mech, _OF_STAGE, mine)
    by_mech = by_mech.replace(
        # Suppression of a mech belongs to the record of the other team.
        pinned=jnp.where(goes[::-1][squads.team_numbers(teams)], 0.0, by_mech.pinned),
        gap=jnp.where(mine, gap, by_mech.gap),
    )
    return by_mech, _anew(by_team, _OF_TEAM_STAGE, goes)


def _reference(mechs: Mechs, chassis: ChassisTable, order: Order, teams: squads.TeamSizes) -> jax.Array:
    """Returns the expected seconds `[K]` until a squad begins the follow-on."""
    middle = squads.squad_centres(mechs.position, mechs.alive, teams)
    speed = jnp.where(mechs.alive, chassis.max_speed, jnp.inf)
    slowest = jnp.stack([speed[: teams[0]].min(), speed[teams[0] :].min()])
    slowest = jnp.where(jnp.isfinite(slowest), slowest, 1.0)
    return SLACK * vectors.vector_length(middle - order.zone[:, :2]) / slowest + REACTION


def follow_on_promptness(by_team: TeamFacts) -> jax.Array:
    """Returns the promptness of the follow-ons, `[K]` in [0, 1]; 0 before their first acts."""
    taken = by_team.transit * PERIOD / jnp.maximum(by_team.reference, PERIOD)
    return jnp.where(by_team.transit == NEVER, 0.0, jnp.clip(1.0 - taken, 0.0, 1.0))


def _anew(facts, names, where: jax.Array):
    """Returns the facts with the fields `names` set to 0 where `where` holds."""
    old = {name: getattr(facts, name) for name in names}
    return facts.replace(**{name: jnp.where(where, jnp.zeros_like(v), v) for name, v in old.items()})
