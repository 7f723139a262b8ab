"""Episode results: declared by an environment, reduced over steps, averaged as ratios of sums."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from algos.masks import expand_mask

REDUCTIONS = ("last", "sum", "max", "min", "mean")
RESULT_KINDS = ("rate", "number", "code")
COMPONENT = "reward/"
NONE = -1


@dataclass(frozen=True)
class Result:
    """One quantity that an episode reports.

    Attributes:
      name: column in tables, and default `source`.
      role: None for one value per episode; else one per agent of this role, averaged over present agents.
      reduce: reduction over the steps of an episode, one of `REDUCTIONS`; "mean" only without a role (per
        agent: "sum" with `over`).
      kind: "number"; "rate", a number in [0, 1]; or "code", an index into `labels` (-1 for none),
        reported as the frequency of each label.
      labels: names of the codes.
      over: name of another result; averages are `sum(this) / sum(over)`.
      least: smallest denominator of averages, for quantities per event: without any event and with
        `least` 1 the average is the sum itself, a bound, instead of NaN. Without any episode it is NaN, too.
      source: entry of `TimeStep.info`, or the code that `among` refers to; defaults to `name`.
      among: for a rate: 1 if the code `source` has one of these labels, else 0.
      groups: for a code: report the score by label instead of label frequencies.
      shown: name in rolling statistics and evaluations; defaults to `name`.
      by: name of a code; averages over the episodes of each of its labels are reported as well.
    """

    name: str
    role: str | None = None
    reduce: str = "last"
    kind: str = "number"
    labels: tuple[str, ...] = ()
    over: str | None = None
    least: float = 0.0
    source: str | None = None
    among: tuple[str, ...] = ()
    groups: bool = False
    shown: str | None = None
    by: str | None = None

    @property
    def entry(self) -> str:
        """Name of the entry of `TimeStep.info`, or of the code from which the result is derived."""
        return self.source or self.name

    @property
    def column(self) -> str:
        """Name of the result's average, without a namespace."""
        return f"{self.name}_rate" if self.kind == "rate" else self.shown or self.name

    @property
    def derived(self) -> bool:
        """True if the result is computed from another one instead of stored."""
        return bool(self.among)

    def label(self, code: int) -> str:
        """Returns the name of a code; empty for none."""
        return self.labels[code] if 0 <= code < len(self.labels) else ""


def standard_results(
    outcomes: tuple[str, ...] = (),
    success: tuple[str, ...] = (),
    tasks: tuple[str, ...] = (),
    components: tuple[str, ...] = (),
    by: str | None = None,
) -> tuple[Result, ...]:
    """Returns the results common to many environments.

    Args:
      outcomes: labels of `info["outcome"]`, the way in which the episode ended (-1 while it runs).
      success: outcomes that make the rate `success` 1.
      tasks: labels of `info["task"]`, by which the score is grouped.
      components: names of the reward components `info["reward/NAME"]`, summed over steps.
      by: name of a code by whose labels the components are reported as well.
    """
    found = [Result("outcome", kind="code", labels=outcomes)] if outcomes else []
    found += [Result("success", kind="rate", source="outcome", among=success)] if success else []
    found += [Result("task", kind="code", labels=tasks, groups=True)] if tasks else []
    found += [
        Result(COMPONENT + name, reduce="sum", shown=f"reward_components/{name}", by=by)
        for name in components
    ]
    return tuple(found)


