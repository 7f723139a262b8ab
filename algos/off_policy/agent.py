"""What learners with a replay share: settings, state, gradient steps and the agent around them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algos.checks import require_choice, require_count, require_list, require_range, require_switches
from algos.nets.encoders import EncoderConfig, blocks_apart, make_encoder
from algos.nets.networks import (
    ACTIVATIONS,
    PRECISIONS,
    Critic,
    Network,
    flatten,
    make_critics,
    require_inside,
    require_widths,
)
from algos.nets.observations import Statistics, init_statistics, merge_statistics, observe
from algos.off_policy.replay.replay import Replay, ReplayConfig, Sample, make_replay
from algos.optim.optimizers import AdamState, adam, global_norm, init_adam
from algos.types import ActionSpec, Agent, Block, Goal, ObservationSpec, Transition

PyTree = Any
Metrics = dict[str, jax.Array]

# `seen` stops here: it only ever answers whether the warm-up is over.
SEEN_LIMIT = 2**30


@dataclass(frozen=True)
class OffPolicyConfig:
    """Settings that all learners with a replay have.

    The numbers named in `TRACED` and `COUNTS` only start the learner: they live in `state.hyper`,
    where they can be changed, restored or vmapped over without recompiling.

    Attributes:
      widths: hidden layers of the actor, and of the critics unless `critic_widths` is given.
      critic_widths: hidden layers of every critic; None for the same as `widths`.
      activation: "relu", "tanh" or "silu".
      compute_dtype: a key of `PRECISIONS`; type of the hidden arithmetic, parameters stay float32.
      encoder: what becomes of observations before the hidden layers; a mapping is accepted.
      initial_action: initial mean action per dimension; None for 0.
      n_critics: critics of the ensemble.
      horizon: decisions per update of the program; learning happens after every one of them.
      batch_size: transitions per gradient step.
      learning_starts: transitions seen before the first gradient step; actions are uniform until then.
      updates_per_step: gradient steps after a decision of all agents.
      learning_rate: of Adam, for everything without a rate of its own.
      actor_learning_rate: of the actor; None for `learning_rate`.
      gamma: discount per decision.
      tau: share of the way that targets go towards the parameters in one step.
      reward_scale: constant factor on rewards.
      normalize_observation: running normalisation; the replay holds raw observations.
      adam_eps, adam_beta1, adam_beta2: of Adam.
      replay: settings of the replay, or a mapping of them.
    """

    NAME: ClassVar[str]
    # Whether targets of several decisions need the states on the way.
    BETWEEN: ClassVar[bool] = False
    TRACED: ClassVar[dict[str, tuple[float, float]]] = {
        "learning_rate": (0.0, 1.0),
        "actor_learning_rate": (0.0, 1.0),
        "gamma": (0.0, 1.0),
        "tau": (0.0, 1.0),
        "reward_scale": (1e-9, math.inf),
        "adam_eps": (1e-12, 1.0),
        "adam_beta1": (0.0, 1.0 - 1e-7),
        "adam_beta2": (0.0, 1.0 - 1e-7),
    }
    OPTIONAL: ClassVar[tuple[str, ...]] = ("actor_learning_rate",)
    COUNTS: ClassVar[tuple[str, ...]] = ("learning_starts",)

    widths: tuple[int, ...] = (256, 256)
    critic_widths: tuple[int, ...] | None = None
    activation: str = "relu"
    compute_dtype: str = "float32"
    encoder: EncoderConfig = EncoderConfig()
    initial_action: tuple[float, ...] | None = None
    n_critics: int = 2
    horizon: int = 64
    batch_size: int = 256
    learning_starts: int = 1000
    updates_per_step: int = 1
    learning_rate: float = 3e-4
    actor_learning_rate: float | None = None
    gamma: float = 0.99
    tau: float = 0.005
    reward_scale: float = 1.0
    normalize_observation: bool = True
    adam_eps: float = 1e-8
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    replay: ReplayConfig = ReplayConfig()

    def __post_init__(self):
        for key in ("widths", "critic_widths", "initial_action"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, require_list(key, getattr(self, key)))
        if isinstance(self.encoder, Mapping):
            object.__setattr__(self, "encoder", EncoderConfig(**self.encoder))
        if isinstance(self.replay, Mapping):
            object.__setattr__(self, "replay", ReplayConfig(**self.replay))
        require_switches(self)
        for key in ("widths", "critic_widths"):
            require_widths(key, getattr(self, key))
            if getattr(self, key) == ():
                raise ValueError(f"{key}=(): needs at least one layer")
        require_inside(self.initial_action, "")
        require_choice("activation", self.activation, tuple(ACTIVATIONS))
        require_choice("compute_dtype", self.compute_dtype, tuple(PRECISIONS))
        for key in ("n_critics", "horizon", "batch_size", "updates_per_step", *self.COUNTS):
            require_count(key, getattr(self, key))
        for key, (low, high) in self.TRACED.items():
            if getattr(self, key) is not None or key not in self.OPTIONAL:
                require_range(key, getattr(self, key), low, high)

    def adjustable(self) -> tuple[str, ...]:
        """Names of the settings that live in the learner's state; a run may continue with other ones."""
        return (*self.TRACED, *self.COUNTS)

    def method(self, observation: ObservationSpec, action: ActionSpec) -> "Method":
        """The networks and losses of this learner."""
        raise NotImplementedError

    def make(
        self,
        observation_shape: tuple[int, ...],
        action: ActionSpec,
        *,
        blocks: Sequence[Block] = (),
        samples: int,
        updates: int | None = None,
        episode_limit: int,
        goal: Goal | None = None,
    ) -> Agent:
        """Builds the agent for `samples` = E * A agents side by side.

        Raises:
          ValueError: for settings that do not fit together or to the task.
        """
        del updates
        replay = self.make_replay(
            observation_shape, action, samples=samples, episode_limit=episode_limit, goal=goal
        )
        observation = ObservationSpec(observation_shape, tuple(blocks))
        return make_agent(self, self.method(observation, action), replay, observation, action)

    def make_replay(
        self,
        observation_shape: tuple[int, ...],
        action: ActionSpec,
        *,
        samples: int,
        episode_limit: int,
        goal: Goal | None = None,
        blocks: Sequence[Block] = (),
    ) -> Replay:
        """The replay of an agent that `make` builds from the same arguments; it holds flat observations."""
        del blocks
        if action.kind != "continuous":
            raise ValueError(f"algo={self.NAME}: needs continuous actions; these are {action.kind}")
        return make_replay(
            self.replay,
            rows=samples,
            observation_size=math.prod(observation_shape),
            action_size=action.dimensions,
            batch_size=self.batch_size,
            episode_limit=episode_limit,
            goal=goal,
            between=self.BETWEEN,
        )

    def memory(self, observation_shape: tuple[int, ...], action: ActionSpec, **sizes) -> int:
        """Bytes that the replay of `make_replay`, with the same arguments, occupies from the start."""
        return self.make_replay(observation_shape, action, **sizes).nbytes

    def critics(self, observation: ObservationSpec, action: ActionSpec, outputs: int = 1) -> Network:
        """The ensemble of critics, each with this many outputs."""
        widths = self.widths if self.critic_widths is None else self.critic_widths
        dtype = PRECISIONS[self.compute_dtype]
        encoder = make_encoder(self.encoder, observation.blocks, dtype)
        critic = Critic(widths, outputs, self.activation, dtype, encoder)
        return make_critics(critic, self.n_critics, observation, action.dimensions)


