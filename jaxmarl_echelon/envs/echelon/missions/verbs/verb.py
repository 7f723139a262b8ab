"""Definition of a mission verb.

A new verb is one file that defines a `Verb`: its success function, its gates of shaping components and its
training scenarios. `registry` collects verbs. Reference: docs/reference/echelon.md 15.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord

# Destination of a script: the objective; a place from which it is in sight; around it, to the enemies' rear;
# from place to place.
ADVANCE, WATCH, CIRCLE, ROAM = "advance", "watch", "circle", "roam"
DRIVES = (ADVANCE, WATCH, CIRCLE, ROAM)
# First act of a follow-on: an enemy found or damaged (the squad at the objective if no enemy is left), a cell
# of the area entered, the squad at the objective.
CONTACT, COVERAGE, PLACE = "contact", "coverage", "place"
ACTS = (CONTACT, COVERAGE, PLACE)
DISPOSITIONS = ("defensive", "ambush", "patrol")
AWARENESS = ("cold", "warm", "hot")


@dataclass(frozen=True)
class Template:
    """Distribution of the training scenarios of a verb. Distances are voxels at 5 m each.

    Attributes:
      friendly: range of the own strength, in packs of ten standard mechs.
      enemy: range of the enemies' strength.
      opposed: possible verbs of the enemies' order.
      friendly_distance: range of the own distance to the objective at the start.
      enemy_distance: range of the enemies' distance to it.
      disposition: relative frequency of each of the enemies' dispositions.
      awareness: relative frequency of each level of the enemies' awareness.
      follow_on: possible verbs of the follow-on at GO; empty for orders without one.
      composition: composition of the own force, where it follows the verb; one of `forces.COMPOSITIONS`.
      first: class that the order needs: it fills a force's first slot, if the composition has one. None for
        any.
    """

    friendly: tuple[float, float]
    enemy: tuple[float, float]
    opposed: tuple[str, ...]
    friendly_distance: tuple[float, float] = (10.0, 60.0)
    enemy_distance: tuple[float, float] = (0.0, 0.0)
    disposition: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({"defensive": 1.0}))
    awareness: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType({"cold": 1.0, "warm": 1.0, "hot": 1.0})
    )
    follow_on: tuple[str, ...] = ()
    composition: str = "roster"
    first: str | None = None


@dataclass(frozen=True)
class Verb:
    """Definition of one verb.

    Attributes:
      name: name in settings, results and texts.
      evaluate: `(OutcomeRecord) -> success in [0, 1]`, before constraints; elementwise.
      template: distribution of training scenarios.
      gates: factor of each shaping component; 0 for components not named, except for those that are never
        gated. None for the row of `weights.GATES` with the verb's name.
      timed: the order is done as soon as it succeeds; otherwise it lasts to the end and is never late.
      complete: success at which the episode ends; None for never.
      ends_with_enemies: the episode ends with the last enemy, unless the order is a follow-on.
      void_without_enemies: as a follow-on the order is void if no enemy is left at GO.
      spares: a script under this order keeps enemies down until they were suppressed for long enough, rather
        than destroying them.
      drive: destination of a script, one of `DRIVES`.
      begins: first act, one of `ACTS`.
      watches: whether visibility of the objective is sampled; costs a ray per mech and decision.
    """

    name: str
    evaluate: Callable[[OutcomeRecord], jax.Array]
    template: Template
    gates: Mapping[str, float] | None = None
    timed: bool = False
    complete: float | None = None
    ends_with_enemies: bool = False
    void_without_enemies: bool = False
    spares: bool = False
    drive: str = ADVANCE
    begins: str = PLACE
    watches: bool = False
