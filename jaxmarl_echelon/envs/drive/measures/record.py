"""Measures of learners over the first attempt and over the whole episode.

The first attempt lasts from the start to the first goal (inclusive), to the learner's end or to the last
step. `score + dnf + infraction = 1` for every learner. Reference: docs/reference/drive.md 13.1, 13.2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.drive.state import DT, VEHICLE_ROLE, LearnerRecord, RoadCondition
from jaxmarl_echelon.envs.results import Result
from physics.bicycle import Motion

SCORE = "score"
ATTEMPT_SPEED = 5.0  # m/s; a last goal counts as attempted if there was time to drive to it at this speed


class StepOutcome(NamedTuple):
    """Outcome of one step for learners.

    Attributes:
      acted: `[A]` bool; alive before the step.
      reached: `[A]` bool; reached a goal.
      before: condition before the step.
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


def _of_learners(name: str, kind: str = "number", **further) -> Result:
    return Result(name, role=VEHICLE_ROLE, kind=kind, **further)


def declare_drive_results(
    kinds: tuple[str, ...], paid: tuple[str, ...], new_goals: bool
) -> tuple[Result, ...]:
    """Declares the results of an environment with these kinds of scenes and reward components.

    Rates and means are over learners. `distance_per_infraction` is the total distance divided by the number
    of collisions and departures from the road, or the distance itself if there are none.
    """
    rates = (SCORE, "completion", "collision", "offroad", "dnf", "infraction", "collision_all", "offroad_all")
    numbers = ("collision_steps", "offroad_steps", "collision_events", "offroad_events", "goals", "distance")
    attempts = (
        _of_learners("goals_attempted"),
        _of_learners("clean_goals"),
        _of_learners("goal_completion", source="goals", over="goals_attempted"),
    )
    return (
        *results.standard_results(tasks=kinds, components=paid),
        *(_of_learners(name, "rate") for name in rates),
        *(_of_learners(name) for name in numbers),
        _of_learners("lane_alignment"),
        _of_learners("comfort"),
        _of_learners("recorded_learners", kind="rate"),
        _of_learners("ade", over="recorded_learners"),
        _of_learners("time_to_goal", over="completion"),
        _of_learners("speed_at_goal", over="completion"),
        _of_learners("infractions"),
        _of_learners("distance_per_infraction", source="distance", over="infractions", least=1.0),
        *(attempts if new_goals else ()),
        Result("controlled"),
        Result("bodies"),
    )


def report_drive_results(record: LearnerRecord, attempted: jax.Array | None = None) -> dict[str, jax.Array]:
    """Returns the entries of `TimeStep.info` for the results per learner, `[A]` each.

    Args:
      record: so far.
      attempted: `[A]` bool; the current goal counts as attempted. None where learners get no new goals.
    """
    infraction = record.collided | record.left_road
    flags = {
        SCORE: record.reached & ~infraction,
        "completion": record.reached,
        "collision": record.collided,
        "offroad": record.left_road,
        "dnf": ~record.reached & ~infraction,
        "infraction": infraction,
        "collision_all": record.collided_ever,
        "offroad_all": record.left_road_ever,
        "recorded_learners": record.recorded > 0,
        "collision_steps": record.collision_steps,
        "offroad_steps": record.offroad_steps,
        "collision_events": record.collision_events,
        "offroad_events": record.offroad_events,
        "infractions": record.collision_events + record.offroad_events,
        "goals": record.goals,
    }
    if attempted is not None:
        flags |= {"clean_goals": record.clean_goals, "goals_attempted": record.goals + attempted}
    steps = jnp.maximum(record.steps, 1)
    return {
        **{name: value.astype(jnp.float32) for name, value in flags.items()},
        "distance": record.distance,
        "lane_alignment": record.aligned / steps,
        "comfort": record.comfortable / steps,
        "ade": record.displacement / jnp.maximum(record.recorded, 1),
        "time_to_goal": record.time_to_goal,
        "speed_at_goal": record.speed_at_goal,
    }
