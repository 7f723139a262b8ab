"""Outcome records: the facts of a mission that evaluators see. Source: spec section 7.4."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.results import ratio


class Outcome(NamedTuple):
    """What one team's mission has come to. All fields are float32 of one shape, often scalars.

    Counts need not be whole: records without one mech's contribution hold shares.

    Attributes:
      strength: own mechs at the start.
      casualties: own mechs lost.
      enemies: enemies at the start.
      enemies_lost: enemies destroyed.
      detected: enemies of which there has been a confirmed track.
      covered: share of the asked-for terrain that was entered, in [0, 1].
      captured: 1 once the objective was captured; a running record holds the share of the way there.
      elapsed: seconds.
      alone: seconds in which only the own side was in the objective.
      contested: seconds in which both were.
      watched: share of the samples of the objective that were in sight of a mech, in [0, 1].
      exposure: enemy-seconds near the objective.
      supported: of these, those in which that enemy was suppressed, fallen or recently hit.
      protected: surviving share of those who are covered, in [0, 1].
      engaged: 1 once damage was done to enemies.
      enfilade: damage-weighted mean of the enfilade index, in [0, 1].
      waited: seconds before the first engagement.
      tracked: of these, those in which an enemy had a confirmed track.
      removed: share of the enemies' hit points taken, in [0, 1].
      suppression: weighted seconds of suppression.
      shots: autocannon shots.
      hits: autocannon hits.
      arrived: how near the squad was to its staging point at GO, in [0, 1].
      ready: readiness at GO, in [0, 1].
      form: formation at GO, in [0, 1].
      speed: how quickly the follow-on began, in [0, 1]; 0 before it.
    """

    strength: jax.Array
    casualties: jax.Array
    enemies: jax.Array
    enemies_lost: jax.Array
    detected: jax.Array
    covered: jax.Array
    captured: jax.Array
    elapsed: jax.Array
    alone: jax.Array
    contested: jax.Array
    watched: jax.Array
    exposure: jax.Array
    supported: jax.Array
    protected: jax.Array
    engaged: jax.Array
    enfilade: jax.Array
    waited: jax.Array
    tracked: jax.Array
    removed: jax.Array
    suppression: jax.Array
    shots: jax.Array
    hits: jax.Array
    arrived: jax.Array
    ready: jax.Array
    form: jax.Array
    speed: jax.Array

    @property
    def survivors(self) -> jax.Array:
        """Surviving share of the own mechs; 0 of a force of nobody."""
        return share(self.strength - self.casualties, self.strength, 0.0)

    @property
    def attrition(self) -> jax.Array:
        """Share of the enemies that was destroyed; 1 if there were none."""
        return share(self.enemies_lost, self.enemies, 1.0)


def share(part: jax.Array, whole: jax.Array, empty: float) -> jax.Array:
    """`part / whole` limited to [0, 1]; `empty` where the whole is 0."""
    return jnp.clip(ratio(part, whole, empty), 0.0, 1.0)
