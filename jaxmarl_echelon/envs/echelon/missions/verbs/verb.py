"""What a verb of a mission order consists of.

A new verb is one file that defines a `Verb`: how its outcome is judged, which shaping it gates, which
scenarios it is practised in. `registry` collects verbs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import jax

from jaxmarl_echelon.envs.echelon.missions.measures.outcome import Outcome

# Where a script goes: to the objective; to a place from which it is in sight; around it, to the enemies'
# rear; from place to place.
ADVANCE, WATCH, CIRCLE, ROAM = "advance", "watch", "circle", "roam"
DRIVES = (ADVANCE, WATCH, CIRCLE, ROAM)
# What counts as the beginning of an order that follows at GO: an enemy found or hit, terrain of the area
# entered, the squad at the objective.
CONTACT, COVERAGE, PLACE = "contact", "coverage", "place"
ACTS = (CONTACT, COVERAGE, PLACE)
DISPOSITIONS = ("defensive", "ambush", "patrol")
AWARENESS = ("cold", "warm", "hot")


@dataclass(frozen=True)
class Template:
    """The scenarios in which a verb is practised. Distances are voxels at 5 m each.

    Attributes:
      friendly: range of the own strength, in packs of ten standard mechs.
      enemy: range of the enemies' strength.
      opposed: verbs of which the enemies get one.
      friendly_distance: range of the own distance to the objective at the start.
      enemy_distance: range of the enemies' distance to it.
      disposition: relative frequency of each of the enemies' dispositions.
      awareness: relative frequency of each level of the enemies' awareness.
      follow_on: verbs of which one follows at GO; empty for orders without a GO.
      first: class of the mech that fills a force's first slot, where its composition has one: what the order
        cannot do without. None for any.
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
    first: str | None = None


@dataclass(frozen=True)
class Verb:
    """One verb.

    Attributes:
      name: as in settings, results and words.
      evaluate: `(Outcome) -> success in [0, 1]`, before modifiers; elementwise.
      template: scenarios to practise it in.
      gates: factor of each shaping component; of those that are not named 0, but for components that
        are never gated. None takes the row of the design's table that has the verb's name.
      timed: it is done when it succeeds first; otherwise it lasts to the end and is never late.
      complete: success at which the episode ends; None for never.
      ends_with_enemies: the episode ends when no enemy is left.
      drive: where a script goes, one of `DRIVES`.
      begins: its first act, one of `ACTS`.
      watches: whether samples of the objective are looked at; costs a ray per mech and decision.
    """

    name: str
    evaluate: Callable[[Outcome], jax.Array]
    template: Template
    gates: Mapping[str, float] | None = None
    timed: bool = False
    complete: float | None = None
    ends_with_enemies: bool = False
    drive: str = ADVANCE
    begins: str = PLACE
    watches: bool = False
