"""Layout of observations, shared by the environment, networks and viewers."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp

from algos.types import Block
from jaxmarl_echelon.envs.echelon.battle.state import MESSAGE
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CLASSES

CONTACTS = 5
RESERVED_FRIENDS = 3
LOCAL_MAP = 11
TELEMETRY = 16

SORTS = ("closest", "biggest", "most_damaged")

CONTACT_FIELDS = (
    "x", "y", "z", "velocity_x", "velocity_y", "velocity_z", "sin_yaw", "cos_yaw",
    "hp", "heat", "stability", "fallen", "legged", "friendly", "hostile", "neutral",
    *CLASSES, "painted", "visible", "lead_pitch", "closing", "crossing",
)  # fmt: skip

# In a mech's own frame, vectors point ahead, to the left and up, and each direction has sine and cosine.
BODY_CONTACT_FIELDS = (
    "ahead", "left", "up", "velocity_ahead", "velocity_left", "velocity_up", "sin_heading", "cos_heading",
    *CONTACT_FIELDS[8:], "sin_bearing", "cos_bearing",
)  # fmt: skip

SELF_FIELDS = (
    *CLASSES, "targeted", "under_fire", "painted", "shutdown", "critical_heat", "hp", "heat",
    "heat_headroom", "stability_risk", "hit_x", "hit_y", "hit_z", "incoming_missile",
    "sensor_quality", "jammed", "ecm", "eccm", "suppressed", "ams_cooldown",
    "velocity_x", "velocity_y", "velocity_z", "laser_cooldown", "missile_cooldown",
    "kinetic_cooldown", "painter_cooldown", "in_zone", "zone_x", "zone_y", "zone_z", "zone_radius",
    "control", "score", "enemy_score", "time", *(f"sort_{name}" for name in SORTS), "hostile_only",
    "sin_yaw", "cos_yaw",
)  # fmt: skip
_TURNED = {
    "velocity_x": "velocity_ahead", "velocity_y": "velocity_left", "velocity_z": "velocity_up",
    "zone_x": "zone_ahead", "zone_y": "zone_left", "zone_z": "zone_up",
}  # fmt: skip
BODY_SELF_FIELDS = (*(_TURNED.get(name, name) for name in SELF_FIELDS), "zone_sin", "zone_cos")

# Frames of the vectors of an observation: the mech's own, or the terrain's.
BODY, WORLD = "body", "world"
FRAMES = (BODY, WORLD)


@dataclass(frozen=True)
class ObservationLayout:
    """The blocks of an observation, in their order in the flat vector.

    `contacts [K, F]` and `pack [P, 8]` are sets of rows; a row of contacts is in use where its
    field `visible` is 1. They are followed by `local_map [11, 11]` (rows ahead, columns to the left),
    `telemetry [16, 16]` (optional), `acoustic [4]` and `self [F]`.
    Reference: docs/reference/echelon.md 12.1.

    Attributes:
      blocks: the blocks.
      frame: frame of the vectors in `contacts` and `self`, one of `FRAMES`.
    """

    blocks: tuple[Block, ...]
    frame: str = WORLD

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.blocks[-1].stop

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the blocks."""
        return tuple(block.name for block in self.blocks)

    def __getitem__(self, name: str) -> Block:
        """Returns the block called `name`; raises KeyError otherwise."""
        return self.blocks[self._position(name)]

    def index(self, block: str, field: str) -> int:
        """Returns the index of a field in the last axis of a block; raises KeyError for unknown names."""
        fields = self[block].fields
        if field not in fields:
            raise KeyError(f"unknown field {field!r} in {block}; allowed: {', '.join(fields)}")
        return fields.index(field)

    def split(self, flat: jax.Array) -> dict[str, jax.Array]:
        """Returns the blocks `[..., *shape]` of flat observations `[..., size]` by name."""
        return {
            block.name: flat[..., block.slice].reshape(*flat.shape[:-1], *block.shape)
            for block in self.blocks
        }

    def join(self, blocks: Mapping[str, jax.Array]) -> jax.Array:
        """Returns flat observations `[..., size]` of blocks `[..., *shape]`; extra blocks are ignored."""
        parts = []
        for block in self.blocks:
            value = blocks[block.name]
            lead = value.shape[: value.ndim - len(block.shape)]
            if value.shape[len(lead) :] != block.shape:
                raise ValueError(
                    f"block {block.name} has shape {value.shape}, expected it to end {block.shape}"
                )
            parts.append(value.reshape(*lead, -1))
        return jnp.concatenate(parts, axis=-1)

    def _position(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(f"unknown block {name!r}; allowed: {', '.join(self.names)}")
        return self.names.index(name)


def make_layout(
    pack: int,
    telemetry: bool = True,
    further: Mapping[str, tuple[tuple[int, ...], str, tuple[str, ...]]] = MappingProxyType({}),
    frame: str = WORLD,
    marks: tuple[str, ...] = (),
) -> ObservationLayout:
    """Builds the layout of observations for packs of at most `pack` mechs.

    Args:
      pack: rows of the message board.
      telemetry: whether to include the coarse map, which is the same for all mechs.
      further: shape, kind and fields of the blocks that follow, by name.
      frame: one of `FRAMES`; `world` is the original's.
      marks: names of further fields of the contacts.
    """
    body = frame == BODY
    contact = (*(BODY_CONTACT_FIELDS if body else CONTACT_FIELDS), *marks)
    own = BODY_SELF_FIELDS if body else SELF_FIELDS
    shapes = {
        "contacts": ((CONTACTS, len(contact)), "set", contact),
        "pack": ((pack, MESSAGE), "set", ()),
        "local_map": ((LOCAL_MAP, LOCAL_MAP), "map", ()),
        "telemetry": ((TELEMETRY, TELEMETRY), "map", ()),
        "acoustic": ((4,), "vector", ("front_left", "front_right", "rear_left", "rear_right")),
        "self": ((len(own),), "vector", own),
        **further,
    }
    if not telemetry:
        del shapes["telemetry"]
    blocks, start = [], 0
    for name, (shape, kind, fields) in shapes.items():
        blocks.append(Block(name, start, shape, kind, fields))
        start = blocks[-1].stop
    return ObservationLayout(tuple(blocks), frame)
