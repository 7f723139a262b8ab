"""Results of mission episodes. Reference: docs/reference/echelon.md 15.9."""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord, clipped_ratio
from jaxmarl_echelon.envs.echelon.missions.measures.success import COMPLETED
from jaxmarl_echelon.envs.results import Result

# Both teams can complete their missions.
MISSION_OUTCOMES = ("both", "blue", "red", "neither")
MISSION_ENDINGS = ("complete", "elimination", "time")
COMPLETE, ELIMINATION, TIME = range(len(MISSION_ENDINGS))
SCORE, RED_SCORE = "mission", "mission/red"
# The verb of blue's order.
TASK = "task"
RUNNING = -1
_RATES = ("survival", "attempt", "efficiency", "covered", "detected", "captured")


def declare_mission_results(verbs: tuple[str, ...], paid: tuple[str, ...]) -> tuple[Result, ...]:
    """Declares the results of an environment with these verbs and reward components.

    `mission` and `mission/red` are the success of blue's and of red's order; the others concern blue:
    completion, completion against enemies with the highest fire probability (`win`), share of survivors,
    whether the mission was attempted, success discounted for time and casualties (`efficiency`), and the
    shares covered, detected and captured. Success, completion and reward components are also split by verb.
    """
    rates = tuple(Result(name, kind="rate") for name in (RED_SCORE, *_RATES))
    return (
        *results.standard_results(MISSION_OUTCOMES, tasks=verbs, components=paid, by=TASK),
        Result(SCORE, kind="rate", by=TASK),
        *rates,
        Result("completed", kind="rate", source="outcome", among=("both", "blue"), by=TASK),
        Result("completed/red", kind="rate", source="outcome", among=("both", "red")),
        Result("full_fire"),
        Result("win", kind="rate", over="full_fire"),
        Result("difficulty"),
        Result("ending", kind="code", labels=MISSION_ENDINGS),
    )


def outcome_code(success: jax.Array, over: jax.Array) -> jax.Array:
    """Returns the int32 index into `MISSION_OUTCOMES` from the success `[K]` of both teams, or RUNNING."""
    blue, red = success >= COMPLETED
    code = jnp.where(blue & red, 0, jnp.where(blue, 1, jnp.where(red, 2, 3)))
    return jnp.where(over, code, RUNNING).astype(jnp.int32)


def report_blue_results(
    outcome: OutcomeRecord,
    success: jax.Array,
    attempted: jax.Array,
    taken: jax.Array,
    limit: jax.Array,
    full_fire: jax.Array,
) -> dict[str, jax.Array]:
    """Returns entries of `TimeStep.info`: results of blue, and success of both teams.

    Args:
      outcome: records `[K]`.
      success: `[K]`.
      attempted: `[K]` bool.
      taken: `[K]` seconds until the mission was done, or so far.
      limit: time limit in seconds.
      full_fire: bool; red has its highest fire probability.
    """
    losses = clipped_ratio(outcome.casualties, outcome.strength, 0.0)[0]
    full = full_fire.astype(jnp.float32)
    return {
        SCORE: success[0],
        RED_SCORE: success[1],
        "survival": outcome.survivors[0],
        "attempt": attempted[0].astype(jnp.float32),
        "efficiency": success[0] * (1.0 - 0.5 * jnp.minimum(taken[0] / limit, 1.0)) * (1.0 - 0.5 * losses),
        "covered": outcome.covered[0],
        "detected": clipped_ratio(outcome.detected, outcome.enemies, 1.0)[0],
        "captured": outcome.captured[0],
        "full_fire": full,
        "win": jnp.where(success[0] >= COMPLETED, full, 0.0),
    }
