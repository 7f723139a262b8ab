"""Settings and state shared by all on-policy learners."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
from flax import struct

from algos.checks import require_choice, require_range
from algos.defaults import FROM_FILE
from algos.nets.actor_critic import ActorCriticConfig, NetworkConfig
from algos.nets.normalize import RewardScale
from algos.nets.observations import Statistics
from algos.on_policy.traced_settings import TracedSettings
from algos.types import Hyper, PyTree


@dataclass(frozen=True)
class RolloutSettings(NetworkConfig, TracedSettings):
    """Settings of all learners from rollouts, in addition to those of their networks.

    The numbers named in `TRACED` (and `total_updates`) are initial values: they live in `state.hyper`, where
    they can be changed, restored or vmapped over without recompiling.

    Attributes:
      horizon: decisions T per rollout.
      learning_rate: initial value, with a schedule ("constant", "linear", "cosine") to `learning_rate_end`,
        reached after `total_updates`.
      total_updates: length of the schedules; None for the length of the run.
      gamma, gae_lambda: discount and trace decay per decision; gamma also per step of an agent that is out of
        the game and waits for delayed rewards.
      max_grad_norm: bound on the global gradient norm; None for no clipping.
      normalize_observation, normalize_reward: running normalisation.
      reward_centering: rate of the running mean that is subtracted from rewards; 0 for no centring.
      reward_scale: constant factor on rewards, after their normalisation.
      reward_clamp: bound on the magnitude of a reward after scaling; None for no bound.
      policy_average: weight of the past, per update, in a running mean of the parameters. Rollouts use the
        latest parameters; evaluations and every other use of the policy take the mean. 0 for no mean: the
        latest parameters are used everywhere.
      adam_eps, adam_beta1, adam_beta2: hyper-parameters of Adam.
    """

    TRACED: ClassVar[dict[str, tuple[float, float]]] = {
        "learning_rate": (0.0, 1.0),
        "learning_rate_end": (0.0, 1.0),
        "gamma": (0.0, 1.0),
        "gae_lambda": (0.0, 1.0),
        "max_grad_norm": (1e-6, math.inf),
        "reward_scale": (1e-9, math.inf),
        "reward_clamp": (1e-9, math.inf),
        "adam_eps": (1e-12, 1.0),
        "adam_beta1": (0.0, 1.0 - 1e-7),
        "adam_beta2": (0.0, 1.0 - 1e-7),
    }
    ANNEALED: ClassVar[tuple[str, ...]] = ("learning_rate",)
    OPTIONAL: ClassVar[tuple[str, ...]] = ("max_grad_norm", "reward_clamp")
    # Whether critics may have privileged observations.
    privileged_critics: ClassVar[bool] = True

    horizon: int = FROM_FILE
    learning_rate: float = FROM_FILE
    learning_rate_end: float = FROM_FILE
    learning_rate_schedule: str = FROM_FILE
    total_updates: int | None = FROM_FILE
    gamma: float = FROM_FILE
    gae_lambda: float = FROM_FILE
    max_grad_norm: float | None = FROM_FILE
    normalize_observation: bool = FROM_FILE
    normalize_reward: bool = FROM_FILE
    reward_scale: float = FROM_FILE
    reward_clamp: float | None = FROM_FILE
    reward_centering: float = FROM_FILE
    policy_average: float = FROM_FILE
    adam_eps: float = FROM_FILE
    adam_beta1: float = FROM_FILE
    adam_beta2: float = FROM_FILE

    def __post_init__(self):
        super().__post_init__()
        self.require_traced()
        require_range("reward_centering", self.reward_centering, 0.0, 1.0)
        require_range("policy_average", self.policy_average, 0.0, 1.0 - 1e-6)

    def rows(self, samples: int) -> int:
        """Samples per forward and backward pass, with `samples` parallel agents."""
        return samples * self.horizon

    def require_run(self, samples: int | None, total_updates: int | None) -> None:
        """Checks that the sizes of a run that these settings need are known.

        Args:
          samples: parallel agents, E * A, or None.
          total_updates: length of the schedules, or None.

        Raises:
          ValueError: if a needed one is None.
        """
        for key in ("normalize_reward", "reward_centering"):
            if getattr(self, key) and samples is None:
                raise ValueError(f"{key}={getattr(self, key)}: needs samples, the number of parallel agents")
        self.require_total_updates(total_updates)


@dataclass(frozen=True)
class OnPolicySettings(ActorCriticConfig, RolloutSettings):
    """Settings of policy-gradient learners, in addition to those of `RolloutSettings`.

    Attributes:
      entropy_coefficient: weight of the entropy bonus, with a schedule like that of the learning rate.
      value_coefficient: weight of the value loss.
      normalize_advantage: one of `ADVANTAGES`; "batch" standardises over the whole rollout.
    """

    TRACED: ClassVar[dict[str, tuple[float, float]]] = RolloutSettings.TRACED | {
        "entropy_coefficient": (0.0, math.inf),
        "entropy_coefficient_end": (0.0, math.inf),
        "value_coefficient": (0.0, math.inf),
    }
    ANNEALED: ClassVar[tuple[str, ...]] = (*RolloutSettings.ANNEALED, "entropy_coefficient")
    ADVANTAGES: ClassVar[tuple[str, ...]] = ("batch", "none")

    entropy_coefficient: float = FROM_FILE
    entropy_coefficient_end: float = FROM_FILE
    entropy_coefficient_schedule: str = FROM_FILE
    value_coefficient: float = FROM_FILE
    normalize_advantage: str = FROM_FILE

    def __post_init__(self):
        super().__post_init__()
        require_choice("normalize_advantage", self.normalize_advantage, self.ADVANTAGES)


class OnPolicyState(struct.PyTreeNode):
    """State of an on-policy learner.

    Attributes:
      params: parameters of the networks.
      optimizer: state of the optimiser.
      observations: statistics of the observations, or None.
      rewards: scale of the rewards, or None.
      hyper: traced hyper-parameters by name.
      updates: int32 scalar, updates done.
      centre: `[E * A]` running means of the rewards, or None.
      teacher: state of the policy that is imitated, or None.
      average: parameters that evaluations use, if they differ from `params`: the running mean, or the
        optimiser's evaluation parameters. None otherwise.
    """

    params: PyTree
    optimizer: PyTree
    observations: Statistics
    rewards: RewardScale | None
    hyper: Hyper
    updates: jax.Array
    centre: jax.Array | None = None
    teacher: PyTree = None
    average: PyTree = None