@struct.dataclass
class OffPolicyState:
    """Everything a learner with a replay learns and remembers.

    Attributes:
      params: parameters by part: "actor", "critic" (leading axis: critics), and what the method adds.
      targets: slowly following copies of some parts.
      optimizers: state of Adam by part.
      observations: statistics of the observations, or None.
      replay: state of the replay; None where only the policy is kept.
      hyper: traced hyper-parameters by name.
      seen: int32 scalar, transitions seen, all agents together (stops at 2^30).
      updates: int32 scalar, gradient steps done.
    """

    params: dict[str, PyTree]
    targets: dict[str, PyTree]
    optimizers: dict[str, AdamState]
    observations: Statistics
    replay: PyTree
    hyper: dict[str, jax.Array]
    seen: jax.Array
    updates: jax.Array


class Method(NamedTuple):
    """What sets one learner with a replay apart from another.

    Batches are Samples with observations and rewards as the networks see them.

    Attributes:
      init: `(key) -> params`, a dict of parts.
      hyper: numbers for settings left at None, besides those of the configuration.
      targets: parts that have a target copy.
      explore: `(state, key, obs) -> action`.
      greedy: `(state, obs) -> action`, deterministic.
      target: `(state, key, batch) -> target`, what the critics ought to say.
      predict: `(params, obs, action) -> [n_critics, B, q]`, of the critics.
      critic_loss: `(prediction, target) -> (loss, td)`, `[B]` each: the critics' losses added up, and
        the size of their temporal difference errors, which becomes the priority.
      improve: `(state, key, batch) -> (state, metrics)`, all that follows the step of the critics.
    """

    init: Callable
    hyper: dict[str, float]
    targets: tuple[str, ...]
    explore: Callable
    greedy: Callable
    target: Callable
    predict: Callable
    critic_loss: Callable
    improve: Callable


