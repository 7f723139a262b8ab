"""The intelligent driver model: how hard a driver accelerates behind a leader.

Treiber, Hennecke, Helbing (2000), with the braking of physical cars.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any


@dataclass(frozen=True)
class DriverModel:
    """Constants of a driver.

    Attributes:
      acceleration: at rest on an empty road, m/s^2.
      braking: comfortable deceleration, m/s^2.
      headway: time to the leader that is kept, s.
      distance: to a standing leader that is kept, m.
      exponent: of the approach to the desired speed.
      hardest: deceleration that brakes can give, m/s^2.
    """

    acceleration: float = 1.0
    braking: float = 3.0
    headway: float = 1.5
    distance: float = 1.0
    exponent: int = 4
    hardest: float = 6.0


def acceleration(
    xp: Any, speed: Any, desired: Any, gap: Any, leader: Any, driver: DriverModel = DriverModel()
) -> Any:
    """Acceleration in m/s^2 behind the nearest leader, elementwise.

    Args:
      xp: the array library, `numpy` or `jax.numpy`.
      speed: of the follower, m/s, not negative.
      desired: speed on an empty road, m/s, positive.
      gap: from bumper to bumper, m; inf without a leader. Below `driver.distance` it counts as that.
      leader: speed of the leader, m/s; any finite number without one.
    """
    a, b = driver.acceleration, driver.braking
    closing = speed * (speed - leader) / (2 * sqrt(a * b))
    wanted = driver.distance + xp.maximum(0.0, speed * driver.headway + closing)
    free = (speed / desired) ** driver.exponent
    given = a * (1.0 - free - (wanted / xp.maximum(gap, driver.distance)) ** 2)
    return xp.clip(given, -driver.hardest, a)
