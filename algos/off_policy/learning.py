"""Gradient steps of off-policy learners: state, interface of a method, critics, targets and Adam.

See docs/reference/trainer.md 10.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algos import collectives
from algos.checks import require_given
from algos.metrics import OF_PARAMETERS, STEPS, mean_over_steps
from algos.nets.networks import flatten_features
from algos.nets.observations import Statistics, merge_statistics, normalize_observations
from algos.off_policy.replay.replay import Replay
from algos.off_policy.replay.rings import Sample
from algos.off_policy.settings import OffPolicySettings
from algos.optim.optimizers import AdamState, Optimizer, clip_scale, global_norm, make_adam
from algos.types import (
    Asymmetric,
    Hyper,
    Metrics,
    ObservationSpec,
    PyTree,
    Transition,
    actor_observation,
)

# Upper limit of `seen`, which is compared with the lengths of the warm-up and of schedules.
SEEN_LIMIT = 2**30


class OffPolicyState(struct.PyTreeNode):
    """State of an off-policy learner.

    Attributes:
      params: parameters by part: "critic", and further parts of the method, such as "actor".
      targets: target networks: slow-moving copies of some parts.
      optimizers: state of Adam by part.
      observations: statistics of the observations, or None.
      replay: state of the replay; None in a state reduced to the policy.
      hyper: traced hyper-parameters by name.
      seen: int32 scalar, transitions of all agents so far, saturating near 2^30.
      updates: int32 scalar, gradient steps done.
    """

    params: dict[str, PyTree]
    targets: dict[str, PyTree]
    optimizers: dict[str, AdamState]
    observations: Statistics
    replay: PyTree
    hyper: Hyper
    seen: jax.Array
    updates: jax.Array


def flatten_transition(transition: Transition, observation: ObservationSpec) -> Transition:
    """Flattens the axes of environments and agents, and the features of observations: `[E * A, ...]`.

    Contexts are dropped. Decisions whose actions are not numbers are not alive: an environment may ignore
    what a learner that has diverged does, and in a population another one learns from its replay.
    """
    transition = transition.replace(
        alive=transition.alive & jnp.isfinite(transition.action).all(-1),
        obs=flatten_features(transition.obs, observation.shape),
        next_obs=flatten_features(transition.next_obs, observation.shape),
        context=None,
        next_context=None,
    )
    return jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:]), transition)


def draw_uniformly(key: jax.Array, explored: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Draws continuous actions of the shape of `explored`, uniform in [-1, 1]."""
    del mask
    return jax.random.uniform(key, explored.shape, minval=-1.0)


def keep_actor(params: dict[str, PyTree]) -> dict[str, PyTree]:
    """Selects the actor's parameters."""
    return {"actor": params["actor"]}


