"""Proximal policy optimisation (Schulman et al. 2017) on single samples or whole segments."""

from dataclasses import dataclass
from functools import partial

from algos.defaults import take_defaults_from
from algos.nets.actor_critic import PolicyFunctions, make_actor_critic
from algos.on_policy.agent import OnPolicyMethod, RolloutLearner
from algos.on_policy.distillation import Teacher, with_teacher
from algos.on_policy.ppo_settings import SAMPLES, PPOSettings
from algos.on_policy.sample_epochs import learn_samples
from algos.on_policy.segment_epochs import learn_segments, segments_from_rollout
from algos.types import ActionSpec, Agent, ObservationSpec


@take_defaults_from("algo/ppo")
@dataclass(frozen=True)
class PPOConfig(PPOSettings, RolloutLearner):
    """Settings of PPO, with `make` to build the agent that they describe."""

    def networks(self, observation: ObservationSpec, action: ActionSpec) -> PolicyFunctions:
        """Builds the networks with the recurrent core; see `RolloutLearner.networks`."""
        return make_actor_critic(
            self,
            observation,
            action,
            self.core,
            self.head_widths,
            critic_core=self.critic_core,
            separate=self.separate_clipping,
        )

    def method(
        self,
        policy: PolicyFunctions,
        *,
        teacher: Teacher | None = None,
        **run,
    ) -> OnPolicyMethod:
        """Returns epochs of minibatches on PPO's loss, with the imitation of a teacher if there is one."""
        del run
        optimizer = self.make_optimizer()
        acting = optimizer.evaluation_params
        if self.sampling == SAMPLES:
            learn = partial(learn_samples, self, policy, optimizer)
            return OnPolicyMethod(optimizer.init, learn, acting=acting)
        learn = partial(learn_segments, self, policy, optimizer)
        return OnPolicyMethod(optimizer.init, learn, partial(segments_from_rollout, teacher=teacher), acting)

    def make(
        self,
        observation_shape: tuple[int, ...],
        action: ActionSpec,
        *,
        samples: int | None = None,
        shards: int = 1,
        teacher: Teacher | None = None,
        **run,
    ) -> Agent:
        """Builds the agent; see `RolloutLearner.make`.

        Without the `teacher` that the settings name, the agent can act, but its update raises a ValueError. A
        script is not an argument: its actions are in `Rollout.taught`.
        """
        if samples is not None:
            self.require_parts(samples, shards)
        agent = super().make(
            observation_shape, action, samples=samples, shards=shards, teacher=teacher, **run
        )
        return agent if teacher is None else with_teacher(agent, teacher)
