"""Bonus for honest status reports: forecasts of a mech's own condition, scored 20 decisions later.

A report in [0, 1] (red, yellow, green) is scored by the Brier rule against the outcome of its author. The
rule is strictly proper: reporting the expected outcome is optimal. Every report is scored at most once, and
the bonus of a whole episode is at most the weight.

Reference: docs/reference/echelon.md 16.5; Brier (1950), "Verification of forecasts expressed in terms of
probability".
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

WINDOW = 20
WEIGHT = 0.05
# Decisions for which trouble counts as recent (2 s), and voxels gained over the window that are an advance.
TROUBLE, ADVANCE = 8, 0.5
DEAD, STRUGGLING, WAITING, ADVANCING = 0.0, 0.3, 0.5, 0.7


class Reports(struct.PyTreeNode):
    """Recent reports of A agents, and the data that their outcomes are derived from; newest last.

    Attributes:
      status: `[A, 20]` reports.
      distance: `[A, 20]` distances to the objective at the time of the reports, voxels; see
        `shift_report_distances`.
      pending: `[A]` int32 reports that are not scored yet.
      calm: `[A]` int32 decisions since the agent was last in trouble, saturating.
    """

    status: jax.Array
    distance: jax.Array
    pending: jax.Array
    calm: jax.Array


class AgentCondition(struct.PyTreeNode):
    """Condition of the agents after a decision, `[A]` each.

    Attributes:
      reported: status reported with this decision, in [0, 1].
      acted: bool; alive before the decision.
      alive: bool; alive after it.
      trouble: bool; hit, suppressed, fallen or shut down in this decision.
      distance: to the objective, voxels.
      inside: bool; inside the area of operations.
      over: bool `[]`; the episode ends with this decision.
    """

    reported: jax.Array
    acted: jax.Array
    alive: jax.Array
    trouble: jax.Array
    distance: jax.Array
    inside: jax.Array
    over: jax.Array


def empty_reports(agents: int) -> Reports:
    """Returns an empty history of reports."""
    nothing = jnp.zeros((agents, WINDOW), jnp.float32)
    return Reports(nothing, nothing, jnp.zeros(agents, jnp.int32), jnp.full(agents, TROUBLE, jnp.int32))


def calibration_fade(progress: jax.Array) -> jax.Array:
    """Returns the share of the weight at a progress: 1 up to 0.5, then linear to 0 at 1."""
    return jnp.clip(2.0 * (1.0 - progress), 0.0, 1.0)


def report_outcome(alive: jax.Array, troubled: jax.Array, advancing: jax.Array) -> jax.Array:
    """Returns the outcome for scoring a report: dead 0, else in trouble 0.3, advancing 0.7, waiting 0.5."""
    living = jnp.where(troubled, STRUGGLING, jnp.where(advancing, ADVANCING, WAITING))
    return jnp.where(alive, living, DEAD)


def brier_score(status: jax.Array, outcome: jax.Array) -> jax.Array:
    """Returns the Brier score in [0, 1] of reports, 1 for the best: `1 - (status - outcome)^2`."""
    return 1.0 - jnp.square(status - outcome)


def score_due_reports(
    reports: Reports, now: AgentCondition, weight: jax.Array, decisions: jax.Array
) -> tuple[Reports, jax.Array]:
    """Scores the reports that are due and records the new ones.

    A living agent's report is due after 20 decisions. At a death all pending reports, including the one just
    made, are scored against the outcome 0; otherwise good reports shortly before it would never be penalised.
    At the end of the episode those of living agents are scored against their condition then: an early end
    costs no reports that were made.

    Args:
      reports: history before this decision.
      now: the agents after this decision.
      weight: of the bonus over a whole episode.
      decisions: the time limit, by which the weight is divided.

    Returns:
      the reports, and the bonus `[A]` of this decision.
    """
    calm = jnp.where(now.trouble, 0, jnp.minimum(reports.calm + 1, TROUBLE))
    status, distance = (
        _append(*pair) for pair in ((reports.status, now.reported), (reports.distance, now.distance))
    )
    advancing = (distance - now.distance[:, None] >= ADVANCE) | now.inside[:, None]
    outcome = report_outcome(now.alive[:, None], (calm < TROUBLE)[:, None], advancing)
    # The oldest report is due; all are if the agent dies or the episode ends.
    age = np.arange(WINDOW, -1, -1)
    closing = now.over | ~now.alive
    due = now.acted[:, None] & (age <= reports.pending[:, None]) & (closing[:, None] | (age == WINDOW))
    gained = jnp.sum(jnp.where(due, brier_score(status, outcome), 0.0), axis=1)
    pending = jnp.where(now.alive & now.acted, jnp.minimum(reports.pending + 1, WINDOW), 0)
    after = Reports(status=status[:, 1:], distance=distance[:, 1:], pending=pending, calm=calm)
    return after, weight / decisions * gained


def shift_report_distances(reports: Reports, farther: jax.Array) -> Reports:
    """Shifts recorded distances after a change of the objective, so that the change is not an advance itself.

    The gain towards the old objective before the change and towards the new one after it add up.

    Args:
      reports: history of reports.
      farther: `[A]` distance to the new objective minus distance to the old one, voxels.
    """
    return reports.replace(distance=reports.distance + farther[:, None])


def _append(history: jax.Array, newest: jax.Array) -> jax.Array:
    """Returns `history [A, N]` with one newest value (last) per agent, `[A, N + 1]`."""
    return jnp.concatenate([history, newest[:, None].astype(history.dtype)], axis=1)
