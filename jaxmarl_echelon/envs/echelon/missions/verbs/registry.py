"""Registry of an environment's verbs: read from settings, stacked into arrays."""

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle.unit_tables import CLASSES
from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.measures.outcome import OutcomeRecord
from jaxmarl_echelon.envs.echelon.missions.scenarios.forces import COMPOSITIONS
from jaxmarl_echelon.envs.echelon.missions.state import COMPONENTS, VERBS
from jaxmarl_echelon.envs.echelon.missions.verbs.assault import ASSAULT
from jaxmarl_echelon.envs.echelon.missions.verbs.flank import FLANK
from jaxmarl_echelon.envs.echelon.missions.verbs.hold import HOLD
from jaxmarl_echelon.envs.echelon.missions.verbs.overwatch import OVERWATCH
from jaxmarl_echelon.envs.echelon.missions.verbs.scout import SCOUT
from jaxmarl_echelon.envs.echelon.missions.verbs.stage import STAGE
from jaxmarl_echelon.envs.echelon.missions.verbs.suppress import SUPPRESS
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import Verb
from jaxmarl_echelon.envs.settings import read_choice

_KNOWN = {verb.name: verb for verb in (ASSAULT, HOLD, OVERWATCH, FLANK, SUPPRESS, SCOUT, STAGE)}
STANDARD = tuple(_KNOWN[name] for name in VERBS)


@dataclass(frozen=True)
class Registry:
    """The verbs that orders can have, in the order of the embedding's one-hot.

    Attributes:
      verbs: V of them.
    """

    verbs: tuple[Verb, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the verbs."""
        return tuple(verb.name for verb in self.verbs)

    def index(self, key: str, name: str) -> int:
        """Returns the index of a verb; raises a one-line ValueError with the setting `key` if unknown."""
        return self.names.index(read_choice(key, name, self.names))

    @cached_property
    def gates(self) -> np.ndarray:
        """Factors of the shaping components, float32 `[V, C]`."""
        return np.stack([_gates(verb) for verb in self.verbs])

    def flags(self, field: str) -> np.ndarray:
        """Returns a boolean field of the verbs, bool `[V]`."""
        return np.array([bool(getattr(verb, field)) for verb in self.verbs])

    @cached_property
    def complete(self) -> np.ndarray:
        """Success at which an episode ends, float32 `[V]`; infinite for never."""
        return np.array([np.inf if v.complete is None else v.complete for v in self.verbs], np.float32)

    @cached_property
    def staged(self) -> np.ndarray:
        """Bool `[V]`: another order follows at GO."""
        return np.array([bool(verb.template.follow_on) for verb in self.verbs])

    @cached_property
    def needs_enemies(self) -> np.ndarray:
        """Bool `[V]`: needs at least one enemy."""
        return np.array([verb.template.enemy[0] > 0 for verb in self.verbs])

    @cached_property
    def first(self) -> np.ndarray:
        """Class of the mech in the first slot, int32 `[V]`, index into `unit_tables.CLASSES`; -1 for any."""
        names = [verb.template.first for verb in self.verbs]
        return np.array([-1 if name is None else CLASSES.index(name) for name in names], np.int32)

    def evaluate(self, outcome: OutcomeRecord) -> jax.Array:
        """Returns success before constraints of outcomes `[...]` under each verb, `[..., V]`."""
        shape = jnp.broadcast_shapes(*(jnp.shape(field) for field in outcome))
        values = [jnp.broadcast_to(verb.evaluate(outcome), shape) for verb in self.verbs]
        return jnp.stack(values, axis=-1)


def read_verbs(given: Sequence[str | Verb] | None) -> Registry:
    """Reads the setting `verbs`: names of the standard verbs, or of objects as `package.module:NAME`.

    Raises:
      ValueError: one line, for an unknown verb, one that occurs twice, or a gate of no component.
    """
    if given is None:
        return Registry(STANDARD)
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ValueError(f"env.verbs={given}: must be a list of verbs")
    verbs = tuple(_read(one) for one in given)
    names = [verb.name for verb in verbs]
    if len(set(names)) < len(names):
        raise ValueError(f"env.verbs={names}: must name each verb once")
    for verb in verbs:
        for name in verb.gates or {}:
            read_choice(f"verbs.{verb.name}.gates", name, COMPONENTS)
        if verb.template.first is not None:
            read_choice(f"verbs.{verb.name}.template.first", verb.template.first, CLASSES)
        read_choice(f"verbs.{verb.name}.template.composition", verb.template.composition, COMPOSITIONS)
        if verb.gates is None and verb.name not in VERBS:
            raise ValueError(f"env.verbs: {verb.name} has no gates and is not a standard verb")
    return Registry(verbs)


def _read(given: str | Verb) -> Verb:
    if isinstance(given, Verb):
        return given
    if isinstance(given, str) and ":" in given:
        try:
            given = pkgutil.resolve_name(given)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"env.verbs={given}: {error}") from None
        if isinstance(given, Verb):
            return given
    if given not in _KNOWN:
        allowed = f"{', '.join(_KNOWN)}, package.module:NAME"
        raise ValueError(f"env.verbs={given}: unknown; allowed: {allowed}")
    return _KNOWN[given]


def _gates(verb: Verb) -> np.ndarray:
    if verb.gates is None:
        return weights.gate_table()[VERBS.index(verb.name)]
    ungated = [name for name in COMPONENTS if name not in weights.GATES]
    row = dict.fromkeys(ungated, 1.0) | dict(verb.gates)
    return np.array([row.get(name, 0.0) for name in COMPONENTS], np.float32)
