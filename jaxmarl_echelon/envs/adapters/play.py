"""One compiled step for all outward adapters: other roles act, episodes end and begin, seats are read.

Every environment has its own chain of keys, which only its own steps advance. An environment of a vector
therefore plays the episodes that a single one with its seed plays, whatever the size of the vector.
"""

import copy
import enum
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.custom_batching import sequential_vmap

from algos.masks import select_rows
from algos.types import PyTree
from jaxmarl_echelon.envs import results as results_lib
from jaxmarl_echelon.envs.adapters.seats import Player, Seats, make_legal, make_player
from jaxmarl_echelon.envs.base import Environment, EnvSpec
from jaxmarl_echelon.envs.episodes import (
    Running,
    advance_without_reset,
    initial_sums,
    quarantine_step,
)
from jaxmarl_echelon.envs.packed_rows import PackedRows, pack_batch, pack_one
from jaxmarl_echelon.envs.trees import map_in_chunks, rows_are_finite, strip_weak_types, zero_nonfinite
from physics.sparse_batch import compute_rows


class Autoreset(enum.Enum):
    """When an episode begins after an end: in the same step, in the next one, or when asked to."""

    SAME_STEP = "same_step"
    NEXT_STEP = "next_step"
    DISABLED = "disabled"


class Play(struct.PyTreeNode):
    """States of E environments with the memories of the players that act inside the step.

    Attributes:
      keys: `[E]` typed keys, the chains of the environments.
      running: environment states, time steps and sums, `[E]`.
      memories: by role, leaves `[E, ...]`.
      ended: `[E]` bool; the last step ended the episode.
    """

    keys: jax.Array
    running: Running
    memories: dict[str, PyTree]
    ended: jax.Array


class View(NamedTuple):
    """Seats of one role, N of them, in E environments after a reset or a step.

    Attributes:
      obs: `[E, N, *shape]`.
      reward: `[E, N]` float32.
      terminated, truncated: `[E, N]` bool; a seat that is neither when its episode is over has terminated;
        so has, from the first step on, an empty one that cannot be filled later (`TimeStep.begins`).
      alive: `[E, N]` bool; acts in the coming decision.
      filled: `[E, N]` bool; the seat takes part in the episode now.
      mask: `[E, N, n]` bool, or None without masks.
      results: `[E, N, R]` float32, results of the episode so far in the order of `result_names`; NaN for
        quotients without a denominator.
    """

    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    alive: jax.Array
    filled: jax.Array
    mask: jax.Array | None
    results: jax.Array


class Coming(NamedTuple):
    """Seats of one role before the coming decision: fields of `View`, of the new episode where one begins."""

    obs: jax.Array
    mask: jax.Array | None
    alive: jax.Array


class Step(NamedTuple):
    """Output of one step of E environments.

    Attributes:
      views: by role, of the states reached; in mode NEXT_STEP of new episodes where these begin.
      first: by role the seats to act for next: those of new episodes in mode SAME_STEP.
      ended: `[E]` bool; the episode of the other library ended: it is over, or all its seats have ended.
      over: `[E]` bool; the environment's episode is over.
    """

    views: dict[str, View]
    first: dict[str, Coming]
    ended: jax.Array
    over: jax.Array


def begin_plays(env: Environment, seats: Seats, keys: jax.Array, params: PyTree) -> Play:
    """Begins an episode in each of E environments.

    Where a reset has a non-finite number, zeros replace it and `over` is set: the first step is discarded.

    Args:
      env: the environment.
      seats: who plays.
      keys: `[E]` typed keys.
      mode: when episodes begin anew.
    """

    def begin_one(key):
        chain, key_reset = jax.random.split(key)
        return chain, pack_one(strip_weak_types(env.reset(key_reset, params)))

    chain, begun = jax.vmap(begin_one)(keys)
    sound = rows_are_finite(begun)
    state, time = select_rows(sound, begun, zero_nonfinite(begun)).tree
    time = time.replace(over=time.over | ~sound)
    running = Running(state, time, initial_sums(env.spec, time))
    memories = {role: player.init(keys.shape[0]) for role, player in _players(env, seats).items()}
    return Play(chain, running, memories, jnp.zeros(keys.shape[0], bool))


