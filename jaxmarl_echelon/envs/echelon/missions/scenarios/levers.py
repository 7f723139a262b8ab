"""Distribution of scenarios as arrays, which may change between episodes without recompiling."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import AWARENESS, DISPOSITIONS


class Levers(struct.PyTreeNode):
    """Distribution of scenarios for K teams (blue, red) and V verbs. Weights are relative.

    Attributes:
      mission: `[V]` weights of blue's order.
      opposing: `[V, V]` weights of red's order, by blue's.
      follow_on: `[V, V]` weights of the follow-on at GO, by order.
      strength: `[V, K, 2]` range in packs, by blue's order.
      graded: `[K]` bool; difficulty moves the strength within its range, red's up and blue's down.
      odds: `[2]` range of red's strength as a multiple of that of blue's mechs; NaN for red's range in
        `strength`.
      ramp: `[3, 2]` difficulties between which red's fire, red's strength and blue's weakness grow from their
        least to their largest value.
      count: `[K]` int32 fixed number of mechs, or -1 to derive it from the strength.
      patterns: `[K, compositions, A]` int32 classes in the order in which slots are filled.
      composition: `[V, K, compositions]` weights, by blue's order.
      health: `[K, 3]` weights of `forces.HEALTH`.
      distance: `[V, K, 2]` range of distances to the objective at the start, voxels, by blue's order.
      parameters: `[K, 4, 2]` ranges of the orders' parameters.
      believed: `[K]` bool; the risk is a noisy estimate of the balance of forces instead.
      disposition: `[V, 3]` weights of red's, by blue's order.
      awareness: `[V, 3]` weights of red's, by blue's order.
      stealth: `[K, 2]` range of tiers.
      cohesion: `[3]` weights of red's.
      formation: `[4]` weights of blue's.
      approach: `[2]` range of angles between red's heading and blue's approach, rad.
      radius: `[2]` range of the objectives' radius, voxels.
      placement: `[3]` weights of `placement.PLACEMENTS`.
      objective: `[2]` x and y of a fixed objective.
      fixed: bool; use the fixed objective.
      go: `[2]` range of GO, as shares of the time limit.
    """

    mission: jax.Array
    opposing: jax.Array
    follow_on: jax.Array
    strength: jax.Array
    graded: jax.Array
    odds: jax.Array
    ramp: jax.Array
    count: jax.Array
    patterns: jax.Array
    composition: jax.Array
    health: jax.Array
    distance: jax.Array
    parameters: jax.Array
    believed: jax.Array
    disposition: jax.Array
    awareness: jax.Array
    stealth: jax.Array
    cohesion: jax.Array
    formation: jax.Array
    approach: jax.Array
    radius: jax.Array
    placement: jax.Array
    objective: jax.Array
    fixed: jax.Array
    go: jax.Array


def relative_weights(names: Sequence[str], given: str | Sequence[str] | Mapping[str, float]) -> np.ndarray:
    """Returns relative weights of `names`, float32: for one name, several names, or weights by name."""
    chosen = {given: 1.0} if isinstance(given, str) else given
    chosen = chosen if isinstance(chosen, Mapping) else dict.fromkeys(chosen, 1.0)
    return np.array([chosen.get(name, 0.0) for name in names], np.float32)


def template_levers(registry: Registry) -> dict[str, np.ndarray]:
    """Returns the fields of `Levers` that the verbs' templates set, by name."""
    templates = [verb.template for verb in registry.verbs]
    names = registry.names

    def verbs(chosen: Sequence[str]) -> np.ndarray:
        known = [name for name in chosen if name in names]
        return relative_weights(names, known or names)

    return {
        "opposing": np.stack([verbs(t.opposed) for t in templates]),
        "follow_on": np.stack([verbs(t.follow_on) for t in templates]),
        "strength": np.array([[t.friendly, t.enemy] for t in templates], np.float32),
        "distance": np.array([[t.friendly_distance, t.enemy_distance] for t in templates], np.float32),
        "disposition": np.stack([relative_weights(DISPOSITIONS, t.disposition) for t in templates]),
        "awareness": np.stack([relative_weights(AWARENESS, t.awareness) for t in templates]),
    }
