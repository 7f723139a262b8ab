"""Population based training inside the program: members of a group copy better ones and vary their numbers.

Jaderberg et al. 2017, "Population Based Training of Neural Networks", arXiv:1711.09846, with truncation
selection. Members are vmapped runs; the exchange gathers learners along their axis.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.types import Agent, Hyper, PyTree
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config.population_settings import AdaptedNumber, PopulationSettings
from jaxmarl_echelon.training.program.state import replace_hyper


class Population(NamedTuple):
    """Population based training of M members, of which each `groups`-th belongs to the same population.

    Attributes:
      settings: intervals, shares and factors.
      numbers: what is varied.
      groups: number of populations, which exchange nothing; M is a multiple.
      keys: `[groups]` typed keys, one of each population.
      columns: metrics of the report by which members are ranked: by the second where the first is equal.
      share: `(tree) -> tree`, gathers leaves `[m, ...]` of this device to `[M, ...]` of all devices.
      own: `(array [M]) -> [m]`, this device's part.
    """

    settings: PopulationSettings
    numbers: tuple[AdaptedNumber, ...]
    groups: int
    keys: jax.Array
    columns: tuple[str, ...]
    share: Callable[[PyTree], PyTree] = lambda tree: tree
    own: Callable[[jax.Array], jax.Array] = lambda members: members


def select_parents(key: jax.Array, scores: jax.Array, exploit: float) -> jax.Array:
    """Returns for each of P members the one whose learner it continues, itself in most cases: `[P]` int32.

    Truncation selection: a member among the worst `exploit * P` (at least one) draws one of as many best,
    and copies it if its score is higher. Members with the score NaN take no part.

    Args:
      key: of this exchange.
      scores: `[P]`; -inf for a member that must be replaced.
      exploit: share of the population.
    """
    size = scores.shape[0]
    number = max(1, int(exploit * size))
    unknown = jnp.isnan(scores)
    best = jnp.argsort(jnp.where(unknown, -jnp.inf, scores), descending=True, stable=True)
    place = jnp.argsort(jnp.argsort(jnp.where(unknown, jnp.inf, scores), stable=True), stable=True)
    drawn = best[jax.random.randint(key, (size,), 0, number)]
    copies = (place < number) & (scores[drawn] > scores)
    return jnp.where(copies, drawn, jnp.arange(size)).astype(jnp.int32)


def perturb_number(
    key: jax.Array, values: jax.Array, number: AdaptedNumber, factors: Sequence[float]
) -> jax.Array:
    """Multiplies values `[M, ...]`, or their distances to 1, by drawn factors, within the number's range."""
    factor = jax.random.choice(key, jnp.asarray(factors, jnp.float32), values.shape[:1])
    factor = factor.reshape(factor.shape + (1,) * (values.ndim - 1))
    varied = 1.0 - (1.0 - values) * factor if number.near_one else values * factor
    return jnp.clip(varied, number.low, number.high).astype(values.dtype)


def rank_members(scores: jax.Array) -> jax.Array:
    """Ranks `[M]` by scores `[K, M]`, the first first; equal ones are equal, NaN and -inf of the first stay.

    The rank is the number of members that are worse.
    """
    mine, others = scores[:, :, None], scores[:, None, :]
    worse, equal = jnp.zeros(mine.shape[1:2] * 2, bool), jnp.ones(mine.shape[1:2] * 2, bool)
    for own, other in zip(mine, others, strict=True):
        worse, equal = worse | (equal & (other < own)), equal & (other == own)
    return jnp.where(jnp.isfinite(scores[0]), jnp.sum(worse, axis=1), scores[0])


def choose_parents(population: Population, updates: jax.Array, scores: jax.Array) -> jax.Array:
    """Returns the parents `[M]` of all populations after `updates` updates, see `select_parents`."""
    groups = population.groups

    def one(key, own):
        return select_parents(jax.random.fold_in(key, 2 * updates), own, population.settings.exploit)

    parents = jax.vmap(one)(population.keys, scores.reshape(-1, groups).T)
    return (parents * groups + jnp.arange(groups)[:, None]).T.reshape(-1).astype(jnp.int32)


def vary_hyper(
    population: Population, updates: jax.Array, hyper: dict[str, Hyper], copied: jax.Array
) -> dict[str, Hyper]:
    """Perturbs the adapted numbers `[M, ...]` of members that have copied, a mask `[M]`."""
    key = jax.random.fold_in(population.keys[0], 2 * updates + 1)
    found = {learner: dict(values) for learner, values in hyper.items()}
    for index, number in enumerate(population.numbers):
        for learner in number.learners:
            values = found[learner][number.name]
            mask = copied.reshape(copied.shape + (1,) * (values.ndim - 1))
            varied = perturb_number(
                jax.random.fold_in(key, index), values, number, population.settings.perturb
            )
            found[learner][number.name] = jnp.where(mask, varied, values)
    return found


