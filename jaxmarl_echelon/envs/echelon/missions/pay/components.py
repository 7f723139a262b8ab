"""Shaping components of the missions' reward, per mech and decision, before weights.

Rates lie in [-1, 1] and are divided by the time limit, events are shares of an episode's total, so that the
sum of each over an episode is of the order of 1. When an episode ends before its limit, the last rates are
paid for the remaining time as well, discounted: winning early costs nothing. Two components are differences
of potentials (Ng, Harada and Russell 1999, "Policy invariance under reward transformations", section 3):
their discounted sum over a mech's life depends only on its first and last state. Their undiscounted sum is
hard to interpret, so the growth of the potential is logged instead (`potential_growth`). Reference:
docs/reference/echelon.md 16.3.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.state import Mechs
from jaxmarl_echelon.envs.echelon.battle.unit_tables import MAX_STABILITY
from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.measures.facts import (
    FactChanges,
    FactInputs,
    inside_operation_area,
)
from jaxmarl_echelon.envs.echelon.missions.state import COMPONENTS, Scenario
from jaxmarl_echelon.envs.echelon.missions.verbs.suppress import TARGET_TIME
from jaxmarl_echelon.envs.results import divide_or_empty

COOL = 0.75
NEAR, WIDE, LOST, LOST_CHARGE = 0.5, 1.5, 3.0, -0.5
STEP = 0.1
# Decisions without progress (5 s) after which dithering is penalised.
PATIENCE = 20
_TINY = 1e-6
# Components computed as differences of potentials.
POTENTIALS = ("zone_progress", "mission_progress")


class ShapingInputs(NamedTuple):
    """Inputs of the shaping components for one decision.

    Attributes:
      now: data after the decision.
      before: mechs before it.
      news: changes of the facts.
      scenario: the drawn scenario.
      gap: `[M]` distance to the objective at the start of the stage.
      potential: `[2, K]` progress of the missions before and after.
      over: bool; the episode ends with the decision.
      stalled: `[K]` decisions since progress last grew.
      orders: `[K]` reward terms set by the parameters of the orders.
      limit: time limit in decisions.
      gamma: discount of a decision.
      decision: decisions taken.
      asked: number of coverage cells that count as full coverage.
    """

    now: FactInputs
    before: Mechs
    news: FactChanges
    scenario: Scenario
    gap: jax.Array
    potential: jax.Array
    over: jax.Array
    stalled: jax.Array
    orders: weights.OrderTerms
    limit: jax.Array
    gamma: jax.Array
    decision: jax.Array
    asked: jax.Array

    @property
    def per_decision(self) -> jax.Array:
        """Reward of a rate of 1 in this decision; the last one of an episode includes the remaining time."""
        left = jnp.maximum(self.limit - self.decision, 0.0)
        steps = left + 1.0
        # The sum of gamma^k over the remaining decisions.
        lasting = jnp.where(
            self.gamma < 1.0, (1.0 - self.gamma**steps) / jnp.maximum(1.0 - self.gamma, _TINY), steps
        )
        return jnp.where(self.over, lasting, 1.0) / self.limit


def compute_shaping(it: ShapingInputs) -> jax.Array:
    """Computes all components `[M, len(COMPONENTS)]`; 0 for mechs that were dead before the decision."""
    values = jnp.stack([_COMPONENTS[name](it) for name in COMPONENTS], axis=-1)
    return jnp.where(it.before.alive[:, None], values, 0.0)


def potential_growth(it: ShapingInputs) -> dict[str, jax.Array]:
    """Returns the growth of each living mech's potentials, `[M]` per component of `POTENTIALS`.

    Excluded are the discount, which rewards the remaining distance at every decision, and the return of the
    potential at the end.
    """
    goes_on = it._replace(
        gamma=jnp.float32(1.0), over=jnp.bool_(False), now=it.now._replace(mechs=_lasting(it))
    )
    return {name: jnp.where(it.before.alive, _COMPONENTS[name](goes_on), 0.0) for name in POTENTIALS}


def survival(it: ShapingInputs) -> jax.Array:
    """Rewards being alive; penalises dying, less for orders with a high loss appetite."""
    died = it.before.alive & ~it.now.mechs.alive
    return it.now.mechs.alive * it.per_decision + jnp.where(died, it.orders.death[it.now.team], 0.0)


def damage_dealt(it: ShapingInputs) -> jax.Array:
    """Rewards damage to enemies, as a share of all their hit points, times the own strength."""
    team = it.now.team
    whole = it.scenario.hp[::-1][team]
    return divide_or_empty(it.scenario.strength[team] * it.now.tally.dealt, whole, 0.0)


def heat_management(it: ShapingInputs) -> jax.Array:
    """Rewards low heat: 1 up to three quarters of the capacity (idleness gains nothing), then down to 0."""
    heat = it.now.mechs.heat / it.now.chassis.heat_capacity
    return _living(it, jnp.clip((1.0 - heat) / (1.0 - COOL), 0.0, 1.0)) * it.per_decision


def pack_cohesion(it: ShapingInputs) -> jax.Array:
    """Rewards keeping the spacing of the order; penalises being more than three times as far away.

    A mech in its objective counts as well placed: the order's spacing may be wider than the objective.
    """
    mechs, wanted = it.now.mechs, it.orders.spacing[it.now.team]
    gap, _ = squads.squad_spread(mechs.position, mechs.alive, it.now.teams)
    good = ((gap >= NEAR * wanted) & (gap <= WIDE * wanted)) | it.news.inside
    rate = jnp.where(good, 1.0, jnp.where(gap > LOST * wanted, LOST_CHARGE, 0.0))
    return _living(it, rate) * it.per_decision


def zone_progress(it: ShapingInputs) -> jax.Array:
    """Rewards approaching the objective, as a difference of potentials."""
    before, after = _distances(it)
    scale = jnp.maximum(it.gap, it.now.order.zone[it.now.team, 2])
    return (before - it.gamma * after) / scale


def zone_control(it: ShapingInputs) -> jax.Array:
    """Rewards mechs in the objective with their team's share of a full hold."""
    return jnp.where(it.news.inside, it.news.tick[it.now.team], 0.0) * it.per_decision


