"""Settings shared by all off-policy learners."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from algos.checks import require_choice, require_count, require_list, require_range, require_switches
from algos.defaults import FROM_FILE
from algos.nets.encoders import EncoderConfig
from algos.nets.networks import ACTIVATIONS, PRECISIONS, require_reachable_action, require_widths
from algos.off_policy.replay.replay import ReplayConfig
from algos.settings import LearnerSettings


@dataclass(frozen=True)
class OffPolicySettings(LearnerSettings):
    """Settings of all off-policy learners.

    The numbers named in `TRACED` and `COUNTS` are initial values: they live in `state.hyper`, where they can
    be changed, restored or vmapped over without recompiling.

    Attributes:
      widths: hidden layers of every network, unless a learner has other settings for some.
      activation: "relu", "tanh" or "silu".
      compute_dtype: a key of `PRECISIONS`; dtype of the hidden layers' arithmetic; parameters stay float32.
      encoder: settings of the encoder of observations; a mapping is accepted.
      horizon: decisions per update of the program; gradient steps follow each of them.
      batch_size: transitions per gradient step.
      learning_starts: transitions before the first gradient step; actions are uniform until then.
      updates_per_step: gradient steps after a decision of all agents.
      learning_rate: learning rate of Adam, for all parts without their own rate.
      gamma: discount per decision.
      tau: rate at which target networks follow the parameters.
      reward_scale: constant factor on rewards.
      normalize_observation: running normalisation; the replay holds raw observations.
      adam_eps, adam_beta1, adam_beta2: hyper-parameters of Adam.
      replay: settings of the replay, or a mapping of them.
    """

    replays: ClassVar[bool] = True
    NAME: ClassVar[str]
    ACTIONS: ClassVar[str | None] = "continuous"
    # Whether privileged observations of critics are used, where there are any.
    mixes_states: ClassVar[bool] = False
    # Whether n-step targets need the intermediate states.
    BETWEEN: ClassVar[bool] = False
    TRACED: ClassVar[dict[str, tuple[float, float]]] = {
        "learning_rate": (0.0, 1.0),
        "gamma": (0.0, 1.0),
        "tau": (0.0, 1.0),
        "reward_scale": (1e-9, math.inf),
        "adam_eps": (1e-12, 1.0),
        "adam_beta1": (0.0, 1.0 - 1e-7),
        "adam_beta2": (0.0, 1.0 - 1e-7),
    }
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    COUNTS: ClassVar[tuple[str, ...]] = ("learning_starts",)
    LISTS: ClassVar[tuple[str, ...]] = ("widths",)

    widths: tuple[int, ...] = FROM_FILE
    activation: str = FROM_FILE
    compute_dtype: str = FROM_FILE
    encoder: EncoderConfig = FROM_FILE
    horizon: int = FROM_FILE
    batch_size: int = FROM_FILE
    learning_starts: int = FROM_FILE
    updates_per_step: int = FROM_FILE
    learning_rate: float = FROM_FILE
    gamma: float = FROM_FILE
    tau: float = FROM_FILE
    reward_scale: float = FROM_FILE
    normalize_observation: bool = FROM_FILE
    adam_eps: float = FROM_FILE
    adam_beta1: float = FROM_FILE
    adam_beta2: float = FROM_FILE
    replay: ReplayConfig = FROM_FILE

    def __post_init__(self):
        for key in self.LISTS:
            if getattr(self, key) is not None:
                object.__setattr__(self, key, require_list(key, getattr(self, key)))
        if isinstance(self.encoder, Mapping):
            object.__setattr__(self, "encoder", EncoderConfig(**self.encoder))
        if isinstance(self.replay, Mapping):
            object.__setattr__(self, "replay", ReplayConfig(**self.replay))
        require_switches(self)
        self.require_layers("widths")
        require_choice("activation", self.activation, tuple(ACTIVATIONS))
        require_choice("compute_dtype", self.compute_dtype, tuple(PRECISIONS))
        for key in ("horizon", "batch_size", "updates_per_step", *self.COUNTS):
            require_count(key, getattr(self, key))
        for key, (low, high) in self.TRACED.items():
            if getattr(self, key) is not None or key not in self.OPTIONAL:
                require_range(key, getattr(self, key), low, high)

    @property
    def remembers(self) -> bool:
        """Whether there is a recurrent core."""
        return False

    def require_layers(self, key: str) -> None:
        """Checks the widths of hidden layers, of which there must be at least one; None is allowed."""
        require_widths(key, getattr(self, key))
        if getattr(self, key) == ():
            raise ValueError(f"{key}=(): needs at least one layer")

    def traced(self) -> dict[str, tuple[float, float]]:
        """Returns names and bounds of the numbers in the learner's state; see `LearnerSettings.traced`."""
        left_out = {key for key in self.OPTIONAL if getattr(self, key) is None}
        return {key: bounds for key, bounds in self.TRACED.items() if key not in left_out}

    def adjustable(self) -> tuple[str, ...]:
        """Returns the names of the settings that live in the state and may change when a run resumes."""
        return (*self.TRACED, *self.COUNTS)


@dataclass(frozen=True)
class ActorCriticSettings(OffPolicySettings):
    """Settings of learners with an actor and an ensemble of critics, in addition to `OffPolicySettings`.

    Attributes:
      critic_widths: hidden layers of every critic; None for the same as `widths`, those of the actor.
      initial_action: initial mean action per dimension; None for 0.
      n_critics: number of critics in the ensemble.
      actor_learning_rate: learning rate of the actor; None for `learning_rate`.
    """

    TRACED: ClassVar[dict[str, tuple[float, float]]] = OffPolicySettings.TRACED | {
        "actor_learning_rate": (0.0, 1.0),
    }
    OPTIONAL: ClassVar[tuple[str, ...]] = ("actor_learning_rate",)
    LISTS: ClassVar[tuple[str, ...]] = (*OffPolicySettings.LISTS, "critic_widths", "initial_action")

    critic_widths: tuple[int, ...] | None = FROM_FILE
    initial_action: tuple[float, ...] | None = FROM_FILE
    n_critics: int = FROM_FILE
    actor_learning_rate: float | None = FROM_FILE

    def __post_init__(self):
        super().__post_init__()
        self.require_layers("critic_widths")
        require_reachable_action(self.initial_action, "")
        require_count("n_critics", self.n_critics)
