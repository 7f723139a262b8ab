"""League training: learners in three roles play each other's current and past policies (Vinyals et al. 2019).

Main agents learn to beat all opponents. Main exploiters search for weaknesses of the main agents, league
exploiters for weaknesses of all past policies. Functions of one learner's `LeagueView` give the probabilities
of its opponents, the time of its snapshots, and whether it is reset. See docs/reference/selfplay.md 4.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algos.types import PyTree
from jaxmarl_echelon.selfplay.matchmaking import normalise_weights, pfsp_weights
from jaxmarl_echelon.selfplay.settings import LEAGUE_ROLES

# Name of the mapped axis of the learners.
AXIS = "league"
MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = range(len(LEAGUE_ROLES))
NO_LEARNER = -1

VERIFICATION_SHARE, SELF_PLAY_SHARE = 0.15, 0.35
# Scores up to which a main agent counts as too strong to train against, for main agents and exploiters.
TOO_STRONG_FOR_MAIN, TOO_STRONG_FOR_EXPLOITER = 0.3, 0.1
# Scores below which past main exploiters are still a weakness, and a past main agent is being forgotten.
EXPLOITED_BELOW, FORGOTTEN_BELOW = 0.3, 0.7
SNAPSHOT_SCORE = 0.7
RESET_CHANCE = 0.25


class LeagueMembership(struct.PyTreeNode):
    """League part of a learner's pool; see `pool.PoolState`.

    In its tables the learner itself is entry 0, and the entry of its own number is learner 0; all other
    entries have the same index for all learners.

    Attributes:
      member: int32 index of the learner.
      origin: initial state of the learner without its hyperparameters, restored by a reset.
      resets: int32 number of resets so far.
    """

    member: jax.Array
    origin: PyTree
    resets: jax.Array


class LeagueView(NamedTuple):
    """View of the league's entries `[n]` by one learner.

    Attributes:
      payoff: float32 score in [0, 1] of the learner against each entry.
      past: bool; does not learn: a snapshot or a fixed opponent.
      learner_index: int32 index of the learner that the entry is, or is a snapshot of; -1 for fixed opponents
        and empty slots.
      iteration: int32 snapshot number; lower is older.
    """

    payoff: jax.Array
    past: jax.Array
    learner_index: jax.Array
    iteration: jax.Array


def league_probabilities(
    standing: LeagueView, roles: Sequence[int], member: jax.Array, power: float = 2.0
) -> jax.Array:
    """Returns the opponent probabilities `[n]` of learner `member`, by its role `roles[member]`.

    Args:
      standing: the learner's view of the entries.
      roles: role of each learner: `MAIN`, `MAIN_EXPLOITER` or `LEAGUE_EXPLOITER`.
      member: int32 index of the learner.
      power: exponent of the PFSP weight `hard`.
    """
    found = jnp.stack(
        [
            main_agent_probabilities(standing, roles, power),
            main_exploiter_probabilities(standing, roles),
            pfsp_among(standing, standing.past, "capped"),
        ]
    )
    return found[jnp.array(roles)[member]]


def main_agent_probabilities(standing: LeagueView, roles: Sequence[int], power: float = 2.0) -> jax.Array:
    """Mixes PFSP over the past (1/2), main agents (`SELF_PLAY_SHARE`) and checks (`VERIFICATION_SHARE`)."""
    mains = _mains(roles)
    rest = 1.0 - VERIFICATION_SHARE - SELF_PLAY_SHARE
    total = rest * pfsp_among(standing, standing.past, "hard", power)
    for main in mains:
        meets = _present_or_past(standing, main, TOO_STRONG_FOR_MAIN)
        checks = verification_probabilities(standing, roles, main, meets, power)
        total += (VERIFICATION_SHARE * checks + SELF_PLAY_SHARE * meets) / len(mains)
    return total


def verification_probabilities(
    standing: LeagueView, roles: Sequence[int], main: int, otherwise: jax.Array, power: float = 2.0
) -> jax.Array:
    """Returns probabilities `[n]` of opponents that test a main agent for weaknesses.

    Past main exploiters if the score against one is below `EXPLOITED_BELOW`; else the past of main agent
    `main` if the score against a forgotten part is below `FORGOTTEN_BELOW`; else `otherwise`.
    """
    exploiters = [number for number, role in enumerate(roles) if role == MAIN_EXPLOITER]
    found = standing.past & jnp.isin(standing.learner_index, jnp.array(exploiters, jnp.int32))
    older = forgotten_entries(standing, standing.past & (standing.learner_index == main))
    forgets = jnp.where(
        lowest_score(standing, older) < FORGOTTEN_BELOW, pfsp_among(standing, older, "hard", power), otherwise
    )
    return jnp.where(
        lowest_score(standing, found) < EXPLOITED_BELOW, pfsp_among(standing, found, "hard", power), forgets
    )


def main_exploiter_probabilities(standing: LeagueView, roles: Sequence[int]) -> jax.Array:
    """Averages over the main agents, replacing those that are too strong by their past."""
    mains = _mains(roles)
    return sum(_present_or_past(standing, main, TOO_STRONG_FOR_EXPLOITER) for main in mains) / len(mains)


def _mains(roles: Sequence[int]) -> list[int]:
    return [number for number, role in enumerate(roles) if role == MAIN]


def _present_or_past(standing: LeagueView, main: int, above: float) -> jax.Array:
    """Returns the main agent itself if the score against it exceeds `above`, else `var` over its past."""
    own = standing.learner_index == main
    present, past = own & ~standing.past, own & standing.past
    beatable = jnp.sum(jnp.where(present, standing.payoff, 0.0)) > above
    return jnp.where(
        beatable | ~jnp.any(past), normalise_weights(present, present), pfsp_among(standing, past, "var")
    )


def pfsp_among(standing: LeagueView, among: jax.Array, weight: str, power: float = 2.0) -> jax.Array:
    """Returns PFSP probabilities `[n]` over the entries `among [n]`; all 0 if none is set."""
    return normalise_weights(pfsp_weights(standing.payoff, weight, power), among)


def lowest_score(standing: LeagueView, among: jax.Array) -> jax.Array:
    """Returns the lowest score over the entries `among [n]`; infinite if none is set."""
    return jnp.min(jnp.where(among, standing.payoff, jnp.inf))


def forgotten_entries(standing: LeagueView, among: jax.Array) -> jax.Array:
    """Drops the newest entries along which scores never rise again; returns bool `[n]`.

    Scores are read from the oldest to the newest entry. If they rise nowhere, all entries are dropped: the
    learner has forgotten none of them.
    """
    before = among[None, :] & (standing.iteration[None, :] < standing.iteration[:, None])
    newest = jnp.argmax(jnp.where(before, standing.iteration[None, :], NO_LEARNER - 1), axis=1)
    rises = among & jnp.any(before, axis=1) & (standing.payoff[newest] < standing.payoff)
    last = jnp.max(jnp.where(rises, standing.iteration, NO_LEARNER - 1))
    return among & (standing.iteration <= last)


def worst_score(standing: LeagueView, roles: Sequence[int], member: jax.Array) -> jax.Array:
    """Returns the lowest score over the past, for main exploiters over the mains; it triggers snapshots."""
    mains = ~standing.past & jnp.isin(standing.learner_index, jnp.array(_mains(roles), jnp.int32))
    exploits = jnp.array(roles)[member] == MAIN_EXPLOITER
    return lowest_score(standing, jnp.where(exploits, mains, standing.past))


def ready_for_snapshot(score: jax.Array, waited: jax.Array, minimum: int) -> jax.Array:
    """Whether a snapshot is due: after `minimum` updates above `SNAPSHOT_SCORE`, else after twice as many."""
    return (waited >= minimum) & ((score > SNAPSHOT_SCORE) | (waited >= 2 * minimum))


def should_reset(key: jax.Array, role: jax.Array) -> jax.Array:
    """Whether a learner of this role is reset to its initial weights after a snapshot."""
    lucky = jax.random.uniform(key) < RESET_CHANCE
    return (role == MAIN_EXPLOITER) | ((role == LEAGUE_EXPLOITER) & lucky)


def common_numbering(number: int, member: jax.Array) -> jax.Array:
    """Permutation `[n]` from a learner's own numbering of entries to the common one; its own inverse."""
    entry = jnp.arange(number)
    return jnp.select([entry == 0, entry == member], [member, 0], entry)


def gather_learners(tree: PyTree) -> PyTree:
    """Gathers the arrays of all learners to `[M, ...]` inside a map along `AXIS`."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS), tree)
