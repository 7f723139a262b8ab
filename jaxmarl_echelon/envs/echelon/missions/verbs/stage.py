"""Stage: go somewhere and be ready for the order that follows. Source: spec section 7.5."""

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import Outcome
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import Template, Verb


def evaluate(outcome: Outcome) -> jax.Array:
    """How quickly the follow-on began, readiness and formation at GO; nothing of it where nobody arrived."""
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
