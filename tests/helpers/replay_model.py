"""A replay of Python lists, slow and plain, and random experience to fill it and the real one with."""

from functools import cache
from typing import NamedTuple

import jax
import numpy as np

from algos.types import Goal, Transition

FEATURES = 6
NUMBER, ROW, DESIRED, ACHIEVED, NEXT_NUMBER = range(5)


class Step(NamedTuple):
    """One stored transition; `number` is unique, `episode` unique in its row."""

    number: float
    episode: int
    obs: np.ndarray
    action: np.ndarray
    reward: float
    discount: float
    next_obs: np.ndarray
    last: bool


def goal() -> Goal:
    """Goals of one number: what was reached is written in every next observation."""
    return Goal(
        achieved=lambda obs: obs[..., ACHIEVED : ACHIEVED + 1],
        desired=lambda obs: obs[..., DESIRED : DESIRED + 1],
        replace=lambda obs, goal: obs.at[..., DESIRED].set(goal[..., 0]),
        reward=goal_reward,
    )


def goal_reward(achieved, desired):
    """Something that tells every pair of goals apart and is not symmetric."""
    return 0.25 * achieved[..., 0] - 0.125 * desired[..., 0]


def experience(
    seed: int, steps: int, rows: int, *, alive=0.8, end=0.15, terminal=0.5, success=0.5, limit=None
) -> Transition:
    """`[T, N]` random transitions; every step has a number, and rows that are not alive hold rubbish.

    Episodes last at most `limit` steps.
    """
    rng = np.random.default_rng(seed)
    shape = (steps, rows)
    number = np.arange(1, steps * rows + 1, dtype=np.float32).reshape(shape)
    obs = np.zeros((*shape, FEATURES), np.float32)
    obs[..., NUMBER], obs[..., ROW] = number, np.arange(rows)
    obs[..., DESIRED] = rng.integers(0, 1000, shape)
    next_obs = obs.copy()
    next_obs[..., NUMBER] = 0.0
    next_obs[..., NEXT_NUMBER], next_obs[..., ACHIEVED] = number, number + 5000
    boundary = rng.random(shape) < end
    chances = rng.random(shape)
    living = rng.random(shape) < alive
    if limit is not None:
        boundary |= overdue(boundary, limit)
    terminated = boundary & (chances < terminal)
    keep = living[..., None]
    return Transition(
        obs=np.where(keep, obs, np.float32(np.nan)),
        action=np.stack([number, -number], -1),
        reward=np.float32(np.where(living, rng.integers(-8, 9, shape), np.nan)),
        discount=np.float32(np.where(living, 1.0 - terminated, np.nan)),
        next_obs=np.where(keep, next_obs, np.float32(np.nan)),
        boundary=boundary,
        success=boundary & (rng.random(shape) < success),
        alive=living,
    )


def overdue(ends: np.ndarray, limit: int) -> np.ndarray:
    """`[T, N]` bool; the steps at which episodes that end at `ends`, too, have lasted `limit` steps."""
    length, late = np.zeros(ends.shape[1], int), np.zeros_like(ends)
    for time, ended in enumerate(ends):
        length += 1
        late[time] = (length == limit) & ~ended
        length[ended | late[time]] = 0
    return late


class Model:
    """What a replay with `slots` transitions per row must hold, oldest first.

    Attributes:
      rows: per row a list of steps.
      successes: the last `success_capacity` steps of successful episodes.
    """

    def __init__(self, rows: int, slots: int, *, success_capacity: int = 0):
        self.rows = [[] for _ in range(rows)]
        self.successes = []
        self.slots, self.success_capacity = slots, success_capacity
        self.episodes = [0] * rows
        self.begins = [True] * rows

    def add(self, transition: Transition) -> None:
        for row, steps in enumerate(self.rows):
            values = jax.tree.map(lambda x, row=row: np.asarray(x)[row], transition)
            if not values.alive:
                if steps:
                    steps[-1] = steps[-1]._replace(last=True)
                self.begins[row] |= bool(values.boundary)
                continue
            self.episodes[row] += self.begins[row]
            step = Step(
                values.obs[NUMBER],
                self.episodes[row],
                values.obs,
                values.action,
                values.reward,
                values.discount,
                values.next_obs,
                bool(values.boundary or values.discount == 0),
            )
            steps.append(step)
            self.begins[row] = step.last
            del steps[: -self.slots]
            if values.success and self.success_capacity:
                self.successes += [step for step in steps if step.episode == self.episodes[row]]
                del self.successes[: -self.success_capacity]

    def find(self, number: float) -> tuple[list[Step], int]:
        """The row that holds a transition, and where in it."""
        for steps in self.rows:
            for place, step in enumerate(steps):
                if step.number == number:
                    return steps, place
        raise AssertionError(f"transition {number} is not held")


def window(steps: list[Step], place: int, n_step: int) -> list[Step]:
    """The steps that a sample beginning at `place` spans."""
    spanned = []
    for step in steps[place : place + n_step]:
        spanned.append(step)
        if step.last:
            break
    return spanned


def returns(spanned: list[Step], gamma: float, rewards=None) -> tuple[float, float]:
    """Discounted reward sum, and discount of the value after it."""
    total, factor = 0.0, 1.0
    for step, reward in zip(spanned, rewards or [step.reward for step in spanned], strict=True):
        total += factor * reward
        factor *= gamma * step.discount
    return total, factor


@cache
def player(replay):
    """`(state, transitions) -> state`, compiled once for every replay and number of steps."""
    return jax.jit(lambda state, steps: jax.lax.scan(lambda s, t: (replay.add(s, t), None), state, steps)[0])


def play(replay, state, transitions: Transition):
    """The state after all `[T, N]` transitions were added in one scan."""
    return player(replay)(state, transitions)


@cache
def drawer(replay, gamma: float):
    """`(state, keys) -> samples`, a batch per key, compiled once for every replay and number of them."""
    return jax.jit(lambda state, keys: jax.vmap(lambda key: replay.sample(state, key, gamma)[1])(keys))


def draws(replay, state, batches: int, gamma: float):
    """`batches` batches `[K, B]`, each drawn from the same state."""
    keys = jax.random.split(jax.random.key(0), batches)
    return jax.tree.map(np.asarray, drawer(replay, gamma)(state, keys))


def cut(transitions: Transition, begin: int, end: int) -> Transition:
    """The transitions of the times from `begin` to before `end`."""
    return jax.tree.map(lambda x: x[begin:end], transitions)


def fill(model: Model, transitions: Transition) -> Model:
    """The model after all `[T, N]` transitions were added."""
    host = jax.tree.map(np.asarray, transitions)
    for time in range(host.reward.shape[0]):
        model.add(jax.tree.map(lambda x, time=time: x[time], host))
    return model


def contents(ring, row: int) -> dict[str, np.ndarray]:
    """What a ring holds of one row, oldest first."""
    count, cursor, slots = int(ring.count[row]), int(ring.cursor[row]), ring.last.shape[1]
    slot = (cursor - count + np.arange(count)) % slots
    names = ("obs", "action", "reward", "discount", "next_obs", "last")
    return {name: np.asarray(getattr(ring, name))[row, slot] for name in names}


def assert_holds(held: dict[str, np.ndarray], steps: list[Step]) -> None:
    """Demands that the contents of a ring's row are these steps."""
    assert len(held["reward"]) == len(steps)
    for name, values in held.items():
        if steps:
            np.testing.assert_array_equal(values, np.stack([getattr(step, name) for step in steps]), name)
