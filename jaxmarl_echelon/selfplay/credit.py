"""Advantages from reward transforms, for learners whose critic gives no baseline: `conf/transforms/*.yaml`.

Every decision is paid the transformed final reward of its own story (in games that of its seat) and what the
transforms of steps make of it; a batch of these is transformed once more, and is learnt from as advantages.
Decisions whose story has not ended within the rollout are not learnt from. Source: spec section 3.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algos.types import Rollout
from jaxmarl_echelon.selfplay.rewards import FINAL, SAMPLING, STEP, Context, Transform, chain

PyTree = Any
STAGES = {"final": FINAL, "step": STEP, "sampling": SAMPLING}
# Numbers of the run, not of its configuration.
DERIVED = ("seats", "games")


@dataclass(frozen=True)
class TransformSettings:
    """Reward transforms in order, by stage; without any, learners estimate their own advantages.

    A transform is its name, or a mapping of `name` and its options.

    Attributes:
      final: of the final reward of each story: names of `rewards.FINAL`.
      step: of what every decision is paid: names of `rewards.STEP`.
      sampling: of the batch that is learnt from: names of `rewards.SAMPLING`.
      whole_games: in turn games, whether all games begin with a rollout: what is under way at its end is
        broken off, and games that may outlast it are refused. Otherwise the beginning of a game that outlasts
        its rollout is not learnt from.
    """

    final: tuple = ()
    step: tuple = ()
    sampling: tuple = ()
    whole_games: bool = False

    def __post_init__(self):
        for stage in STAGES:
            chosen = getattr(self, stage)
            if isinstance(chosen, str) or not isinstance(chosen, Sequence):
                raise ValueError(f"transforms.{stage}={chosen}: must be a list of transforms")
            object.__setattr__(self, stage, tuple(chosen))
            for one in self.stage(stage):
                one.build()
        if not isinstance(self.whole_games, bool):
            raise ValueError(f"transforms.whole_games={self.whole_games}: must be true or false")

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.final or self.step or self.sampling)

    def stage(self, stage: str) -> list["Named"]:
        """The transforms of a stage; raises ValueError for unknown names."""
        return [named(stage, one) for one in getattr(self, stage)]


class Named(NamedTuple):
    """A transform by its name, with its options."""

    stage: str
    name: str
    options: Mapping[str, Any]

    def build(self, seats: int = 1) -> Transform:
        """The transform; raises ValueError for options that it does not have, or that are no numbers.

        Args:
          seats: roles or seats that have baselines of their own.
        """
        make = STAGES[self.stage][self.name]
        takes = inspect.signature(make).parameters
        allowed = [name for name in takes if name not in DERIVED]
        for key, value in self.options.items():
            where = f"transforms.{self.stage}.{self.name}.{key}={value}"
            if key not in allowed:
                raise ValueError(f"{where}: no such option; allowed: {', '.join(allowed) or 'none'}")
            usual = takes[key].default
            if isinstance(value, bool) != isinstance(usual, bool) or not isinstance(value, int | float):
                kind = "true or false" if isinstance(usual, bool) else "a number"
                raise ValueError(f"{where}: must be {kind}")
        derived = {"seats": seats} if "seats" in takes else {}
        return make(**self.options, **derived)


def named(stage: str, given: Any) -> Named:
    """A transform of a configuration's list; raises ValueError for one that does not exist."""
    options = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = options.pop("name", None)
    if name not in STAGES[stage]:
        raise ValueError(f"transforms.{stage}={name}: no such transform; allowed: {', '.join(STAGES[stage])}")
    return Named(stage, name, options)


