"""Shaping: what each component of the reward pays every mech per decision, before weights.

Rates lie in [-1, 1] and are divided by the time limit, events are shares of an episode's total, so that the
sum of each over an episode is of the order of 1. Two components are differences of potentials (Ng, Harada
and Russell 1999, "Policy invariance under reward transformations", section 3): discounted, their sum over a
mech's life follows from where it starts and ends. Undiscounted sums of what they pay say little, so what is
reported of them is the growth of the potential (`growth`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import MAX_STABILITY
from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.measures.facts import Moment, News, within_area
from jaxmarl_echelon.envs.echelon.missions.types import COMPONENTS, Scenario
from jaxmarl_echelon.envs.echelon.missions.verbs.suppress import TARGET_TIME
from jaxmarl_echelon.envs.results import ratio

COOL = 0.75
NEAR, WIDE, LOST, LOST_CHARGE = 0.5, 1.5, 3.0, -0.5
STEP = 0.1
# Decisions without progress that count as dithering, 5 s.
PATIENCE = 20
# Components that are differences of potentials.
POTENTIALS = ("zone_progress", "mission_progress")


class Situation(NamedTuple):
    """A decision, as shaping sees it.

    Attributes:
      now: the world after it.
      before: mechs before it.
      news: what it added to the facts.
      scenario: the problem.
      gap: `[M]` distance to the objective as the stage began.
      potential: `[2, K]` progress of the missions before and after.
      over: bool; the episode ends with it.
      stalled: `[K]` decisions since progress last grew.
      orders: `[K]` what the parameters of the orders make of the reward.
      limit: decisions of the time limit.
      gamma: discount of a decision.
    """

    now: Moment
    before: Mechs
    news: News
    scenario: Scenario
    gap: jax.Array
    potential: jax.Array
    over: jax.Array
    stalled: jax.Array
    orders: weights.Orders
    limit: jax.Array
    gamma: jax.Array


def compute(it: Situation) -> jax.Array:
    """All components `[M, len(COMPONENTS)]`; 0 for mechs that did not live before the decision."""
    values = jnp.stack([_COMPONENTS[name](it) for name in COMPONENTS], axis=-1)
    return jnp.where(it.before.alive[:, None], values, 0.0)


def growth(it: Situation) -> dict[str, jax.Array]:
    """By how much the potentials of each mech that lived grew, `[M]`, by the component that they belong to.

    Charges that a component makes besides are included. Left out are the discount, which pays for the
    distance that is left with every decision, and what is given back at the end.
    """
    goes_on = it._replace(
        gamma=jnp.float32(1.0), over=jnp.bool_(False), now=it.now._replace(mechs=_lasting(it))
    )
    return {name: jnp.where(it.before.alive, _COMPONENTS[name](goes_on), 0.0) for name in POTENTIALS}


def survival(it: Situation) -> jax.Array:
    """Living, and a charge for dying that the loss appetite lowers."""
    died = it.before.alive & ~it.now.mechs.alive
    return it.now.mechs.alive / it.limit + jnp.where(died, it.orders.death[it.now.team], 0.0)


def damage_dealt(it: Situation) -> jax.Array:
    """Damage to enemies, as a share of all their hit points, times the own number."""
    team = it.now.team
    whole = it.scenario.hp[::-1][team]
    return ratio(it.scenario.strength[team] * it.now.tally.dealt, whole, 0.0)


def heat_management(it: Situation) -> jax.Array:
    """Full up to three quarters of the heat capacity, so that idleness is not paid; then less, down to 0."""
    heat = it.now.mechs.heat / it.now.chassis.heat_capacity
    return _living(it, jnp.clip((1.0 - heat) / (1.0 - COOL), 0.0, 1.0)) / it.limit


def pack_cohesion(it: Situation) -> jax.Array:
    """Keeping the spacing that the order asks for; a charge for being lost."""
    mechs, wanted = it.now.mechs, it.orders.spacing[it.now.team]
    gap, _ = squads.spread(mechs.position, mechs.alive, it.now.teams)
    good = (gap >= NEAR * wanted) & (gap <= WIDE * wanted)
    return _living(it, jnp.where(good, 1.0, jnp.where(gap > LOST * wanted, LOST_CHARGE, 0.0))) / it.limit


def zone_progress(it: Situation) -> jax.Array:
    """Coming nearer to the objective, as a difference of potentials."""
    before, after = _distances(it)
    scale = jnp.maximum(it.gap, it.now.order.zone[it.now.team, 2])
    return (before - it.gamma * after) / scale


def zone_control(it: Situation) -> jax.Array:
    """The own side's share of a full hold, for those in the objective."""
    return jnp.where(it.news.inside, it.news.tick[it.now.team], 0.0) / it.limit