def begin_results(results: tuple[Result, ...], info: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns initial values of the stored results, by name.

    Args:
      results: the declared results.
      info: entries after the reset, `[E]` or, per agent, `[E, A]`.

    Raises:
      ValueError: one line, for a missing entry.
    """
    values = {}
    for result in stored_results(results):
        if result.entry not in info:
            raise ValueError(f"info lacks {result.entry}; spec.results lists {result.name}")
        entry = info[result.entry]
        if result.kind == "code":
            values[result.name] = entry.astype(jnp.int32)
        elif result.reduce in ("sum", "mean"):
            values[result.name] = jnp.zeros(entry.shape, jnp.float32)
        else:
            values[result.name] = entry.astype(jnp.float32)
    return values


def advance_results(
    results: tuple[Result, ...],
    values: Mapping[str, jax.Array],
    info: Mapping[str, jax.Array],
    length: jax.Array,
    there: Mapping[str, jax.Array],
    joins: Mapping[str, jax.Array],
) -> dict[str, jax.Array]:
    """Returns the values of the stored results after one more step.

    Args:
      results: the declared results.
      values: values before the step.
      info: entries after the step.
      length: `[E]` int32 steps taken, including this one.
      there: per role `[E, A]` bool; slots filled before or after the step. Others keep their values.
      joins: per role `[E, A]` bool; those of them that were never filled before the step. Their values so
        far, of empty slots, count for no maximum and no minimum.
    """
    after = {}
    for result in stored_results(results):
        old, new = values[result.name], info[result.entry].astype(values[result.name].dtype)
        if result.reduce == "sum":
            changed = old + new
        elif result.reduce == "mean":
            steps = expand_mask(length, old.ndim).astype(jnp.float32)
            changed = old + (new - old) / steps
        else:
            changed = {"last": lambda _a, b: b, "max": jnp.maximum, "min": jnp.minimum}[result.reduce](
                old, new
            )
            if result.role is not None and result.reduce != "last":
                changed = jnp.where(joins[result.role], new, changed)
        after[result.name] = changed if result.role is None else jnp.where(there[result.role], changed, old)
    return after


def stored_results(results: tuple[Result, ...]) -> tuple[Result, ...]:
    """Returns the stored results, which are all but the derived ones."""
    return tuple(result for result in results if not result.derived)


def find_result(results: tuple[Result, ...], name: str) -> Result:
    """Returns the result called `name`; raises KeyError with the known names otherwise."""
    for result in results:
        if result.name == name:
            return result
    raise KeyError(f"no result {name!r}; results: {', '.join(result.name for result in results)}")


def read_result(results: tuple[Result, ...], values: Mapping[str, jax.Array], name: str) -> jax.Array:
    """Returns one result of episodes: `[...]`, or `[..., A]` per agent; codes int32, all others float32."""
    result = find_result(results, name)
    if not result.derived:
        return values[name]
    codes = values[result.entry]
    labels = find_result(results, result.entry).labels
    hits = [codes == labels.index(label) for label in result.among]
    return sum(hits[1:], hits[0]).astype(jnp.float32)


def read_quotient(results: tuple[Result, ...], values: Mapping[str, jax.Array], name: str) -> jax.Array:
    """Returns one result of episodes `[...]`, or of agents `[..., A]`, float32, divided by what it is `over`.

    NaN for a denominator of 0 without `least`.
    """
    result, value = find_result(results, name), read_result(results, values, name).astype(jnp.float32)
    if result.over is None:
        return value
    weight = read_result(results, values, result.over).astype(jnp.float32)
    return average_result(result, value, weight if weight.ndim == value.ndim else weight[..., None])


def average_terms(
    results: tuple[Result, ...],
    values: Mapping[str, jax.Array],
    present: Mapping[str, jax.Array],
    name: str,
) -> tuple[jax.Array, jax.Array]:
    """Returns each episode's terms `[...]` in numerator and denominator of a result's average.

    Averages over episodes are ratios of their sums; absent agents contribute to neither.
    """
    result = find_result(results, name)
    value = read_result(results, values, name).astype(jnp.float32)
    weight = jnp.ones_like(value)
    if result.over is not None:
        weight = read_result(results, values, result.over).astype(jnp.float32)
        weight = jnp.broadcast_to(weight, value.shape) if weight.ndim == value.ndim else weight
    if result.role is not None:
        there = present[result.role]
        value = jnp.sum(jnp.where(there, value, 0.0), axis=-1)
        if weight.ndim == there.ndim:
            weight = jnp.sum(jnp.where(there, weight, 0.0), axis=-1)
    return value, weight


def average_result(
    result: Result, value: jax.Array, weight: jax.Array, number: jax.Array | float = 1
) -> jax.Array:
    """Returns a result's average from its sums over `number` episodes, elementwise.

    NaN for a denominator of 0 without `least`, and without any episode.
    """
    return divide_or_empty(value, _raise_weight(weight, result.least, number) if result.least else weight)


def _raise_weight(weight: jax.Array, least: np.ndarray | float, number: jax.Array | float) -> jax.Array:
    """Denominators of averages over `number` episodes, at least `least` where there are any."""
    return jnp.maximum(weight, jnp.where(jnp.asarray(number) > 0, least, 0.0))


def averages_by_label(
    results: tuple[Result, ...],
    codes: Callable[[str], jax.Array],
    terms: Callable[[str], tuple[jax.Array, jax.Array]],
) -> dict[str, jax.Array]:
    """Returns averages over the episodes of each label, for results with `by`; NaN without such episodes.

    Args:
      results: the declared results.
      codes: maps a code's name to its values `[N]`; -1 in episodes that are not counted.
      terms: maps a result's name to the terms `[N]` in numerator and denominator of its average.

    Returns:
      Scalars by name `COLUMN/LABEL`.
    """
    found = {}
    for code in dict.fromkeys(result.by for result in results if result.by):
        labels, own = find_result(results, code).labels, [result for result in results if result.by == code]
        here = codes(code)[None] == jnp.arange(len(labels))[:, None]
        both = (jnp.stack(column) for column in zip(*(terms(result.name) for result in own), strict=True))
        value, weight = (jnp.sum(jnp.where(here[:, None], part, 0.0), axis=-1) for part in both)
        least = np.array([result.least for result in own], np.float32)
        table = divide_or_empty(value, _raise_weight(weight, least, jnp.sum(here, axis=-1)[:, None]))
        found |= {
            f"{result.column}/{label}": table[row, column]
            for row, label in enumerate(labels)
            for column, result in enumerate(own)
        }
    return found


def share_beaten(scores: jax.Array) -> jax.Array:
    """Returns the share `[..., N]` of the others that each of N final scores exceeds; ties count one half."""
    ahead = jnp.sign(scores[..., :, None] - scores[..., None, :])
    return 0.5 + 0.5 * jnp.sum(ahead, axis=-1) / (scores.shape[-1] - 1)


@jax.jit
def divide_or_empty(value: jax.Array, weight: jax.Array, empty: float = jnp.nan) -> jax.Array:
    """Divides `value` by `weight` elementwise; `empty` where the weight is 0."""
    return jnp.where(weight != 0, value / jnp.where(weight != 0, weight, 1.0), empty)