class Story(NamedTuple):
    """What transforms know of a rollout `[T, E, A]` besides its rewards.

    Attributes:
      seat: int32; in turn games the seat that decides, else the number of the role among the learner's.
      ended: bool; the agent's story ended with this row, and was not broken off. Where transforms read
        scores, this is the end of the episode, which may come after that of the agent's own trajectory.
      score: float32 in [0, 1] of the role, or in turn games the share of the other seats that the seat has
        beaten; a draw counts 1/2. Read where stories end.
      over: bool; the story ended with this row for any reason; None for `Rollout.boundary`.
    """

    seat: jax.Array
    ended: jax.Array
    score: jax.Array
    over: jax.Array | None = None


@struct.dataclass
class CreditState:
    """What transforms remember from rollout to rollout.

    Attributes:
      stages: states of the transforms by stage; moving averages and the like, shared by all shards.
      running: `[E * A]` float32 rewards of the running stories so far.
    """

    stages: dict[str, PyTree]
    running: jax.Array


class Credit(NamedTuple):
    """The transforms of a learner.

    Attributes:
      init: `(columns) -> CreditState`, of so many agents side by side, E * A.
      apply: `(CreditState, Rollout, Story) -> (CreditState, Rollout)`; with advantages, and alive only where
        the story's end is known.
      scored: whether they read scores, so that stories are whole episodes.
    """

    init: Callable
    apply: Callable
    scored: bool = False


def make_credit(settings: TransformSettings, seats: int) -> Credit:
    """The transforms of a learner that plays `seats` seats or roles."""
    stages = {stage: chain([one.build(seats) for one in settings.stage(stage)]) for stage in STAGES}

    def init(columns):
        states = {stage: transform.init() for stage, transform in stages.items()}
        return CreditState(states, jnp.zeros(columns))

    def apply(state, rollout, story):
        running, total = totals(state.running.reshape(rollout.reward.shape[1:]), rollout)
        after = {}
        after["final"], final = stages["final"].apply(
            state.stages["final"], total, Context(story.ended, seat=story.seat, score=story.score)
        )
        over = rollout.boundary if story.over is None else story.over
        reward, known, to_come = spread(final, rollout.alive, story.ended, over)
        learnt = rollout.alive & known
        # Actions in spaces with masks have the form that was asked for, and are legal.
        right = jnp.ones(learnt.shape, bool)
        context = Context(learnt, seat=story.seat, formed=right, invalid=~right, to_come=to_come)
        after["step"], reward = stages["step"].apply(state.stages["step"], reward, context)
        after["sampling"], reward = stages["sampling"].apply(state.stages["sampling"], reward, context)
        advantage = jnp.where(learnt, reward, 0.0)
        return CreditState(after, running.ravel()), rollout.replace(advantage=advantage, alive=learnt)

    return Credit(init, apply, stages["final"].scored)


def totals(running: jax.Array, rollout: Rollout) -> tuple[jax.Array, jax.Array]:
    """What running stories have been paid after the rollout, `[E, A]`, and after each row, `[T, E, A]`."""

    def step(total, row):
        reward, paid, reset = row
        total = jnp.where(reset, 0.0, total) + jnp.where(paid, reward, 0.0)
        return total, total

    return jax.lax.scan(step, running, (rollout.reward, rollout.paid, rollout.reset))


def spread(
    final: jax.Array, alive: jax.Array, ended: jax.Array, over: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Hands final rewards to all decisions of their stories.

    Args:
      final: `[T, E, A]` rewards of the stories that ended with each row.
      alive: `[T, E, A]` bool; rows that are decisions.
      ended, over: `[T, E, A]` bool as in `Story`; what is over without `ended` was broken off.

    Returns:
      the reward, whether it is known, and how many own decisions are still to come, `[T, E, A]` each.
    """

    def step(after, row):
        reward, known, to_come = after
        own, ends, over, alive = row
        reward = jnp.where(ends, own, reward)
        known = ends | (known & ~over)
        to_come = jnp.where(ends | over, 0, to_come)
        return (reward, known, to_come + alive), (reward, known, to_come)

    shape = final.shape[1:]
    start = jnp.zeros(shape), jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32)
    rows = final, ended, over, alive
    return jax.lax.scan(step, start, rows, reverse=True)[1]
