"""Observable state of the objective, restricted to what each mech can know.

Enemies in the objective count only if the mech sees them; the enemies' own progress is never shown.
"""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon import zone
from jaxmarl_echelon.envs.echelon.battle.state import Mechs
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.measures.facts import CAPTURE
from jaxmarl_echelon.envs.echelon.missions.state import Order, TeamFacts
from jaxmarl_echelon.envs.echelon.observing.observe import ObjectiveStatus


def observe_objective(
    order: Order,
    by_team: TeamFacts,
    mechs: Mechs,
    tonnage: jax.Array,
    visible: jax.Array,
    teams: squads.TeamSizes,
) -> ObjectiveStatus:
    """Returns the state of its team's objective, as observed by each mech.

    Args:
      order: `[K]` present orders of the teams.
      by_team: facts.
      mechs: the mechs.
      tonnage: `[M]`.
      visible: `[M, M]` bool; viewer (first) sees the target.
      teams: mechs of blue and of red.
    """
    team = squads.team_numbers(teams)
    inside = mechs.alive & zone.inside_zone(mechs.position, order.zone[:, None])
    tons = jnp.where(inside, tonnage, 0.0)
    own = squads.sum_by_team(tons, teams).diagonal()[team]
    seen = visible & (team[:, None] != team)
    others = jnp.sum(jnp.where(seen, tons[team], 0.0), axis=1)
    control = (own - others) / jnp.maximum(own + others, 1e-6)
    return ObjectiveStatus(
        zone=order.zone[team],
        inside=inside[team, jnp.arange(team.size)],
        control=control,
        score=jnp.clip(by_team.capture / CAPTURE, 0.0, 1.0)[team],
        enemy_score=jnp.zeros(team.size),
    )
