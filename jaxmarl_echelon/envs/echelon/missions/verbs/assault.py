"""Assault: capture the objective. Reference: docs/reference/echelon.md 15.2."""

from dataclasses import replace

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import CONTACT, Template, Verb


def evaluate(outcome: OutcomeRecord) -> jax.Array:
    """Returns success: the objective captured (70 %) and the force preserved (30 %)."""
    return 0.7 * outcome.captured + 0.3 * outcome.survivors


ASSAULT = Verb(
    name="assault",
    evaluate=evaluate,
    template=Template(
        friendly=(0.6, 1.0),
        enemy=(0.5, 1.5),
        opposed=("hold",),
        composition="assault_heavy",
        disposition={"defensive": 2.0, "ambush": 1.0, "patrol": 1.0},
    ),
    timed=True,
    complete=0.7,
    begins=CONTACT,
)
# Variant that ends with the last enemy. Destroying all defenders before the capture then yields a success of
# at most 0.3, so that it is a mistake.
ENDS_WITH_ENEMIES = replace(ASSAULT, ends_with_enemies=True)
