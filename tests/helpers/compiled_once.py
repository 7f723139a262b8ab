"""Programs that are made and compiled once, for tests that run one configuration several times."""

from contextlib import contextmanager

import pytest

from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.training.host import compile as compiling
from jaxmarl_echelon.training.host import loop, vectorized_runs
from jaxmarl_echelon.training.program.program import make_program


class Once:
    """`make_program` and `compile_program` that remember what they made of a configuration."""

    def __init__(self):
        self._programs, self._compiled = {}, {}

    def program(self, config, **options):
        """The program of a configuration: of this very object, equal ones have programs of their own."""
        key = id(config), tuple(options.items())
        # The configuration is kept as well, so that its id stays its own.
        return self._programs.setdefault(key, (config, make_program(config, **options)))[1]

    def compile(
        self, init, update, assess, arguments, world, updates_per_chunk, options, layout, local, admit
    ):
        """As `compile_program`; `local` is a function of the program, and the arguments tell seeds apart."""
        given = tuple(value.tobytes() for value in checkpoints.flatten_state(arguments).values())
        key = local, given, updates_per_chunk, layout
        if key not in self._compiled:
            rest = (arguments, world, updates_per_chunk, options, layout, local, admit)
            self._compiled[key] = compiling.compile_program(init, update, assess, *rest)
        return self._compiled[key]

    @contextmanager
    def installed(self):
        """Runs of `loop` and `group` are compiled by it meanwhile; afterwards it has forgotten them."""
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(loop, "compile_program", self.compile)
            monkeypatch.setattr(vectorized_runs, "make_program", self.program)
            yield
        self._programs.clear()
        self._compiled.clear()
