"""A league: learners in three roles, which meet each other's present and past policies (Vinyals et al. 2019).

Main agents learn to beat everybody. Main exploiters look for what beats the main agents, league exploiters
for what beats the whole past. Functions of one learner's standing give the probabilities of its opponents,
when it leaves a snapshot, and whether it begins anew. Source: spec/selfplay.md 1.6.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.selfplay.matchmaking import normalised, prioritised
from jaxmarl_echelon.selfplay.settings import LEAGUE_ROLES

PyTree = Any

# Axis of the learners, by which they are mapped.
AXIS = "league"
MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = range(len(LEAGUE_ROLES))
NOBODY = -1

VERIFICATION, SELF_PLAY = 0.15, 0.35
# Scores that decide whether a main agent is too strong to learn from, for main agents and exploiters.
BEATEN, HOPELESS = 0.3, 0.1
# Scores below which past exploiters still find something, and a past main agent is being forgotten.
EXPLOITED, FORGOTTEN = 0.3, 0.7
READY = 0.7
RESET_CHANCE = 0.25


@struct.dataclass
class Membership:
    """What a learner's pool knows of the league; see `pool.PoolState`.

    In its tables the learner itself is entry 0, and its number's entry is the learner 0; all other entries
    have the same numbers for everybody.

    Attributes:
      member: int32 number of the learner.
      origin: state of the learner at its beginning, to which it may return, without its hyper-parameters.
      resets: int32; how often it has.
    """

    member: jax.Array
    origin: PyTree
    resets: jax.Array


class Standing(NamedTuple):
    """What one learner knows of the entries `[n]` of a league.

    Attributes:
      payoff: float32 its score in [0, 1] against each.
      past: bool; does not learn: a snapshot or a fixed opponent.
      kin: int32 number of the learner that it is, or whose past it is; `NOBODY` for fixed opponents and
        empty slots.
      iteration: int32; of one learner's past, the older the lower.
    """

    payoff: jax.Array
    past: jax.Array
    kin: jax.Array
    iteration: jax.Array


def chances(standing: Standing, roles: Sequence[int], member: jax.Array, power: float = 2.0) -> jax.Array:
    """Probabilities `[n]` of the opponents of the learner number `member`, of role `roles[member]`.

    Args:
      standing: its standing.
      roles: of all learners, `MAIN`, `MAIN_EXPLOITER` or `LEAGUE_EXPLOITER`.
      member: int32.
      power: of PFSP's weight `hard`.
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
    """Half the past, `SELF_PLAY` main agents, `VERIFICATION` whoever is a weakness."""
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
    """Probabilities `[n]` of opponents that test a main agent for weaknesses.

    Past main exploiters if one of them still beats it, else what it has forgotten of the past of the main
    agent number `main`, else `otherwise`.
    """
    exploiters = [number for number, role in enumerate(roles) if role == MAIN_EXPLOITER]
    found = standing.past & jnp.isin(standing.kin, jnp.array(exploiters, jnp.int32))
    older = rising(standing, standing.past & (standing.kin == main))
    forgets = jnp.where(least(standing, older) < FORGOTTEN, over(standing, older, "hard", power), otherwise)
    return jnp.where(least(standing, found) < EXPLOITED, over(standing, found, "hard", power), forgets)


def main_exploiter(standing: Standing, roles: Sequence[int]) -> jax.Array:
    """Main agents evenly, or the past of those that are too strong."""
    mains = _mains(roles)
    return sum(_present_or_past(standing, main, HOPELESS) for main in mains) / len(mains)


def _mains(roles: Sequence[int]) -> list[int]:
    return [number for number, role in enumerate(roles) if role == MAIN]


def _present_or_past(standing: Standing, main: int, above: float) -> jax.Array:
    """The main agent itself if the score against it is above a bound, else its past by weight `var`."""
    own = standing.kin == main
    present, past = own & ~standing.past, own & standing.past
    beatable = jnp.sum(jnp.where(present, standing.payoff, 0.0)) > above
    return jnp.where(beatable | ~jnp.any(past), normalised(present, present), over(standing, past, "var"))


def over(standing: Standing, among: jax.Array, weight: str, power: float = 2.0) -> jax.Array:
    """Probabilities `[n]` by PFSP among some entries `[n]`; 0 for all if there are none."""
    return normalised(prioritised(standing.payoff, weight, power), among)


def least(standing: Standing, among: jax.Array) -> jax.Array:
    """The lowest score against some entries `[n]`; infinite without any."""
    return jnp.min(jnp.where(among, standing.payoff, jnp.inf))


def rising(standing: Standing, among: jax.Array) -> jax.Array:
    """Entries `[n]` without the tail, from the oldest to the newest, along which scores never rise.

    None if they rise nowhere: the learner has forgotten nothing of it.
    """
    before = among[None, :] & (standing.iteration[None, :] < standing.iteration[:, None])
    newest = jnp.argmax(jnp.where(before, standing.iteration[None, :], NOBODY - 1), axis=1)
    rises = among & jnp.any(before, axis=1) & (standing.payoff[newest] < standing.payoff)
    last = jnp.max(jnp.where(rises, standing.iteration, NOBODY - 1))
    return among & (standing.iteration <= last)


def worst(standing: Standing, roles: Sequence[int], member: jax.Array) -> jax.Array:
    """The score that decides on a snapshot: the lowest against the past, of main exploiters against mains."""
    mains = ~standing.past & jnp.isin(standing.kin, jnp.array(_mains(roles), jnp.int32))
    exploits = jnp.array(roles)[member] == MAIN_EXPLOITER
    return least(standing, jnp.where(exploits, mains, standing.past))


def ready(score: jax.Array, waited: jax.Array, minimum: int) -> jax.Array:
    """Whether a snapshot is taken: after a minimum of updates with a high `worst` score, else at twice it."""
    return (waited >= minimum) & ((score > READY) | (waited >= 2 * minimum))


def begins_anew(key: jax.Array, role: jax.Array) -> jax.Array:
    """Whether a learner of some role returns to its initial weights after a snapshot."""
    lucky = jax.random.uniform(key) < RESET_CHANCE
    return (role == MAIN_EXPLOITER) | ((role == LEAGUE_EXPLOITER) & lucky)


def order(number: int, member: jax.Array) -> jax.Array:
    """`[n]` common number of each entry in a learner's own numbering; also the other way round."""
    entry = jnp.arange(number)
    return jnp.select([entry == 0, entry == member], [member, 0], entry)


def gathered(tree: PyTree) -> PyTree:
    """Arrays of all learners `[M, ...]`, where they are mapped along `AXIS`."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS), tree)
