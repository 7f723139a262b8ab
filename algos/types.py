"""Types of the learners' interface: experience, spaces, goals and the agent itself."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

PyTree = Any
Metrics = dict[str, jax.Array]
Hyper = dict[str, jax.Array]


class ActionSpec(NamedTuple):
    """Action space of a learner.

    Attributes:
      kind: "continuous" (each coordinate in [-1, 1]; the driver maps it to the space's
        bounds) or "discrete" (one or more categorical choices).
      sizes: for "continuous" `(dimensions,)`; for "discrete" the number of options of each
        choice, so that `(5,)` is a plain discrete action and `(5, 3)` a multi-discrete one.
        Discrete actions are int32 `[..., len(sizes)]`; masks are bool `[..., sum(sizes)]`.
    """

    kind: str
    sizes: tuple[int, ...]

    @property
    def dimensions(self) -> int:
        """Length of the last axis of an action array."""
        return self.sizes[0] if self.kind == "continuous" else len(self.sizes)

    @property
    def mask_size(self) -> int:
        """Length of the last axis of an action mask; 0 for continuous actions."""
        return 0 if self.kind == "continuous" else sum(self.sizes)


class Asymmetric(struct.PyTreeNode):
    """Observations for a critic with privileged inputs (asymmetric actor-critic, Pinto et al. 2018).

    Attributes:
      actor: `[batch, ...]` inputs of the policy.
      critic: `[batch, ...]` inputs of the value function; None where no values are computed.
    """

    actor: PyTree
    critic: PyTree


def actor_observation(obs: PyTree) -> PyTree:
    """Returns the policy's part of observations."""
    return obs.actor if isinstance(obs, Asymmetric) else obs


class Rollout(struct.PyTreeNode):
    """On-policy experience with axes `[T, E, A]`.

    A rollout may hold k segments of T / k decisions each, one after the other. The flags `reset`,
    `discount`, `boundary`, `alive`, `skip` and `out` stay separate. See docs/reference/trainer.md 1.

    Attributes:
      obs: `[T, E, A, ...]` observations acted on.
      action: `[T, E, A, D]` as sampled, in the learner's own units.
      extras: leaves `[T, E, A, ...]`, the `extras` that the agent's `act` returned with its actions.
      reward: `[T, E, A]` raw rewards.
      reset: `[T, E, A]` bool; recurrent state is cleared *before* this step.
      discount: `[T, E, A]` 0 where this step terminated the agent, 1 otherwise.
      boundary: `[T, E, A]` bool; the episode ended *after* this step, for any reason.
      bootstrap: `[T, E, A]` value of the final observation where truncated, 0 elsewhere; None for an agent
        without a critic.
      alive: `[T, E, A]` bool; the agent acted in this step and learns from it.
      mask: `[T, E, A, n]` bool action mask, or None.
      skip: `[T, E, A]` bool; the agent waited for its turn: its rewards are credited to its last decision,
        and discounts count decisions. None where agents do not take turns.
      last_skip: `[E, A]` bool; the agent does not act on the observation after the last step, but waits for
        its turn, unless all episodes are cut there. None as for `skip`.
      out: `[T, E, A]` bool; the agent is out of the game before its trajectory ends: its delayed rewards are
        credited to its last decision, discounted by time, and its observations have values. None in
        environments without delayed rewards.
      taught: `[T, E, A, D]` what a scripted teacher would have done, in the learner's own units; arbitrary
        where the agent does not act. None without a scripted teacher.
      advantage: `[T, E, A]` precomputed advantages of the actions (reward transforms); None where the learner
        estimates them with its critic.
      carry: recurrent state `[k, E, A, ...]` before the first step of each segment (`()` when
        feed-forward).
      last_value: `[E, A]` value of the observation after the last step; None as for `bootstrap`.
      last_alive: `[E, A]` bool; the agent acts on the observation after the last step. None but for learners
        of teams.
    """

    obs: PyTree
    action: jax.Array
    extras: PyTree
    reward: jax.Array
    reset: jax.Array
    discount: jax.Array
    boundary: jax.Array
    bootstrap: jax.Array | None
    alive: jax.Array
    mask: jax.Array | None
    carry: PyTree
    last_value: jax.Array | None
    skip: jax.Array | None = None
    last_skip: jax.Array | None = None
    last_alive: jax.Array | None = None
    advantage: jax.Array | None = None
    out: jax.Array | None = None
    taught: jax.Array | None = None

    @property
    def has_value_target(self) -> jax.Array:
        """Mask `[T, E, A]` of the rows that a critic learns from: of agents that act or are out."""
        return self.alive if self.out is None else self.alive | self.out

    def without_open_decisions(self) -> "Rollout":
        """Returns the rollout with the decisions not `alive` whose rewards are incomplete.

        These are the last decisions of agents that wait for their turn at its end. They have no advantage, so
        that an average over decisions, or a policy that learns from a normalised 0, must leave them out. All
        decisions of the last row are left out, also where the episode ends there: kept alone, these would
        make episodes that end at once too frequent. Given advantages are only of episodes that have ended.
        """
        if self.last_skip is None or self.skip is None:
            return self
        # Not by `alive`, which is no longer set where a decision has been left out.
        waits_later = jnp.concatenate([self.skip[1:], jnp.ones_like(self.skip[:1])])
        settled = ~waits_later | self.boundary | (self.discount == 0)
        rows = jnp.arange(len(settled)).reshape((-1, *(1,) * (settled.ndim - 1)))
        complete = rows <= jnp.where(settled, rows, -1).max(axis=0)
        if self.advantage is None:
            complete &= rows < len(settled) - 1
        return self.replace(alive=self.alive & (complete | ~self.last_skip))

    @property
    def paid(self) -> jax.Array:
        """Mask `[T, E, A]` of the rows whose rewards count: valued rows, and rows of agents that wait."""
        return self.has_value_target if self.skip is None else self.has_value_target | self.skip


