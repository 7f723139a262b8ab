"""Overwatch: cover an area by fire. Source: spec section 7.5."""

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import Outcome, share
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import WATCH, Template, Verb


def evaluate(outcome: Outcome) -> jax.Array:
    """The area in sight, enemies near it dealt with, and those who are covered alive.

    Without enemies near the area nothing is missing: patience is not punished.
    """
    support = share(outcome.supported, outcome.exposure, 1.0)
    return 0.4 * outcome.watched + 0.3 * support + 0.3 * outcome.protected


OVERWATCH = Verb(
    name="overwatch",
    evaluate=evaluate,
    template=Template(
        friendly=(0.3, 0.8),
        enemy=(0.0, 1.0),
        opposed=("assault",),
        friendly_distance=(10.0, 20.0),
        enemy_distance=(15.0, 60.0),
    ),
    drive=WATCH,
    watches=True,
)
