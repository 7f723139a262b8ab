"""Suppress: keep enemies down. Source: spec section 7.5."""

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import Outcome, share
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import CONTACT, Template, Verb

# Weighted seconds of suppression per enemy that are all that is asked for.
TARGET_TIME = 5.0
# Share of hits among shots that counts as full efficiency; there is no ammunition to save.
GOOD_AIM = 0.5


def evaluate(outcome: Outcome) -> jax.Array:
    """Enemies kept off balance, and few autocannon shots wasted. Without enemies nothing is missing."""
    pinned = share(outcome.suppression, outcome.enemies * TARGET_TIME, 1.0)
    efficiency = share(outcome.hits, GOOD_AIM * outcome.shots, 0.0)
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
        first="medium",
    ),
    begins=CONTACT,
)
