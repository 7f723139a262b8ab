"""Drives a car by an exported F110 policy: from scans and odometry to a steering angle and a speed.

Nothing here needs ROS or jax: `node.py` is the shell around it. Python 3.10 and NumPy suffice.
"""

import math
from typing import NamedTuple

import numpy as np

# Seconds without a scan after which the car stops.
PATIENCE = 0.2
# Share of a decision period by which a decision may be early, as timers are not exact.
EARLY = 0.1
# Parts that are 0 in runs with env.observe_target=false.
TARGET = ("target_velocity", "relative_pose")
UNITS = ["rad", "m/s"]


class Command(NamedTuple):
    """Command of the car: steering angle in rad, positive to the left, and speed in m/s."""

    steering: float
    speed: float


class Driver:
    """Decides as often as the policy did in training, and holds each decision until the next.

    Decisions are due one period apart, whatever the jitter of the calls.

    Args:
      policy: of an exported folder, by its `run_policy.open_policy`; feed-forward or recurrent.
      max_speed: m/s; commands are capped to it in both directions.

    Raises:
      ValueError: one line, for a policy of another kind of environment, or a cap that is not positive.
    """

    def __init__(self, policy, max_speed):
        contract = policy.contract
        parts = {part["name"]: part for part in contract["observation"]["slices"]}
        if "lidar" not in parts or contract["action"].get("units") != UNITS:
            raise ValueError(
                f"policy of {contract['environment']['name']}: needs a lidar, and actions in {UNITS}"
            )
        if not max_speed > 0:
            raise ValueError(f"max_speed={max_speed}: must be above 0")
        settings = contract["environment"]["settings"]
        self.policy, self.parts, self.max_speed = policy, parts, float(max_speed)
        self.period = float(contract["decision_period"])
        beams = parts["lidar"]["stop"] - parts["lidar"]["start"]
        reach = float(settings["lidar_fov"]) / 2
        self.angles = np.linspace(-reach, reach, beams) if beams > 1 else np.zeros(1)
        self.shown = {}
        if settings.get("observe_target") is False:
            self.shown.update((name, np.zeros(self._size(name))) for name in TARGET if name in parts)
        self.scanned = self.due = -math.inf
        self.begins = True
        self.memory = policy.initial_memory(1)
        self.command = Command(0.0, 0.0)

    def _size(self, name):
        return self.parts[name]["stop"] - self.parts[name]["start"]

    def show(self, name, values):
        """Sets a part of the observation in its units, such as `ego_velocity`: m/s ahead, m/s left, rad/s.

        Raises:
          ValueError: one line, for a part that the policy does not observe, or another number of values.
        """
        if name not in self.parts:
            raise ValueError(f"{name}: not observed by this policy; allowed: {', '.join(self.parts)}")
        values = np.asarray(values, np.float64).reshape(-1)
        if values.size != self._size(name):
            raise ValueError(f"{name} of {values.size} values: must have {self._size(name)}")
        self.shown[name] = values

    def take_scan(self, now, ranges, angle_min, angle_increment, range_min, range_max):
        """Takes a scan, as in `sensor_msgs/LaserScan`: metres and rad, counter-clockwise.

        Beams at the policy's angles are the nearest valid ones; a range that is infinite is the longest one.
        A scan without valid ranges is ignored, as if it had not come.

        Args:
          now: seconds.
          ranges: `[N]` m.
          angle_min, angle_increment: rad, of the first beam and between beams.
          range_min, range_max: m; others are invalid.

        Raises:
          ValueError: one line, for a scan that does not reach the policy's outermost beams.
        """
        ranges = np.asarray(ranges, np.float64)
        angles = angle_min + angle_increment * np.arange(ranges.size)
        room = abs(angle_increment) + 1e-6
        if angles.min() > self.angles[0] + room or angles.max() < self.angles[-1] - room:
            raise ValueError(
                f"scan from {angles.min():.2f} to {angles.max():.2f} rad: must reach from "
                f"{self.angles[0]:.2f} to {self.angles[-1]:.2f}"
            )
        ranges = np.where(np.isposinf(ranges), range_max, ranges)
        valid = (ranges >= range_min) & (ranges <= range_max)  # False for what is not a number
        if not valid.any():
            return
        angles, ranges = angles[valid], ranges[valid]
        nearest = np.abs(angles[None, :] - self.angles[:, None]).argmin(1)
        self.shown["lidar"] = ranges[nearest]
        self.scanned = now

    def missing(self):
        """Lists the parts of the observation that nobody has shown yet."""
        return [name for name in self.parts if name not in self.shown and name != "steer"]

    def observe(self):
        """Returns the observation `[F]`: every part divided by its scales and clipped, as in training."""
        obs = np.zeros(self.policy.contract["observation"]["shape"], np.float32)
        # Without a measured steering angle it is the commanded one.
        known = {"steer": np.array([self.command.steering])} | self.shown
        for name, part in self.parts.items():
            low = 0.0 if name == "lidar" else -1.0
            obs[part["start"] : part["stop"]] = np.clip(known[name] / np.asarray(part["scales"]), low, 1.0)
        return obs

    def decide(self, now):
        """Returns the command for this moment.

        The car stops, and its memory is cleared, where the last scan is older than 0.2 s or parts of the
        observation are missing.

        Args:
          now: seconds, of the clock of `take_scan`.
        """
        if now - self.scanned > PATIENCE or self.missing():
            self.begins, self.due = True, -math.inf
            self.command = Command(self.command.steering, 0.0)
            return self.command
        if now < self.due - EARLY * self.period:
            return self.command
        action, self.memory = self.policy(self.observe()[None], self.memory, np.array([self.begins]))
        # A late decision does not delay the next ones, unless a whole one was missed.
        self.due = (self.due if now - self.due < self.period else now) + self.period
        self.begins = False
        speed = float(np.clip(action[0, 1], -self.max_speed, self.max_speed))
        self.command = Command(float(action[0, 0]), speed)
        return self.command
