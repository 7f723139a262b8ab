"""Credit of each mech for its team's success: difference rewards and Shapley values.

Reference: docs/reference/echelon.md 16.4.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.missions.measures import coalitions, record, squads
from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord
from jaxmarl_echelon.envs.echelon.missions.measures.success import (
    apply_constraints,
    base_success,
    success_parts,
    time_taken,
)
from jaxmarl_echelon.envs.echelon.missions.state import PARAMETERS
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry

DIFFERENCE, SHAPLEY = KINDS = ("difference", "shapley")
_LOSSES = PARAMETERS.index("loss_appetite")
# Folded into a decision's key: far above the number of keys that the battle splits from it.
_STREAM = 0x5AA91E7


class CreditRule(NamedTuple):
    """Static settings of the credit.

    Attributes:
      kind: one of `KINDS`.
      samples: permutations drawn for Shapley values; the reverse of each is used as well.
    """

    kind: str = DIFFERENCE
    samples: int = 4


class CreditInputs(NamedTuple):
    """Assessed missions whose success is attributed to mechs.

    Attributes:
      registry: the verbs; static.
      evidence: data of the records.
      went: `[K]` bool; the follow-on has begun.
      outcome: the teams' records `[K]`.
      success: `[K]` after constraints.
      decision: decisions taken.
    """

    registry: Registry
    evidence: record.RecordInputs
    went: jax.Array
    outcome: OutcomeRecord
    success: jax.Array
    decision: jax.Array


def assign_credit(rule: CreditRule, key: jax.Array, it: CreditInputs) -> jax.Array:
    """Returns the credit `[M]` of each mech by the rule; 0 for empty slots.

    Args:
      rule: static.
      key: of the decision; used for Shapley values that are sampled, and only with a constant folded in.
      it: the missions.
    """
    if rule.kind == DIFFERENCE:
        return difference_rewards(it)
    return shapley_values(jax.random.fold_in(key, _STREAM), it, rule.samples)


def coalition_success(it: CreditInputs, team: np.ndarray, members: jax.Array | np.ndarray) -> jax.Array:
    """Returns success `[C]` after constraints of teams restricted to coalitions of their mechs.

    The time that the order took is the team's.

    Args:
      it: the missions.
      team: `[C]` int32 team of each coalition; static.
      members: `[C, M]` bool.
    """
    orders, registry = it.evidence.scenario.orders, it.registry
    rest = record.compute_coalition_records(it.evidence, it.outcome, team, members)
    verb = orders.verb[team]
    taken = time_taken(registry, orders.verb[:, 0], it.evidence.by_team.latched, it.decision)[team]
    value = base_success(registry, verb, it.went[team], success_parts(registry, verb, rest), rest)
    losses, budget = orders.parameters[team, _LOSSES], orders.budget[team]
    return apply_constraints(registry, value, verb[:, 0], losses, budget, taken, rest)


def difference_rewards(it: CreditInputs) -> jax.Array:
    """Returns difference rewards `[M]`: team success minus that without the mech; 0 for empty slots."""
    team = squads.team_numbers(it.evidence.teams)
    rest = coalition_success(it, team, ~np.eye(team.size, dtype=bool))
    return jnp.where(it.evidence.scenario.present, it.success[team] - rest, 0.0)


def shapley_values(key: jax.Array, it: CreditInputs, samples: int) -> jax.Array:
    """Returns Shapley values `[M]` of the mechs in the game of their team; 0 for empty slots.

    The value of a coalition is its success, and 0 without mechs, so that the values of a team sum to its
    success. Teams for which that takes no more coalitions are enumerated, others sampled.

    Args:
      key: of the permutations.
      it: the missions.
      samples: permutations drawn; the reverse of each is used as well.
    """
    teams, present = it.evidence.teams, it.evidence.scenario.present
    ranks, inner = [], []
    for side, size in enumerate(teams):
        drawn = None
        if coalitions.is_enumerated(size, samples):
            chosen = jnp.asarray(coalitions.list_coalitions(size)[1:-1])
        else:
            drawn = coalitions.draw_ranks(jax.random.fold_in(key, side), size, samples)
            chosen = coalitions.prefix_coalitions(drawn).reshape(-1, size)
        ranks.append(drawn)
        inner.append(chosen)
    team = np.repeat(np.arange(2, dtype=np.int32), [len(rows) for rows in inner])
    before = [
        jnp.pad(rows, ((0, 0), (side * teams[0], (1 - side) * teams[1]))) for side, rows in enumerate(inner)
    ]
    members = jnp.concatenate(before)
    value = jnp.where((members & present).any(-1), coalition_success(it, team, members), 0.0)
    found = []
    for side, size in enumerate(teams):
        own, whole = value[team == side], it.success[side]
        if ranks[side] is None:
            every = jnp.concatenate([jnp.zeros(1), own, whole[None]])
            found.append(coalitions.exact_shapley_values(every))
        else:
            chain = jnp.pad(own.reshape(-1, size - 1), ((0, 0), (1, 1))).at[:, -1].set(whole)
            found.append(coalitions.sampled_shapley_values(ranks[side], chain))
    return jnp.where(present, jnp.concatenate(found), 0.0)