class Context(struct.PyTreeNode):
    """Facts about agents at an observation, axes `[E, A]`; None for unknown ones.

    Attributes:
      alive: `[E, A]` bool; the agent acts on the observation, or its trajectory was truncated there.
      mask: `[E, A, n]` bool, actions that are legal there.
      critic_obs: `[E, A, ...]` privileged observations of critics.
      begins: `[E, A]` bool; the memory with which the agent acts on the observation is empty.
      paid: `[E, A]` bool; the agent acts, or is out of the game and may still be rewarded; None for those
        that act.
    """

    alive: PyTree = None
    mask: PyTree = None
    critic_obs: PyTree = None
    begins: PyTree = None
    paid: PyTree = None


class Transition(struct.PyTreeNode):
    """One decision of every agent, axes `[E, A]`, for learners with a replay.

    Attributes:
      obs: `[E, A, ...]` observations acted on.
      action: `[E, A, D]` in the learner's own units.
      reward: `[E, A]`.
      discount: `[E, A]` 0 where this step terminated the agent, 1 otherwise; where its last decision waited
        for delayed rewards, times the learner's discount per step waited.
      next_obs: `[E, A, ...]` next observations; the true final one where an episode ended.
      boundary: `[E, A]` bool; the episode ended after this step, for any reason.
      success: `[E, A]` bool; the episode ended here with a success of the agent's role.
      alive: `[E, A]` bool; the agent acted in this step and learns from it.
      context, next_context: what else is known at `obs` and `next_obs`; None if nothing is.
      waits: `[E, A]` bool; an earlier decision of the agent, or this one, waits for delayed rewards and is
        passed later; None for none.
    """

    obs: PyTree
    action: jax.Array
    reward: jax.Array
    discount: jax.Array
    next_obs: PyTree
    boundary: jax.Array
    success: jax.Array
    alive: jax.Array
    context: Context | None = None
    next_context: Context | None = None
    waits: jax.Array | None = None


