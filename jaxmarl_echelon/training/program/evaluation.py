"""Fixed-length deterministic evaluation inside jit: one episode per environment.

Environments with non-finite values are quarantined as in training: their episodes end and are not counted.
See docs/reference/trainer.md 13.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax.tree_util import DictKey

from algos import collectives
from algos.masks import select_rows
from algos.types import PyTree
from jaxmarl_echelon.envs import results as results_lib
from jaxmarl_echelon.envs.base import Environment, EnvSpec
from jaxmarl_echelon.envs.episodes import Finished, Running, advance_without_reset, initial_sums
from jaxmarl_echelon.envs.packed_rows import PackedRows, pack_batch, pack_one
from jaxmarl_echelon.envs.trees import (
    map_in_chunks,
    mean_where,
    rows_are_finite,
    strip_weak_types,
    zero_nonfinite,
)
from jaxmarl_echelon.training.acting.controllers import Controller
from jaxmarl_echelon.training.acting.decisions import (
    decide_for_roles,
    decide_in_turn,
    repeat_for_seats,
    show_due_seat,
)
from jaxmarl_echelon.training.acting.state import ControllerView

# Name of what a language policy said last, in its memory and in frames.
SAID = "said"


class Evaluation(struct.PyTreeNode):
    """Results of N episodes.

    Attributes:
      quarantined: `[N]` bool; a value was not finite: the episode is not counted.
      present: role name to `[N, A]` bool; the slot was filled at some time, and is scored.
      episode_return: role name to `[N, A]`.
      length: `[N]` int32 decisions.
      results: by name as in `EnvSpec.results`, `[N]` or, per agent, `[N, A]`; missing codes are -1.
      frames: outputs of `record`, `[steps, N, ...]`, or None; a finished episode's last frame is
        repeated.
    """

    quarantined: jax.Array
    present: dict[str, jax.Array]
    episode_return: dict[str, jax.Array]
    length: jax.Array
    results: dict[str, jax.Array]
    frames: PyTree

    def mean_return(self, role: str) -> jax.Array:
        """Mean returns `[N]` over the present agents of a role; NaN without any."""
        return mean_where(self.episode_return[role], self.present[role] & ~self.quarantined[:, None])

    @property
    def finished(self) -> Finished:
        """The episodes as a `Finished` record as in training, without tags or quarantined episodes."""
        return Finished(
            ~self.quarantined, self.present, self.episode_return, self.length, self.results, tags={}
        )

    def score(self, spec: EnvSpec) -> jax.Array:
        """Mean score of the counted episodes; NaN without any."""
        return weighted_mean(*self.scores(spec))

    def scores(self, spec: EnvSpec) -> tuple[jax.Array, jax.Array]:
        """Terms `[N]` of the episodes in numerator and denominator of the mean score."""
        return self.sums(spec, spec.score)

    def sums(self, spec: EnvSpec, name: str) -> tuple[jax.Array, jax.Array]:
        """Terms `[N]` in numerator and denominator of a result's average; 0 for quarantined episodes."""
        value, weight = results_lib.average_terms(spec.results, self.results, self.present, name)
        return tuple(jnp.where(self.quarantined, 0.0, x) for x in (value, weight))


def weighted_mean(value: jax.Array, weight: jax.Array) -> jax.Array:
    """Ratio of sums `sum(value) / sum(weight)`; NaN if the weights sum to 0."""
    return results_lib.divide_or_empty(jnp.sum(value), jnp.sum(weight))


