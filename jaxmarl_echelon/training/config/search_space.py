"""Search spaces of `sweep={KEY: DIMENSION}`: their notation, and values drawn from them."""

import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from omegaconf import DictConfig, OmegaConf

from jaxmarl_echelon.config_keys import flatten_leaves
from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key

# Of numbers near 1, as discounts: 1 less a number with a uniform logarithm.
COMPLEMENT = "1-log"
RANGES = ("log", "uniform", "integer", COMPLEMENT)
CHOICE = "choice"
NOTATION = re.compile(rf"({'|'.join(RANGES)})\(\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*\)")
NOTATIONS = ", ".join(f"{kind}(LOW, HIGH)" for kind in RANGES)
ALLOWED = f"{NOTATIONS} or a list of at least two values"
# Digits of drawn values, so that they can be typed; of numbers near 1 those after the point.
DIGITS = 6
COMPLEMENT_DIGITS = 8
# Least distance to 1: learners have float32, in which numbers as near as 3e-8 are 1 itself.
LEAST_DISTANCE = 1e-7


@dataclass(frozen=True)
class Dimension:
    """Values that a searched setting may have.

    Attributes:
      kind: one of `RANGES`, or `CHOICE`.
      low, high: ends of a range, which are included, of `COMPLEMENT` of the distance to 1; 0 for a choice.
      options: values of a choice; empty for a range.
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    options: tuple[Any, ...] = ()

    def value(self, share: float) -> Any:
        """Returns the value at a share in [0, 1) of the dimension, which is uniform on it."""
        if self.kind == CHOICE:
            return self.options[int(share * len(self.options))]
        if self.kind == "integer":
            return int(self.low + math.floor(share * (self.high - self.low + 1)))
        if self.kind in ("log", COMPLEMENT):
            exact = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            exact = self.low + share * (self.high - self.low)
        return self.round_drawn(exact)

    def round_drawn(self, drawn: float) -> float:
        """Returns the value of a number drawn between `low` and `high`, with few digits."""
        inside = min(max(float(f"{drawn:.{DIGITS}g}"), self.low), self.high)
        return round(1.0 - inside, COMPLEMENT_DIGITS) if self.kind == COMPLEMENT else inside

    def bounds(self) -> tuple[float, float]:
        """Returns the least and the largest value of a range."""
        if self.kind == COMPLEMENT:
            return self.round_drawn(self.high), self.round_drawn(self.low)
        return self.low, self.high


def parse_dimension(key: str, given: Any) -> Dimension:
    """Parses the values of a searched key; raises a one-line ValueError."""
    where = f"sweep.{key}={given}"
    if OmegaConf.is_list(given) or isinstance(given, list | tuple):
        options = tuple(OmegaConf.to_container(given) if OmegaConf.is_list(given) else given)
        if len(options) < 2 or len({repr(one) for one in options}) < len(options):
            raise ValueError(f"{where}: must be {ALLOWED}, all different")
        return Dimension(CHOICE, options=options)
    found = NOTATION.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None:
        raise ValueError(f"{where}: must be {ALLOWED}")
    kind, *ends = found.groups()
    try:
        low, high = (int(end) if kind == "integer" else float(end) for end in ends)
    except ValueError:
        raise ValueError(f"{where}: must be {ALLOWED}, with numbers") from None
    allowed, inside = "LOW < HIGH", low < high and math.isfinite(high - low)
    if kind == "log":
        allowed, inside = f"0 < {allowed}", inside and low > 0
    elif kind == COMPLEMENT:
        allowed = f"{LEAST_DISTANCE} <= {allowed} <= 1"
        inside = inside and low >= LEAST_DISTANCE and high <= 1
    if not inside:
        raise ValueError(f"{where}: must be {kind}(LOW, HIGH) with {allowed}")
    return Dimension(kind, low, high)


def read_space(config: DictConfig) -> dict[str, Dimension]:
    """Returns the dimensions of a configuration's `sweep` by key, empty without one; checks the keys.

    Raises:
      ValueError: one line, for an unknown key or values that cannot be parsed.
    """
    given = config.get("sweep") or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"sweep={given}: must map keys to {ALLOWED}")
    # Keys with dots are kept in a mapping, but make nested ones where they are typed as sweep.KEY=VALUES.
    values = flatten_leaves(given)
    for key in values:
        require_known_key(config, f"sweep.{key}", key)
    return {key: parse_dimension(key, value) for key, value in values.items()}


def require_known_key(config: DictConfig, where: str, key: str) -> None:
    """Raises a one-line ValueError unless a dotted key has a value, or null, in a configuration."""
    missing = object()
    head, _, rest = key.partition(".")
    role, _, name = rest.partition(".")
    own = f"algo.{name}" if head == "algos" and "_target_" not in (config.algos.get(role) or {}) else key
    if all(OmegaConf.select(config, one, default=missing) is missing for one in (key, own)):
        raise ValueError(f"{where}: {key} is no key of this run's configuration")


def draw_samples(space: Mapping[str, Dimension], samples: int, seed: int) -> list[dict[str, Any]]:
    """Draws settings from a space by a Latin hypercube: one value in each of `samples` equal parts of a key.

    The values of a key depend on its name, `samples` and `seed` only, not on the other keys. McKay et al.
    1979, "A Comparison of Three Methods for Selecting Values of Input Variables".
    """
    values = {}
    for key, dimension in space.items():
        own = jax.random.fold_in(stream_key(seed, Stream.SEARCH), zlib.crc32(key.encode()))
        place, within = jax.random.split(own)
        parts = np.asarray(jax.random.permutation(place, samples), np.float64)
        shares = (parts + np.asarray(jax.random.uniform(within, samples), np.float64)) / samples
        values[key] = [dimension.value(share) for share in shares]
    return [{key: drawn[index] for key, drawn in values.items()} for index in range(samples)]


def draw_sweep(config: DictConfig) -> list[dict[str, Any]]:
    """Draws the settings that `sweep` and `samples` request; empty without `sweep`.

    Raises:
      ValueError: one line, as `read_space`, and unless both are given.
    """
    space, samples = read_space(config), config.get("samples")
    if not space:
        if samples is not None:
            raise ValueError(f"samples={samples}: needs sweep={{KEY: VALUES}}, with {ALLOWED}")
        return []
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples={samples}: must be a whole number of at least 1 with sweep")
    return draw_samples(space, samples, config.seed)
