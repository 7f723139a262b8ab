"""Intelligent driver model (IDM): acceleration of a driver behind a leader.

M. Treiber, A. Hennecke, D. Helbing, "Congested traffic states in empirical observations and microscopic
simulations" (2000), with a limit on the deceleration. Formulas: docs/reference/f110.md 16.3.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any


@dataclass(frozen=True)
class IDMParameters:
    """Constants of a driver.

    Attributes:
      acceleration: the largest one, at rest on an empty road, m/s^2.
      braking: comfortable deceleration, m/s^2.
      headway: time gap to the leader, s.
      distance: gap to a standing leader, m.
      exponent: of the ratio of the speed to the desired speed.
      hardest: largest deceleration, m/s^2.
    """

    acceleration: float = 1.0
    braking: float = 3.0
    headway: float = 1.5
    distance: float = 1.0
    exponent: int = 4
    hardest: float = 6.0


def idm_acceleration(
    xp: Any, speed: Any, desired: Any, gap: Any, leader: Any, driver: IDMParameters = IDMParameters()
) -> Any:
    """Returns the acceleration in m/s^2 behind the nearest leader, elementwise.

    Args:
      xp: the array library, `numpy` or `jax.numpy`.
      speed: of the follower, m/s, not negative.
      desired: speed on an empty road, m/s, positive.
      gap: from bumper to bumper, m; inf without a leader. Smaller gaps count as `driver.distance`.
      leader: speed of the leader, m/s; any finite number without one.
    """
    a, b = driver.acceleration, driver.braking
    closing = speed * (speed - leader) / (2 * sqrt(a * b))
    wanted = driver.distance + xp.maximum(0.0, speed * driver.headway + closing)
    free = (speed / desired) ** driver.exponent
    given = a * (1.0 - free - (wanted / xp.maximum(gap, driver.distance)) ** 2)
    return xp.clip(given, -driver.hardest, a)
