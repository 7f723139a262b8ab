"""Checks of a recorded rollout of an environment, the last part of `check_env`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos.types import PyTree
from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import EnvSpec, Role, TimeStep
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.envs.spaces import MultiDiscrete

# How far float32 sums of an episode's steps may leave [0, 1].
ROUNDING = 1e-4


def require_that(condition: bool, message: str) -> None:
    """Raises AssertionError with the message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def is_key(leaf: jax.Array) -> bool:
    """Tells whether a leaf is a typed random key."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


class RolloutRecord(NamedTuple):
    """Record of one decision: the time step acted on, whether it came from a reset, next state and time step.

    Stacked, the leaves have a leading axis of decisions.
    """

    before: TimeStep
    fresh: np.ndarray
    state: PyTree
    after: TimeStep


def _forbid(bad: np.ndarray, message: str) -> None:
    """Raises if any element of `bad [steps, ...]` is set; the message gives the first index."""
    if bad.any():
        step, *rest = np.argwhere(bad)[0].tolist()
        raise AssertionError(f"{message} (step {step}{f', index {rest}' if rest else ''})")


def check_record(spec: EnvSpec, record: RolloutRecord) -> None:
    """Raises a one-line AssertionError at the first violation of the contract in a record."""
    for prefix, tree in (("state", record.state), ("", record.before), ("", record.after)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if jnp.issubdtype(leaf.dtype, jnp.inexact):
                label = f"{prefix}{jax.tree_util.keystr(path)}".removeprefix(".")
                _forbid(~np.isfinite(leaf), f"{label} is not finite")
    _check_fresh(spec, record)
    for role in spec.roles:
        _check_spaces(role, record)
        _check_flags(spec, role.name, record)
    if spec.turns:
        _check_turns(spec, record)
    _check_codes(spec, record)


def _check_spaces(role: Role, record: RolloutRecord) -> None:
    name, space = role.name, role.observation
    for time in (record.before, record.after):
        inside = np.asarray(space.contains(jnp.asarray(time.obs[name])))
        _forbid(~inside, f"obs[{name!r}] lies outside its space {space}")
    if name not in record.before.action_mask:
        return
    sizes = role.action.sizes if isinstance(role.action, MultiDiscrete) else (role.action.n,)
    before, after = record.before, record.after
    # Learners of action values bootstrap from the best legal action of an agent that is truncated.
    present = np.asarray(after.present.get(name, np.ones_like(after.alive[name])))
    cut = before.alive[name] & after.truncated[name] & present
    for time, concerned, why in ((before, before.alive[name], "alive"), (after, cut, "truncated")):
        for choice in np.split(time.action_mask[name], np.cumsum(sizes)[:-1], axis=-1):
            stuck = concerned & ~choice.any(-1)
            _forbid(stuck, f"action_mask[{name!r}] allows no action for an agent that is {why}")


def _check_flags(spec: EnvSpec, name: str, record: RolloutRecord) -> None:
    acted, after = record.before.alive[name], record.after
    terminated, truncated, alive = after.terminated[name], after.truncated[name], after.alive[name]
    begins = after.begins.get(name, np.zeros_like(alive))
    present = np.asarray(after.present.get(name, np.ones_like(alive)))
    over = after.over[:, None]
    ended = terminated | truncated
    _forbid(terminated & truncated, f"terminated[{name!r}] and truncated[{name!r}] are both set")
    _forbid(alive & ~present, f"alive[{name!r}] is set for a slot that is not present")
    _forbid(begins & ~present, f"begins[{name!r}] is set for a slot that is not present")
    _forbid(
        ~over & begins & acted & ~terminated,
        f"begins[{name!r}] is set for a running trajectory, expected terminated[{name!r}] as well",
    )
    _forbid(
        ~over & acted & ended & alive & ~begins,
        f"alive[{name!r}] is set for an agent just terminated or truncated, expected False until the reset",
    )
    if not spec.late:
        _forbid(
            ~over & acted & ~ended & ~alive,
            f"alive[{name!r}] became False, but neither terminated[{name!r}] nor truncated[{name!r}] is set",
        )
        _forbid(
            ~acted & alive & ~begins, f"alive[{name!r}] is set again for an agent that was out of the game"
        )
        unpaid = ~acted
    else:
        unpaid = _trajectory_ended(record, name)
        _forbid(
            unpaid & alive & ~begins, f"alive[{name!r}] is set again for an agent whose trajectory has ended"
        )
    if spec.ends_with_team:
        gone = ~over & acted.any(1, keepdims=True) & ~alive.any(1, keepdims=True)
        _forbid(gone, f"no agent is alive[{name!r}], but over is unset, against spec.ends_with_team")
    _forbid(
        over & acted & ~ended,
        f"over is set, but terminated[{name!r}] and truncated[{name!r}] are both unset for an agent alive",
    )
    why = "whose trajectory has ended" if spec.late else "that is not alive"
    _forbid(unpaid & (after.reward[name] != 0), f"reward[{name!r}] is not 0 for an agent {why}")


def _check_turns(spec: EnvSpec, record: RolloutRecord) -> None:
    """Checks that only the seat in turn is alive, and that all seats end together, with scores only then."""
    (role,) = spec.roles
    ply = _plies(record.fresh)[:, None]
    for time, now in ((record.before, ply), (record.after, ply + 1)):
        due = np.arange(spec.turns) == now % spec.turns
        alive, over = time.alive[role.name], time.over[:, None]
        _forbid(alive & ~due, f"alive[{role.name!r}] is set for a seat that is not in turn")
        if role.name in time.action_mask:
            waits = ~alive & ~over & ~time.action_mask[role.name].all(-1)
            _forbid(waits, f"action_mask[{role.name!r}] forbids an action to a seat that waits")
        wanted = f"terminated[{role.name!r}] must be set for all seats if and only if over is"
        _forbid(time.terminated[role.name] != over, wanted)
        # A truncated game is not learnt from, while its scores would count.
        cut = np.asarray(time.truncated[role.name])
        _forbid(cut, f"truncated[{role.name!r}] is set in turns: a limit must end games")
        for seat in range(spec.turns):
            early = ~time.over & (time.info[f"score/{seat}"] != 0)
            _forbid(early, f"info['score/{seat}'] is not 0 while the episode runs")


def _plies(fresh: np.ndarray) -> np.ndarray:
    """Counts the decisions taken in the episode before each step, `[steps]`."""
    result, now = np.zeros(len(fresh), int), 0
    for step, begins in enumerate(fresh):
        now = 0 if begins else now
        result[step] = now
        now += 1
    return result


def _trajectory_ended(record: RolloutRecord, name: str) -> np.ndarray:
    """Tells whether each agent's trajectory had ended before each decision, `[steps, A]`."""
    result, now = np.zeros_like(np.asarray(record.before.alive[name])), None
    for step, fresh in enumerate(record.fresh):
        now = np.zeros_like(result[0]) if fresh or now is None else now
        result[step] = now
        after = record.after
        now = now | np.asarray(after.terminated[name][step] | after.truncated[name][step])
        if name in record.after.begins:
            now = now & ~np.asarray(record.after.begins[name][step])
    return result


