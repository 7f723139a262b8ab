"""Assault: take the objective. Source: spec section 7.5."""

from dataclasses import replace

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import Outcome
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import CONTACT, Template, Verb


def evaluate(outcome: Outcome) -> jax.Array:
    """The objective captured, and the force preserved."""
    return 0.7 * outcome.captured + 0.3 * outcome.survivors


ASSAULT = Verb(
    name="assault",
    evaluate=evaluate,
    template=Template(
        friendly=(0.6, 1.0),
        enemy=(0.5, 1.5),
        opposed=("hold",),
        disposition={"defensive": 2.0, "ambush": 1.0, "patrol": 1.0},
    ),
    timed=True,
    complete=0.7,
    begins=CONTACT,
)
# The design's: it ends with the last enemy. Who destroys the defenders before the objective is taken
# then gets no more than 0.3, so that destroying them is a mistake.
ENDS_WITH_ENEMIES = replace(ASSAULT, ends_with_enemies=True)
