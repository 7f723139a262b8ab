"""Batched environments: auto-reset, episode statistics and quarantine.

Episodes end and begin only in this module. An environment whose episode is over is reset within the
same step, with newly drawn parameters; the step still returns the finished episode's final observation
and results. E environments are those of one shard (`algos.collectives`); the random numbers of each derive
from its index among all environments, so that they do not depend on the number of shards.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algos import collectives
from algos.masks import select_rows
from algos.types import PyTree
from jaxmarl_echelon.envs import results as results_lib
from jaxmarl_echelon.envs.base import Environment, EnvSpec, TimeStep
from jaxmarl_echelon.envs.packed_rows import PackedRows, pack_as, pack_batch, pack_one
from jaxmarl_echelon.envs.trees import (
    layout_difference,
    map_in_chunks,
    rows_are_finite,
    strip_weak_types,
    zero_nonfinite,
)
from physics.sparse_batch import compute_rows, on_accelerator

# Numbers of an environment's state and episode up to which beginning one is taken to be cheap; those of
# physics engines, whose resets may cost as much as steps, are larger.
FEW_NUMBERS = 512


class EpisodeTask(NamedTuple):
    """Parameters and tags of a new episode.

    Attributes:
      params: the environment's parameters.
      tags: int32 scalars by name (stage, mission, opponent), returned with the finished episode.
    """

    params: PyTree
    tags: dict[str, jax.Array] = {}


DrawTask = Callable[[jax.Array], EpisodeTask]


class EpisodeSums(struct.PyTreeNode):
    """Accumulators of the running episodes.

    Attributes:
      present: per role `[E, A]` bool; the slot has been filled in this episode.
      episode_return: per role `[E, A]` float32.
      length: `[E]` int32 decisions taken.
      results: results so far, `[E]` or per agent `[E, A]`.
      ended: per role `[E, A]` bool; the agent's trajectory has ended. Empty unless `EnvSpec.late`.
    """

    present: dict[str, jax.Array]
    episode_return: dict[str, jax.Array]
    length: jax.Array
    results: dict[str, jax.Array]
    ended: dict[str, jax.Array]


class Episodes(struct.PyTreeNode):
    """States of E environments and their running episodes.

    Attributes:
      drawn: `PackedRows` of `EpisodeTask`, constant during an episode.
      running: `PackedRows` of `Running`, updated every step.
    """

    drawn: PackedRows
    running: PackedRows

    @property
    def env(self) -> PyTree:
        """Environment states `[E]`."""
        return self.running.tree.env

    @property
    def params(self) -> PyTree:
        """Parameters `[E]` of the running episodes."""
        return self.drawn.tree.params

    @property
    def tags(self) -> dict[str, jax.Array]:
        """Tags `[E]` of the running episodes."""
        return self.drawn.tree.tags

    def with_tags(self, tags: dict[str, jax.Array]) -> "Episodes":
        """Returns the episodes with other tags, of the same names, types and shapes."""
        return self.replace(drawn=pack_as(self.drawn.tree._replace(tags=tags), self.drawn.layout))

    @property
    def time(self) -> TimeStep:
        """Time steps `[E]` to act on next; `over` only after a failed reset: the next step is discarded."""
        return self.running.tree.time


class Running(NamedTuple):
    """Environment states, time steps to act on next, and episode accumulators, `[E]` each."""

    env: PyTree
    time: TimeStep
    sums: EpisodeSums


class Finished(struct.PyTreeNode):
    """Results of the episodes that ended in a step; zeros (codes: -1) where none did.

    Attributes:
      mask: `[E]` bool; an episode ended here.
      present: per role `[E, A]` bool; the slot was filled in the episode: the mask of averages over agents.
      episode_return: per role `[E, A]` float32.
      length: `[E]` int32 decisions.
      results: `EnvSpec.results` by name, without derived ones: `[E]` or, per agent, `[E, A]`; codes int32.
      tags: `[E]` int32 by name, as drawn.
    """

    mask: jax.Array
    present: dict[str, jax.Array]
    episode_return: dict[str, jax.Array]
    length: jax.Array
    results: dict[str, jax.Array]
    tags: dict[str, jax.Array]


class BatchTransition(struct.PyTreeNode):
    """One transition of E environments, before any reset.

    Attributes:
      time: time steps `[E]` reached: final observations and flags where an episode ended. Rewards are 0
        for agents whose trajectory has ended and, without `EnvSpec.late`, for all that did not act. A
        quarantined environment repeats its previous observation, with reward 0 and all agents truncated
        and not alive.
      acted: per role `[E, A]` bool; the agent was alive before the step and the step was not quarantined:
        the transition can be used for learning.
      waited: per role `[E, A]` bool; the agent did not act, but its trajectory continues: its reward is
        credited to its last decision. Empty unless `EnvSpec.late`.
      cut_while_out: per role `[E, A]` bool; the episode was cut, or truncated by the environment, in a state
        in which the agent does not act, although its trajectory continued. Empty unless `EnvSpec.late`, and
        where nothing can be cut for roles without `TimeStep.present`.
      reset_next: `[E]` bool; the environment was reset after this step, for any reason.
      finished: results of the episodes that ended.
      quarantined: `[E]` bool; discarded because of a non-finite value.
    """

    time: TimeStep
    acted: dict[str, jax.Array]
    waited: dict[str, jax.Array]
    cut_while_out: dict[str, jax.Array]
    reset_next: jax.Array
    finished: Finished
    quarantined: jax.Array


class EpisodeEvents(struct.PyTreeNode):
    """Starts and ends of episodes in T decisions of E environments, `[T, E]` each.

    Attributes:
      begins: bool; first decision of a counted episode, which is one that only the environment can end.
      tags: int32 by name, of the running episode.
      over: bool; the running episode ended with this decision, for any reason.
      finished: results of the counted episodes that were neither cut nor quarantined.
    """

    begins: jax.Array
    tags: dict[str, jax.Array]
    over: jax.Array
    finished: Finished


def start_episodes(env: Environment, key: jax.Array, draw: DrawTask, num_envs: int) -> Episodes:
    """Begins an episode in each of E environments.

    Args:
      env: the environment.
      key: one key for all environments.
      draw: `(key) -> EpisodeTask`, for one episode.
      num_envs: E, of this shard.

    Returns:
      The episodes, at their first observations.

    Raises:
      ValueError: if `num_envs` is below 1 or an entry of a result is missing in `info`.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs={num_envs} must be at least 1")
    return map_in_chunks(
        lambda numbers: _begin_episodes(env, key, draw, numbers), collectives.global_indices(num_envs)
    )


