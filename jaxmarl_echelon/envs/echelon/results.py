"""Outcomes of an episode and its winner. Reference: docs/reference/echelon.md 13.2."""

import jax
import jax.numpy as jnp

OUTCOMES = ("blue_win", "red_win", "draw")
ENDINGS = ("zone", "elimination", "time")
ZONE, ELIMINATION, TIME = range(len(ENDINGS))
RUNNING = -1
WINS = OUTCOMES[:2]
SCORE_TIE = 1e-3


def decide_outcome(
    score: jax.Array,
    living: jax.Array,
    hp: jax.Array,
    decision: jax.Array,
    zone_seconds: jax.Array,
    max_decisions: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Decides whether an episode is over, and its winner.

    A team wins by reaching a score of `zone_seconds`, or by eliminating the other one. At the time
    limit the higher score wins, and on a tie the team with more hit points. If several conditions
    hold after one decision, the first of these counts.

    Args:
      score: `[2]` seconds that blue and red have held the zone.
      living: `[2]` int32 living mechs.
      hp: `[2]` sum of their hit points.
      decision: int32 decisions taken.
      zone_seconds: winning score.
      max_decisions: int32 time limit.

    Returns:
      int32 index into `OUTCOMES` and into `ENDINGS`, both `RUNNING` while the episode runs; and
      1 if blue has won, -1 if red has, 0 otherwise.
    """
    held, gone = score >= zone_seconds, living == 0
    ended = jnp.stack([jnp.any(held), jnp.any(gone), decision >= max_decisions])
    more = jnp.where(jnp.abs(score[0] - score[1]) > SCORE_TIE, score[0] - score[1], hp[0] - hp[1])
    longest = jnp.where(jnp.all(held), jnp.sign(score[0] - score[1]), held[0] * 1.0 - held[1])
    leads = jnp.stack([longest, gone[1] * 1.0 - gone[0], jnp.sign(more)])
    over = jnp.any(ended)
    ending = jnp.argmax(ended)
    lead = jnp.where(over, leads[ending], 0.0)
    outcome = jnp.where(lead > 0, 0, jnp.where(lead < 0, 1, 2))
    codes = (jnp.where(over, code, RUNNING).astype(jnp.int32) for code in (outcome, ending))
    return *codes, lead
