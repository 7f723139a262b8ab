"""League training: learners in three roles play each other's current and past policies (Vinyals et al. 2019).

Main agents learn to beat all opponents. Main exploiters search for weaknesses of the main agents, league
exploiters for weaknesses of all past policies. Functions of one learner's `Standing` give the probabilities
of its opponents, the time of its snapshots, and whether it is reset. See docs/reference/selfplay.md 4.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.selfplay.matchmaking import normalised, prioritised
from jaxmarl_echelon.selfplay.settings import LEAGUE_ROLES

PyTree = Any

# Name of the mapped axis of the learners.
AXIS = "league"
MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = range(len(LEAGUE_ROLES))
NOBODY = -1

VERIFICATION, SELF_PLAY = 0.15, 0.35
# Scores up to which a main agent counts as too strong to train against, for main agents and exploiters.
BEATEN, HOPELESS = 0.3, 0.1
# Scores below which past main exploiters are still a weakness, and a past main agent is being forgotten.
EXPLOITED, FORGOTTEN = 0.3, 0.7
READY = 0.7
RESET_CHANCE = 0.25


@struct.dataclass
class Membership:
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


class Standing(NamedTuple):
    """View of the league's entries `[n]` by one learner.

    Attributes:
      payoff: float32 score in [0, 1] of the learner against each entry.
      past: bool; does not learn: a snapshot or a fixed opponent.
      kin: int32 index of the learner that the entry is, or is a snapshot of; -1 for fixed opponents and empty
        slots.
      iteration: int32 snapshot number; lower is older.
    """

    payoff: jax.Array
    past: jax.Array
    kin: jax.Array
    iteration: jax.Array


def chances(standing: Standing, roles: Sequence[int], member: jax.Array, power: float = 2.0) -> jax.Array:
    """Returns the opponent probabilities `[n]` of learner `member`, by its role `roles[member]`.

    Args:
      standing: the learner's view of the entries.
      roles: role of each learner: `MAIN`, `MAIN_EXPLOITER` or `LEAGUE_EXPLOITER`.
      member: int32 index of the learner.
      power: exponent of the PFSP weight `hard`.
    """
    found = jnp.stack(
        [
            main_agent(standing, roles, power),
            main_exploiter(standing, roles),
            over(standing, standing.past, "capped"),
        ]
    )
    return found[jnp.array(roles)[member]]


def main_agent(standing: Standing, roles: Sequence[int], power: float = 2.0) -> jax.Array:
    """Mixes PFSP over the past (1/2), main agents (`SELF_PLAY`) and weakness checks (`VERIFICATION`)."""
    mains = _mains(roles)
    rest = 1.0 - VERIFICATION - SELF_PLAY
    total = rest * over(standing, standing.past, "hard", power)
    for main in mains:
        meets = _present_or_past(standing, main, BEATEN)
        checks = verification(standing, roles, main, meets, power)
        total += (VERIFICATION * checks + SELF_PLAY * meets) / len(mains)
    return total


def verification(
    standing: Standing, roles: Sequence[int], main: int, otherwise: jax.Array, power: float = 2.0
) -> jax.Array:
    """Returns probabilities `[n]` of opponents that test a main agent for weaknesses.

    Past main exploiters if the score against one is below `EXPLOITED`; else the past of main agent `main` if
    the score against a forgotten part is below `FORGOTTEN`; else `otherwise`.
    """
    exploiters = [number for number, role in enumerate(roles) if role == MAIN_EXPLOITER]
    found = standing.past & jnp.isin(standing.kin, jnp.array(exploiters, jnp.int32))
    older = rising(standing, standing.past & (standing.kin == main))
    forgets = jnp.where(least(standing, older) < FORGOTTEN, over(standing, older, "hard", power), otherwise)
    return jnp.where(least(standing, found) < EXPLOITED, over(standing, found, "hard", power), forgets)


def main_exploiter(standing: Standing, roles: Sequence[int]) -> jax.Array:
    """Averages over the main agents, replacing those that are too strong by their past."""
    mains = _mains(roles)
    return sum(_present_or_past(standing, main, HOPELESS) for main in mains) / len(mains)


def _mains(roles: Sequence[int]) -> list[int]:
    return [number for number, role in enumerate(roles) if role == MAIN]


def _present_or_past(standing: Standing, main: int, above: float) -> jax.Array:
    """Returns the main agent itself if the score against it exceeds `above`, else `var` over its past."""
    own = standing.kin == main
    present, past = own & ~standing.past, own & standing.past
    beatable = jnp.sum(jnp.where(present, standing.payoff, 0.0)) > above
    return jnp.where(beatable | ~jnp.any(past), normalised(present, present), over(standing, past, "var"))


def over(standing: Standing, among: jax.Array, weight: str, power: float = 2.0) -> jax.Array:
    """Returns PFSP probabilities `[n]` over the entries `among [n]`; all 0 if none is set."""
    return normalised(prioritised(standing.payoff, weight, power), among)


def least(standing: Standing, among: jax.Array) -> jax.Array:
    """Returns the lowest score over the entries `among [n]`; infinite if none is set."""
    return jnp.min(jnp.where(among, standing.payoff, jnp.inf))


def rising(standing: Standing, among: jax.Array) -> jax.Array:
    """Drops the newest entries along which scores never rise again; returns bool `[n]`.

    Scores are read from the oldest to the newest entry. If they rise nowhere, all entries are dropped: the
    learner has forgotten none of them.
    """
    before = among[None, :] & (standing.iteration[None, :] < standing.iteration[:, None])
    newest = jnp.argmax(jnp.where(before, standing.iteration[None, :], NOBODY - 1), axis=1)
    rises = among & jnp.any(before, axis=1) & (standing.payoff[newest] < standing.payoff)
    last = jnp.max(jnp.where(rises, standing.iteration, NOBODY - 1))
    return among & (standing.iteration <= last)


def worst(standing: Standing, roles: Sequence[int], member: jax.Array) -> jax.Array:
    """Returns the lowest score over the past, for main exploiters over the mains; it triggers snapshots."""
    mains = ~standing.past & jnp.isin(standing.kin, jnp.array(_mains(roles), jnp.int32))
    exploits = jnp.array(roles)[member] == MAIN_EXPLOITER
    return least(standing, jnp.where(exploits, mains, standing.past))


def ready(score: jax.Array, waited: jax.Array, minimum: int) -> jax.Array:
    """Whether to take a snapshot: after `minimum` updates if `score` > `READY`, else after twice as many."""
    return (waited >= minimum) & ((score > READY) | (waited >= 2 * minimum))


def begins_anew(key: jax.Array, role: jax.Array) -> jax.Array:
    """Whether a learner of this role is reset to its initial weights after a snapshot."""
    lucky = jax.random.uniform(key) < RESET_CHANCE
    return (role == MAIN_EXPLOITER) | ((role == LEAGUE_EXPLOITER) & lucky)


def order(number: int, member: jax.Array) -> jax.Array:
    """Permutation `[n]` from a learner's own numbering of entries to the common one; its own inverse."""
    entry = jnp.arange(number)
    return jnp.select([entry == 0, entry == member], [member, 0], entry)


def gathered(tree: PyTree) -> PyTree:
    """Gathers the arrays of all learners to `[M, ...]` inside a map along `AXIS`."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS), tree)
