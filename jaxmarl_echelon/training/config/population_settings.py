"""Settings of population based training, `pbt={every: 10, keys: [algo.learning_rate]}`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from algos.checks import require_count, require_range, require_whole
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.config.search_space import CHOICE, read_space

# Numbers below 1 whose distance to 1 is multiplied instead: 0.99 and 0.995 are a factor of 2 apart.
NEAR_ONE = ("gamma", "gae_lambda", "adam_beta1", "adam_beta2", "muon_momentum", "rmsprop_decay")


@dataclass(frozen=True)
class PopulationSettings:
    """Settings of population based training (Jaderberg et al. 2017, arXiv:1711.09846).

    Attributes:
      every: updates between exchanges.
      ready: updates before the first exchange; None for `every`.
      exploit: share of the population that copies, and the share that is copied; at most one half.
      perturb: factors, one of which multiplies a copied number.
      keys: numbers in the learners' states, such as `algo.learning_rate`.
    """

    every: int
    keys: tuple[str, ...]
    ready: int | None = None
    exploit: float = 0.25
    perturb: tuple[float, ...] = (0.8, 1.25)

    def __post_init__(self):
        require_count("pbt.every", self.every)
        if self.ready is not None:
            require_whole("pbt.ready", self.ready)
        require_range("pbt.exploit", self.exploit, 1e-6, 0.5)
        for key in ("keys", "perturb"):
            value = getattr(self, key)
            if isinstance(value, str) or not isinstance(value, list | tuple) or not value:
                raise ValueError(f"pbt.{key}={value}: must be a list with at least one entry")
            object.__setattr__(self, key, tuple(value))
        for factor in self.perturb:
            require_range("pbt.perturb", factor, 1e-6, 1e6)

    @property
    def begins(self) -> int:
        """Updates before the first exchange."""
        return self.every if self.ready is None else self.ready


class AdaptedNumber(NamedTuple):
    """Hyper-parameter that population based training changes.

    Attributes:
      key: its key.
      learners: names of the learners whose number it is.
      name: its name in their states.
      low, high: its range.
    """

    key: str
    learners: tuple[str, ...]
    name: str
    low: float
    high: float

    @property
    def near_one(self) -> bool:
        """Whether its distance to 1 is multiplied."""
        return self.name in NEAR_ONE


def read_population(config: DictConfig) -> PopulationSettings | None:
    """Reads `pbt` of a configuration; None without it.

    Raises:
      ValueError: one line, with the key, the value and what is allowed.
    """
    given = config.get("pbt")
    if given is None or given == {}:
        return None
    known = [item.name for item in fields(PopulationSettings)]
    if not isinstance(given, Mapping):
        raise ValueError(f"pbt={given}: must be a mapping with the keys {', '.join(known)}, or null")
    plain = OmegaConf.to_container(given) if OmegaConf.is_config(given) else dict(given)
    for key in plain:
        if key not in known:
            raise ValueError(f"pbt.{key}={plain[key]}: unknown key; allowed: {', '.join(known)}")
    for key in ("every", "keys"):
        if plain.get(key) is None:
            raise ValueError(f"pbt={given}: needs {key}, as in pbt={{every: 10, keys: [algo.learning_rate]}}")
    return PopulationSettings(**plain)


def split_learner_key(key: str, run: RunConfig) -> tuple[tuple[str, ...], str]:
    """Splits `algo.NAME` or `algos.ROLE.NAME` into the names of the learners that it sets, and NAME."""
    group, _, name = key.partition(".")
    if group == "algo":
        return tuple(run.algos), name
    role, _, name = name.partition(".")
    return (role,) if group == "algos" and role in run.algos else (), name


def adapted_numbers(config: DictConfig, run: RunConfig) -> list[AdaptedNumber]:
    """Returns the numbers that `pbt.keys` names, with the ranges of the algorithm and of `sweep`.

    Raises:
      ValueError: one line, for keys of other settings than numbers of a learner's state.
    """
    settings, space = read_population(config), read_space(config)
    return [read_adapted(key, space.get(key), run) for key in (settings.keys if settings else ())]


def read_adapted(key: str, dimension: Any, run: RunConfig) -> AdaptedNumber:
    """Reads one of `pbt.keys`; `dimension` is its part of the search space, or None."""
    learners, name = split_learner_key(str(key), run)
    bounds = [run.algos[learner].traced().get(name) for learner in learners]
    if not learners or None in bounds:
        known = dict.fromkeys(name for algo in run.algos.values() for name in algo.traced())
        allowed = ", ".join(f"algo.{one}" for one in known)
        raise ValueError(f"pbt.keys={key}: must be a number of the learner's state: {allowed or 'none here'}")
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    if dimension is not None and dimension.kind != CHOICE:
        least, most = dimension.bounds()
        low, high = max(low, least), min(high, most)
    return AdaptedNumber(str(key), learners, name, low, high)
