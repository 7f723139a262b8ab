"""The state of a whole run, and what the program's parts hand to each other."""

from typing import Any, NamedTuple

import jax
from flax import struct

from jaxmarl_echelon.envs.base import TimeStep
from jaxmarl_echelon.envs.episodes import Episodes

PyTree = Any


class View(NamedTuple):
    """What a controller may look at, `[E]` environments at once.

    Attributes:
      env: environment states.
      params: environment parameters of the running episodes.
      time: time steps with the observations to act on.
    """

    env: PyTree
    params: PyTree
    time: TimeStep


@struct.dataclass
class Recent:
    """Ring of the last W finished episodes, for rolling statistics.

    Attributes:
      values: `[W, C]` float32, a row per episode; `statistics.columns` names the columns.
      count: int32, episodes written so far (saturating at a large number).
      cursor: int32, where the next one goes.
    """

    values: jax.Array
    count: jax.Array
    cursor: jax.Array


@struct.dataclass
class RunState:
    """Everything a run needs to go on: what a checkpoint holds.

    Attributes:
      key: typed random key of the next update.
      policies: states of policies by name, those that learn and those that only act.
      memories: role name to its controller's memory (recurrent carry, script state), `[E]`.
      reset: `[E]` bool; an episode begins with the coming decision.
      episodes: the environments and their running episodes, `[E]`.
      stagger: `[E]` int32 decisions until an environment's episode is broken off; 0 once that has
        happened, or for never. No episode that begins before counts: only short ones would.
      curriculum: the curriculum's state.
      tickets: what the curriculum keeps of the episodes under way.
      recent: ring of finished episodes.
      pending: role name to decisions whose consequences are not complete, see `rollout.Pending`; of the
        replay learners' roles where an environment pays late.
      updates: int32, updates done.
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
