"""Reward function of missions: factors on the components, for ablations.

The components already include the weights of the curriculum and of the verb (`components`, `weights`).
"""

from collections.abc import Mapping, Sequence
from functools import partial

import jax

from jaxmarl_echelon.envs.echelon.missions.state import PAID
from jaxmarl_echelon.envs.rewards import Catalogue, Component, Reward, Weights

MissionRewardMemory = tuple[()]


def _paid(name: str, weights: Weights, paid: dict[str, jax.Array], memory: MissionRewardMemory):
    del weights
    return paid[name], memory


CATALOGUE = Catalogue({name: Component(partial(_paid, name)) for name in PAID}, ("reward/echelon_missions",))


def make_mission_reward(
    components: Mapping[str, Mapping[str, float] | None] | None = None,
    sets: Mapping[str, Sequence[str]] | None = None,
) -> Reward:
    """Builds a reward of missions; see `Catalogue.make`. All components by default."""
    return CATALOGUE.make(dict.fromkeys(PAID) if components is None else components, sets)
