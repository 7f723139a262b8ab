"""Learners of whole teams: the reward of a team, and an agent's place in it as an input of its network.

See docs/reference/trainer.md 10.8.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from algos.checks import require_choice
from algos.defaults import FROM_FILE
from algos.nets.encoders import EncoderConfig, encoded_blocks
from algos.types import ObservationSpec

TEAM_REWARDS = ("sum", "mean")


@dataclass(frozen=True)
class TeamSettings:
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


def count_agent_ids(agent_ids: bool, encoder: EncoderConfig, observation: ObservationSpec) -> int:
    """Number of inputs that tell an agent's place in its team; 0 without `agent_ids`.

    Raises:
      ValueError: if an encoder reads the observations.
    """
    if agent_ids and encoded_blocks(encoder, observation.blocks):
        raise ValueError(f"agent_ids=True: must be false with encoder.kind={encoder.kind}")
    return observation.team if agent_ids else 0


def append_agent_ids(agents: int, obs: jax.Array) -> jax.Array:
    """Appends each agent's place in its team as a one-hot vector: `[N, ..., A, F]` to `[N, ..., A, F + A]`.

    Raises:
      ValueError: for observations of other than all A agents, such as those of an exported policy.
    """
    if obs.ndim < 3 or obs.shape[-2] != agents:
        raise ValueError(
            f"agent_ids=True: acts for all {agents} agents of a team at once; must be false for a policy "
            "that acts for one agent, or is exported"
        )
    ids = jnp.broadcast_to(jnp.eye(agents, dtype=obs.dtype), (*obs.shape[:-1], agents))
    return jnp.concatenate([obs, ids], -1)