class OffPolicyMethod(NamedTuple):
    """Algorithm-specific functions of an off-policy learner.

    Batches are `Sample`s with normalised observations and scaled rewards.

    Attributes:
      init: `(key) -> params`, a dict of parts.
      hyper: values for settings that are None, by name.
      targets: names of the parts with a target network.
      explore: `(state, key, obs, carry, reset, mask) -> (action, carry)`.
      greedy: `(state, obs, carry, reset, mask) -> (action, carry)`, deterministic.
      target: `(state, key, batch) -> target`, the critics' regression targets.
      predict: `(params, batch) -> [n_critics, B, q]`, the critics' estimates with these parameters of theirs.
      critic_loss: `(prediction, target) -> (loss, td)`, `[B]` each: the sum of the critics' losses,
        and the absolute temporal difference errors, which become the priorities.
      improve: `(state, key, batch) -> (state, metrics)`, after the step of the critics.
      warm_up: `(key, explored, mask) -> action` of the warm-up, of the shape of `explored`.
      acting: `(params) -> params`, the parts that acting needs.
      rows: `(transition, observation) -> rows`, one decision `[E, A]` as rows of the replay `[N]`.
      initial_carry: `(batch_shape) -> carry`, the recurrent state before the first decision.
      explores: see `Agent`.
      optimizer: of all parts.
      regress: `(params, state, key, batch) -> (loss, td, prediction)` of the critics with these parameters;
        None for that of `target`, `predict` and `critic_loss` one after the other.
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
    warm_up: Callable = draw_uniformly
    acting: Callable = keep_actor
    rows: Callable = flatten_transition
    initial_carry: Callable = lambda _batch_shape: ()
    explores: bool = False
    optimizer: Optimizer = make_adam()
    regress: Callable | None = None


def store_decision(replay: Replay, state: OffPolicyState, rows: Transition) -> OffPolicyState:
    """Stores one decision of all agents `[N]` in the replay and merges it into the statistics."""
    observations = merge_rows(state.observations, rows)
    seen = jnp.minimum(state.seen, SEEN_LIMIT) + collectives.sum_over_shards(rows.alive.sum(dtype=jnp.int32))
    return state.replace(replay=replay.add(state.replay, rows), observations=observations, seen=seen)


def learn_if_ready(
    config: OffPolicySettings, method: OffPolicyMethod, replay: Replay, state: OffPolicyState, key: jax.Array
) -> tuple[OffPolicyState, Metrics]:
    """Takes the gradient steps after one decision; none during the warm-up, which all shards end together.

    Returns:
      the state and metrics: means over the steps, their number, and the norm of the parameters after them;
      during the warm-up all but the norm are 0.
    """

    def learn(state, key):
        def step(state, key):
            return gradient_step(method, replay, state, key)

        keys = jax.random.split(collectives.fold_shard_into_key(key), config.updates_per_step)
        state, metrics = collectives.run_in_order(partial(jax.lax.scan, step), state, keys)
        metrics = mean_over_steps(metrics | {STEPS: jnp.ones(config.updates_per_step)})
        # Losses are computed before the last step: only this norm shows a last step that diverges.
        return state, metrics | {OF_PARAMETERS: global_norm(state.params)}

    def wait(state, key):
        metrics = jax.eval_shape(learn, state, key)[1]
        metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)
        return state, metrics | {OF_PARAMETERS: global_norm(state.params)}

    held = collectives.min_over_shards(replay.size(state.replay)) * collectives.num_shards()
    ready = (state.seen >= state.hyper["learning_starts"]) & (held >= config.batch_size)
    return collectives.run_in_order(partial(jax.lax.cond, ready, learn, wait), state, key)


def gradient_step(
    method: OffPolicyMethod, replay: Replay, state: OffPolicyState, key: jax.Array
) -> tuple[OffPolicyState, Metrics]:
    """Takes one step on one batch: of the critics, then of the method's other parts."""
    key_sample, key_target, key_improve = jax.random.split(key, 3)
    memory, sample = replay.sample(state.replay, key_sample, state.hyper["gamma"])
    batch = normalize_sample(state.observations, sample)
    batch = batch.replace(reward=sample.reward * state.hyper["reward_scale"])
    state, td, metrics = critic_step(method, state, key_target, batch)
    state, improved = method.improve(state, key_improve, batch)
    memory = replay.reprioritize(memory, sample.index, td)
    return state.replace(replay=memory, updates=state.updates + 1), metrics | improved


def merge_rows(statistics: Statistics, rows: Transition) -> Statistics:
    """Merges the observations of rows `[N]`, and the critics' own where these have statistics.

    Rows of several agents (see `ReplayRowLayout`) have `context.alive`, `[N, A]`.
    """
    alive = rows.alive if rows.context is None else rows.context.alive
    if not isinstance(statistics, Asymmetric):
        return merge_statistics(statistics, rows.obs, alive)
    states = require_given("context", rows.context).critic_obs
    critic = merge_statistics(statistics.critic, states, rows.alive)
    return Asymmetric(merge_statistics(statistics.actor, rows.obs, alive), critic)


