"""Hold: keep the objective. Source: spec section 7.5."""

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import Outcome, share
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import Template, Verb


def evaluate(outcome: Outcome) -> jax.Array:
    """The share of the time for which the position was kept, contested time at half; and attrition."""
    retained = share(outcome.alone + 0.5 * outcome.contested, outcome.elapsed, 0.0)
    return 0.6 * retained + 0.4 * outcome.attrition


HOLD = Verb(
    name="hold",
    evaluate=evaluate,
    template=Template(
        friendly=(0.4, 1.0),
        enemy=(1.0, 2.5),
        opposed=("assault", "flank"),
        friendly_distance=(0.0, 0.0),
        enemy_distance=(10.0, 60.0),
        awareness={"hot": 1.0},
    ),
    ends_with_enemies=True,
)