class Block(NamedTuple):
    """Named contiguous part of a flat observation, with its own shape.

    Attributes:
      name: name of the block.
      start: index of its first feature.
      shape: shape of the part.
      kind: "vector" `[F]`, "set" `[K, F]` of unordered rows (rows of zeros are empty), or "map" `[H, W]`.
      fields: names along the last axis; empty for unnamed features.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    kind: str
    fields: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of its features."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """Index after its last feature."""
        return self.start + self.size

    @property
    def slice(self) -> slice:
        """Slice of the block in a flat observation."""
        return slice(self.start, self.stop)


class ObservationSpec(NamedTuple):
    """Static description of an observation, used to build networks.

    Attributes:
      shape: shape of the policy's observation.
      blocks: blocks of the flattened observation.
      critic: shape of the critic's own observation; None if it has the policy's.
      team: agents that are learnt from together, for learners of teams.
      member: place in its team of the only agent that observations are of; None for those of whole teams.
    """

    shape: tuple[int, ...]
    blocks: tuple[Block, ...] = ()
    critic: tuple[int, ...] | None = None
    team: int = 1
    member: int | None = None

    @property
    def size(self) -> int:
        """Length F of a flattened observation."""
        return math.prod(self.shape)


class Goal(NamedTuple):
    """Access to the goals in an environment's observations, for hindsight relabelling.

    All functions are pure, work on flat observations `[..., F]` and goals `[..., G]`.

    Attributes:
      achieved: `(next_obs) -> [..., G]`, the goal that was achieved.
      desired: `(obs) -> [..., G]`, the desired goal.
      replace: `(obs, goal) -> [..., F]`, the observation with `goal` as the desired one.
      reward: `(achieved, desired) -> [...]`, the part of the reward that depends on the goal.
    """

    achieved: Callable
    desired: Callable
    replace: Callable
    reward: Callable


def mark_all_shared(state: PyTree) -> PyTree:
    """`Agent.local` of a learner without state of single environments."""
    return jax.tree.map(lambda _x: False, state)


class Agent(NamedTuple):
    """A learner as a bundle of pure functions over an explicit state.

    `batch` stands for any leading axes, `[E, A]` while acting. Every agent takes a recurrent
    carry; a feed-forward one carries `()`.

    Attributes:
      init: `(key) -> state`.
      initial_carry: `(batch_shape) -> carry`.
      act: `(state, key, obs, carry, reset, mask) -> (action, carry, extras)`, sampled;
        `extras` is the agent's own pytree, leaves `[batch, ...]`, which its Rollout returns to it.
      greedy: `(state, obs, carry, reset, mask) -> (action, carry)`, deterministic.
      value: `(state, obs, carry, reset, mask) -> [batch]`, or None for agents without a state value; the
        carry is not advanced. Rollouts of an agent without one have no bootstraps.
      update: `(state, key, batch) -> (state, metrics)`.
      learns: "rollout": `update` takes a Rollout after every rollout; "step": it takes a Transition
        after every decision. The metric `gradient_steps` counts the steps over which losses are means; see
        `algos.metrics`.
      policy_state: `(state) -> state` reduced to the parts that `act` and `greedy` need: no replay, no
        optimiser. It computes nothing, so that these parts can be read from a checkpoint alone.
      acting_state: `(state) -> state` like `policy_state`, of the policy that acts in rollouts, where
        evaluations use another one (a mean of policies); None where both are the same.
      teach: `(state, obs, carry, reset, mask) -> (distribution, value)` of T decisions, flat observations
        `[T, ..., F]` and the carry before the first; None for agents that cannot be imitated.
      gamma: `(state) -> scalar`, the discount per step; None for agents that learn from rollouts.
      compiler_options: XLA options that `update` was built for; the caller compiles it with them.
      hyper: `() -> dict`, the initial traced hyper-parameters, as in `hyper` of a fresh state; None for
        agents whose state has none.
      frozen: constant arrays that `init` puts into the state (a teacher's parameters), or None.
      init_with: `(key, frozen) -> state`, like `init` with `frozen` as an argument instead of constants; None
        without such arrays.
      world: arrays that the functions only read and that all copies of the agent share, such as a base model;
        None without any. In the agent itself they are constants.
      with_world: `(world) -> Agent`, the same functions over the given arrays, which may be traced; None for
        agents without a world.
      digest: identifies the content of the world, which a state belongs to; empty without a world.
      answers: `(state, obs, mask) -> (probabilities [batch, n], invalid [batch])` of a language policy in
        games of one choice: exact probabilities of its moves, and that of illegal answers. None for others.
      asymmetric: whether `act`, `value` and `update` take observations as `Asymmetric`. `greedy`, and `act`
        where its decisions are not learnt from, take the actor's observations.
      local: `(state) -> state` with a bool in place of every array: True if the array belongs to the
        environments of one shard (see `algos.collectives`), False if it is the same on every shard.
      explores: whether what is random in `act` only explores, so that the policy that is learnt is `greedy`.
      after_warm_up: `(state) -> state` with which `act` samples the policy, also where it still takes random
        actions in the state itself, before learning begins.
    """

    init: Callable
    initial_carry: Callable
    act: Callable
    greedy: Callable
    value: Callable | None
    update: Callable
    learns: str = "rollout"
    policy_state: Callable = lambda state: state
    acting_state: Callable | None = None
    teach: Callable | None = None
    gamma: Callable | None = None
    compiler_options: Mapping[str, str] = {}
    hyper: Callable[[], PyTree] | None = None
    frozen: PyTree = None
    init_with: Callable | None = None
    asymmetric: bool = False
    local: Callable = mark_all_shared
    world: PyTree = None
    with_world: Callable | None = None
    digest: str = ""
    answers: Callable | None = None
    explores: bool = False
    after_warm_up: Callable = lambda state: state

    def in_worlds(self, worlds: Mapping[str, PyTree]) -> "Agent":
        """Returns the agent over its world of several, by digest; the agent itself without a world."""
        if self.with_world is None:
            return self
        return self.with_world(worlds[self.digest])._replace(asymmetric=self.asymmetric)

    def rollout_policy(self, state: PyTree) -> PyTree:
        """Returns the part of a state that acts in rollouts, with the structure of `policy_state`."""
        return self.policy_state(state) if self.acting_state is None else self.acting_state(state)
