"""What mechs are told of the fight for their objective: no more than they can know.

The presence of enemies in the objective counts only as far as the mech sees them, and the enemies' own
progress is not shown at all.
"""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon import zone
from jaxmarl_echelon.envs.echelon.battle.state import Mechs
from jaxmarl_echelon.envs.echelon.missions.measures import squads
from jaxmarl_echelon.envs.echelon.missions.measures.facts import CAPTURE
from jaxmarl_echelon.envs.echelon.missions.types import Order, TeamFacts
from jaxmarl_echelon.envs.echelon.observing.observe import Standing


def standing_of(
    order: Order,
    by_team: TeamFacts,
    mechs: Mechs,
    tonnage: jax.Array,
    visible: jax.Array,
    teams: squads.Teams,
) -> Standing:
    """The standing of both teams, as each mech is told.

    Args:
      order: `[K]` what the teams are told.
      by_team: facts.
      mechs: the mechs.
      tonnage: `[M]`.
      visible: `[M, M]` bool; viewer and whom it sees.
      teams: mechs of blue and of red.
    """
    team = squads.team_of(teams)
    inside = mechs.alive & zone.within(mechs.position, order.zone[:, None])
    tons = jnp.where(inside, tonnage, 0.0)
    own = squads.add(tons, teams).diagonal()[team]
    seen = visible & (team[:, None] != team)
    others = jnp.sum(jnp.where(seen, tons[team], 0.0), axis=1)
    control = (own - others) / jnp.maximum(own + others, 1e-6)
    return Standing(
        zone=order.zone[team],
        inside=inside[team, jnp.arange(team.size)],
        control=control,
        score=jnp.clip(by_team.capture / CAPTURE, 0.0, 1.0)[team],
        enemy_score=jnp.zeros(team.size),
    )
