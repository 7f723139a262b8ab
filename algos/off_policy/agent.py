"""Off-policy learners as `Agent`s: acting, one update per decision, and construction from settings."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from algos.nets.encoders import encoded_blocks
from algos.nets.networks import flatten_features
from algos.nets.observations import init_statistics, normalize_observations
from algos.off_policy.learning import (
    OffPolicyMethod,
    OffPolicyState,
    learn_if_ready,
    store_decision,
)
from algos.off_policy.replay.replay import Replay, make_replay
from algos.off_policy.replay.rings import PLAIN_ROWS, ReplayRowLayout
from algos.off_policy.settings import OffPolicySettings
from algos.optim.small_batches import step_on_few_rows
from algos.types import (
    ActionSpec,
    Agent,
    Asymmetric,
    Block,
    Goal,
    Hyper,
    ObservationSpec,
    actor_observation,
    mark_all_shared,
)


class ReplayLearner(OffPolicySettings):
    """Settings that build the agent that they describe."""

    def method(self, observation: ObservationSpec, action: ActionSpec) -> OffPolicyMethod:
        """Builds the networks and losses of this learner."""
        raise NotImplementedError

    def make(
        self,
        observation_shape: tuple[int, ...],
        action: ActionSpec,
        *,
        blocks: Sequence[Block] = (),
        critic_shape: tuple[int, ...] | None = None,
        samples: int,
        shards: int = 1,
        updates: int | None = None,
        team: int = 1,
        member: int | None = None,
        **run,
    ) -> Agent:
        """Builds the agent as a bundle of pure functions.

        Args:
          observation_shape: shape of one observation; it is flattened for the networks.
          action: the action space.
          blocks: blocks of the flattened observation, for encoders.
          critic_shape: shape of the critics' own observation, for learners that use it.
          samples: parallel agents, E * A.
          shards: number of shards, each with its own replay and part of every batch; see `algos.collectives`.
          updates: updates of the run; unused.
          team: agents whose decisions at one time are one row of the replay, for learners of teams.
          member: place in its team of the only agent that is acted for; None for whole teams.
          run: further arguments for `make_replay`.

        Raises:
          ValueError: for settings that are incompatible with each other or with the task.
        """
        del updates
        critic = critic_shape if self.mixes_states else None
        observation = ObservationSpec(observation_shape, tuple(blocks), critic, team, member)
        replay = self.make_replay(
            observation_shape,
            action,
            critic_shape=critic_shape,
            samples=samples,
            shards=shards,
            team=team,
            **run,
        )
        agent = make_replay_agent(self, self.method(observation, action), replay, observation)
        return step_on_few_rows(agent, self.batch_size * team // shards, self.replay.sequence)

    def make_replay(
        self,
        observation_shape: tuple[int, ...],
        action: ActionSpec,
        *,
        samples: int,
        shards: int = 1,
        episode_limit: int,
        goal: Goal | None = None,
        blocks: Sequence[Block] = (),
        critic_shape: tuple[int, ...] | None = None,
        team: int = 1,
        late: bool = False,
        turns: bool = False,
        observation_dtype: DTypeLike = jnp.float32,
    ) -> Replay:
        """Builds the replay of one shard of the agent that `make` builds from the same arguments.

        The replay holds flat observations.

        Args:
          observation_shape, action, samples, shards, blocks, critic_shape, team: as for `make`.
          episode_limit: largest number of decisions of an episode.
          goal: access to goals in observations, for hindsight.
          late: whether rewards are delayed: agents receive them while they wait.
          turns: whether agents decide in turn, so that consecutive decisions of an agent are not consecutive
            steps.
          observation_dtype: dtype of the environment's observations; the replay stores integers unchanged.
        """
        del blocks
        self.require_task(action, late=late)
        if self.teams and self.replay.hindsight_ratio:
            ratio = self.replay.hindsight_ratio
            raise ValueError(f"replay.hindsight_ratio={ratio}: must be 0 with algo={self.NAME}")
        if not self.remembers and self.replay.sequence > 1:
            raise ValueError(f"replay.sequence={self.replay.sequence}: must be 1 without a recurrent core")
        for key, plain, refused, reason in (
            ("n_step", 1, turns, "in turn-based games"),
            ("sequence", 1, turns, "in turn-based games"),
            ("hindsight_ratio", 0.0, late, "with delayed rewards"),
        ):
            if refused and (value := getattr(self.replay, key)) != plain:
                raise ValueError(f"algo.replay.{key}={value}: must be {plain:g} {reason}")
        if self.batch_size % shards:
            raise ValueError(f"batch_size={self.batch_size}: must be a multiple of shards={shards}")
        try:
            return make_replay(
                self.replay.of_shard(shards),
                rows=samples // team // shards,
                observation_size=math.prod(observation_shape),
                action_size=action.dimensions,
                batch_size=self.batch_size // shards,
                episode_limit=episode_limit,
                goal=goal,
                between=self.BETWEEN,
                observation_dtype=observation_dtype,
                layout=self.layout(action, critic_shape, team),
            )
        except ValueError as error:
            raise ValueError(f"shards={shards}: in each, {error}" if shards > 1 else str(error)) from None

    def layout(self, action: ActionSpec, critic_shape: tuple[int, ...] | None, team: int) -> ReplayRowLayout:
        """Returns the contents of replay rows in addition to observations, actions and rewards."""
        del action, critic_shape, team
        return PLAIN_ROWS

    def memory(
        self, observation_shape: tuple[int, ...], action: ActionSpec, *, shards: int = 1, **sizes
    ) -> int:
        """Bytes that the replays of all shards allocate from the start; arguments as for `make_replay`."""
        return shards * self.make_replay(observation_shape, action, shards=shards, **sizes).nbytes


def mark_replay(state: OffPolicyState) -> OffPolicyState:
    """Marks the arrays of single environments, those of the replay; see `Agent.local`."""
    return mark_all_shared(state).replace(replay=jax.tree.map(lambda _: True, state.replay))


def make_replay_agent(
    config: OffPolicySettings,
    method: OffPolicyMethod,
    replay: Replay,
    observation: ObservationSpec,
) -> Agent:
    """Combines a method and a replay into an agent; see `ReplayLearner.make`."""

    def seen(state, obs):
        own = flatten_features(actor_observation(obs), observation.shape)
        return normalize_observations(actor_observation(state.observations), own)

    def act(state, key, obs, carry, reset, mask):
        key_warmup, key_policy = jax.random.split(key)
        explored, carry = method.explore(state, key_policy, seen(state, obs), carry, reset, mask)
        uniform = method.warm_up(key_warmup, explored, mask)
        warmed_up = state.seen >= state.hyper["learning_starts"]
        return jnp.where(warmed_up, explored, uniform), carry, {}

    def greedy(state, obs, carry, reset, mask):
        return method.greedy(state, seen(state, obs), carry, reset, mask)

    def update(state, key, transition):
        state = store_decision(replay, state, method.rows(transition, observation))
        return learn_if_ready(config, method, replay, state, key)

    return Agent(
        init=lambda key: initial_off_policy_state(config, method, replay, key, observation),
        initial_carry=method.initial_carry,
        act=act,
        greedy=greedy,
        value=None,
        update=update,
        learns="step",
        policy_state=lambda state: keep_policy(method, state),
        gamma=lambda state: state.hyper["gamma"],
        hyper=lambda: initial_traced_hyper(config, method),
        local=mark_replay,
        asymmetric=observation.critic is not None,
        explores=method.explores,
        after_warm_up=end_warm_up,
    )


def initial_off_policy_state(
    config: OffPolicySettings,
    method: OffPolicyMethod,
    replay: Replay,
    key: jax.Array,
    observation: ObservationSpec,
) -> OffPolicyState:
    """Returns the state before the first decision."""
    params = method.init(key)
    statistics = init_statistics(observation.size, encoded_blocks(config.encoder, observation.blocks))
    if observation.critic is not None:
        statistics = Asymmetric(statistics, init_statistics(math.prod(observation.critic)))
    return OffPolicyState(
        params=params,
        targets=jax.tree.map(jnp.copy, {part: params[part] for part in method.targets}),
        optimizers={part: method.optimizer.init(x) for part, x in params.items()},
        observations=statistics if config.normalize_observation else None,
        replay=replay.init(),
        hyper=initial_traced_hyper(config, method),
        seen=jnp.int32(0),
        updates=jnp.int32(0),
    )


def initial_traced_hyper(config: OffPolicySettings, method: OffPolicyMethod) -> Hyper:
    """Returns the traced hyper-parameters; settings that are None take the method's value or are omitted."""
    given = {name: x for name in config.TRACED if (x := getattr(config, name)) is not None}
    hyper = {name: jnp.float32(x) for name, x in (method.hyper | given).items()}
    return hyper | {name: jnp.int32(getattr(config, name)) for name in config.COUNTS}


def end_warm_up(state: OffPolicyState) -> OffPolicyState:
    """Returns the state as if the transitions of the warm-up had been seen; see `Agent.after_warm_up`."""
    return state.replace(seen=jnp.maximum(state.seen, state.hyper["learning_starts"]))


def keep_policy(method: OffPolicyMethod, state: OffPolicyState) -> OffPolicyState:
    """Reduces a state to the parts that acting needs: no replay, targets or optimisers."""
    return state.replace(params=method.acting(state.params), targets={}, optimizers={}, replay=None)
