"""Layouts of observations, shared by writers, networks and viewers. Reference: docs/reference/drive.md 10."""

from typing import NamedTuple

from algos.types import Block

COMPACT, PUFFER = "compact", "puffer"
LAYOUTS = (COMPACT, PUFFER)

EGO_FIELDS = (
    "goal_x", "goal_y", "speed", "length", "width", "colliding", "offroad", "ghost", "lane_offset",
    "lane_cos", "lane_sin", "lane_found",
)  # fmt: skip
JERK_FIELDS = ("steering", "a_long", "a_lat")
LIGHT_FIELDS = ("light_gap", "light_red", "light_found")
TYPE_FIELDS = ("is_cyclist", "is_pedestrian")
PARTNER_FIELDS = ("x", "y", "cos", "sin", "speed", "length", "width", "is_cyclist", "is_pedestrian")
ROAD_FIELDS = ("x", "y", "half_length", "cos", "sin")
PUFFER_EGO = ("goal_x", "goal_y", "speed", "width", "length", "colliding", "respawned")
PUFFER_PARTNER = ("x", "y", "width", "length", "cos", "sin", "speed")
PUFFER_ROAD = ("x", "y", "half_length", "width", "cos", "sin", "type")
PUFFER_PARTNERS = 63
PUFFER_ROADS = 200


class ObservationConfig(NamedTuple):
    """Configuration of the observations.

    Attributes:
      layout: one of `LAYOUTS`.
      partners, lanes, edges: rows of the sets of `compact`.
      reach: distance up to which other bodies are visible, m.
      jerk: whether the dynamics have accelerations and a steering angle to show.
      types: whether learners may be cyclists or pedestrians.
      time: whether the remaining fraction of the episode is shown.
      condition: names of the conditioned numbers.
      lights: sample of the recording at which episodes begin, if learners observe traffic lights; else None.
      share: fraction of a batch's learners processed at a time, so that empty slots cost nothing; None for
        all slots at once.
    """

    layout: str = COMPACT
    partners: int = 12
    lanes: int = 24
    edges: int = 32
    reach: float = 50.0
    jerk: bool = False
    types: bool = False
    time: bool = False
    condition: tuple[str, ...] = ()
    lights: int | None = None
    share: float | None = None

    @property
    def ego(self) -> tuple[str, ...]:
        """Names of the ego features."""
        fields = EGO_FIELDS if self.layout == COMPACT else PUFFER_EGO
        fields += JERK_FIELDS if self.jerk else ()
        fields += ("remaining",) if self.time else ()
        fields += TYPE_FIELDS if self.types else ()
        fields += () if self.lights is None else LIGHT_FIELDS
        return fields + tuple(f"weight_{name}" for name in self.condition)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks of an observation, in order."""
        sets = (
            ("partners", self.partners, PARTNER_FIELDS),
            ("lanes", self.lanes, ROAD_FIELDS),
            ("edges", self.edges, ROAD_FIELDS),
        )
        if self.layout == PUFFER:
            sets = (
                ("partners", PUFFER_PARTNERS, PUFFER_PARTNER),
                ("roads", PUFFER_ROADS, PUFFER_ROAD),
            )
        blocks = [Block("ego", 0, (len(self.ego),), "vector", self.ego)]
        for name, rows, fields in sets:
            if rows:
                blocks.append(Block(name, blocks[-1].stop, (rows, len(fields)), "set", fields))
        return tuple(blocks)

    @property
    def size(self) -> int:
        """Number of features."""
        return self.blocks[-1].stop
