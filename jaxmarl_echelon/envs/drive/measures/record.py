"""Record of learners over the first attempt and over the whole episode.

The first attempt lasts from the start to the first goal (inclusive), to the learner's end or to the last
step. Reference: docs/reference/drive.md 13.1, 13.2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.state import DT, LearnerRecord, RoadCondition
from physics.bicycle import Motion


class StepOutcome(NamedTuple):
    """Outcome of one step for learners.

    Attributes:
      acted: `[A]` bool; alive before the step.
      reached: `[A]` bool; reached a goal.
      before: condition before the step, without contacts and departures where an attempt begins: what lasts
        from a start is an event of the attempt's first step.
      condition: condition after the step, at the new poses.
      motion: after the step, leaves `[A]`.
      moved: `[A]` distance moved, m.
      comfortable: `[A]` bool; within the bounds of comfort.
      error: `[A]` distance to the recording at this sample, m.
      recorded: `[A]` bool; the recording has this sample.
      step: int32 decisions taken, including this one.
    """

    acted: jax.Array
    reached: jax.Array
    before: RoadCondition
    condition: RoadCondition
    motion: Motion
    moved: jax.Array
    comfortable: jax.Array
    error: jax.Array
    recorded: jax.Array
    step: jax.Array


def start_learner_record(alive: jax.Array) -> LearnerRecord:
    """Returns the record before the first step; `alive [A]`."""
    no, none = jnp.zeros_like(alive), jnp.zeros(alive.shape, jnp.int32)
    zero = jnp.zeros(alive.shape, jnp.float32)
    return LearnerRecord(
        first=alive,
        reached=no,
        collided=no,
        left_road=no,
        collided_ever=no,
        left_road_ever=no,
        steps=none,
        aligned=none,
        comfortable=none,
        displacement=zero,
        recorded=none,
        time_to_goal=zero,
        speed_at_goal=zero,
        collision_steps=none,
        offroad_steps=none,
        collision_events=none,
        offroad_events=none,
        goals=none,
        clean_goals=none,
        clean=alive,
        distance=zero,
    )


def update_learner_record(record: LearnerRecord, now: StepOutcome) -> LearnerRecord:
    """Updates the record after a step, before ends and respawns of that step."""
    acted, first = now.acted, now.acted & record.first
    hit, out = acted & now.condition.colliding, acted & now.condition.offroad
    reached, first_goal = acted & now.reached, first & now.reached
    seen = first & now.recorded
    return record.replace(
        first=record.first & ~first_goal,
        reached=record.reached | first_goal,
        collided=record.collided | (first & hit),
        left_road=record.left_road | (first & out),
        collided_ever=record.collided_ever | hit,
        left_road_ever=record.left_road_ever | out,
        steps=record.steps + first,
        aligned=record.aligned + (first & now.condition.lane.aligned),
        comfortable=record.comfortable + (first & now.comfortable),
        displacement=record.displacement + jnp.where(seen, now.error, 0.0),
        recorded=record.recorded + seen,
        time_to_goal=jnp.where(first_goal, now.step * DT, record.time_to_goal),
        speed_at_goal=jnp.where(first_goal, jnp.abs(now.motion.speed), record.speed_at_goal),
        collision_steps=record.collision_steps + hit,
        offroad_steps=record.offroad_steps + out,
        collision_events=record.collision_events + (hit & ~now.before.colliding),
        offroad_events=record.offroad_events + (out & ~now.before.offroad),
        goals=record.goals + reached,
        clean_goals=record.clean_goals + (reached & record.clean & ~hit & ~out),
        clean=jnp.where(reached, True, record.clean & ~hit & ~out),
        distance=record.distance + jnp.where(acted, now.moved, 0.0),
    )
