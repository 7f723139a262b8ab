"""Finds the numbers of learners' states that an update reads, by removing dead code from its trace."""

import re

import jax
from jax.interpreters import partial_eval

from jaxmarl_echelon.training.program.program import Program

# Paths of such numbers in a run's state, also in those of a league's other learners.
NUMBER = re.compile(r"\.policies\['([^']+)'\]\.hyper\['([^']+)'\]$")


def find_read_numbers(program: Program) -> set[tuple[str, str]]:
    """Returns learner and name of every hyper-parameter that one update of a program reads.

    Others may have any value: the settings that would use them are off. A number counts as read if anything
    depends on it but its own copy in the next state.
    """
    state = jax.eval_shape(program.init, jax.random.key(0))
    traced, after = jax.make_jaxpr(program.update, return_shape=True)(state)
    needed = [number is None for number in _numbers_of(after)]
    _, read = partial_eval.dce_jaxpr(traced.jaxpr, needed)
    return {number for number, is_read in zip(_numbers_of(state), read, strict=True) if number and is_read}


def _numbers_of(tree) -> list[tuple[str, str] | None]:
    """Learner and name for every leaf that is a hyper-parameter, None for others."""
    paths = (jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree))
    found = (NUMBER.search(path) for path in paths)
    return [(match[1], match[2]) if match else None for match in found]
