"""Drives a car of f1tenth_gym (`f110_gym`, the interface of its documentation) by an exported policy.

Run it by `python3 gym_loop.py policy --seconds 20`, where `f110_gym` is installed.
"""

import argparse
import sys
from typing import NamedTuple

import numpy as np
from driver import Driver

# The gym's lidar: rad between its outermost beams, and its longest range in m.
FOV, REACH = 4.7, 30.0


class Moment(NamedTuple):
    """One step of the gym: seconds since the start, pose (m, m, rad), and the command that follows."""

    time: float
    pose: tuple
    command: tuple


def drive_gym(env, driver, pose, seconds):
    """Drives a single car from a pose until it collides, completes its laps, or time is up.

    Args:
      env: of the gym, with `num_agents=1`; its reward is the duration of a step.
      driver: a `driver.Driver`.
      pose: x and y in m, heading in rad.
      seconds: time limit.

    Returns:
      the `Moment`s, and whether the car collided.
    """
    time, course = 0.0, []
    seen, passed, done, _ = env.reset(np.array([pose], float))
    while not done and time < seconds:
        # Noise takes the longest ranges beyond the lidar's reach.
        ranges = np.clip(seen["scans"][0], 0.0, REACH)
        driver.take_scan(time, ranges, -FOV / 2, FOV / (ranges.size - 1), 0.0, REACH)
        velocity = [seen[name][0] for name in ("linear_vels_x", "linear_vels_y", "ang_vels_z")]
        driver.show("ego_velocity", velocity)
        command = driver.decide(time)
        course.append(Moment(time, tuple(seen[f"poses_{name}"][0] for name in ("x", "y", "theta")), command))
        seen, passed, done, _ = env.step(np.array([command]))
        time += passed
    return course, bool(seen["collisions"][0])


def main():
    """Drives once and prints how far the car came."""
    import gym

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy")
    parser.add_argument("--pose", type=float, nargs=3, default=(0.0, 0.0, 0.0), help="x, y, heading")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--max-speed", type=float, default=1.5)
    given = parser.parse_args()
    sys.path.insert(0, given.policy)
    from run_policy import open_policy

    env = gym.make("f110_gym:f110-v0", num_agents=1)
    driver = Driver(open_policy(given.policy), given.max_speed)
    course, collided = drive_gym(env, driver, given.pose, given.seconds)
    way = np.array([moment.pose[:2] for moment in course])
    metres = np.hypot(*np.diff(way, axis=0).T).sum()
    print(f"{metres:.1f} m in {course[-1].time:.2f} s{', a collision' if collided else ''}")


if __name__ == "__main__":
    main()