def _check_fresh(spec: EnvSpec, record: RolloutRecord) -> None:
    fresh, time = record.fresh, record.before
    _forbid(fresh & time.over, "over is set by a reset, expected False")
    for role in spec.roles:
        for field in ("reward", "terminated", "truncated"):
            values = getattr(time, field)[role.name]
            _forbid(fresh[:, None] & (values != 0), f"{field}[{role.name!r}] is not 0 after a reset")
    anyone = np.any([time.alive[role.name].any(1) for role in spec.roles], axis=0)
    _forbid(fresh & ~anyone, "alive is False for every agent after a reset, expected at least one")


def _check_codes(spec: EnvSpec, record: RolloutRecord) -> None:
    if spec.outcomes:
        codes, over = record.after.info["outcome"], record.after.over
        last = len(spec.outcomes) - 1
        _forbid(~over & (codes != -1), "info['outcome'] is not -1 while the episode runs")
        _forbid(over & ((codes < 0) | (codes > last)), f"info['outcome'] at the end is not in 0..{last}")
        started = record.fresh & (record.before.info["outcome"] != -1)
        _forbid(started, "info['outcome'] is not -1 after a reset")
    if spec.tasks:
        for time in (record.before, record.after):
            task, last = time.info["task"], len(spec.tasks) - 1
            _forbid((task < 0) | (task > last), f"info['task'] is not in 0..{last}")
    over = record.after.over
    # Intervals of scores, and percentages, are those of numbers in [0, 1].
    scores = {spec.score, *(role.score for role in spec.roles)}
    for result in results.stored_results(spec.results):
        values = np.asarray(record.after.info[result.entry])[over]
        if result.kind == "code" and result.name not in ("outcome", "task"):
            last = len(result.labels) - 1
            _forbid(
                (values < -1) | (values > last), f"info[{result.entry!r}] at the end is not in -1..{last}"
            )
        share = (result.kind == "rate" or result.name in scores) and result.over is None
        if share and result.reduce == "last":
            _forbid((values < 0) | (values > 1), f"info[{result.entry!r}] at the end is not in 0..1")
        elif share:
            found = _reduce_episodes(result, record)
            wrong = np.abs(found - 0.5) > 0.5 + ROUNDING
            label = f"spec.results: {result.name!r} of an episode, the {result.reduce} of"
            _forbid(wrong, f"{label} info[{result.entry!r}], is not in 0..1")


def _reduce_episodes(result: Result, record: RolloutRecord) -> np.ndarray:
    """Reduces a result over the steps of each recorded episode that ended, as `results.advance_results`.

    Returns:
      `[T]` or, per agent, `[T, A]`; 0 where no episode ended, and in slots that were never filled in it.
    """
    before, after = (
        np.asarray(time.info[result.entry], np.float64) for time in (record.before, record.after)
    )
    combine = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}[result.reduce]
    additive = combine is np.add
    seen = filled = np.ones(len(after), bool)
    if result.role is not None:
        seen, reached = (np.asarray(time.filled(result.role)) for time in (record.before, record.after))
        filled = seen | reached
    found = np.zeros_like(after)
    for step, fresh in enumerate(record.fresh):
        if fresh:
            first, total, ever = step, 0.0 if additive else before[step], seen[step]
        # Agents of a role without `present` stay in their slots when they die or wait.
        here = filled[step] if result.role in record.after.present else ever | filled[step]
        new = np.where(ever | additive, combine(total, after[step]), after[step])
        total, ever = np.where(here, new, total), ever | here
        if record.after.over[step]:
            length = step - first + 1 if result.reduce == "mean" else 1
            found[step] = np.where(ever, total / length, 0.0)
    return found
