"""State of a whole run, and types shared by parts of the program."""

from typing import NamedTuple

import jax
from flax import struct

from algos.types import PyTree
from jaxmarl_echelon.envs.base import TimeStep
from jaxmarl_echelon.envs.episodes import Episodes


class ControllerView(NamedTuple):
    """Input of a controller, batched over environments `[E]`.

    Attributes:
      env: environment states.
      params: environment parameters of the running episodes.
      time: time steps with the observations to act on.
      seat: `[E]` int32, the acting seat in turn-based games, where `time` holds only this seat, as the only
        agent of its role; None where all agents decide simultaneously.
    """

    env: PyTree
    params: PyTree
    time: TimeStep
    seat: jax.Array | None = None


class Recent(struct.PyTreeNode):
    """Ring buffer of the last W finished episodes, for rolling statistics.

    Attributes:
      values: `[W, C]` float32, one row per episode; columns as in `episode_statistics.recent_columns`.
      count: int32, episodes written so far, saturating at 2**30.
      cursor: int32, index of the next write.
    """

    values: jax.Array
    count: jax.Array
    cursor: jax.Array


class RunState(struct.PyTreeNode):
    """Full training state, as checkpointed.

    With S > 1 shards, memories, `reset`, `episodes`, `stagger`, `pending` and the local parts of learners
    (`Agent.local`) have a leading axis `[S]`, and E counts the environments of one shard.

    Attributes:
      key: typed random key of the next update.
      policies: policy states by name, learners and frozen ones.
      memories: role name to its controller's memory (recurrent carry, script state), `[E]`.
      reset: `[E]` bool; an episode begins with the next decision.
      episodes: environments and their running episodes, `[E]`.
      stagger: `[E]` int32 decisions until an environment's first episode is truncated; 0 afterwards or
        without stagger. Episodes that begin before are not counted: only short ones would finish.
      curriculum: the curriculum's state.
      tickets: the curriculum's record of running episodes, on all shards.
      recent: ring buffer of finished episodes.
      pending: role name to incomplete transitions (`transitions.Pending`), for replay learners where
        `EnvSpec.late`.
      updates: int32, updates done.
      pool: the pool of past policies (`selfplay.pool.PoolState`); None without a pool.
      plays: moves of games against the pool (`selfplay.diversity.MoveHistory`) where opponents are drawn by
        diversity of moves; else None.
      had: `[E, N]` bool; the seats that the learner has played in each environment's current round of games
        (`training.opponents.seat_rounds`); None unless a pool plays a turn-based game.
      credit: learner's name to the state of its reward transforms (`selfplay.credit.TransformState`).
      teachers: role name to its scripted teacher's memory, `[E]` (`[E, N]` in games of N seats); None without
        scripted teachers.
      league: in a league, the run states of all other learners than the first main agent, whose state this
        is, with leaves `[M - 1, ...]`; else None.
    """

    key: jax.Array
    policies: dict[str, PyTree]
    memories: dict[str, PyTree]
    reset: jax.Array
    episodes: Episodes
    stagger: jax.Array
    curriculum: PyTree
    tickets: PyTree
    recent: Recent
    pending: dict[str, PyTree]
    updates: jax.Array
    pool: PyTree = None
    plays: PyTree = None
    had: jax.Array | None = None
    credit: PyTree = None
    teachers: PyTree = None
    league: PyTree = None
