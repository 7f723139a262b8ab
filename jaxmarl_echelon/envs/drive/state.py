"""State and parameters of driving.

Axes: N bodies of a scene, of which the first A are learners' slots; the rest is scripted. Units: m, rad, s.
"""

from typing import Any

import jax
from flax import struct

from physics.bicycle import Motion
from physics.segments import Lane

DT = 0.1
VEHICLE_ROLE = "vehicle"

RESPAWN, NEW_GOAL, STOP, REMOVE = range(4)
GOAL_BEHAVIORS = ("respawn", "new_goal", "stop", "remove")
# The same codes, so that one function serves goals and infractions; `ignore` takes the place of `respawn`.
INFRACTION_BEHAVIORS = {"ignore": RESPAWN, "stop": STOP, "remove": REMOVE}


@struct.dataclass
class Condition:
    """Where learners are on the road, every leaf `[A]`.

    Attributes:
      colliding: bool; touches another body.
      offroad: bool; touches an edge of the road.
      lane: the lane that they drive on.
    """

    colliding: jax.Array
    offroad: jax.Array
    lane: Lane


@struct.dataclass
class Traffic:
    """How far driven bodies are along their routes, every leaf `[N]`.

    Attributes:
      arc: of the centre, m.
      served: bool; has stopped at the next gate's stop sign.
      seen: bool; has been there at any time.
    """

    arc: jax.Array
    served: jax.Array
    seen: jax.Array


@struct.dataclass
class Ride:
    """Backward differences of a learner's motion, every leaf `[A]`.

    Attributes:
      speed, heading: at the last pose.
      longitudinal, lateral: accelerations of the last step, m/s^2.
      yaw_rate: of the last step, rad/s.
      samples: int32 steps since the start.
    """

    speed: jax.Array
    heading: jax.Array
    longitudinal: jax.Array
    lateral: jax.Array
    yaw_rate: jax.Array
    samples: jax.Array


@struct.dataclass
class Record:
    """What an episode reports of its learners so far, every leaf `[A]`.

    Attributes:
      first: bool; on the first attempt, which ends with the first goal, the learner's end or the last step.
      reached: bool; a goal on the first attempt.
      collided, left_road: bool; on the first attempt.
      collided_ever, left_road_ever: bool; in the episode.
      steps: int32 steps of the first attempt.
      aligned, comfortable: int32 steps of the first attempt on which that was so.
      displacement: sum over the first attempt's recorded steps of the distance to the recording, m.
      recorded: int32 number of those.
      time_to_goal: s, of the first goal; 0 without.
      speed_at_goal: m/s, likewise.
      collision_steps, offroad_steps, collision_events, offroad_events: int32, of the episode.
      goals: int32 reached in the episode.
      clean_goals: int32 of these, without an infraction since the one before.
      clean: bool; no infraction since the last goal.
      distance: m driven.
    """

    first: jax.Array
    reached: jax.Array
    collided: jax.Array
    left_road: jax.Array
    collided_ever: jax.Array
    left_road_ever: jax.Array
    steps: jax.Array
    aligned: jax.Array
    comfortable: jax.Array
    displacement: jax.Array
    recorded: jax.Array
    time_to_goal: jax.Array
    speed_at_goal: jax.Array
    collision_steps: jax.Array
    offroad_steps: jax.Array
    collision_events: jax.Array
    offroad_events: jax.Array
    goals: jax.Array
    clean_goals: jax.Array
    clean: jax.Array
    distance: jax.Array


@struct.dataclass
class Start:
    """Where learners begin and are put back, every leaf `[A]`.

    Attributes:
      motion: at the first step.
      condition: of the road there.
      arc: along the route, m.
    """

    motion: Motion
    condition: Condition
    arc: jax.Array


@struct.dataclass
class DriveState:
    """State of one episode.

    Attributes:
      scene: int32 index into the bank.
      step: int32 decisions taken.
      motion: of all bodies, leaves `[N]`.
      present: `[N]` bool; the body is there.
      memory: of the dynamics, leaves `[A, ...]`.
      alive: `[A]` bool; acts and learns.
      ghost: `[A]` bool; put back after its first goal.
      age: `[A]` int32 steps since the learner was last put at its start.
      goal: `[A, 2]`.
      goal_step: `[A]` int32 step at which the goal was given.
      goal_distance: `[A]` distance to it then, m.
      condition: of the learners.
      start: where they began.
      traffic: of all bodies, leaves `[N]`.
      ride: of the learners.
      paid: memory of the reward.
      earned: per reward component `[A]`, in the last step.
      drawn: per conditioned weight `[A]`.
      record: of the learners.
    """

    scene: jax.Array
    step: jax.Array
    motion: Motion
    present: jax.Array
    memory: Any
    alive: jax.Array
    ghost: jax.Array
    age: jax.Array
    goal: jax.Array
    goal_step: jax.Array
    goal_distance: jax.Array
    condition: Condition
    start: Start
    traffic: Traffic
    ride: Ride
    paid: Any
    earned: dict[str, jax.Array]
    drawn: dict[str, jax.Array]
    record: Record


@struct.dataclass
class DriveParams:
    """What may change between episodes.

    Attributes:
      reward: weights, `{component: {weight: scalar}}`.
      first_scene, scenes: int32; an episode takes one of `scenes` scenes of the bank from `first_scene` on.
      goal_radius: m.
      goal_speed: m/s, up to which a goal counts; a large number for any.
      goal_behavior, collision_behavior, offroad_behavior: int32 codes.
      goal_distance: `[2]` range of the way to a new goal, m.
      early_end: bool; the episode ends once all learners have left their first attempt.
    """

    reward: dict[str, dict[str, jax.Array]]
    first_scene: jax.Array
    scenes: jax.Array
    goal_radius: jax.Array
    goal_speed: jax.Array
    goal_behavior: jax.Array
    collision_behavior: jax.Array
    offroad_behavior: jax.Array
    goal_distance: jax.Array
    early_end: jax.Array