def mission_progress(it: Situation) -> jax.Array:
    """Progress of the mission, as a difference of potentials; a charge for dithering under time pressure.

    A mech's potential is 0 once it has fallen, and after the end of the episode: who falls gives back what it
    was paid, as the survivors do at the end.
    """
    team = it.now.team
    left = jnp.where(it.now.mechs.alive & ~it.over, it.potential[1][team], 0.0)
    gained = it.gamma * left - it.potential[0][team]
    return gained + jnp.where(it.stalled >= PATIENCE, it.orders.dithering, 0.0)[team]


def stealth(it: Situation) -> jax.Array:
    """Not being tracked, while on task: hiding elsewhere pays nothing."""
    before, after = _distances(it)
    on_task = (before - after >= STEP) | within_area(it.now)
    return _living(it, (on_task & ~it.news.tracked).astype(jnp.float32)) / it.limit


def detection(it: Situation) -> jax.Array:
    """Enemies of which the mech had its squad's first confirmed track, as a share of all."""
    return ratio(it.news.found, it.scenario.strength[::-1][it.now.team].astype(jnp.float32), 0.0)


def suppression_effect(it: Situation) -> jax.Array:
    """Suppression of enemies credited to the mech, as a share of what is asked for."""
    asked = it.scenario.strength[::-1][it.now.team] * TARGET_TIME
    return ratio(it.news.pinning, asked, 0.0)


def resource_preservation(it: Situation) -> jax.Array:
    """Mean of heat headroom, hit points and stability."""
    mechs, chassis = it.now.mechs, it.now.chassis
    headroom = jnp.clip(1.0 - mechs.heat / chassis.heat_capacity, 0.0, 1.0)
    body = jnp.clip(mechs.hp / chassis.hp, 0.0, 1.0)
    return _living(it, (headroom + body + mechs.stability / MAX_STABILITY) / 3.0) / it.limit


_COMPONENTS = {
    function.__name__: function
    for function in (
        survival,
        damage_dealt,
        heat_management,
        pack_cohesion,
        zone_progress,
        zone_control,
        mission_progress,
        stealth,
        detection,
        suppression_effect,
        resource_preservation,
    )
}


def weights_by_verb(given: jax.Array, gates: jax.Array, orders: weights.Orders) -> jax.Array:
    """Weights `[K, C]` of the components under the verbs of both teams.

    Args:
      given: `[C]` before gates.
      gates: `[K, C]` rows of the teams' verbs.
      orders: `[K]` what the parameters make of the reward.
    """
    return weights.hurried(weights.verb_weights(given, gates), orders)


def _lasting(it: Situation) -> Mechs:
    """The mechs after the decision, as if none had fallen in it."""
    return it.now.mechs.replace(alive=it.before.alive)


def _living(it: Situation, values: jax.Array) -> jax.Array:
    return jnp.where(it.now.mechs.alive, values, 0.0)


def _distances(it: Situation) -> tuple[jax.Array, jax.Array]:
    """Planar distances `[M]` to the objective before and after."""
    goal = it.now.order.zone[it.now.team, :2]
    return (
        vectors.length(it.before.position[:, :2] - goal),
        vectors.length(it.now.mechs.position[:, :2] - goal),
    )