def normalize_sample(statistics: Statistics, sample: Sample) -> Sample:
    """Normalises all observations of a batch, those of critics too where they have statistics."""
    own = actor_observation(statistics)
    batch = sample.replace(
        obs=normalize_observations(own, sample.obs), next_obs=normalize_observations(own, sample.next_obs)
    )
    if batch.between is not None:
        between = normalize_observations(own, batch.between.obs)
        batch = batch.replace(between=batch.between.replace(obs=between))
    if not isinstance(statistics, Asymmetric):
        return batch
    seen = {
        name: (context := getattr(batch, name)).replace(
            critic_obs=normalize_observations(statistics.critic, context.critic_obs)
        )
        for name in ("context", "next_context")
    }
    return batch.replace(**seen)


def critic_step(
    method: OffPolicyMethod, state: OffPolicyState, key: jax.Array, batch: Sample
) -> tuple[OffPolicyState, jax.Array, Metrics]:
    """Takes one step of the critics; returns the state, priorities `[B]` and metrics."""
    regress = method.regress or partial(regress_critics, method)

    def loss(params):
        losses, td, prediction = regress(params, state, key, batch)
        # Steps of sequences that are not inside are arbitrary.
        counted = None if batch.inside is None else batch.inside[..., None]
        return (losses * batch.weight).mean(), (td, prediction.mean(where=counted))

    (value, (td, mean)), grads = jax.value_and_grad(loss, has_aux=True)(state.params["critic"])
    metrics = {"critic_loss": value, "td_error": td.mean(), "value": mean}
    grads, metrics = collectives.mean_over_shards((grads, metrics))
    return optimize_part(method.optimizer, state, "critic", grads, "learning_rate"), td, metrics


def regress_critics(
    method: OffPolicyMethod, params: PyTree, state: OffPolicyState, key: jax.Array, batch: Sample
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes losses and errors `[B]` of the critics, and their estimates; see `OffPolicyMethod.regress`."""
    target = jax.lax.stop_gradient(method.target(state, key, batch))
    prediction = method.predict(params, batch)
    return *method.critic_loss(prediction, target), prediction


def optimize_part(
    optimizer: Optimizer, state: OffPolicyState, part: str, grads: PyTree, rate: str
) -> OffPolicyState:
    """Takes one step on one part, with the learning rate `rate` if set, else `learning_rate`."""
    hyper = state.hyper | {"learning_rate": anneal_learning_rate(state, rate)}
    scale = clip_scale(global_norm(grads), hyper["max_grad_norm"]) if "max_grad_norm" in hyper else 1.0
    params, moments = optimizer.step(grads, state.optimizers[part], state.params[part], hyper, scale)
    return state.replace(params=state.params | {part: params}, optimizers=state.optimizers | {part: moments})


def anneal_learning_rate(state: OffPolicyState, rate: str = "learning_rate") -> jax.Array:
    """Learning rate `rate` if set, else `learning_rate`, moved towards `learning_rate_end` if that is set."""
    hyper = state.hyper
    begin = hyper.get(rate, hyper["learning_rate"])
    if "learning_rate_end" not in hyper:
        return begin
    progress = jnp.minimum(state.seen / hyper["learning_rate_transitions"], 1.0)
    return begin + progress * (hyper["learning_rate_end"] - begin)


def update_targets(state: OffPolicyState, due: jax.Array | None = None) -> OffPolicyState:
    """Moves the target networks towards the parameters by the fraction `tau` (Polyak averaging), if `due`."""
    tau = state.hyper["tau"]
    tau = tau if due is None else jnp.where(due, tau, 0.0)
    followed = {part: state.params[part] for part in state.targets}
    targets = jax.tree.map(lambda slow, fast: slow + tau * (fast - slow), state.targets, followed)
    return state.replace(targets=targets)


def bellman_target(batch: Sample, next_value: jax.Array) -> jax.Array:
    """Bellman targets `reward + discount * value` from values `[..., B, q]` of the next observations.

    The discount is gamma to the power of the decisions that the sample spans, and 0 only where the agent
    terminated: truncated episodes bootstrap.
    """
    return batch.reward[..., None] + batch.discount[..., None] * next_value


def squared_loss(prediction: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Half the squared errors of critics `[n, B, 1]`, summed, and their mean absolute errors, `[B]` each."""
    error = prediction[..., 0] - target
    return 0.5 * jnp.square(error).sum(0), jnp.abs(error).mean(0)
