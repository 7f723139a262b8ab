"""Learners of whole teams: the reward of a team, and an agent's place in it as an input of its network.

See docs/reference/trainer.md 10.8.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp

from algos.checks import require_choice
from algos.defaults import FROM_FILE
from algos.nets.encoders import EncoderConfig, encoded_blocks
from algos.types import ObservationSpec

TEAM_REWARDS = ("sum", "mean")


@dataclass(frozen=True)
class TeamLearnerSettings:
    """Settings that all learners of whole teams have, in addition to those of their base class.

    Attributes:
      agent_ids: whether an agent's place in the team is part of its input, so that one network can act
        differently for each.
      team_reward: "sum" or "mean" of the rewards of the agents that act, or are paid while they are out of
        the game.
    """

    teams: ClassVar[bool] = True

    agent_ids: bool = FROM_FILE
    team_reward: str = FROM_FILE

    def require_team_reward(self) -> None:
        """Checks `team_reward`; raises a one-line ValueError."""
        require_choice("team_reward", self.team_reward, TEAM_REWARDS)


def combine_team_rewards(kind: str, reward: jax.Array, paid: jax.Array) -> jax.Array:
    """Combines the rewards `[..., A]` of the agents that are `paid` to their team's, `[...]`.

    Args:
      kind: one of `TEAM_REWARDS`.
      reward: the agents' rewards.
      paid: bool `[..., A]`, agents that act, or are paid while they are out of the game.
    """
    total = jnp.where(paid, reward, 0.0).sum(-1)
    return total / jnp.maximum(paid.sum(-1), 1) if kind == "mean" else total


def make_inputs_with_ids(
    agent_ids: bool, encoder: EncoderConfig, observation: ObservationSpec
) -> tuple[Callable | None, int]:
    """Returns the function from observations to inputs with an agent's place in its team, and their size.

    Without `agent_ids` the function is None, and the size that of observations.

    Raises:
      ValueError: if an encoder reads the observations.
    """
    if not agent_ids:
        return None, observation.size
    if encoded_blocks(encoder, observation.blocks):
        raise ValueError(f"agent_ids=True: must be false with encoder.kind={encoder.kind}")
    see = partial(append_agent_ids, observation.team, member=observation.member)
    return see, observation.size + observation.team


def append_agent_ids(agents: int, obs: jax.Array, member: int | None = None) -> jax.Array:
    """Appends an agent's place in its team as a one-hot vector: `[N, ..., A, F]` to `[N, ..., A, F + A]`.

    Args:
      agents: number A of agents.
      obs: of whole teams, or `[..., F]` of the agents at place `member` of their teams.
      member: this place; None for whole teams.

    Raises:
      ValueError: for observations of other than all A agents, without `member`.
    """
    if member is None and (obs.ndim < 3 or obs.shape[-2] != agents):
        raise ValueError(
            f"agent_ids=True: acts for all {agents} agents of a team at once; must be false for a policy "
            "that acts for one agent, or its export (--agent) is needed"
        )
    ids = jnp.eye(agents, dtype=obs.dtype)
    ids = jnp.broadcast_to(ids if member is None else ids[member], (*obs.shape[:-1], agents))
    return jnp.concatenate([obs, ids], -1)
