"""Some updates of a run, with everything before, between and after them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.program.program import Program, make_program


class History(NamedTuple):
    """States before and after each update, reports, and the compiled update."""

    program: Program
    states: list[RunState]
    reports: list
    update: object


def played(config: RunConfig, updates: int, agents=None) -> History:
    program = make_program(config, agents)
    update = jax.jit(program.update)
    states, reports = [loose(jax.jit(program.init)(jax.random.key(0)))], []
    for _ in range(updates):
        run, report = update(states[-1])
        states.append(run)
        reports.append(jax.device_get(report))
    return History(program, states, reports, update)


def loose(tree):
    """The same arrays, bound to no device and of full types: no program is compiled for them alone."""

    def moved(leaf):
        array = jax.device_put(plain(leaf))
        return jax.random.wrap_key_data(array) if is_key(leaf) else array

    return jax.tree.map(moved, tree)


def plain(leaf) -> np.ndarray:
    """An array in NumPy, keys as numbers."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def is_key(leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def same(ours, theirs) -> bool:
    """Whether two trees hold the same numbers."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(np.array_equal(plain(x), plain(y)) for x, y in pairs)
