"""Orders, hardened facts, weights and the state of missions.

Arrays with a leading axis K have one row per team, blue then red; those with M one per mech. Distances are
voxels, times seconds unless they are counted in decisions of 0.25 s. Source: spec sections 7 and 9.
"""

import jax
from flax import struct

from jaxmarl_echelon.envs.echelon.types import EchelonParams, EchelonState

# Shaping components, in the order of every array over them.
COMPONENTS = (
    "survival",
    "damage_dealt",
    "heat_management",
    "pack_cohesion",
    "zone_progress",
    "zone_control",
    "mission_progress",
    "stealth",
    "detection",
    "suppression_effect",
    "resource_preservation",
)
# What is paid besides the shaping components.
TERMINAL, CREDIT, CALIBRATION = "mission_success", "credit", "calibration"
PAID = (*COMPONENTS, TERMINAL, CREDIT, CALIBRATION)

# Verbs of a squad in the order of the embedding's one-hot (spec section 7.1).
VERBS = ("assault", "hold", "overwatch", "flank", "suppress", "scout", "stage")
PARAMETERS = ("risk", "loss_appetite", "time_pressure", "grouping")
CONFIRMATION = 8
NEVER = 2**30


@struct.dataclass
class MissionWeights:
    """What a curriculum sets for an episode; scalars are float32.

    Attributes:
      components: `[len(COMPONENTS)]` weights before gates, already scaled by the schedules.
      terminal: of `mission_success`, the terminal reward 2 S - 1.
      credit: of the difference reward.
      calibration: of the status report's bonus, for the whole episode (it is divided by the time limit).
      progress: of the training, in [0, 1].
      phase: int32 from 1 to 4.
      difficulty_low: least difficulty of a drawn scenario, in [0, 1].
      difficulty_high: largest difficulty.
      fire_low: chance per decision that a scripted enemy fires at all, at difficulty 0.
      fire_high: the same at difficulty 1.
    """

    components: jax.Array
    terminal: jax.Array
    credit: jax.Array
    calibration: jax.Array
    progress: jax.Array
    phase: jax.Array
    difficulty_low: jax.Array
    difficulty_high: jax.Array
    fire_low: jax.Array
    fire_high: jax.Array