def whole_seat_rounds(env: Environment, episodes: int) -> int:
    """Rounds the `episodes` of an evaluation, of all shards, up to whole rounds of seats.

    In turn-based games against opponents a policy has one seat of each game, chosen by the game's index.
    Seats differ in value, so each must be played equally often.
    """
    seats = env.spec.turns if env.opponents else 0
    together = math.lcm(seats, collectives.num_shards()) if seats else 1
    return -(-episodes // together) * together


def evaluation_params(env: Environment, params: PyTree, episodes: int) -> PyTree:
    """Parameters of this shard's part `[N]` of the evaluation's episodes."""
    index = collectives.global_indices(episodes // collectives.num_shards())
    return jax.vmap(env.evaluation_params, in_axes=(None, 0))(params, index)


def count_episodes(params: PyTree) -> int:
    """Returns N of parameters `[N]`; raises ValueError for an environment without parameters."""
    leaves = jax.tree.leaves(params)
    if not leaves:
        raise ValueError("the environment has no parameters: the number of episodes must be given")
    return leaves[0].shape[0]


def split_repeatedly(key: jax.Array, number: int, repeats: int) -> jax.Array:
    """Keys `[number]` of this shard's episodes; the keys of all shards are `repeats` times the same ones."""
    total = number * collectives.num_shards()
    return collectives.local_rows(
        jax.random.split(key, total // repeats)[jnp.arange(total) % (total // repeats)]
    )


def reset_environments(
    env: Environment, key: jax.Array, params: PyTree, number: int | None = None, repeats: int = 1
) -> tuple[PackedRows, jax.Array]:
    """Resets N environments; returns rows of (environment state, time step) and whether each is finite.

    Non-finite values are replaced by 0. `number` and `repeats` are as for `play_episodes`.
    """
    number = count_episodes(params) if number is None else number

    def begin(given):
        return jax.vmap(lambda key, params: pack_one(strip_weak_types(env.reset(key, params))))(*given)

    begun = map_in_chunks(begin, (split_repeatedly(key, number, repeats), params))
    sound = rows_are_finite(begun)
    return select_rows(sound, begun, zero_nonfinite(begun)), sound


def play_episodes(
    env: Environment,
    controllers: dict[str, Controller],
    policies: dict[str, PyTree],
    key: jax.Array,
    params: PyTree,
    record: Callable | None = None,
    number: int | None = None,
    repeats: int = 1,
    recorded: int | None = None,
) -> Evaluation:
    """Plays one episode in each of N environments; finished and quarantined ones are frozen.

    Args:
      env: the environment.
      controllers: by role name.
      policies: policy states by name, read only.
      key: typed random key.
      params: environment parameters `[N]`, of this shard's episodes.
      record: `(env_state, params, time) -> frame` for one environment, called after the
        reset and after every step.
      number: N; None to take it from `params`, which must not be empty.
      repeats: number of repetitions of the same episodes, one after the other; divides the number of episodes
        of all shards. Environments draw the same numbers in each, so that players can be compared.
      recorded: number of this shard's episodes that are recorded, the first ones; None for all.

    Returns:
      results of the episodes of all shards, truncated after `env.spec.episode_limit` decisions.
    """
    number = count_episodes(params) if number is None else number
    seats = env.spec.turns
    key_start, key_steps = jax.random.split(key)
    begun, sound = reset_environments(env, key_start, params, number, repeats)
    memories = {role: controller.init(number) for role, controller in controllers.items()}
    if seats:
        memories = {role: repeat_for_seats(memory, seats) for role, memory in memories.items()}
    reset = jnp.ones(number, bool)
    frame = record_frames(record, seats, recorded)

    def step(carry, given):
        running, memories, reset, quarantined = carry
        (ply, step_key), now = given, running.tree
        keys = jax.random.split(step_key, len(controllers) + 1)
        view = ControllerView(now.env, params, now.time)
        if seats:
            # All games begin together: the acting seat is the same in all that are not over.
            shown = show_due_seat(view, now.sums.length, seats)
            moved, actions, _ = decide_in_turn(
                controllers, policies, keys[1:], memories, shown, ply % seats, seats
            )
        else:
            moved, actions, _ = decide_for_roles(controllers, policies, keys[1:], memories, view, reset)
        luck = split_repeatedly(keys[0], number, repeats)
        after, sound = advance_without_reset(env, luck, now, actions, params)
        playing = ~now.time.over & ~quarantined
        running, memories = select_rows(playing & sound, (pack_batch(after), moved), (running, memories))
        now, quarantined = running.tree, quarantined | (playing & ~sound)
        shot = frame(now.env, params, now.time, memories, ply)
        return (running, memories, jnp.zeros_like(reset), quarantined), shot

    state, time = begun.tree
    first = frame(state, params, time, memories, 0)
    running = pack_batch(Running(state, time, initial_sums(env.spec, time)))
    carry = (running, memories, reset, ~sound)
    limit = env.spec.episode_limit
    inputs = jnp.arange(limit) if seats else None, jax.random.split(key_steps, limit)
    carry, frames = jax.lax.scan(step, carry, inputs)
    frames = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, frames)
    sums = carry[0].tree.sums
    present = {
        role: flag if controllers[role].scored is None else flag & controllers[role].scored(number)
        for role, flag in sums.present.items()
    }
    played = (carry[-1], present, sums.episode_return, sums.length, sums.results)
    return Evaluation(*collectives.gather_shards(played), frames=collectives.gather_shards(frames, 1))


def record_frames(record: Callable | None, seats: int, recorded: int | None = None) -> Callable:
    """Builds `(states, params, time, memories, ply) -> frames [E]`; None for every frame without `record`.

    With `recorded`, frames are only those of the first environments.

    In turn-based games whose policies speak, a frame that is a mapping also has what the policy said at the
    last ply under `SAID`, int32 tokens `[E, w]`; a reader must know which seats the policy played.
    """
    if record is None:
        return lambda *_: None

    def frame(states, params, time, memories, ply):
        shot = jax.vmap(record)(*jax.tree.map(lambda x: x[:recorded], (states, params, time)))
        said = [leaf for path, leaf in jax.tree.leaves_with_path(memories) if path[-1] == DictKey(SAID)]
        if not seats or not said or not isinstance(shot, dict):
            return shot
        tokens = jax.lax.dynamic_index_in_dim(said[0][:recorded], ply % seats, 1, keepdims=False)
        return shot | {SAID: tokens.reshape(tokens.shape[0], -1)}

    return frame


def summarize_evaluation(result: Evaluation, spec: EnvSpec, role: str) -> dict[str, jax.Array]:
    """Computes the `eval_agg/...` scalars of an evaluation, with the returns of one role.

    Averages are ratios of sums (`results.average_result`) over the `num_episodes` counted episodes, without
    quarantined ones; NaN without any. A grouping code (such as spawn points) gives the score by label, NaN
    for labels that did not occur; so do results that are reported by the labels of a code.
    """
    counts, returns = ~result.quarantined, result.mean_return(role)
    metrics = _moments("reward", returns, ~jnp.isnan(returns))
    metrics |= _moments("episode_length", result.length.astype(jnp.float32), counts)
    metrics["eval_agg/num_episodes"] = jnp.sum(counts, dtype=jnp.int32)
    metrics["eval_agg/quarantined"] = jnp.sum(result.quarantined, dtype=jnp.int32)
    for one in spec.results:
        if one.kind != "code":
            value, weight = map(jnp.sum, result.sums(spec, one.name))
            metrics[f"eval_agg/{one.column}"] = results_lib.average_result(one, value, weight, counts.sum())
            continue
        codes = result.results[one.name]
        for index, label in enumerate(one.labels):
            here = codes == index
            if not one.groups:
                metrics[f"eval_agg/{one.name}/{label}"] = mean_where(here, counts)
            elif spec.score is not None:
                value, weight = (jnp.where(here, x, 0.0) for x in result.scores(spec))
                metrics[f"eval_agg/{one.name}/{label}"] = weighted_mean(value, weight)

    def counted(name):
        return jnp.where(counts, result.results[name], results_lib.NONE)

    grouped = results_lib.averages_by_label(spec.results, counted, partial(result.sums, spec))
    return metrics | {f"eval_agg/{name}": value for name, value in grouped.items()}


def split_by_task(result: Evaluation, spec: EnvSpec) -> dict[str, Evaluation]:
    """Splits an evaluation by task: label to the evaluation with only that task's episodes counted.

    Tasks that did not occur are left out.
    """
    codes = result.results["task"] if spec.tasks else None
    parts = {
        label: result.replace(quarantined=result.quarantined | (codes != index))
        for index, label in enumerate(spec.tasks)
    }
    return {label: part for label, part in parts.items() if not bool(jnp.all(part.quarantined))}


def _moments(name: str, values: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    """Mean and standard deviation of `values [N]` where `mask` is set."""
    mean = mean_where(values, mask)
    variance = mean_where(jnp.square(values - mean), mask)
    return {f"eval_agg/avg_{name}": mean, f"eval_agg/std_{name}": jnp.sqrt(variance)}
