"""Settings whose numbers are traced: they live in the learner's state, with schedules."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from algos.checks import require_choice, require_count, require_range
from algos.optim.optimizers import SCHEDULES, interpolate_schedule
from algos.settings import LearnerSettings
from algos.types import Hyper


class TracedSettings(LearnerSettings):
    """Base of settings some of whose numbers are initial values in `state.hyper`.

    There they can be changed, restored or vmapped over without recompiling. A subclass is a dataclass with a
    field for every name in `TRACED`, `*_end` and `*_schedule` for every name in `ANNEALED`, and
    `total_updates`.

    Attributes:
      TRACED: names of these numbers, with their bounds.
      ANNEALED: those with a schedule ("constant", "linear", "cosine") to `*_end`, reached after
        `total_updates`.
      OPTIONAL: those that may be None, for no bound.
      COUNTS: names of settings that are whole numbers of at least 1.
    """

    TRACED: ClassVar[dict[str, tuple[float, float]]] = {}
    ANNEALED: ClassVar[tuple[str, ...]] = ()
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    COUNTS: ClassVar[tuple[str, ...]] = ("horizon",)
    total_updates: int | None

    def require_traced(self) -> None:
        """Checks the counts, the traced numbers and their schedules; raises one-line ValueErrors."""
        for key in self.COUNTS:
            require_count(key, getattr(self, key))
        if self.total_updates is not None:
            require_count("total_updates", self.total_updates)
        for key, (low, high) in self.traced().items():
            if getattr(self, key) is not None or key not in self.OPTIONAL:
                require_range(key, getattr(self, key), low, high)
        for key in self.scheduled_names():
            require_choice(f"{key}_schedule", getattr(self, f"{key}_schedule"), SCHEDULES)

    def traced(self) -> dict[str, tuple[float, float]]:
        """Returns names and bounds of the settings that become numbers in the learner's state."""
        return self.TRACED

    def scheduled_names(self) -> tuple[str, ...]:
        """Returns the names of the traced numbers that have a schedule."""
        return self.ANNEALED

    def adjustable(self) -> tuple[str, ...]:
        """Returns the names of the settings that live in the state and may change when a run resumes."""
        return (*self.traced(), "total_updates")

    def require_total_updates(self, total_updates: int | None) -> None:
        """Checks that the length of the schedules is known where there is one."""
        schedules = {getattr(self, f"{key}_schedule") for key in self.scheduled_names()}
        if total_updates is None and schedules != {"constant"}:
            raise ValueError("total_updates=None: must be given with a schedule that is not constant")

    def initial_hyper(self, total_updates: int | None) -> Hyper:
        """Returns the traced hyper-parameters as float32 scalars; infinity for bounds that are None."""
        values: dict[str, Any] = {
            key: math.inf if (x := getattr(self, key)) is None else x for key in self.traced()
        }
        values["total_updates"] = total_updates or 1
        return {key: jnp.asarray(x, jnp.float32) for key, x in values.items()}


def apply_schedules(config: TracedSettings, hyper: Hyper, updates: jax.Array) -> Hyper:
    """Returns the hyper-parameters of this update, with schedules applied."""
    progress = updates / hyper["total_updates"]
    current = {
        key: interpolate_schedule(
            getattr(config, f"{key}_schedule"), hyper[key], hyper[f"{key}_end"], progress
        )
        for key in config.scheduled_names()
    }
    return hyper | current
