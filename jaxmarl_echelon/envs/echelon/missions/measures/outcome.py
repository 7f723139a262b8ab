"""Outcome records: inputs of the verbs' success functions. Reference: docs/reference/echelon.md 15.3."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.results import divide_or_empty


class OutcomeRecord(NamedTuple):
    """Outcome record of one team's mission. All fields are float32 of one shape, often scalars.

    Counts can be fractional: records without one mech's contribution are reduced proportionally.

    Attributes:
      strength: own mechs at the start.
      casualties: own mechs lost.
      enemies: enemies at the start.
      enemies_lost: enemies destroyed.
      detected: enemies with a confirmed track at some time.
      covered: entered share of the requested coverage cells, in [0, 1].
      captured: 1 after the objective was captured; in running records the share of a capture under way.
      elapsed: seconds.
      alone: seconds in which only the own team was in the objective.
      contested: seconds in which both teams were.
      watched: share of the samples of the objective in sight of a mech, in [0, 1].
      exposure: enemy-seconds near the objective.
      supported: part of `exposure` in which the enemy was suppressed, fallen or recently hit.
      protected: surviving share of the covered force, in [0, 1].
      engaged: 1 after damage to enemies.
      enfilade: damage-weighted mean of the enfilade index, in [0, 1].
      waited: seconds before the first engagement.
      tracked: part of `waited` in which an enemy had a confirmed track.
      removed: share of the enemies' hit points removed, in [0, 1].
      suppression: weighted seconds of suppression.
      shots: autocannon shots.
      hits: autocannon hits.
      arrived: proximity of the squad to its staging point at GO, in [0, 1].
      ready: readiness at GO, in [0, 1].
      form: formation at GO, in [0, 1].
      speed: promptness of the follow-on, in [0, 1]; 0 before its first act.
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
        """Surviving share of the own mechs; 0 for an empty force."""
        return clipped_ratio(self.strength - self.casualties, self.strength, 0.0)

    @property
    def attrition(self) -> jax.Array:
        """Destroyed share of the enemies; 1 without enemies."""
        return clipped_ratio(self.enemies_lost, self.enemies, 1.0)


def clipped_ratio(part: jax.Array, whole: jax.Array, empty: float) -> jax.Array:
    """Returns `part / whole` clipped to [0, 1]; `empty` where the whole is 0."""
    return jnp.clip(divide_or_empty(part, whole, empty), 0.0, 1.0)
