"""Action values of teams: value decomposition networks (Sunehag et al. 2018) and QMIX (Rashid et al. 2018).

The agents of a team share one network. What is regressed on the team's reward is the sum of the values of
their actions (VDN), or a monotonic function of these values that depends on the state (QMIX): either way the
best joint action is that of each agent for itself. See docs/reference/trainer.md 10.8.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from algos.checks import require_count
from algos.defaults import FROM_FILE, take_defaults_from
from algos.masks import expand_mask
from algos.nets.encoders import encoded_blocks
from algos.nets.networks import MLP, Layers, Linear, flatten_features
from algos.off_policy.dqn import ActionValueSettings, make_value_method, next_mask
from algos.off_policy.learning import OffPolicyMethod
from algos.off_policy.replay.rings import ReplayRowLayout
from algos.teams import TeamLearnerSettings, combine_team_rewards, make_inputs_with_ids
from algos.types import ActionSpec, Context, ObservationSpec, PyTree, Transition

# Small, so that mixtures begin near 0 whatever the scale of states is: values that begin far above all
# returns keep themselves up through the targets. That of JaxMARL's `qmix_rnn.py`.
HYPER_GAIN = 0.001


@dataclass(frozen=True)
class TeamValueSettings(TeamLearnerSettings, ActionValueSettings):
    """Settings of learners of teams with a replay, in addition to those of its base classes.

    A transition is one of the whole team: it counts once in `learning_starts`, `epsilon_transitions` and the
    replay's capacity.
    """

    def __post_init__(self):
        super().__post_init__()
        self.require_team_reward()

    def layout(self, action: ActionSpec, critic_shape: tuple[int, ...] | None, team: int) -> ReplayRowLayout:
        """Returns the layout with the agents that are alive, the next legal actions, and the states.

        Learners with memory also store whose memory is empty.
        """
        alive = jax.ShapeDtypeStruct((team,), bool)
        begins = alive if self.remembers else None
        state = None
        if self.mixes_states and critic_shape is not None:
            state = jax.ShapeDtypeStruct((math.prod(critic_shape),), jnp.float32)
        mask = jax.ShapeDtypeStruct((team, action.mask_size), bool)
        contexts = Context(alive, None, state, begins), Context(alive, mask, state, begins)
        return ReplayRowLayout((team,), *contexts)

    def team_method(self, observation: ObservationSpec, action: ActionSpec, **mixer) -> OffPolicyMethod:
        """Builds the method of teams with this mixer; see `make_value_method`."""
        see, features = make_inputs_with_ids(self.agent_ids, self.encoder, observation)
        method = make_value_method(
            self,
            observation,
            action,
            see=see or (lambda obs: obs),
            features=features,
            **mixer,
        )
        return method._replace(
            rows=partial(rows_of_teams, action, self.team_reward, remembers=self.remembers)
        )


@take_defaults_from("algo/vdn")
@dataclass(frozen=True)
class VDNConfig(TeamValueSettings):
    """Settings of value decomposition networks, those of `TeamValueSettings`."""

    NAME: ClassVar[str] = "vdn"

    def method(self, observation: ObservationSpec, action: ActionSpec) -> OffPolicyMethod:
        """Returns the method that regresses the sum of the values of the agents that are alive."""
        return self.team_method(observation, action, mix=add_values)


@take_defaults_from("algo/qmix")
@dataclass(frozen=True)
class QMIXConfig(TeamValueSettings):
    """Settings of QMIX, in addition to those of `TeamValueSettings`.

    The state is the critics' own observation, that of the first agent that is alive, or in environments
    without one all agents' observations.

    Attributes:
      mixing_width: hidden units of the mixing network.
      hyper_widths: hidden layers of the networks that produce its weights, which are relu in float32 whatever
        `activation` and `compute_dtype` are.
    """

    NAME: ClassVar[str] = "qmix"
    mixes_states: ClassVar[bool] = True
    LISTS: ClassVar[tuple[str, ...]] = (*TeamValueSettings.LISTS, "hyper_widths")

    mixing_width: int = FROM_FILE
    hyper_widths: tuple[int, ...] = FROM_FILE

    def __post_init__(self):
        super().__post_init__()
        require_count("mixing_width", self.mixing_width)
        self.require_layers("hyper_widths")

    def method(self, observation: ObservationSpec, action: ActionSpec) -> OffPolicyMethod:
        """Returns the method that regresses the mixture of the values.

        Raises:
          ValueError: with an encoder, but without critics' own observations.
        """
        joint = observation.critic is None
        if joint and encoded_blocks(self.encoder, observation.blocks):
            raise ValueError(
                f"encoder.kind={self.encoder.kind}: must be none with algo=qmix, unless critics have "
                "observations of their own"
            )
        size = observation.team * observation.size if joint else math.prod(observation.critic or ())
        mixer = MonotonicMixer(self.mixing_width, self.hyper_widths)

        def mix(params, chosen, obs, context):
            state = obs.reshape((*chosen.shape[:-1], -1)) if joint else context.critic_obs
            return mixer.apply(params, jnp.where(context.alive, chosen, 0.0), state)

        def init(key):
            return mixer.init(key, jnp.zeros((observation.team,)), jnp.zeros((size,)))

        return self.team_method(observation, action, mix=mix, init_mixer=init)


class MonotonicMixer(nn.Module):
    """Mixing network of QMIX: values `[..., A]` and states `[..., S]` to a value `[...]`, monotonic in each.

    Its weights are absolute values of functions of the state; its biases are any functions of the state, the
    last one with a hidden layer of K units (Rashid et al. 2018, section 4).

    Attributes:
      width: hidden units K.
      hyper_widths: hidden layers of the networks that produce the two layers of weights.
    """

    width: int
    hyper_widths: tuple[int, ...]

    @nn.compact
    def __call__(self, values: jax.Array, state: jax.Array) -> jax.Array:
        """Returns the mixture."""

        def produce(name, size, widths):
            hidden = MLP(widths, Layers(), name=f"{name}_trunk")(state)
            return Linear(size, HYPER_GAIN, name=name)(hidden)

        agents = values.shape[-1]
        first = jnp.abs(produce("first", agents * self.width, self.hyper_widths))
        hidden = Linear(self.width, HYPER_GAIN, name="bias")(state)
        # Agent by agent: a sum over their axis, which is not the last one, takes several times as long.
        for agent, weights in enumerate(jnp.split(first, agents, -1)):
            hidden += values[..., agent, None] * weights
        second = jnp.abs(produce("second", self.width, self.hyper_widths))
        return (nn.elu(hidden) * second).sum(-1) + produce("value", 1, (self.width,))[..., 0]


def add_values(params: PyTree, chosen: jax.Array, obs: jax.Array, context: Context) -> jax.Array:
    """Sum `[B]` of the values `[B, A]` of agents that are alive."""
    del params, obs
    return jnp.where(context.alive, chosen, 0.0).sum(-1)


def rows_of_teams(
    action: ActionSpec,
    team_reward: str,
    transition: Transition,
    observation: ObservationSpec,
    *,
    remembers: bool = False,
) -> Transition:
    """Builds one row `[E]` per team from a decision `[E, A]`; see `OffPolicyMethod.rows`.

    The team's trajectory goes on while one of its agents acts next. Windows and sequences end where one of
    them is cut before the others, because only this row shows what its value is bootstrapped from. What is
    seen of other agents is 0, but their rewards count where they are paid (`Context.paid`). Rows of learners
    with memory (`remembers`) have `Context.begins`.
    """
    now, later = transition.context or Context(), transition.next_context or Context()
    if now.alive is None or later.alive is None:
        raise ValueError("context=None: learners of teams need transitions with contexts")
    acts = transition.alive & now.alive
    paid = acts if now.paid is None else acts | now.paid
    reward = combine_team_rewards(team_reward, transition.reward, paid)
    cut = acts & later.alive & transition.boundary & (transition.discount > 0)
    return transition.replace(
        obs=seen_by(acts, transition.obs, observation),
        next_obs=seen_by(later.alive, transition.next_obs, observation),
        reward=reward,
        discount=later.alive.any(1).astype(jnp.float32),
        boundary=(transition.boundary | ~acts).all(1) | cut.any(1),
        success=transition.success.any(1),
        alive=acts.any(1),
        context=Context(acts, None, state_of_team(now, observation), now.begins if remembers else None),
        next_context=Context(
            later.alive,
            next_mask(transition, action),
            state_of_team(later, observation),
            later.begins if remembers else None,
        ),
    )


def seen_by(alive: jax.Array, obs: jax.Array, observation: ObservationSpec) -> jax.Array:
    """Flat observations `[E, A, F]`, 0 where an agent is not alive."""
    flat = flatten_features(obs, observation.shape)
    return jnp.where(expand_mask(alive, flat.ndim), flat, jnp.zeros((), flat.dtype))


def state_of_team(context: Context, observation: ObservationSpec) -> jax.Array | None:
    """Critics' flat observation `[E, S]` of the first agent that is alive; None without one."""
    if observation.critic is None:
        return None
    states = flatten_features(context.critic_obs, observation.critic)
    first = jnp.argmax(context.alive, 1)
    state = jnp.take_along_axis(states, first[:, None, None], 1)[:, 0]
    return jnp.where(context.alive.any(1)[:, None], state, 0.0)
