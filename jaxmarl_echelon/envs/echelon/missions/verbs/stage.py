"""Stage: move to a place and be ready for the follow-on order. Reference: docs/reference/echelon.md 15.2."""

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import Template, Verb


def evaluate(outcome: OutcomeRecord) -> jax.Array:
    """Returns success: arrival times promptness (40 %), readiness (40 %) and formation (20 %) at GO."""
    return outcome.arrived * (0.4 * outcome.speed + 0.4 * outcome.ready + 0.2 * outcome.form)


STAGE = Verb(
    name="stage",
    evaluate=evaluate,
    template=Template(
        friendly=(0.3, 1.0),
        enemy=(0.0, 1.0),
        opposed=("scout",),
        friendly_distance=(8.0, 20.0),
        enemy_distance=(20.0, 60.0),
        awareness={"cold": 1.0, "warm": 1.0},
        follow_on=("assault", "scout", "hold", "overwatch", "flank", "suppress"),
    ),
    timed=True,
)
