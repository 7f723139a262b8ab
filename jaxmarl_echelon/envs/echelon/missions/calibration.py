"""Bonus for honest status reports: forecasts of one's own condition, scored 20 decisions later.

A report in [0, 1] (red, yellow, green) is scored by the Brier rule against what came of its author: strictly
proper, so that the expected outcome is the best report. Every report is scored at most once, and the bonus of
a whole episode is at most the weight.

Source: section 7.3 of the mission curriculum's design; spec/echelon.md section 7.7; Brier (1950).
"""

import jax
import jax.numpy as jnp
from flax import struct

WINDOW = 20
WEIGHT = 0.05
# Decisions for which trouble counts (2 s), and voxels gained over the window that are an advance.
TROUBLE, ADVANCE = 8, 0.5
DEAD, STRUGGLING, WAITING, ADVANCING = 0.0, 0.3, 0.5, 0.7


@struct.dataclass
class Reports:
    """What A agents reported lately, and what their outcomes are derived from; newest last.

    Attributes:
      status: `[A, 20]` reports.
      distance: `[A, 20]` distances to the objective when they were made, voxels; see `aimed_anew`.
      pending: `[A]` int32, reports that were made and are not scored yet.
      calm: `[A]` int32, decisions since the agent was last in trouble, saturating.
    """

    status: jax.Array
    distance: jax.Array
    pending: jax.Array
    calm: jax.Array


@struct.dataclass
class Condition:
    """The agents after a decision, `[A]` each.

    Attributes:
      reported: the status that each reported with this decision, in [0, 1].
      acted: bool; alive before the decision.
      alive: bool; alive after it.
      trouble: bool; in this decision hit, suppressed, fallen or shut down.
      distance: to the objective, voxels.
      inside: bool; inside the area of operations.
    """

    reported: jax.Array
    acted: jax.Array
    alive: jax.Array
    trouble: jax.Array
    distance: jax.Array
    inside: jax.Array


def begin(agents: int) -> Reports:
    """Nothing reported yet."""
    nothing = jnp.zeros((agents, WINDOW), jnp.float32)
    return Reports(nothing, nothing, jnp.zeros(agents, jnp.int32), jnp.full(agents, TROUBLE, jnp.int32))


def fade(progress: jax.Array) -> jax.Array:
    """Share of the weight at a progress: full in the first two phases, then linear to 0 at 1."""
    return jnp.clip(2.0 * (1.0 - progress), 0.0, 1.0)


def outcome(alive: jax.Array, troubled: jax.Array, advancing: jax.Array) -> jax.Array:
    """What a report is scored against, `[...]`: dead, else in trouble, else advancing, else waiting."""
    living = jnp.where(troubled, STRUGGLING, jnp.where(advancing, ADVANCING, WAITING))
    return jnp.where(alive, living, DEAD)


def score(status: jax.Array, outcome: jax.Array) -> jax.Array:
    """Brier score in [0, 1] of reports, 1 for the best: `1 - (status - outcome)^2`."""
    return 1.0 - jnp.square(status - outcome)


def advance(
    reports: Reports, now: Condition, weight: jax.Array, decisions: jax.Array
) -> tuple[Reports, jax.Array]:
    """Scores the reports that are due and records the new ones.

    A living agent's report is due after 20 decisions. At a death all that are pending, with the one just
    made, are scored as those of the dead; otherwise good reports until the end would never be charged.
    Reports still pending when the episode ends are not scored, whatever they say.

    Args:
      reports: those so far.
      now: the agents after this decision.
      weight: of the bonus over a whole episode.
      decisions: the time limit, which the weight is divided by.

    Returns:
      the reports, and the bonus `[A]` of this decision.
    """
    calm = jnp.where(now.trouble, 0, jnp.minimum(reports.calm + 1, TROUBLE))
    closer = reports.distance[:, 0] - now.distance >= ADVANCE
    found = outcome(now.alive, calm < TROUBLE, closer | now.inside)
    due = now.acted & now.alive & (reports.pending == WINDOW)
    made = jnp.arange(WINDOW) >= WINDOW - reports.pending[:, None]
    at_death = jnp.sum(jnp.where(made, score(reports.status, DEAD), 0.0), axis=1) + score(now.reported, DEAD)
    died = now.acted & ~now.alive
    gained = jnp.where(died, at_death, jnp.where(due, score(reports.status[:, 0], found), 0.0))
    pending = jnp.where(now.alive & now.acted, jnp.minimum(reports.pending + 1, WINDOW), 0)
    after = Reports(
        status=_pushed(reports.status, now.reported),
        distance=_pushed(reports.distance, now.distance),
        pending=pending,
        calm=calm,
    )
    return after, weight / decisions * gained


def aimed_anew(reports: Reports, farther: jax.Array) -> Reports:
    """The reports after the objective has changed, so that an advance is measured over the change.

    What was gained towards the old objective until then and towards the new one since then adds up. Compared
    as they are, distances to two objectives would make an advance of the change itself.

    Args:
      reports: those so far.
      farther: `[A]` by how much the new objective is farther away than the old one, voxels.
    """
    return reports.replace(distance=reports.distance + farther[:, None])


def _pushed(history: jax.Array, newest: jax.Array) -> jax.Array:
    """`history [A, N]`, newest last, with one more value per agent in place of the oldest."""
    return jnp.concatenate([history[:, 1:], newest[:, None].astype(history.dtype)], axis=1)