def advance_plays(
    env: Environment, seats: Seats, play: Play, actions: dict[str, jax.Array], params: PyTree
) -> Play:
    """Takes one decision in E environments, without resets.

    A step with a non-finite number, or after a reset with one, is discarded: the state stays finite, and all
    agents are truncated.

    Args:
      env: the environment.
      seats: who plays.
      play: the states.
      actions: by role of `seats.outside`, `[E, N, ...]`.
      mode: when episodes begin anew.

    Returns:
      The states reached; `ended` where the episode is over or all seats outside have ended.
    """
    size = play.keys.shape[0]
    chain, key_act, key_step = jnp.moveaxis(jax.vmap(partial(jax.random.split, num=3))(play.keys), 1, 0)
    each = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *jnp.shape(x))), params)
    before, memories, chosen = play.running, dict(play.memories), {}
    players, outside = _players(env, seats), dict(seats.outside)
    for number, role in enumerate(env.spec.roles):
        name = role.name
        if name in players:
            keys = jax.vmap(partial(jax.random.fold_in, data=number))(key_act)
            memories[name], chosen[name] = players[name].act(keys, memories[name], before, each)
        if name in outside:
            places, mask = np.array(outside[name]), before.time.action_mask.get(name)
            own = make_legal(role, actions[name], None if mask is None else mask[:, places])
            chosen[name] = chosen[name].at[:, places].set(own) if name in players else own
    alone = env if size > 1 else _without_batches(env)
    after, sound = advance_without_reset(alone, key_step, before, chosen, each)
    sound &= ~before.time.over  # over without an end: the reset failed
    after = select_rows(sound, pack_batch(after), pack_batch(_discarded(before))).tree
    play = Play(chain, after, memories, after.time.over)
    return play.replace(ended=_has_ended(view_seats(env.spec, seats, after), after.time.over))


def view_seats(spec: EnvSpec, seats: Seats, running: Running) -> dict[str, View]:
    """Returns the views of the seats outside, by role."""
    return {role: _view(spec, role, np.array(indices), running) for role, indices in seats.outside}


def result_names(spec: EnvSpec, role: str) -> tuple[str, ...]:
    """Returns the names of the results in `View.results`: those of the episode and of the role's agents."""
    return tuple(result.name for result in spec.results if result.role in (None, role))


