"""Programs that are made and compiled once, for tests that run one configuration several times."""

from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.training.host.compile import compile_program
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
            self._compiled[key] = compile_program(init, update, assess, *rest)
        return self._compiled[key]
