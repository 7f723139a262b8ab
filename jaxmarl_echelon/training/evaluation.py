"""Fixed-length evaluation inside jit: the first episode of every environment, deterministic."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs.base import Environment, EnvSpec
from jaxmarl_echelon.envs.episodes import select
from jaxmarl_echelon.training.controllers import Controller
from jaxmarl_echelon.training.types import View

PyTree = Any


@struct.dataclass
class Evaluation:
    """Results of N episodes.

    Attributes:
      episode_return: role name to `[N, A]`.
      length: `[N]` int32 decisions.
      outcome: `[N]` int32 outcome codes; -1 where there are none or the limit came first.
      task: `[N]` int32 task numbers.
      components: reward component to `[N]` sums.
      frames: what `record` returned, `[steps, N, ...]`, or None; a finished episode's last
        frame is repeated.
    """

    episode_return: dict[str, jax.Array]
    length: jax.Array
    outcome: jax.Array
    task: jax.Array
    components: dict[str, jax.Array]
    frames: PyTree


def evaluation_params(env: Environment, params: PyTree, episodes: int) -> PyTree:
    """Parameters `[N]` of the evaluation's episodes: the environment's fixed sequence, if it has one."""
    index = jnp.arange(episodes)
    choose = getattr(env, "evaluation_params", None)
    if choose is None:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (episodes, *jnp.shape(x))), params)
    return jax.vmap(choose, in_axes=(None, 0))(params, index)


def start(env: Environment, key: jax.Array, params: PyTree):
    """Environment states `[N]` and first time steps of episodes with parameters `[N]`."""
    number = jax.tree.leaves(params)[0].shape[0]
    return jax.vmap(env.reset)(jax.random.split(key, number), params)


def play(
    env: Environment,
    controllers: dict[str, Controller],
    learners: dict[str, PyTree],
    key: jax.Array,
    params: PyTree,
    record: Callable | None = None,
) -> Evaluation:
    """Plays one episode in each of N environments and freezes those that are over.

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
    state, time = start(env, key_start, params)
    memories = {role: controller.init(number) for role, controller in controllers.items()}
    reset = jnp.ones(number, bool)
    frame = jax.vmap(record) if record else lambda *_: None

    def step(carry, step_key):
        state, time, memories, reset, result = carry
        keys = jax.random.split(step_key, len(controllers) + 1)
        actions, moved = {}, {}
        for role_key, (role, controller) in zip(keys[1:], sorted(controllers.items()), strict=True):
            moved[role], actions[role], _ = controller.act(
                role_key, learners.get(controller.policy), memories[role], View(state, params, time), reset
            )
        over = time.over
        next_state, next_time = jax.vmap(env.step)(jax.random.split(keys[0], number), state, actions, params)
        result = _accumulate(result, time, next_time)
        state, time, memories = select(over, (state, time, memories), (next_state, next_time, moved))
        return (state, time, memories, jnp.zeros_like(reset), result), frame(state, params, time)

    first = frame(state, params, time)
    carry = (state, time, memories, reset, _empty(env.spec, time))
    carry, frames = jax.lax.scan(step, carry, jax.random.split(key_steps, env.spec.episode_limit))
    frames = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, frames)
    return carry[-1].replace(frames=frames)


def _empty(spec: EnvSpec, time) -> Evaluation:
    number = time.over.shape[0]
    return Evaluation(
        episode_return={role: jnp.zeros_like(reward) for role, reward in time.reward.items()},
        length=jnp.zeros(number, jnp.int32),
        outcome=jnp.full(number, -1, jnp.int32),
        task=time.info.get("task", jnp.zeros(number, jnp.int32)),
        components={name: jnp.zeros(number, jnp.float32) for name in spec.components},
        frames=None,
    )


def _accumulate(result: Evaluation, before, after) -> Evaluation:
    running = ~before.over
    returns = {
        role: total + jnp.where(running[:, None] & before.alive[role], after.reward[role], 0.0)
        for role, total in result.episode_return.items()
    }
    components = {
        name: total + jnp.where(running, after.info[f"reward/{name}"], 0.0)
        for name, total in result.components.items()
    }
    return result.replace(
        episode_return=returns,
        components=components,
        length=result.length + running,
        outcome=jnp.where(running, after.info.get("outcome", result.outcome), result.outcome),
    )


def summary(result: Evaluation, spec: EnvSpec, role: str) -> dict[str, jax.Array]:
    """`eval_agg/...` scalars of an evaluation, from the point of view of one role.

    `eval_agg/task/NAME` is the share of successes in one task (spawn point); NaN where it did not occur.
    """
    returns = jnp.mean(result.episode_return[role], axis=-1)
    metrics = {
        "eval_agg/avg_reward": jnp.mean(returns),
        "eval_agg/std_reward": jnp.std(returns),
        "eval_agg/avg_episode_length": jnp.mean(result.length.astype(jnp.float32)),
        "eval_agg/std_episode_length": jnp.std(result.length.astype(jnp.float32)),
        "eval_agg/num_episodes": jnp.int32(returns.shape[0]),
    }
    for index, name in enumerate(spec.outcomes):
        metrics[f"eval_agg/outcome/{name}"] = jnp.mean(result.outcome == index)
    if spec.success is not None:
        success = spec.succeeded(result.outcome)
        metrics["eval_agg/success_rate"] = jnp.mean(success)
        for index, name in enumerate(spec.tasks):
            mine = result.task == index
            share = jnp.sum(success & mine) / jnp.maximum(jnp.sum(mine), 1)
            metrics[f"eval_agg/task/{name}"] = jnp.where(jnp.any(mine), share, jnp.nan)
    return metrics
