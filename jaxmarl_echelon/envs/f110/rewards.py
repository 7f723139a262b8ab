"""Catalogue of the F110 rewards, whose components are evaluated once per physics step."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from jaxmarl_echelon.envs.f110.results import OUTCOMES
from jaxmarl_echelon.envs.f110.reward_components import COMPONENTS, CarRewardInputs, CarRewardMemory
from jaxmarl_echelon.envs.rewards import Catalogue, Component, Reward, Weights

__all__ = [
    "CATALOGUE", "COMPONENTS", "OUTCOMES", "Component", "CarRewardMemory", "Reward", "CarRewardInputs",
    "Weights", "make_reward",
]  # fmt: skip


def fresh_memory() -> CarRewardMemory:
    """Returns the components' memory at the start of an episode."""
    zero, none, count = jnp.zeros(()), jnp.zeros((), bool), jnp.zeros((), jnp.int32)
    return CarRewardMemory(count, count, zero, none, zero, none, zero, zero, none)


CATALOGUE = Catalogue(COMPONENTS, fresh_memory)


def make_reward(
    components: Mapping[str, Mapping[str, float | bool] | None],
    sets: Mapping[str, Sequence[str]] | None = None,
) -> Reward:
    """Builds a reward of the F110 environments; see `Catalogue.make`."""
    return CATALOGUE.make(components, sets)