def dithering(it: ShapingInputs) -> jax.Array:
    """Returns the penalty `[M]` for dithering under time pressure, at most 0, of living mechs.

    It is paid with `mission_progress`, but it is no difference of potentials.
    """
    penalty = jnp.where(it.stalled >= PATIENCE, it.orders.dithering, 0.0)[it.now.team]
    return jnp.where(it.before.alive, penalty, 0.0)


def mission_progress(it: ShapingInputs) -> jax.Array:
    """Rewards mission progress, as a difference of potentials.

    A mech's potential is 0 after its death and after the end of the episode: rewards of the potential are
    returned at death, as survivors return them at the end.
    """
    team = it.now.team
    left = jnp.where(it.now.mechs.alive & ~it.over, it.potential[1][team], 0.0)
    return it.gamma * left - it.potential[0][team]


def stealth(it: ShapingInputs) -> jax.Array:
    """Rewards not being tracked while approaching or near the objective; hiding elsewhere gains nothing."""
    before, after = _distances(it)
    on_task = (before - after >= STEP) | inside_operation_area(it.now)
    return _living(it, (on_task & ~it.news.tracked).astype(jnp.float32)) * it.per_decision


def detection(it: ShapingInputs) -> jax.Array:
    """Rewards the squad's first confirmed tracks of enemies, as a share of all enemies."""
    return divide_or_empty(it.news.found, it.scenario.strength[::-1][it.now.team].astype(jnp.float32), 0.0)


def suppression_effect(it: ShapingInputs) -> jax.Array:
    """Rewards credited suppression of enemies, as a share of the target time for all enemies."""
    asked = it.scenario.strength[::-1][it.now.team] * TARGET_TIME
    return divide_or_empty(it.news.pinning, asked, 0.0)


def resource_preservation(it: ShapingInputs) -> jax.Array:
    """Rewards the mean of heat headroom, hit points and stability."""
    mechs, chassis = it.now.mechs, it.now.chassis
    headroom = jnp.clip(1.0 - mechs.heat / chassis.heat_capacity, 0.0, 1.0)
    body = jnp.clip(mechs.hp / chassis.hp, 0.0, 1.0)
    return _living(it, (headroom + body + mechs.stability / MAX_STABILITY) / 3.0) * it.per_decision


def coverage(it: ShapingInputs) -> jax.Array:
    """Rewards cells that the squad enters for the first time, as a share of those that count as full."""
    return divide_or_empty(it.news.entered, it.asked, 0.0)


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
        coverage,
    )
}


def weights_by_verb(given: jax.Array, gates: jax.Array, orders: weights.OrderTerms) -> jax.Array:
    """Returns weights `[K, C]` of the components under the verbs of both teams.

    Args:
      given: `[C]` weights before gates.
      gates: `[K, C]` gates of the teams' verbs.
      orders: `[K]` reward terms set by the parameters of the orders.
    """
    return weights.apply_time_pressure(weights.verb_weights(given, gates), orders)


def _lasting(it: ShapingInputs) -> Mechs:
    """Returns the mechs after the decision, as if none had died in it."""
    return it.now.mechs.replace(alive=it.before.alive)


def _living(it: ShapingInputs, values: jax.Array) -> jax.Array:
    return jnp.where(it.now.mechs.alive, values, 0.0)


def _distances(it: ShapingInputs) -> tuple[jax.Array, jax.Array]:
    """Returns planar distances `[M]` to the objective before and after the decision."""
    goal = it.now.order.zone[it.now.team, :2]
    return (
        vectors.vector_length(it.before.position[:, :2] - goal),
        vectors.vector_length(it.now.mechs.position[:, :2] - goal),
    )
