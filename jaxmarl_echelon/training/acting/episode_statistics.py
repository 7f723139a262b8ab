"""Rolling statistics and table of finished episodes, inside jit."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from jaxmarl_echelon.envs import results as results_lib
from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.envs.episodes import Finished
from jaxmarl_echelon.envs.trees import mean_where
from jaxmarl_echelon.training.acting.state import Recent
from physics.sparse_batch import locate_active

# Episodes of an update that entered the rolling statistics, where not all do; the host adds them up.
SCORED = "train/scored_episodes"


def recent_columns(spec: EnvSpec) -> tuple[str, ...]:
    """Returns the names of the ring's columns.

    Columns are the return per role, the length, codes, and for every other result `NAME` its term in the
    average's numerator; for weighted averages (per agent, or over another result) also `NAME/weight`, its
    term in the denominator.
    """
    names = [f"return/{role.name}" for role in spec.roles] + ["length"]
    for result in results_lib.stored_results(spec.results):
        names.append(result.name)
        if _weighted(result):
            names.append(f"{result.name}/weight")
    return tuple(names)


class SelectedEpisodes(NamedTuple):
    """First or newest finished episodes `[M]` of all shards, in order of decision and environment.

    Attributes:
      finished: the episodes; `mask` marks the filled places, which come first.
      place: int32, decision times number of environments, plus environment.
      number: int32, number of finished episodes, possibly more than M.
      environments: E.
    """

    finished: Finished
    place: jax.Array
    number: jax.Array
    environments: int


def select_finished(finished: Finished, most: int, *, newest: bool) -> SelectedEpisodes:
    """Selects the first or newest `most` (at most T times E) finished episodes of a rollout of all shards.

    They are located by their ranks among the finished episodes, so that no column is read as a whole.

    Args:
      finished: `[T, E / S]`, of this shard.
      most: M.
      newest: the newest ones, not the first.
    """
    mine, here, shards = finished.mask.shape[1], finished.mask.size, collectives.num_shards()
    environments = mine * shards
    mask = finished.mask.reshape(-1)
    number = jnp.sum(mask, dtype=jnp.int32)
    wanted = jnp.arange(min(most, here), dtype=jnp.int32)
    ranks = wanted + jnp.maximum(number - wanted.size, 0) if newest else wanted
    row = jnp.where(ranks < number, locate_active(mask, ranks), 0)
    chosen = jax.tree.map(lambda x: x[row // mine, row % mine], finished)
    chosen = chosen.replace(mask=ranks < number)
    place = row // mine * environments + collectives.shard_index() * mine + row % mine
    if shards == 1:
        return SelectedEpisodes(chosen, place, number, environments)

    # The number is gathered beside the places: that costs no message, a sum would.
    *everywhere, numbers = collectives.stack_shards((chosen, place, number))
    everywhere = jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:]), everywhere)
    found, places = everywhere
    order = jnp.argsort(jnp.where(found.mask, places, jnp.iinfo(jnp.int32).max))
    # One shard may have fewer places than are wanted of all.
    total = min(most, here * shards)
    surplus = jnp.maximum(jnp.sum(found.mask) - total, 0) if newest else 0
    picked = order[surplus + jnp.arange(total)]
    chosen, place = jax.tree.map(lambda x: x[picked], everywhere)
    return SelectedEpisodes(chosen, place, jnp.sum(numbers), environments)


def keep_newest(selected: SelectedEpisodes, most: int) -> SelectedEpisodes:
    """Keeps the newest `most` of selected episodes; all, if there are not more places."""
    mask = selected.finished.mask
    if mask.size <= most:
        return selected
    first = jnp.maximum(jnp.sum(mask, dtype=jnp.int32) - most, 0)
    finished, place = jax.tree.map(
        lambda x: jax.lax.dynamic_slice_in_dim(x, first, most), (selected.finished, selected.place)
    )
    return selected._replace(finished=finished, place=place)


def quarantine_metrics(quarantined: jax.Array) -> dict[str, jax.Array]:
    """Counts quarantines in a rollout `[T, E]` of all shards, and the environments that had one."""
    counts = jnp.sum(quarantined), jnp.sum(jnp.any(quarantined, axis=0))
    often, environments = collectives.sum_over_shards(counts)
    return {"train/quarantined": often, "train/quarantined_environments": environments}


def init_recent(spec: EnvSpec, window: int) -> Recent:
    """Returns an empty ring for `window` episodes."""
    values = jnp.zeros((window, len(recent_columns(spec))), jnp.float32)
    return Recent(values=values, count=jnp.int32(0), cursor=jnp.int32(0))


def add_recent(recent: Recent, finished: Finished, spec: EnvSpec) -> Recent:
    """Writes selected episodes `[M]` into the ring in order; those that `mask` marks must come first.

    Only the last W are written, so that scatter indices are unique.
    """
    window = recent.values.shape[0]
    total = jnp.sum(finished.mask, dtype=jnp.int32)
    rank = jnp.arange(finished.mask.size, dtype=jnp.int32)
    keep = finished.mask & (total - rank <= window)
    place = jnp.where(keep, (recent.cursor + rank) % window, window)
    row = _row(finished, spec)
    rows = jnp.stack([row[name].astype(jnp.float32) for name in recent_columns(spec)], axis=-1)
    return Recent(
        values=recent.values.at[place].set(rows, mode="drop"),
        count=jnp.minimum(recent.count + total, jnp.int32(2**30)),
        cursor=(recent.cursor + total) % window,
    )


def recent_metrics(recent: Recent, spec: EnvSpec, learners: tuple[str, ...]) -> dict[str, jax.Array]:
    """Averages over the ring as `train/...` scalars, NaN while it is empty; and its number of episodes.

    Returns are averaged over episodes with at least one present agent of the role; weighted results are
    ratios of sums. Results that are reported by the labels of a code have a scalar per label.
    """
    ring = dict(zip(recent_columns(spec), recent.values.T, strict=True))
    filled = jnp.arange(recent.values.shape[0]) < recent.count

    def mean(values):
        return mean_where(values, filled & ~jnp.isnan(values))

    def average(result, values, weights):
        total, weight = (jnp.sum(jnp.where(filled, x, 0.0)) for x in (values, weights))
        return results_lib.average_result(result, total, weight, recent.count)

    metrics = {
        "train/episode_length": mean(ring["length"]),
        "train/window_episodes": jnp.minimum(recent.count, filled.size),
    }
    for role in learners:
        name = "train/return" if len(learners) == 1 else f"train/return/{role}"
        metrics[name] = mean(ring[f"return/{role}"])
    for result in spec.results:
        if result.kind == "code":
            for index, label in enumerate(result.labels):
                metrics[f"train/{result.name}/{label}"] = mean(ring[result.name] == index)
        elif _weighted(result):
            metrics[f"train/{result.column}"] = average(
                result, ring[result.name], ring[f"{result.name}/weight"]
            )
        else:
            metrics[f"train/{result.column}"] = mean(results_lib.read_result(spec.results, ring, result.name))

    def terms(name):
        value = results_lib.read_result(spec.results, ring, name)
        weight = ring[f"{name}/weight"] if _weighted(spec.result(name)) else jnp.ones_like(value)
        return jnp.where(filled, value, 0.0), jnp.where(filled, weight, 0.0)

    def codes(name):
        return jnp.where(filled, ring[name], results_lib.NONE)

    grouped = results_lib.averages_by_label(spec.results, codes, terms)
    return metrics | {f"train/{name}": value for name, value in grouped.items()}


def episode_rows(
    selected: SelectedEpisodes, spec: EnvSpec, learners: tuple[str, ...]
) -> dict[str, jax.Array]:
    """Builds a table of selected episodes of all shards.

    Returns:
      `number` (int32, finished episodes, possibly more than the rows) and columns `[M]`: `step` and `env`
      (indices in the rollout), `length`, `return/ROLE`, results by name (codes int32; per-agent ones as
      means over agents) and tags; NaN where no agent was present. Rows from `number` on are padding.
    """
    finished, place, number, environments = selected
    table = {
        "number": number,
        "step": place // environments,
        "env": place % environments,
        "length": finished.length,
    }
    for role in learners:
        table[f"return/{role}"] = mean_where(finished.episode_return[role], finished.present[role])
    return table | results_per_episode(finished.results, finished.present, spec) | finished.tags


def results_per_episode(
    results: dict[str, jax.Array], present: dict[str, jax.Array], spec: EnvSpec
) -> dict[str, jax.Array]:
    """Reduces every result to one number per episode: codes unchanged, per-agent results as means."""
    found = {}
    for result in spec.results:
        if _weighted(result):
            shares = results_lib.average_terms(spec.results, results, present, result.name)
            there = 1 if result.role is None else jnp.any(present[result.role], axis=-1)
            found[result.name] = results_lib.average_result(result, *shares, there)
        else:
            found[result.name] = results_lib.read_result(spec.results, results, result.name)
    return found


def _weighted(result: results_lib.Result) -> bool:
    """Whether a result's average has weights."""
    return result.role is not None or result.over is not None


def _row(finished: Finished, spec: EnvSpec) -> dict[str, jax.Array]:
    """Values of the ring's columns for finished episodes."""
    row = {
        f"return/{role.name}": mean_where(finished.episode_return[role.name], finished.present[role.name])
        for role in spec.roles
    }
    row["length"] = finished.length
    for result in results_lib.stored_results(spec.results):
        if _weighted(result):
            row[result.name], row[f"{result.name}/weight"] = results_lib.average_terms(
                spec.results, finished.results, finished.present, result.name
            )
        else:
            row[result.name] = finished.results[result.name]
    return row
