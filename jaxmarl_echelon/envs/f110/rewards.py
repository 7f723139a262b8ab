"""Rewards of the F110 environments: named pure components with traced weights.

A reward is a static choice of components; every number in it is an array, so that weights can be
swept, annealed or zeroed without compiling again. Rewards are evaluated once per physics step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.f110.outcomes import OUTCOMES
from jaxmarl_echelon.envs.f110.reward_components import COMPONENTS, Component, Memory, Situation, Weights

__all__ = ["COMPONENTS", "OUTCOMES", "Component", "Memory", "Reward", "Situation", "make_reward"]


@dataclass(frozen=True)
class Reward:
    """A static choice of components with their default weights.

    Attributes:
      names: components in the order in which they were asked for.
      weights: for each of them its `(weight name, value)` pairs.
    """

    names: tuple[str, ...]
    weights: tuple[tuple[tuple[str, float | bool], ...], ...]

    def params(self) -> dict[str, Weights]:
        """Returns the default weights as arrays, `{component: {weight: scalar}}`."""
        return {
            name: {key: jnp.array(value, dtype=type(value)) for key, value in pairs}
            for name, pairs in zip(self.names, self.weights, strict=True)
        }

    def init(self) -> Memory:
        """Returns the memory at the start of an episode."""
        zero, none, count = jnp.zeros(()), jnp.zeros((), bool), jnp.zeros((), jnp.int32)
        return Memory(count, count, zero, none, zero, none, zero, zero, none)

    def __call__(
        self, params: dict[str, Weights], situation: Situation, memory: Memory
    ) -> tuple[dict[str, jax.Array], Memory]:
        """Rewards one physics step.

        Args:
          params: weights, structured like `params()`.
          situation: the step.
          memory: what the previous call returned, or `init()`.

        Returns:
          `({component: scalar}, memory)`; the step's reward is the sum of the scalars.
        """
        values = {}
        for name in self.names:
            value, memory = COMPONENTS[name].value(params[name], situation, memory)
            values[name] = params[name]["weight"] * value
        return values, memory


def make_reward(
    components: Mapping[str, Mapping[str, float | bool] | None],
    sets: Mapping[str, Sequence[str]] | None = None,
) -> Reward:
    """Builds a reward from component names and the weights that differ from their defaults.

    Besides its own weights every component takes `weight`, a factor on all it pays (default 1).

    Args:
      components: name to weights.
      sets: names for several components together, for ablations.

    Raises:
      ValueError: if a component or a weight is unknown, or a value has the wrong type.
    """
    for name, parts in (sets or {}).items():
        strangers = [part for part in parts if part not in COMPONENTS]
        if strangers:
            allowed = ", ".join(COMPONENTS)
            raise ValueError(f"reward sets.{name}: {strangers[0]!r} is unknown; allowed: {allowed}")
    unknown = [name for name in components if name not in COMPONENTS]
    if unknown:
        raise ValueError(f"reward component {unknown[0]!r} is unknown; allowed: {', '.join(COMPONENTS)}")
    return Reward(tuple(components), tuple(_weights(name, components[name]) for name in components))


def _weights(name: str, given: Mapping[str, float | bool] | None) -> tuple[tuple[str, float | bool], ...]:
    defaults = {"weight": 1.0} | COMPONENTS[name].defaults
    for key, value in (given or {}).items():
        if key not in defaults:
            raise ValueError(f"reward {name}.{key} is unknown; allowed: {', '.join(defaults)}")
        switch = isinstance(defaults[key], bool)
        if isinstance(value, bool) != switch or not isinstance(value, bool | Real):
            kind = "true or false" if switch else "a number"
            raise ValueError(f"reward {name}.{key} is {value!r}; it must be {kind}")
        defaults[key] = value if switch else float(value)
    return tuple(defaults.items())
