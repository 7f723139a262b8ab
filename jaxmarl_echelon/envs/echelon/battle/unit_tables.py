"""Chassis and weapons of the mechs: one row per class or weapon, as NumPy arrays.

Lengths in voxels, times in seconds or in substeps of 0.05 s, angles in radians, damage in hit
points. Source: spec section 3, which describes the original's tables and its effective cadences:
its timers are floats that are counted down, so that rounding stretches some of them.
"""

from typing import NamedTuple

import numpy as np

SUBSTEP = 0.05

CLASSES = ("scout", "light", "medium", "heavy")
SCOUT, LIGHT, MEDIUM, HEAVY = range(len(CLASSES))

WEAPONS = ("laser", "flamer", "missile", "gauss", "autocannon", "painter", "smoke")
LASER, FLAMER, MISSILE, GAUSS, AUTOCANNON, PAINTER, SMOKE = range(len(WEAPONS))

COOLDOWNS = ("laser", "missile", "kinetic", "painter", "ams")
LASER_SLOT, MISSILE_SLOT, KINETIC_SLOT, PAINTER_SLOT, AMS_SLOT = range(len(COOLDOWNS))

ACTIONS = ("forward", "strafe", "vertical", "yaw_rate", "primary", "vent", "secondary", "tertiary", "special")
FORWARD, STRAFE, VERTICAL, YAW_RATE, PRIMARY, VENT, SECONDARY, TERTIARY, SPECIAL = range(len(ACTIONS))

MAX_STABILITY = 100.0
LEGGED_STABILITY = 50.0


class ChassisTable(NamedTuple):
    """Each field has one row per class, in the order of `CLASSES`.

    Attributes:
      size: `[4, 3]` extents along x, y and z.
      max_speed: voxels per second.
      yaw_rate: largest turn rate, rad/s.
      jet: largest vertical acceleration, voxels/s^2.
      hp: hit points of the body.
      leg_hp: hit points of the legs.
      heat_capacity: heat above which a mech shuts down.
      dissipation: heat lost per second.
      tonnage: weight in the contest for the zone.
      heavy_debris: chance that the wreck is solid debris and not a debris field.
      noise: loudness per unit of speed.
    """

    size: np.ndarray
    max_speed: np.ndarray
    yaw_rate: np.ndarray
    jet: np.ndarray
    hp: np.ndarray
    leg_hp: np.ndarray
    heat_capacity: np.ndarray
    dissipation: np.ndarray
    tonnage: np.ndarray
    heavy_debris: np.ndarray
    noise: np.ndarray


def _row(*values) -> np.ndarray:
    return np.array(values, np.float32)


CHASSIS = ChassisTable(
    size=np.array([[1.2, 1.2, 1.8], [1.5, 1.5, 2.0], [2.5, 2.5, 3.0], [3.5, 3.5, 4.0]], np.float32),
    max_speed=_row(7.0, 6.8, 5.5, 2.5),
    yaw_rate=_row(1.8, 1.5, 1.0, 0.6),
    jet=_row(18.0, 16.0, 0.0, 0.0),
    hp=_row(60.0, 80.0, 150.0, 200.0),
    leg_hp=_row(30.0, 40.0, 75.0, 100.0),
    heat_capacity=_row(75.0, 80.0, 100.0, 130.0),
    dissipation=_row(13.0, 12.0, 11.0, 10.0),
    tonnage=_row(20.0, 35.0, 55.0, 85.0),
    heavy_debris=_row(0.1, 0.3, 0.6, 0.9),
    noise=_row(1.0, 1.5, 2.5, 4.0),
)


