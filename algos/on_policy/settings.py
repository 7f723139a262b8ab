"""Settings and state that all learners of rollouts share."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from algos.checks import require_choice, require_count, require_range
from algos.nets.actor_critic import ActorCriticConfig
from algos.nets.normalize import RewardScale
from algos.nets.observations import Statistics
from algos.optim.optimizers import SCHEDULES, anneal
from algos.settings import LearnerSettings
from algos.types import Hyper, PyTree


@dataclass(frozen=True)
class OnPolicySettings(ActorCriticConfig, LearnerSettings):
    """Settings that all learners of rollouts have, besides those of their networks.

    The numbers named in `TRACED` (and `total_updates`) are only initial values: they live in
    `state.hyper`, where they can be changed, restored or vmapped over without recompiling.

    Attributes:
      horizon: decisions T per rollout.
      learning_rate, entropy_coefficient: with their schedules ("constant", "linear", "cosine") and
        the values `*_end` reached after `total_updates`.
      total_updates: length of the schedules; None for the length of the run.
      gamma, gae_lambda: discount and trace decay per decision; gamma also per step of an agent that is out of
        the game but still paid.
      value_coefficient: weight of the value loss.
      max_grad_norm: bound on the global gradient norm; None for none.
      normalize_advantage: one of `ADVANTAGES`; "batch" standardises over the whole rollout.
      normalize_observation, normalize_reward: running normalisation.
      reward_centering: rate of the running mean that each decision is charged; 0 for none.
      reward_scale: constant factor on rewards, after their normalisation.
      reward_clamp: bound on the magnitude of a reward after scaling; None for none.
      policy_average: share that the past keeps, per update, in a running mean of the parameters. Rollouts
        are played by the latest parameters, evaluations and whoever takes over the policy use the mean. 0
        for none: the latest are used everywhere.
      adam_eps, adam_beta1, adam_beta2: of Adam.
    """

    TRACED: ClassVar[dict[str, tuple[float, float]]] = {
        "learning_rate": (0.0, 1.0),
        "learning_rate_end": (0.0, 1.0),
        "gamma": (0.0, 1.0),
        "gae_lambda": (0.0, 1.0),
        "entropy_coefficient": (0.0, math.inf),
        "entropy_coefficient_end": (0.0, math.inf),
        "value_coefficient": (0.0, math.inf),
        "max_grad_norm": (1e-6, math.inf),
        "reward_scale": (1e-9, math.inf),
        "reward_clamp": (1e-9, math.inf),
        "adam_eps": (1e-12, 1.0),
        "adam_beta1": (0.0, 1.0 - 1e-7),
        "adam_beta2": (0.0, 1.0 - 1e-7),
    }
    ANNEALED: ClassVar[tuple[str, ...]] = ("learning_rate", "entropy_coefficient")
    OPTIONAL: ClassVar[tuple[str, ...]] = ("max_grad_norm", "reward_clamp")
    COUNTS: ClassVar[tuple[str, ...]] = ("horizon",)
    # Whether critics may have observations of their own.
    critics_apart: ClassVar[bool] = True
    ADVANTAGES: ClassVar[tuple[str, ...]] = ("batch", "none")

    horizon: int = 128
    learning_rate: float = 3e-4
    learning_rate_end: float = 0.0
    learning_rate_schedule: str = "constant"
    entropy_coefficient: float = 0.0
    entropy_coefficient_end: float = 0.0
    entropy_coefficient_schedule: str = "constant"
    total_updates: int | None = None
    gamma: float = 0.99
    gae_lambda: float = 0.95
    value_coefficient: float = 0.5
    max_grad_norm: float | None = 0.5
    normalize_advantage: str = "none"
    normalize_observation: bool = True
    normalize_reward: bool = False
    reward_scale: float = 1.0
    reward_clamp: float | None = None
    reward_centering: float = 0.0
    policy_average: float = 0.0
    adam_eps: float = 1e-5
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999

    def __post_init__(self):
        super().__post_init__()
        for key in self.COUNTS:
            require_count(key, getattr(self, key))
        if self.total_updates is not None:
            require_count("total_updates", self.total_updates)
        require_range("reward_centering", self.reward_centering, 0.0, 1.0)
        require_range("policy_average", self.policy_average, 0.0, 1.0 - 1e-6)
        for key, (low, high) in self.traced().items():
            if getattr(self, key) is not None or key not in self.OPTIONAL:
                require_range(key, getattr(self, key), low, high)
        for key in self.annealed():
            require_choice(f"{key}_schedule", getattr(self, f"{key}_schedule"), SCHEDULES)
        require_choice("normalize_advantage", self.normalize_advantage, self.ADVANTAGES)

    def traced(self) -> dict[str, tuple[float, float]]:
        """Names and bounds of the numbers that these settings put into the learner's state."""
        return self.TRACED

    def annealed(self) -> tuple[str, ...]:
        """Names of the traced numbers that have a schedule."""
        return self.ANNEALED

    def adjustable(self) -> tuple[str, ...]:
        """Names of the settings that live in the learner's state and may differ when a run continues."""
        return (*self.traced(), "total_updates")

    def rows(self, samples: int) -> int:
        """Samples per forward and backward pass, with `samples` agents side by side."""
        return samples * self.horizon

    def require_run(self, samples: int | None, total_updates: int | None) -> None:
        """Demands what these settings need to know of a run.

        Args:
          samples: agents side by side, E * A, or None.
          total_updates: length of the schedules, or None.

        Raises:
          ValueError: if one of them is None and needed.
        """
        for key in ("normalize_reward", "reward_centering"):
            if getattr(self, key) and samples is None:
                raise ValueError(
                    f"{key}={getattr(self, key)}: needs samples, the number of agents side by side"
                )
        schedules = {getattr(self, f"{key}_schedule") for key in self.annealed()}
        if total_updates is None and schedules != {"constant"}:
            raise ValueError("total_updates=None: must be given with a schedule that is not constant")

    def initial_hyper(self, total_updates: int | None) -> Hyper:
        """The traced hyper-parameters as float32 scalars; infinite for bounds that are None."""
        values = {key: math.inf if (x := getattr(self, key)) is None else x for key in self.traced()}
        values["total_updates"] = total_updates or 1
        return {key: jnp.asarray(x, jnp.float32) for key, x in values.items()}


@struct.dataclass
class OnPolicyState:
    """State of a learner of rollouts.

    Attributes:
      params: parameters of the networks.
      optimizer: state of the optimiser.
      observations: statistics of the observations, or None.
      rewards: scale of the rewards, or None.
      hyper: traced hyper-parameters by name.
      updates: int32 scalar, updates done.
      centre: `[E * A]` running means of the rewards, or None.
      teacher: state of the policy that is imitated, or None.
      average: the parameters that evaluations play, where these are others: a running mean of those to act
        with, or what these are by the optimiser's state. None otherwise.
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


def annealed(config: OnPolicySettings, hyper: Hyper, updates: jax.Array) -> Hyper:
    """The hyper-parameters of this update: those with a schedule at their current value."""
    progress = updates / hyper["total_updates"]
    current = {
        key: anneal(getattr(config, f"{key}_schedule"), hyper[key], hyper[f"{key}_end"], progress)
        for key in config.annealed()
    }
    return hyper | current