def make_agent(
    config: OffPolicyConfig,
    method: Method,
    replay: Replay,
    observation: ObservationSpec,
    action: ActionSpec,
) -> Agent:
    """Puts a method and a replay together as a bundle of pure functions."""

    def init(key):
        return initial_state(config, method, replay, key, observation)

    def see(state, obs):
        return observe(state.observations, flatten(obs, observation.shape))

    def act(state, key, obs, carry, reset, mask):
        key_warmup, key_policy = jax.random.split(key)
        explored = method.explore(state, key_policy, see(state, obs))
        uniform = jax.random.uniform(key_warmup, explored.shape, minval=-1.0)
        warmed_up = state.seen >= state.hyper["learning_starts"]
        return jnp.where(warmed_up, explored, uniform), carry, {}

    def greedy(state, obs, carry, reset, mask):
        return method.greedy(state, see(state, obs)), carry

    def update(state, key, transition):
        state = remember(replay, state, as_rows(transition, observation.shape))
        return learn_if_ready(config, method, replay, state, key)

    return Agent(
        init=init,
        initial_carry=lambda batch_shape: (),
        act=act,
        greedy=greedy,
        value=None,
        update=update,
        learns="step",
        policy_state=policy_state,
        rows=config.batch_size,
        hyper=lambda: initial_hyper(config, method),
    )


def initial_state(
    config: OffPolicyConfig, method: Method, replay: Replay, key: jax.Array, observation: ObservationSpec
) -> OffPolicyState:
    """The state before the first decision."""
    params = method.init(key)
    statistics = init_statistics(observation.size, blocks_apart(config.encoder, observation.blocks))
    return OffPolicyState(
        params=params,
        targets=jax.tree.map(jnp.copy, {part: params[part] for part in method.targets}),
        optimizers={part: init_adam(x) for part, x in params.items()},
        observations=statistics if config.normalize_observation else None,
        replay=replay.init(),
        hyper=initial_hyper(config, method),
        seen=jnp.int32(0),
        updates=jnp.int32(0),
    )


def initial_hyper(config: OffPolicyConfig, method: Method) -> dict[str, jax.Array]:
    """The traced hyper-parameters that the settings ask for; None leaves them to the method, or out."""
    given = {name: x for name in config.TRACED if (x := getattr(config, name)) is not None}
    hyper = {name: jnp.float32(x) for name, x in (method.hyper | given).items()}
    return hyper | {name: jnp.int32(getattr(config, name)) for name in config.COUNTS}


def policy_state(state: OffPolicyState) -> OffPolicyState:
    """What acting needs of a state: no replay, critics, targets or optimisers."""
    actor = {"actor": state.params["actor"]}
    return state.replace(params=actor, targets={}, optimizers={}, replay=None)


def as_rows(transition: Transition, observation_shape: tuple[int, ...]) -> Transition:
    """Merges the axes of environments and agents, and those of the features: `[E * A, ...]`."""
    transition = transition.replace(
        obs=flatten(transition.obs, observation_shape),
        next_obs=flatten(transition.next_obs, observation_shape),
    )
    return jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:]), transition)


def remember(replay: Replay, state: OffPolicyState, rows: Transition) -> OffPolicyState:
    """Stores one decision of all agents `[N]` and merges it into the statistics."""
    observations = merge_statistics(state.observations, rows.obs, rows.alive)
    seen = jnp.minimum(state.seen, SEEN_LIMIT) + rows.alive.sum(dtype=jnp.int32)
    return state.replace(replay=replay.add(state.replay, rows), observations=observations, seen=seen)


