"""The benchmark of compilation knows whose lines a program has."""

import subprocess
import sys

import jax
from scripts import load_script

SOURCE = """
import jax.numpy as jnp


def inner(x):
    return jnp.sin(x) * 2.0


def outer(x):
    return inner(x) + jnp.cos(x)
"""


def test_lines_belong_to_the_innermost_function_and_to_its_callers(tmp_path, repository):
    benchmark = load_script(repository / "benchmarks" / "compile.py")
    (tmp_path / "waves.py").write_text(SOURCE)
    waves = load_script(tmp_path / "waves.py")
    # Other tests leave the stacks out.
    short = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 10)
    try:
        text = jax.jit(lambda x: waves.outer(x)).lower(1.0).as_text(debug_info=True)
    finally:
        jax.config.update("jax_traceback_in_locations_limit", short)
    own, total = benchmark.functions(text, (f"{tmp_path}/",))
    assert (own["waves.inner"], own["waves.outer"]) == (2, 2)
    assert (total["waves.inner"], total["waves.outer"]) == (2, 4)
    assert set(own) <= {"waves.inner", "waves.outer", "(none)"}


def test_unknown_jobs_are_one_line(repository):
    command = [sys.executable, str(repository / "benchmarks" / "compile.py"), "f1100"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("f1100: unknown job; allowed: f110, ")
    assert done.stderr.count("\n") == 1
