"""Outcomes of the adversarial task."""

import jax
import jax.numpy as jnp

OUTCOMES = ("target_crash", "self_crash", "collision", "timeout", "idle_stop", "target_finish")
TARGET_CRASH, SELF_CRASH, COLLISION, TIMEOUT, IDLE_STOP, TARGET_FINISH = range(len(OUTCOMES))
RUNNING = -1
SUCCESS = OUTCOMES[TARGET_CRASH]

# The defender's reward is the negative of the attacker's: by the default reward it gains from each of these.
# A collision of both cars is a success of neither.
DEFENDED = tuple(OUTCOMES[code] for code in (SELF_CRASH, TIMEOUT, IDLE_STOP, TARGET_FINISH))


def classify_outcome(
    attacker_crashed: jax.Array,
    defender_crashed: jax.Array,
    defender_finished: jax.Array,
    idle: jax.Array,
    out_of_time: jax.Array,
) -> jax.Array:
    """Returns the outcome code of a decision, `RUNNING` while the episode continues.

    If several events happen in one decision, the first in this order counts: target_finish, collision
    (both cars crashed, into each other or not), target_crash, self_crash, idle_stop, timeout.

    Args:
      attacker_crashed: bool; the attacker touched a wall or a car.
      defender_crashed: bool; the defender touched a wall or a car.
      defender_finished: bool; the defender passed the finish.
      idle: bool; the attacker stood still for too long.
      out_of_time: bool; the time limit was reached.

    Returns:
      int32 of the arguments' shape, an index into `OUTCOMES` or `RUNNING`.
    """
    ranked = (
        (defender_finished, TARGET_FINISH),
        (attacker_crashed & defender_crashed, COLLISION),
        (defender_crashed, TARGET_CRASH),
        (attacker_crashed, SELF_CRASH),
        (idle, IDLE_STOP),
        (out_of_time, TIMEOUT),
    )
    codes = [jnp.int32(code) for _, code in ranked]
    return jnp.select([flag for flag, _ in ranked], codes, jnp.int32(RUNNING))