class PlayProgram:
    """Compiled functions of an environment and its seats; the world and parameters are arguments.

    Attributes:
      env, seats: the environment and who plays.
      mode: when episodes begin anew.
    """

    def __init__(self, env: Environment, seats: Seats, mode: Autoreset):
        self.env, self.seats, self.mode = env, seats, mode
        self._begin = jax.jit(self._begin_rows)
        self._step = jax.jit(self._step_rows, donate_argnums=2)
        self._mixed = jax.jit(self._begin_some)

    def begin(self, params: PyTree, keys: jax.Array) -> tuple[PackedRows, Step]:
        """Begins an episode in each of the environments `keys [E]`."""
        return self._begin(self.env.world, params, keys)

    def begin_where(self, params: PyTree, rows: PackedRows, keys: jax.Array, mask: np.ndarray):
        """Begins an episode where `mask [E]` is set, and keeps the other environments."""
        return self._mixed(self.env.world, params, rows, keys, mask)

    def shapes(self, params: PyTree, keys: jax.Array) -> tuple[PackedRows, Step]:
        """Returns the shapes of the results of `begin`, without computing them."""
        return jax.eval_shape(self._begin_rows, self.env.world, params, keys)

    def step(self, params: PyTree, rows: PackedRows, actions: dict[str, np.ndarray]):
        """Takes one decision in each environment; `rows` must not be used again."""
        return self._step(self.env.world, params, rows, actions)

    def _begin_rows(self, world, params, keys):
        env = self.env.with_world(world)

        def begin(keys):
            return pack_batch(begin_plays(env, self.seats, keys, params))

        rows = map_in_chunks(begin, keys)
        return rows, self._output(env, rows.tree)

    def _begin_some(self, world, params, rows, keys, mask):
        new, _ = self._begin_rows(world, params, keys)
        rows = select_rows(mask, new, rows)
        return rows, self._output(self.env.with_world(world), rows.tree)

    def _step_rows(self, world, params, rows, actions):
        env, seats, before = self.env.with_world(world), self.seats, rows.tree
        after = advance_plays(env, seats, before, actions, params)
        reached = self._output(env, after)
        if self.mode is Autoreset.DISABLED:
            return pack_batch(after), reached
        late = self.mode is Autoreset.NEXT_STEP
        begins, keys = (before.ended, before.keys) if late else (after.ended, after.keys)

        def begin(keys):
            return pack_batch(begin_plays(env, seats, keys, params))

        room = max(8, -(-keys.shape[0] // 64))
        rows = compute_rows(begins, begin, keys, pack_batch(after), room)
        now = self._output(env, rows.tree)
        return rows, (now if late else reached._replace(first=now.first))

    def _output(self, env: Environment, play: Play) -> Step:
        views = view_seats(env.spec, self.seats, play.running)
        first = {role: Coming(view.obs, view.mask, view.alive) for role, view in views.items()}
        return Step(views, first, play.ended, play.running.time.over)


@lru_cache(maxsize=4)
def make_play_program(env: Environment, seats: Seats, mode: Autoreset) -> PlayProgram:
    """Builds the compiled functions, or returns those of an earlier call with the same arguments."""
    return PlayProgram(env, seats, mode)


def make_keys(seeds: Sequence[int]) -> jax.Array:
    """Returns one typed key per seed, `[E]`: `jax.random.key` of the seed modulo 2**32."""
    return jax.vmap(jax.random.key)(np.array([int(seed) % 2**32 for seed in seeds], np.uint32))


def _without_batches(env: Environment) -> Environment:
    """Returns a copy of the environment whose step is mapped one by one.

    For one environment, code for batches would take longer to compile and to run.
    """
    alone = copy.copy(env)
    alone.step = sequential_vmap(env.step)
    return alone


def _players(env: Environment, seats: Seats) -> dict[str, Player]:
    return {name: make_player(env, env.spec.role(name), player) for name, player in seats.inside}


def _discarded(before: Running) -> Running:
    return before._replace(time=quarantine_step(before.time))


def _has_ended(views: dict[str, View], over: jax.Array) -> jax.Array:
    ended = [(view.terminated | view.truncated).all(1) for view in views.values()]
    return over | jnp.stack(ended).all(0)


def _view(spec: EnvSpec, role: str, indices: np.ndarray, running: Running) -> View:
    time, sums = running.time, running.sums

    def take(values: jax.Array) -> jax.Array:
        return values[:, indices]

    terminated, truncated = take(time.terminated[role]), take(time.truncated[role])
    # Who is not there, and cannot come later, has nothing to play for.
    absent = jnp.zeros_like(terminated) if role in time.begins else ~take(sums.present[role])
    # An episode whose reset failed is over, but ends with its first step.
    unmarked = (time.over[:, None] | absent) & (sums.length > 0)[:, None] & ~truncated
    mask = time.action_mask.get(role)
    columns = []
    for name in result_names(spec, role):
        value = results_lib.read_quotient(spec.results, sums.results, name)
        own = results_lib.find_result(spec.results, name).role is not None
        columns.append(take(value) if own else jnp.broadcast_to(value[:, None], terminated.shape))
    filled = sums.present[role] if role not in time.present else time.filled(role)
    return View(
        obs=take(time.obs[role]),
        reward=take(time.reward[role]).astype(jnp.float32),
        terminated=terminated | unmarked,
        truncated=truncated,
        alive=take(time.alive[role]),
        filled=take(filled),
        mask=None if mask is None else take(mask),
        results=jnp.stack(columns, -1) if columns else jnp.zeros((*terminated.shape, 0)),
    )