class WeaponTable(NamedTuple):
    """Each field has one row per weapon, in the order of `WEAPONS`; 0 where it means nothing.

    Attributes:
      range: farthest target (missile: a painted one), voxels.
      damage: per hit.
      stability: stability lost per hit.
      heat: added to the shooter per shot.
      target_heat: added to the target per hit.
      cooldown: substeps from a shot to the next by the original's tables.
      period: substeps that it takes; longer where the original's rounding stretches it.
      slot: index into `COOLDOWNS`.
      half_arc: largest bearing error of a target, rad.
      speed: of the projectile, voxels/s; 0 hits at once.
      life: substeps after which a projectile is gone: it moves `life` times.
      splash_radius: of an explosion (smoke: of the cloud), voxels.
      splash_scale: share of damage and stability loss that an explosion does.
    """

    range: np.ndarray
    damage: np.ndarray
    stability: np.ndarray
    heat: np.ndarray
    target_heat: np.ndarray
    cooldown: np.ndarray
    period: np.ndarray
    slot: np.ndarray
    half_arc: np.ndarray
    speed: np.ndarray
    life: np.ndarray
    splash_radius: np.ndarray
    splash_scale: np.ndarray


WEAPON = WeaponTable(
    range=_row(8.0, 4.5, 50.0, 20.0, 12.0, 10.0, 20.0),
    damage=_row(14.0, 4.0, 40.0, 50.0, 8.0, 0.0, 0.0),
    stability=_row(0.0, 0.0, 15.0, 60.0, 5.0, 0.0, 0.0),
    heat=_row(22.0, 10.0, 45.0, 15.0, 6.0, 5.0, 10.0),
    target_heat=_row(6.0, 15.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    cooldown=np.array([12, 3, 60, 80, 4, 20, 100], np.int32),
    period=np.array([13, 3, 61, 81, 5, 20, 101], np.int32),
    slot=np.array(
        [LASER_SLOT, KINETIC_SLOT, MISSILE_SLOT, KINETIC_SLOT, KINETIC_SLOT, PAINTER_SLOT, MISSILE_SLOT],
        np.int32,
    ),
    half_arc=np.radians([60.0, 45.0, 90.0, 0.0, 0.0, 30.0, 0.0]).astype(np.float32),
    speed=_row(0.0, 0.0, 12.0, 40.0, 25.0, 0.0, 15.0),
    life=np.array([0, 0, 83, 10, 9, 0, 26], np.int32),
    splash_radius=_row(0.0, 0.0, 2.5, 1.5, 0.0, 0.0, 4.0),
    splash_scale=_row(0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0),
)

MISSILE_SIGHT_RANGE = 12.0
AMS_PERIOD, SUPPRESSION, PAINT, FALL, SMOKE_LIFE = 20, 24, 101, 61, 200

# Which trigger fires which weapon, per class: `[4, 7]`, an index into `ACTIONS` or -1.
TRIGGERS = np.full((len(CLASSES), len(WEAPONS)), -1, np.int32)
for _class, _weapon, _trigger in (
    (SCOUT, PAINTER, PRIMARY),
    (LIGHT, FLAMER, PRIMARY),
    (LIGHT, LASER, SECONDARY),
    (LIGHT, PAINTER, TERTIARY),
    (MEDIUM, LASER, PRIMARY),
    (MEDIUM, AUTOCANNON, TERTIARY),
    (MEDIUM, PAINTER, TERTIARY),
    (HEAVY, LASER, PRIMARY),
    (HEAVY, MISSILE, SECONDARY),
    (HEAVY, GAUSS, TERTIARY),
    (SCOUT, SMOKE, SPECIAL),
    (LIGHT, SMOKE, SPECIAL),
    (MEDIUM, SMOKE, SPECIAL),
    (HEAVY, SMOKE, SPECIAL),
):
    TRIGGERS[_class, _weapon] = _trigger

# By how many substeps rounding stretches what is in a slot, per class: `[4, 5]`.
STRETCH = np.zeros((len(CLASSES), len(COOLDOWNS)), np.int32)
for _class, _weapon in np.argwhere(TRIGGERS >= 0):
    STRETCH[_class, WEAPON.slot[_weapon]] = WEAPON.period[_weapon] - WEAPON.cooldown[_weapon]
