"""Fixed-length evaluation inside jit: the first episode of every environment, deterministic.

An environment with a number that is not finite is quarantined, as in training: its episode is over and
does not count.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.base import Environment, EnvSpec, TimeStep
from jaxmarl_echelon.envs.episodes import finite, finite_part, in_slices, masked_mean, select, strong
from jaxmarl_echelon.envs.rows import Rows, row, rows
from jaxmarl_echelon.training.controllers import Controller
from jaxmarl_echelon.training.types import View

PyTree = Any


@struct.dataclass
class Evaluation:
    """Results of N episodes.

    Attributes:
      quarantined: `[N]` bool; a number was not finite, so that the episode does not count.
      present: role name to `[N, A]` bool; the agent took part: it was alive at the start.
      episode_return: role name to `[N, A]`.
      length: `[N]` int32 decisions.
      outcome: `[N]` int32 outcome codes; -1 where there are none or the limit came first.
      task: `[N]` int32 task numbers.
      components: reward component to `[N]` sums.
      frames: what `record` returned, `[steps, N, ...]`, or None; a finished episode's last
        frame is repeated.
    """

    quarantined: jax.Array
    present: dict[str, jax.Array]
    episode_return: dict[str, jax.Array]
    length: jax.Array
    outcome: jax.Array
    task: jax.Array
    components: dict[str, jax.Array]
    frames: PyTree

    def mean_return(self, role: str) -> jax.Array:
        """Returns `[N]`, means over the agents of a role that took part; NaN where there is none."""
        return masked_mean(self.episode_return[role], self.present[role] & ~self.quarantined[:, None])

    def success_rate(self, spec: EnvSpec) -> jax.Array:
        """Share of successes among the episodes that count; NaN where none does."""
        return masked_mean(spec.succeeded(self.outcome), ~self.quarantined)


def evaluation_params(env: Environment, params: PyTree, episodes: int) -> PyTree:
    """Parameters `[N]` of the evaluation's episodes: the environment's fixed sequence, if it has one."""
    index = jnp.arange(episodes)
    choose = getattr(env, "evaluation_params", None)
    if choose is None:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (episodes, *jnp.shape(x))), params)
    return jax.vmap(choose, in_axes=(None, 0))(params, index)


def start(env: Environment, key: jax.Array, params: PyTree) -> tuple[Rows, jax.Array]:
    """Begins episodes with parameters `[N]`: rows of (environment state, time step), and which are sound.

    What is not finite is shown as 0.
    """
    number = jax.tree.leaves(params)[0].shape[0]

    def begin(given):
        return jax.vmap(lambda key, params: row(strong(env.reset(key, params))))(*given)

    begun = in_slices(begin, (jax.random.split(key, number), params))
    sound = finite(begun)
    return select(sound, begun, finite_part(begun)), sound


def play(
    env: Environment,
    controllers: dict[str, Controller],
    learners: dict[str, PyTree],
    key: jax.Array,
    params: PyTree,
    record: Callable | None = None,
) -> Evaluation:
    """Plays one episode in each of N environments and freezes those that are over or quarantined.

    Args:
      controllers: who acts for each role.
      learners: states of the roles that are learnt; nothing in them changes.
      key: typed random key.
      params: environment parameters `[N]`.
      record: `(env_state, params, time) -> frame` for one environment, called after the
        reset and after every step.

    Returns:
      results of the N first episodes; cut after `env.spec.episode_limit` decisions.
    """
    number = jax.tree.leaves(params)[0].shape[0]
    key_start, key_steps = jax.random.split(key)
    begun, sound = start(env, key_start, params)
    memories = {role: controller.init(number) for role, controller in controllers.items()}
    reset = jnp.ones(number, bool)
    frame = jax.vmap(record) if record else lambda *_: None

    def step(carry, step_key):
        running, memories, reset, result = carry
        state, time = running.tree
        keys = jax.random.split(step_key, len(controllers) + 1)
        actions, moved = {}, {}
        for role_key, (role, controller) in zip(keys[1:], sorted(controllers.items()), strict=True):
            moved[role], actions[role], _ = controller.act(
                role_key, learners.get(controller.policy), memories[role], View(state, params, time), reset
            )
        playing = ~time.over & ~result.quarantined
        after = jax.vmap(env.step)(jax.random.split(keys[0], number), state, actions, params)
        following = rows(strong(after))
        counts = playing & finite(following)
        result = _accumulate(result, time, after[1], counts)
        result = result.replace(quarantined=result.quarantined | (playing & ~counts))
        running, memories = select(counts, (following, moved), (running, memories))
        state, time = running.tree
        return (running, memories, jnp.zeros_like(reset), result), frame(state, params, time)

    state, time = begun.tree
    first = frame(state, params, time)
    carry = (begun, memories, reset, _empty(env.spec, time, ~sound))
    carry, frames = jax.lax.scan(step, carry, jax.random.split(key_steps, env.spec.episode_limit))
    frames = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, frames)
    return carry[-1].replace(frames=frames)


def _empty(spec: EnvSpec, time: TimeStep, quarantined: jax.Array) -> Evaluation:
    number = time.over.shape[0]
    return Evaluation(
        quarantined=quarantined,
        present=time.alive,
        episode_return={role: jnp.zeros_like(reward) for role, reward in time.reward.items()},
        length=jnp.zeros(number, jnp.int32),
        outcome=jnp.full(number, -1, jnp.int32),
        task=time.info.get("task", jnp.zeros(number, jnp.int32)),
        components={name: jnp.zeros(number, jnp.float32) for name in spec.components},
        frames=None,
    )


def _accumulate(result: Evaluation, before: TimeStep, after: TimeStep, counts: jax.Array) -> Evaluation:
    """Adds a decision to the episodes `counts [N]` that are under way."""
    returns = {
        role: total + jnp.where(counts[:, None] & before.alive[role], after.reward[role], 0.0)
        for role, total in result.episode_return.items()
    }
    components = {
        name: total + jnp.where(counts, after.info[f"reward/{name}"], 0.0)
        for name, total in result.components.items()
    }
    return result.replace(
        episode_return=returns,
        components=components,
        length=result.length + counts,
        outcome=jnp.where(counts, after.info.get("outcome", result.outcome), result.outcome),
    )


def summary(result: Evaluation, spec: EnvSpec, role: str) -> dict[str, jax.Array]:
    """`eval_agg/...` scalars of an evaluation, from the point of view of one role.

    They are about the episodes that count: `num_episodes` of them, besides the `quarantined`. Where none
    does, means are NaN. `eval_agg/task/NAME` is the share of successes in one task (spawn point); NaN
    where it did not occur.
    """
    counts, returns = ~result.quarantined, result.mean_return(role)
    metrics = _moments("reward", returns, ~jnp.isnan(returns))
    metrics |= _moments("episode_length", result.length.astype(jnp.float32), counts)
    metrics["eval_agg/num_episodes"] = jnp.sum(counts, dtype=jnp.int32)
    metrics["eval_agg/quarantined"] = jnp.sum(result.quarantined, dtype=jnp.int32)
    for index, name in enumerate(spec.outcomes):
        metrics[f"eval_agg/outcome/{name}"] = masked_mean(result.outcome == index, counts)
    if spec.success is not None:
        metrics["eval_agg/success_rate"] = result.success_rate(spec)
        success = spec.succeeded(result.outcome)
        for index, name in enumerate(spec.tasks):
            metrics[f"eval_agg/task/{name}"] = masked_mean(success, counts & (result.task == index))
    return metrics


def _moments(name: str, values: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    """Mean and standard deviation of `values [N]` where `mask` is set."""
    mean = masked_mean(values, mask)
    variance = masked_mean(jnp.square(values - mean), mask)
    return {f"eval_agg/avg_{name}": mean, f"eval_agg/std_{name}": jnp.sqrt(variance)}