def learn_if_ready(
    config: OffPolicyConfig, method: Method, replay: Replay, state: OffPolicyState, key: jax.Array
) -> tuple[OffPolicyState, Metrics]:
    """Does the gradient steps of one decision, or nothing during the warm-up.

    Returns:
      the state and metrics, all 0 if nothing was done.
    """

    def learn(state, key):
        def step(state, key):
            return gradient_step(method, replay, state, key)

        keys = jax.random.split(key, config.updates_per_step)
        state, metrics = jax.lax.scan(step, state, keys)
        metrics = {name: x.mean() for name, x in metrics.items()}
        # Losses are those of the parameters before the last step: what that step broke shows here alone.
        metrics["parameter_norm"] = global_norm(state.params)
        return state, metrics | {"gradient_steps": jnp.float32(config.updates_per_step)}

    def wait(state, key):
        metrics = jax.eval_shape(learn, state, key)[1]
        return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)

    ready = (state.seen >= state.hyper["learning_starts"]) & (replay.size(state.replay) >= config.batch_size)
    return jax.lax.cond(ready, learn, wait, state, key)


def gradient_step(
    method: Method, replay: Replay, state: OffPolicyState, key: jax.Array
) -> tuple[OffPolicyState, Metrics]:
    """One step on one batch: critics first, then whatever the method improves with them."""
    key_sample, key_target, key_improve = jax.random.split(key, 3)
    memory, sample = replay.sample(state.replay, key_sample, state.hyper["gamma"])
    batch = sample.replace(
        obs=observe(state.observations, sample.obs),
        next_obs=observe(state.observations, sample.next_obs),
        reward=sample.reward * state.hyper["reward_scale"],
    )
    if batch.between is not None:
        between = observe(state.observations, batch.between.obs)
        batch = batch.replace(between=batch.between.replace(obs=between))
    state, td, metrics = critic_step(method, state, key_target, batch)
    state, improved = method.improve(state, key_improve, batch)
    memory = replay.reprioritize(memory, sample.index, td)
    return state.replace(replay=memory, updates=state.updates + 1), metrics | improved


def critic_step(
    method: Method, state: OffPolicyState, key: jax.Array, batch: Sample
) -> tuple[OffPolicyState, jax.Array, Metrics]:
    """Moves the critics towards their targets; returns the state, priorities `[B]` and metrics."""
    target = jax.lax.stop_gradient(method.target(state, key, batch))

    def loss(params):
        prediction = method.predict(params, batch.obs, batch.action)
        losses, td = method.critic_loss(prediction, target)
        return (losses * batch.weight).mean(), (td, prediction.mean())

    (value, (td, mean)), grads = jax.value_and_grad(loss, has_aux=True)(state.params["critic"])
    metrics = {"critic_loss": value, "td_error": td.mean(), "value": mean}
    return descend(state, "critic", grads, "learning_rate"), td, metrics


def descend(state: OffPolicyState, part: str, grads: PyTree, rate: str) -> OffPolicyState:
    """One step of Adam on one part, with its own learning rate where it has one."""
    hyper = state.hyper
    params, optimizer = adam(
        grads,
        state.optimizers[part],
        state.params[part],
        learning_rate=hyper.get(rate, hyper["learning_rate"]),
        beta1=hyper["adam_beta1"],
        beta2=hyper["adam_beta2"],
        eps=hyper["adam_eps"],
    )
    return state.replace(
        params=state.params | {part: params}, optimizers=state.optimizers | {part: optimizer}
    )


def follow(state: OffPolicyState) -> OffPolicyState:
    """Moves the targets by the share `tau` of their distance to the parameters."""
    tau = state.hyper["tau"]
    followed = {part: state.params[part] for part in state.targets}
    targets = jax.tree.map(lambda slow, fast: slow + tau * (fast - slow), state.targets, followed)
    return state.replace(targets=targets)


def bellman(batch: Sample, next_value: jax.Array) -> jax.Array:
    """Targets for values `[..., B, q]` of the next observations: `reward + discount * value`.

    The discount already holds gamma, over as many decisions as the sample spans, and is 0 only where
    the agent terminated: an episode that was cut is worth what would have followed.
    """
    return batch.reward[:, None] + batch.discount[:, None] * next_value


def squared_loss(prediction: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Half the squared errors of the critics `[n, B, 1]`, added up, and their mean size, `[B]` each."""
    error = prediction[..., 0] - target
    return 0.5 * jnp.square(error).sum(0), jnp.abs(error).mean(0)
