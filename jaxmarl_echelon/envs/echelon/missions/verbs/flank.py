"""Flank: engage enemies from their side or rear, unseen until then.

Reference: docs/reference/echelon.md 15.2.
"""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord, clipped_ratio
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import CIRCLE, CONTACT, Template, Verb

# Share of the enemies' hit points whose removal counts as full effect.
EFFECT = 0.5


def evaluate(outcome: OutcomeRecord) -> jax.Array:
    """Returns success: angle of the engagement (50 %), stealth before it (30 %) and its effect (20 %)."""
    undetected = 1.0 - clipped_ratio(outcome.tracked, outcome.waited, 0.0)
    effect = jnp.minimum(outcome.removed / EFFECT, 1.0)
    return outcome.engaged * (0.5 * outcome.enfilade + 0.3 * undetected) + 0.2 * effect


FLANK = Verb(
    name="flank",
    evaluate=evaluate,
    template=Template(
        friendly=(0.4, 0.8),
        enemy=(0.8, 1.5),
        opposed=("hold",),
        disposition={"defensive": 2.0, "ambush": 1.0, "patrol": 1.0},
        awareness={"cold": 1.0, "warm": 1.0},
    ),
    timed=True,
    drive=CIRCLE,
    begins=CONTACT,
    void_without_enemies=True,
)
