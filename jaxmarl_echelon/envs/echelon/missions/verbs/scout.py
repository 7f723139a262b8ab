"""Scout: find enemies, or confirm their absence. Reference: docs/reference/echelon.md 15.2."""

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord, clipped_ratio
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import COVERAGE, ROAM, Template, Verb


def evaluate(outcome: OutcomeRecord) -> jax.Array:
    """Returns success: share of enemies detected, 1 without enemies (60 %), and coverage (40 %)."""
    return 0.6 * clipped_ratio(outcome.detected, outcome.enemies, 1.0) + 0.4 * outcome.covered


SCOUT = Verb(
    name="scout",
    evaluate=evaluate,
    template=Template(
        friendly=(0.2, 1.0),
        enemy=(0.0, 2.0),
        opposed=("hold", "overwatch"),
        enemy_distance=(0.0, 20.0),
        disposition={"patrol": 1.0, "ambush": 1.0, "defensive": 1.0},
        awareness={"cold": 1.0, "warm": 1.0},
        composition="scout_heavy",
        first="scout",
    ),
    timed=True,
    complete=0.99,
    drive=ROAM,
    begins=COVERAGE,
)
