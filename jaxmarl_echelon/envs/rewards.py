"""Rewards composed of named pure components with traced weights, for all environments.

The choice of components is static; all weights are arrays, so that they can be swept, annealed or zeroed
without recompiling.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax

from algos.checks import is_number
from algos.defaults import FROM_FILE, read_defaults
from algos.types import PyTree
from jaxmarl_echelon.envs import settings
from physics.host_arrays import put_array

Weights = dict[str, jax.Array]


class Component(NamedTuple):
    """One named term of a reward.

    Attributes:
      value: `(weights, situation, memory) -> (reward, memory)`.
      defaults: default weights, numbers or switches; those of the catalogue's files unless given. `weight`,
        a factor on the whole term, is added with default 1 if missing.
    """

    value: Callable[[Weights, PyTree, PyTree], tuple[jax.Array, PyTree]]
    defaults: Mapping[str, float | bool] = FROM_FILE


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Components of rewards that an environment offers.

    Attributes:
      components: by name.
      files: configurations of rewards with default weights; the first that has a component counts.
      memory: `() -> memory`, the components' initial carry of an episode.
    """

    components: Mapping[str, Component]
    files: tuple[str, ...]
    memory: Callable[[], PyTree] = tuple

    def defaults(self, name: str) -> dict[str, float | bool]:
        """Returns the default weights of a component."""
        own = self.components[name].defaults
        if own is FROM_FILE:
            listed = (read_defaults(f"{file}:components") for file in self.files)
            own = next(weights[name] for weights in listed if name in weights)
        # Whole numbers are weights like others, switches are not.
        return {"weight": 1.0} | {
            key: one if isinstance(one, bool) else float(one) for key, one in own.items()
        }

    def make(
        self,
        components: Mapping[str, Mapping[str, float | bool] | None],
        sets: Mapping[str, Sequence[str]] | None = None,
    ) -> "Reward":
        """Builds a reward from component names and overrides of default weights.

        Args:
          components: name to weights.
          sets: named groups of components, for ablations.

        Raises:
          ValueError: if a component or a weight is unknown, or a value has the wrong type.
        """
        allowed = ", ".join(self.components)
        if not isinstance(components, Mapping):
            raise ValueError(f"components={components}: must be a mapping from names to weights")
        for name, parts in (sets or {}).items():
            strangers = [part for part in parts if part not in self.components]
            if strangers:
                raise ValueError(f"sets.{name}: unknown component {strangers[0]}; allowed: {allowed}")
        unknown = [name for name in components if name not in self.components]
        if unknown:
            raise ValueError(f"components.{unknown[0]}: unknown component; allowed: {allowed}")
        weights = tuple(self._weights(name, components[name]) for name in components)
        return Reward(self, tuple(components), weights)

    def _weights(self, name: str, given: Mapping | None) -> tuple[tuple[str, float | bool], ...]:
        defaults, where = self.defaults(name), f"components.{name}"
        if not isinstance(given or {}, Mapping):
            raise ValueError(f"{where}={given}: must be a mapping from {', '.join(defaults)} to values")
        for key, value in (given or {}).items():
            if key not in defaults:
                raise ValueError(f"{where}.{key}: unknown; allowed: {', '.join(defaults)}")
            switch = isinstance(defaults[key], bool)
            fits = isinstance(value, bool) if switch else is_number(value)
            if not fits:
                kind = "true or false" if switch else "a finite number"
                raise ValueError(f"{where}.{key}={value}: must be {kind}")
            defaults[key] = value if switch else float(value)
        return tuple(defaults.items())


@dataclass(frozen=True)
class Reward:
    """A static choice of components with their default weights.

    Attributes:
      catalogue: source of the components.
      names: components in the given order.
      weights: per component its `(weight name, value)` pairs.
    """

    catalogue: Catalogue
    names: tuple[str, ...]
    weights: tuple[tuple[tuple[str, float | bool], ...], ...]

    def params(self) -> dict[str, Weights]:
        """Returns the default weights as arrays, `{component: {weight: scalar}}`."""
        return {
            name: {key: put_array(value, type(value)) for key, value in pairs}
            for name, pairs in zip(self.names, self.weights, strict=True)
        }

    def init(self) -> PyTree:
        """Returns the memory at the start of an episode."""
        return self.catalogue.memory()

    def __call__(
        self, params: dict[str, Weights], situation: PyTree, memory: PyTree
    ) -> tuple[dict[str, jax.Array], PyTree]:
        """Computes the reward components of one step.

        Args:
          params: weights, structured like `params()`.
          situation: the step.
          memory: from the previous call, or `init()`.

        Returns:
          `({component: reward}, memory)`; the step's reward is the sum over components.
        """
        values = {}
        for name in self.names:
            value, memory = self.catalogue.components[name].value(params[name], situation, memory)
            values[name] = params[name]["weight"] * value
        return values, memory

    def change(self, params: Mapping[str, Weights], given: Mapping | None) -> dict[str, Weights]:
        """Returns weights with those in `given`, `{component: {weight name: value}}`, replaced.

        Raises:
          ValueError: one line, for a component not in this reward or an invalid weight.
        """
        changed = dict(params)
        for name, weights in settings.read_mapping("reward", given).items():
            settings.read_choice("reward", name, self.names)
            weights = settings.read_mapping(f"reward.{name}", weights)
            read = self.catalogue.make({name: weights}).params()[name]
            changed[name] = changed[name] | {key: read[key] for key in weights}
        return changed
