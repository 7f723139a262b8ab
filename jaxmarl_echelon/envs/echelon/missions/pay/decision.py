"""Rewards of a decision: shaping by verb and status reports; at the end success and credit.

Reference: docs/reference/echelon.md 16.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.measures import record, squads, success
from jaxmarl_echelon.envs.echelon.missions.measures.credit import CreditInputs, CreditRule, assign_credit
from jaxmarl_echelon.envs.echelon.missions.measures.judge import Verdict
from jaxmarl_echelon.envs.echelon.missions.pay import components
from jaxmarl_echelon.envs.echelon.missions.state import (
    CALIBRATION,
    COMPONENTS,
    CREDIT,
    PARAMETERS,
    TERMINAL,
    MissionParams,
    Order,
)
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry

_PROGRESS = "mission_progress"


class MissionRewardInputs(NamedTuple):
    """Inputs of the rewards of one decision.

    Attributes:
      shaping: inputs of the shaping components.
      verdict: assessment of the missions.
      evidence: data of the outcome records.
      told: `[K]` orders at the start of the decision.
      later: `[K]` orders after it.
      bonus: `[M]` weighted bonus of the status reports.
      decision: decisions taken.
    """

    shaping: components.ShapingInputs
    verdict: Verdict
    evidence: record.RecordInputs
    told: Order
    later: Order
    bonus: jax.Array
    decision: jax.Array


def read_order_terms(order: Order, limit: jax.Array) -> weights.OrderTerms:
    """Returns the reward terms `[K]` set by the parameters of both teams' orders."""
    value = dict(zip(PARAMETERS, order.parameters.T, strict=True))
    return weights.compute_order_terms(
        value["loss_appetite"], value["time_pressure"], value["grouping"], limit
    )


ComponentRewards = dict[str, jax.Array]


def compute_mission_rewards(
    key: jax.Array, registry: Registry, rule: CreditRule, params: MissionParams, it: MissionRewardInputs
) -> tuple[ComponentRewards, ComponentRewards]:
    """Computes rewards `[M]` per component, before the run's own factors, and the values `[M]` to log.

    At the end of an episode dead mechs receive rewards, too; empty slots never do. Rewards are logged as they
    are, except for differences of potentials, for which the growth of the potential is logged. The penalty
    for dithering is part of `mission_progress`.

    Args:
      key: of the decision; see `assign_credit`.
      registry: the verbs.
      rule: of the credit; static.
      params: parameters of the mission.
      it: the decision.
    """
    teams, verdict = it.evidence.teams, it.verdict
    team, present = squads.team_numbers(teams), it.evidence.scenario.present
    given = components.weights_by_verb(
        params.weights.components, params.gates[it.told.verb], it.shaping.orders
    )
    column = COMPONENTS.index(_PROGRESS)
    # Not multiplied by `early`: only differences of potentials leave the best policy as it is.
    dithering = components.dithering(it.shaping) * given[team, column]
    # The terminal reward 2 S - 1 grows by twice the growth of success.
    given = given.at[:, column].add(2.0 * params.weights.early * params.weights.terminal)
    shaping = components.compute_shaping(it.shaping) * given[team]
    paid = {name: shaping[:, index] for index, name in enumerate(COMPONENTS)}
    grown = components.potential_growth(it.shaping)
    grown = {name: value * given[team, COMPONENTS.index(name)] for name, value in grown.items()}
    for rewards in (paid, grown):
        rewards[_PROGRESS] = rewards[_PROGRESS] + dithering
    ends = verdict.over & present
    terminal = params.weights.terminal * success.terminal_reward(verdict.success)[team]
    assessed = CreditInputs(
        registry, it.evidence, it.later.went, verdict.outcome, verdict.success, it.decision
    )
    credit = params.weights.credit * assign_credit(rule, key, assessed)
    paid[TERMINAL] = jnp.where(ends, terminal, 0.0)
    paid[CREDIT] = jnp.where(ends, credit, 0.0)
    paid[CALIBRATION] = jnp.where(it.shaping.before.alive, it.bonus, 0.0)
    return paid, paid | grown