def step_episodes(
    env: Environment,
    key: jax.Array,
    episodes: Episodes,
    actions: dict[str, jax.Array],
    draw: DrawTask,
    *,
    cut: jax.Array | None = None,
    held: jax.Array | None = None,
    reset_chunk: int | None = None,
) -> tuple[Episodes, BatchTransition]:
    """Takes one decision in each environment and resets those whose episode is over.

    An environment with a non-finite value in its state, observations, rewards or info is quarantined: only
    this environment is reset, its transition is marked, and its episode is not counted. Sentinels in states
    must therefore be finite.

    Args:
      env: the environment.
      key: one key for the whole step.
      episodes: from `start_episodes` or the previous `step_episodes`.
      actions: per role `[E, A, ...]`.
      draw: `(key) -> EpisodeTask`, for one new episode.
      cut: `[E]` bool; episodes to cut after this step. Their agents are truncated, so that learners
        bootstrap, and the episodes do not count as finished. None to cut none.
      held: `[E]` bool; environments whose episodes do not begin yet and that stay unchanged. None for none.
      reset_chunk: environments per batch of resets; by default E / 64 rounded up, at least 8, or all at
        once without a loop in turn-based games, and on accelerators where that is cheap. Affects speed only.

    Returns:
      The episodes, ready for the next decision, and the transition.

    Raises:
      ValueError: if the environment's step and reset differ in structure, shapes or dtypes.
    """
    key_step, key_reset = jax.random.split(key)
    before, drawn = episodes.running.tree, episodes.drawn.tree
    previous = before.time
    num_envs = previous.over.shape[0]
    after, sound = advance_without_reset(
        env, collectives.split_key_over_shards(key_step, num_envs), before, actions, drawn.params
    )
    quarantined = idle = previous.over | ~sound
    if held is not None:
        waiting = held & ~previous.over  # environments whose reset failed are discarded
        after, idle = select_rows(waiting, pack_batch(before), pack_batch(after)).tree, idle | waiting
        quarantined = quarantined & ~waiting
        cut = None if cut is None else cut & ~waiting
    state, time, sums = after
    time = select_rows(quarantined, pack_batch(quarantine_step(previous)), pack_batch(time)).tree
    acted = {role: alive & ~idle[:, None] for role, alive in previous.alive.items()}
    waited = {role: flag & ~idle[:, None] for role, flag in awaiting_reward(env.spec, before).items()}
    finished = _finish_episodes(env.spec, sums, time, drawn.tags, time.over & ~quarantined)
    cut_while_out = {
        role: time.truncated[role] & ~there for role, there in time.present.items() if env.spec.late
    }
    if cut is not None:
        cuts, waits = cut & ~time.over, awaiting_reward(env.spec, Running(state, time, sums))
        cut_while_out = {
            role: cut_while_out.get(role, False) | (cuts[:, None] & flag) for role, flag in waits.items()
        }
        time = _truncate(time, cuts, waits)

    begin = partial(_begin_episodes, env, key_reset, draw)
    following = Episodes(episodes.drawn, pack_batch(Running(state, time, sums)))
    if reset_chunk is None and (env.spec.turns or (on_accelerator() and _begins_cheaply(env, before))):
        # Games are short and cheap to begin: most steps end some, and a loop would cost more than it saves.
        # So does a loop on an accelerator for any environment that is cheap to begin.
        following = select_rows(time.over, begin(collectives.global_indices(num_envs)), following)
    else:
        room = reset_chunk or max(8, -(-num_envs // 64))
        following = compute_rows(time.over, begin, collectives.global_indices(num_envs), following, room)
    transition = BatchTransition(
        time=time,
        acted=acted,
        waited=waited,
        cut_while_out=cut_while_out,
        reset_next=time.over,
        finished=finished,
        quarantined=quarantined,
    )
    return following, transition


def _begins_cheaply(env: Environment, running: Running) -> bool:
    """Tells whether an environment has no maps to look up, and a state of few numbers."""
    numbers = sum(leaf.size for leaf in jax.tree.leaves(running)) // running.time.over.shape[0]
    return not jax.tree.leaves(env.world) and numbers <= FEW_NUMBERS


def advance_without_reset(
    env: Environment, keys: jax.Array, running: Running, actions: dict[str, jax.Array], params: PyTree
) -> tuple[Running, jax.Array]:
    """Advances E environments by one decision without resets, as used in training and evaluation.

    Args:
      env: the environment.
      keys: `[E]`, one for each environment.
      running: the state before the decision.
      actions: per role `[E, A, ...]`.
      params: environment parameters `[E]`.

    Returns:
      The state after it, with advanced sums and with rewards only for agents that act or wait; and bool
      `[E]`, whether all its numbers are finite.

    Raises:
      ValueError: if the environment's step and reset differ in structure, shapes or dtypes.
    """
    before = running.time
    state, time = strip_weak_types(jax.vmap(env.step)(keys, running.env, actions, params))
    _require_same_layout((running.env, before), (state, time))
    sound = rows_are_finite(pack_batch((state, time)))
    waits = awaiting_reward(env.spec, running)
    owed = {role: alive | waits[role] if waits else alive for role, alive in before.alive.items()}
    time = time.replace(
        reward={role: jnp.where(owed[role], reward, 0) for role, reward in time.reward.items()}
    )
    return Running(state, time, _add_step(env.spec, running.sums, before, time)), sound


def _begin_episodes(env: Environment, key: jax.Array, draw: DrawTask, numbers: jax.Array) -> Episodes:
    """Begins new episodes in the environments with indices `numbers [N]`."""

    def begin_one(number):
        key_draw, key_reset = jax.random.split(jax.random.fold_in(key, number))
        drawn = draw(key_draw)
        state, time = env.reset(key_reset, drawn.params)
        return pack_one(strip_weak_types(drawn)), pack_one(strip_weak_types((state, time)))

    drawn, begun = jax.vmap(begin_one)(numbers)
    sound = rows_are_finite(begun)
    state, time = select_rows(sound, begun, zero_nonfinite(begun)).tree
    alive = {role: alive & sound[:, None] for role, alive in time.alive.items()}
    time = time.replace(alive=alive, over=time.over | ~sound)
    return Episodes(drawn, pack_batch(Running(state, time, initial_sums(env.spec, time))))


def _truncate(time: TimeStep, cut: jax.Array, waits: dict[str, jax.Array]) -> TimeStep:
    """Truncates all agents with a running trajectory, acting or waiting, in the environments `cut [E]`."""
    going_on = {role: time.alive[role] | waits[role] if waits else time.alive[role] for role in time.alive}
    truncated = {
        role: flag | (cut[:, None] & going_on[role] & ~time.terminated[role])
        for role, flag in time.truncated.items()
    }
    alive = {role: flag & ~cut[:, None] for role, flag in time.alive.items()}
    return time.replace(truncated=truncated, alive=alive, over=time.over | cut)


def quarantine_step(previous: TimeStep) -> TimeStep:
    """Returns the time step of a quarantined environment: finite, all agents truncated and not alive."""
    zeros, ones = (
        {role: jnp.full_like(flag, value) for role, flag in previous.alive.items()} for value in (False, True)
    )
    info = {
        name: jnp.zeros_like(value) if name.startswith(results_lib.COMPONENT) else value
        for name, value in previous.info.items()
    }
    return previous.replace(
        reward=jax.tree.map(jnp.zeros_like, previous.reward),
        terminated=zeros,
        truncated=ones,
        alive=zeros,
        over=jnp.ones_like(previous.over),
        info=info,
    )


def initial_sums(spec: EnvSpec, time: TimeStep) -> EpisodeSums:
    """Returns the initial accumulators of episodes `[E]` that begin with the time steps `time`."""
    return EpisodeSums(
        present={role: time.filled(role) for role in time.alive},
        episode_return={role: jnp.zeros(reward.shape, jnp.float32) for role, reward in time.reward.items()},
        length=jnp.zeros(time.over.shape[0], jnp.int32),
        results=results_lib.begin_results(spec.results, time.info),
        ended={role: jnp.zeros_like(alive) for role, alive in time.alive.items()} if spec.late else {},
    )


def awaiting_reward(spec: EnvSpec, running: Running) -> dict[str, jax.Array]:
    """Returns, per role, the agents `[E, A]` that wait: neither alive nor ended; empty unless `spec.late`."""
    if not spec.late:
        return {}
    time, sums = running.time, running.sums
    return {role: sums.present[role] & ~alive & ~sums.ended[role] for role, alive in time.alive.items()}


def _add_step(spec: EnvSpec, sums: EpisodeSums, before: TimeStep, time: TimeStep) -> EpisodeSums:
    length = sums.length + 1
    filled = {role: before.filled(role) | time.filled(role) for role in time.alive}
    present = {role: seen | filled[role] for role, seen in sums.present.items()}
    # A slot that empties in a step still reports that step. In roles without `present` flags, agents stay in
    # their slots when they die or wait.
    there = {role: filled[role] if role in time.present else present[role] for role in present}
    joins = {role: now & ~sums.present[role] for role, now in present.items()}
    ended = {
        role: jnp.where(
            time.begins.get(role, False), False, over | time.terminated[role] | time.truncated[role]
        )
        for role, over in sums.ended.items()
    }
    return EpisodeSums(
        present=present,
        episode_return={
            role: total + time.reward[role].astype(jnp.float32) for role, total in sums.episode_return.items()
        },
        length=length,
        results=results_lib.advance_results(spec.results, sums.results, time.info, length, there, joins),
        ended=ended,
    )


def _finish_episodes(
    spec: EnvSpec, sums: EpisodeSums, _time: TimeStep, tags: Mapping[str, jax.Array], mask: jax.Array
) -> Finished:
    totals = pack_batch(sums)
    totals = select_rows(mask, totals, jax.tree.map(jnp.zeros_like, totals)).tree
    codes = {result.name for result in spec.results if result.kind == "code"}
    return Finished(
        mask=mask,
        present=totals.present,
        episode_return=totals.episode_return,
        length=totals.length,
        results={
            name: select_rows(mask, values, jnp.full_like(values, results_lib.NONE))
            if name in codes
            else values
            for name, values in totals.results.items()
        },
        tags={name: jnp.where(mask, tag, results_lib.NONE) for name, tag in tags.items()},
    )


def _require_same_layout(expected: PyTree, got: PyTree) -> None:
    difference = layout_difference(expected, got)
    if difference:
        raise ValueError(f"step must return what reset returns (state, time step): {difference}")
