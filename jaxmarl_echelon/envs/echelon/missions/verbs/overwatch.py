"""Overwatch: cover an area by observation and fire. Reference: docs/reference/echelon.md 15.2."""

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord, clipped_ratio
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import WATCH, Template, Verb


def evaluate(outcome: OutcomeRecord) -> jax.Array:
    """Returns success: area in sight (40 %), enemies near it under fire (30 %), covered force alive (30 %).

    Without enemies near the area the second part is full: patience is not penalised.
    """
    support = clipped_ratio(outcome.supported, outcome.exposure, 1.0)
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
