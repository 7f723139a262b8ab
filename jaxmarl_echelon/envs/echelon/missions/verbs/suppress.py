"""Suppress: keep enemies down by fire. Reference: docs/reference/echelon.md 15.2."""

from dataclasses import replace

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord, clipped_ratio
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import CONTACT, Template, Verb

# Weighted seconds of suppression per enemy that count as full success.
TARGET_TIME = 5.0
# Share of hits among shots that counts as full efficiency; ammunition is not modelled.
GOOD_AIM = 0.5


def evaluate(outcome: OutcomeRecord) -> jax.Array:
    """Returns success: suppression, full without enemies (70 %), and autocannon accuracy (30 %)."""
    pinned = clipped_ratio(outcome.suppression, outcome.enemies * TARGET_TIME, 1.0)
    efficiency = clipped_ratio(outcome.hits, GOOD_AIM * outcome.shots, 0.0)
    return 0.7 * pinned + 0.3 * efficiency


SUPPRESS = Verb(
    name="suppress",
    evaluate=evaluate,
    template=Template(
        friendly=(0.5, 1.0),
        enemy=(0.5, 1.2),
        opposed=("assault",),
        friendly_distance=(0.0, 10.0),
        enemy_distance=(10.0, 40.0),
        awareness={"warm": 1.0, "hot": 1.0},
        composition="assault_heavy",
        first="medium",
    ),
    begins=CONTACT,
    void_without_enemies=True,
    spares=True,
)
# The same order for comparisons: a script fires all weapons at the enemies, which destroys them too soon.
FIRES_ALWAYS = replace(SUPPRESS, spares=False)
