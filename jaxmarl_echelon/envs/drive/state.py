"""State and parameters of driving.

Axes: N bodies of a scene, of which the first A are learners' slots; the others are scripted. Units: m, rad,
s.
"""

from typing import Any

import jax
from flax import struct

from physics.bicycle import Motion
from physics.segments import MatchedLane

DT = 0.1
VEHICLE_ROLE = "vehicle"

RESPAWN, NEW_GOAL, STOP, REMOVE = range(4)
GOAL_BEHAVIORS = ("respawn", "new_goal", "stop", "remove")
# Infractions share the codes of goals, so that one function handles both; `ignore` replaces `respawn`.
INFRACTION_BEHAVIORS = {"ignore": RESPAWN, "stop": STOP, "remove": REMOVE}


class RoadCondition(struct.PyTreeNode):
    """Contacts and lanes of learners, every leaf `[A]`.

    Attributes:
      colliding: bool; the learner touches another body.
      offroad: bool; the learner touches a road edge.
      lane: the matched lane.
    """

    colliding: jax.Array
    offroad: jax.Array
    lane: MatchedLane


class RouteProgress(struct.PyTreeNode):
    """Progress of driven bodies along their routes, every leaf `[N]`.

    Attributes:
      arc: position of the body's centre along its route, m.
      served: bool; the body has stopped at the stop sign of its next gate.
      seen: bool; the body has been present at any sample so far.
    """

    arc: jax.Array
    served: jax.Array
    seen: jax.Array


class Ride(struct.PyTreeNode):
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


class LearnerRecord(struct.PyTreeNode):
    """Running measures of learners over an episode, every leaf `[A]`; docs/reference/drive.md 13.

    Attributes:
      first: bool; still on the first attempt, which ends with the first goal, the learner's end or the last
        step.
      reached: bool; reached a goal on the first attempt.
      collided, left_road: bool; at any step of the first attempt.
      collided_ever, left_road_ever: bool; at any step of the episode.
      steps: int32 steps of the first attempt.
      aligned, comfortable: int32 steps of the first attempt within the bounds of lane alignment and comfort.
      displacement: sum of the distances to the recording over the recorded steps of the first attempt, m.
      recorded: int32 number of those steps.
      time_to_goal: time of the first goal, s; 0 before it.
      speed_at_goal: speed at the first goal, m/s; 0 before it.
      collision_steps, offroad_steps, collision_events, offroad_events: int32 counts of the episode.
      goals: int32 goals reached in the episode.
      clean_goals: int32 goals without an infraction since the previous goal.
      clean: bool; no infraction since the last goal.
      distance: driven, m.
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


class Start(struct.PyTreeNode):
    """Initial condition of learners, to which respawns return them; every leaf `[A]`.

    Attributes:
      motion: at the first step.
      condition: at the first step.
      arc: position along the route at the first step, m.
    """

    motion: Motion
    condition: RoadCondition
    arc: jax.Array


class DriveState(struct.PyTreeNode):
    """State of one episode.

    Attributes:
      scene: int32 index into the bank.
      step: int32 decisions taken.
      motion: of all bodies, leaves `[N]`.
      present: `[N]` bool; the body is in the scene.
      memory: internal state of the dynamics, leaves `[A, ...]`.
      alive: `[A]` bool; the learner acts and learns.
      ghost: `[A]` bool; the learner respawned after its first goal.
      age: `[A]` int32 steps since the start or the last respawn, up to the learner's end.
      goal: `[A, 2]` m.
      goal_step: `[A]` int32 step at which the goal was assigned.
      goal_distance: `[A]` distance to the goal at that step, m.
      condition: contacts and lanes of the learners.
      start: initial condition of the learners.
      traffic: route progress of all bodies, leaves `[N]`.
      ride: backward differences of the learners' motion.
      paid: memory of the reward.
      earned: reward of the last step per component, `[A]` each.
      drawn: conditioned weights and goal radii by name, `[A]` each.
      record: running measures of the learners.
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
    condition: RoadCondition
    start: Start
    traffic: RouteProgress
    ride: Ride
    paid: Any
    earned: dict[str, jax.Array]
    drawn: dict[str, jax.Array]
    record: LearnerRecord


class DriveParams(struct.PyTreeNode):
    """Parameters that may change between episodes.

    Attributes:
      reward: weights, `{component: {weight: scalar}}`.
      first_scene, scenes: int32; an episode draws one of `scenes` scenes of the bank, from `first_scene` on.
      goal_radius: m.
      goal_speed: largest speed at which a goal counts, m/s; a large number for any speed.
      goal_behavior, collision_behavior, offroad_behavior: int32 codes.
      goal_distance: `[2]` range of the route distance to a new goal, m.
      early_end: bool; the episode ends once every learner has finished its first attempt.
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
