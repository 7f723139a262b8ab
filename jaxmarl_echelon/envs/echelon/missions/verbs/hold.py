"""Hold: keep the objective. Reference: docs/reference/echelon.md 15.2."""

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord, clipped_ratio
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import Template, Verb


def evaluate(outcome: OutcomeRecord) -> jax.Array:
    """Returns success: share of time held, contested time counted half (60 %), and attrition (40 %)."""
    retained = clipped_ratio(outcome.alone + 0.5 * outcome.contested, outcome.elapsed, 0.0)
    return 0.6 * retained + 0.4 * outcome.attrition


HOLD = Verb(
    name="hold",
    evaluate=evaluate,
    template=Template(
        friendly=(0.4, 1.0),
        enemy=(1.0, 2.5),
        opposed=("assault", "flank"),
        composition="assault_heavy",
        friendly_distance=(0.0, 0.0),
        enemy_distance=(10.0, 60.0),
        awareness={"hot": 1.0},
    ),
    ends_with_enemies=True,
)
