"""Results of driving episodes, from the learners' records. Reference: docs/reference/drive.md 13.1, 13.2.

`score + dnf + infraction = 1` for every learner.
"""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.drive.state import VEHICLE_ROLE, LearnerRecord
from jaxmarl_echelon.envs.results import Result

SCORE = "score"
ATTEMPT_SPEED = 5.0  # m/s; a last goal counts as attempted if there was time to drive to it at this speed


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
