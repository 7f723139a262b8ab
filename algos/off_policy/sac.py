"""Soft actor-critic with an automatic temperature (Haarnoja et al. 2018b)."""

from dataclasses import dataclass
from typing import ClassVar

from algos.defaults import take_defaults_from
from algos.off_policy.agent import ReplayLearner
from algos.off_policy.learning import OffPolicyMethod, squared_loss
from algos.off_policy.soft import SoftSettings, make_soft_method
from algos.types import ActionSpec, ObservationSpec


@take_defaults_from("algo/sac")
@dataclass(frozen=True)
class SACConfig(SoftSettings, ReplayLearner):
    """Settings of SAC, those of `SoftSettings`, with `make` to build the agent."""

    NAME: ClassVar[str] = "sac"

    def method(self, observation: ObservationSpec, action: ActionSpec) -> OffPolicyMethod:
        """Returns SAC's method: the minimum of the critics' values, and half the squared error."""
        return make_soft_method(
            self,
            observation,
            action,
            outputs=1,
            truncate=lambda target: target[..., 0].min(0),
            critic_loss=squared_loss,
            value=lambda prediction: prediction[..., 0].min(0),
        )