def member_scores(population: Population, policies: PyTree, metrics: dict[str, jax.Array]) -> jax.Array:
    """Rolling scores `[K, m]` of this device's members; -inf for members whose policies are not finite."""
    scores = jnp.stack([metrics[name] for name in population.columns])
    leaves = jax.tree.leaves(policies)
    floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]
    sound = [jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim))) for x in floats]
    return jnp.where(jnp.all(jnp.stack(sound), axis=0), scores, -jnp.inf)


def exchange_learners(
    population: Population, agents: dict[str, Agent], runs: RunState, metrics: dict[str, jax.Array]
) -> tuple[RunState, dict[str, jax.Array]]:
    """Runs one step of population based training if it is due, after an update of all members.

    A member that copies takes the learner (parameters, optimiser, normalisers, hyper-parameters) and the
    rolling statistics of its parent, and keeps its environments, keys, replay, pool and curriculum. Its
    memories go on, without what is not a number.

    Args:
      population, agents: of the group.
      runs: the members' states `[m, ...]` on this device.
      metrics: of their reports, `[m]`.

    Returns:
      the states, and the lineage `[m]`: `due` (bool), `parent` (index of a member), the columns by which
      members are ranked, and the adapted numbers after the exchange by key.
    """
    settings, updates = population.settings, runs.updates[0]
    due = (updates % settings.every == 0) & (updates >= settings.begins)
    learners = {name: runs.policies[name] for name in agents}
    leaves, structure = jax.tree.flatten(learners)
    local = jax.tree.leaves({name: agents[name].local(state) for name, state in learners.items()})
    # Without hyper-parameters, of which some are infinite.
    acting = replace_hyper(learners, {name: {} for name in agents if agents[name].hyper is not None})
    acting = {name: agents[name].policy_state(state) for name, state in acting.items()}
    scores = member_scores(population, acting, metrics)
    everyone = rank_members(population.share(scores.T).T)

    def exchange(moved, recent):
        parents = choose_parents(population, updates, everyone)
        moved, recent = jax.tree.map(lambda x: x[parents], population.share((moved, recent)))
        state = jax.tree.unflatten(structure, fill_marked(local, leaves, moved))
        hyper = {name: state[name].hyper for name in agents if agents[name].hyper is not None}
        varied = vary_hyper(population, updates, hyper, parents != jnp.arange(everyone.shape[0]))
        state |= {name: state[name].replace(hyper=hyper) for name, hyper in varied.items()}
        moved = take_unmarked(local, jax.tree.leaves(state))
        return jax.tree.map(population.own, (moved, recent, parents))

    def keep(moved, recent):
        return moved, recent, population.own(jnp.arange(everyone.shape[0], dtype=jnp.int32))

    moved, recent, parents = jax.lax.cond(due, exchange, keep, take_unmarked(local, leaves), runs.recent)
    learners = jax.tree.unflatten(structure, fill_marked(local, leaves, moved))
    numbers = {one.key: learners[one.learners[0]].hyper[one.name] for one in population.numbers}
    lineage = {"due": jnp.broadcast_to(due, parents.shape), "parent": parents}
    lineage |= dict(zip(population.columns, scores, strict=True)) | numbers
    copied = parents != population.own(jnp.arange(everyone.shape[0]))
    memories = clear_nan(runs.memories, copied)
    return runs.replace(policies=runs.policies | learners, recent=recent, memories=memories), lineage


def clear_nan(memories: PyTree, members: jax.Array) -> PyTree:
    """Replaces NaN by 0 in memories `[m, ...]` of the `members`, a mask `[m]`.

    What a learner that has diverged remembers would make the next one diverge until all episodes have ended.
    Infinities stay: scripts may remember some.
    """

    def clear(x):
        mask = members.reshape(members.shape + (1,) * (x.ndim - 1))
        return jnp.where(mask & jnp.isnan(x), 0, x) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(clear, memories)


def take_unmarked(marks: Sequence[bool], leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the leaves without a mark."""
    return [leaf for mark, leaf in zip(marks, leaves, strict=True) if not mark]


def fill_marked(
    marks: Sequence[bool], leaves: Sequence[jax.Array], others: Sequence[jax.Array]
) -> list[jax.Array]:
    """Inverse of `take_unmarked`: the leaves with a mark, and `others` in place of those without."""
    rest = iter(others)
    return [leaf if mark else next(rest) for mark, leaf in zip(marks, leaves, strict=True)]
