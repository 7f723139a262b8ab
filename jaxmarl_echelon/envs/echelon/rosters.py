"""Rosters: the mechs of a team and their packs.

A pack shares painted targets, messages and the damage bonus on painted targets.
Reference: docs/reference/echelon.md 2.3.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from jaxmarl_echelon.envs.echelon.battle.unit_tables import CLASSES
from jaxmarl_echelon.envs.settings import read_whole

LARGEST_TEAM = 64

# Packs by name, class by class in the order of the mechs' indices.
PACKS: dict[str, tuple[str, ...]] = {
    "pack5": ("heavy", "medium", "medium", "light", "scout"),
    "pack6": ("scout", "light", "medium", "medium", "heavy", "light"),
    "pack10": ("heavy", *("medium",) * 5, *("light",) * 3, "scout"),
    "leader": ("medium",),
}
# Teams of several packs. A squad's leader forms a pack of its own.
SQUADS: dict[str, tuple[str, ...]] = {
    "squad10": ("pack5", "pack5"),
    "squad13": ("pack6", "pack6", "leader"),
}


class Roster(NamedTuple):
    """Composition of one team.

    Attributes:
      classes: per mech an index into `unit_tables.CLASSES`.
      packs: per mech the number of its pack, from 0 within the team.
    """

    classes: tuple[int, ...]
    packs: tuple[int, ...]

    @property
    def largest_pack(self) -> int:
        """Mechs in the largest pack."""
        return max(map(self.packs.count, set(self.packs)))


def read_roster(key: str, value) -> Roster:
    """Parses a team: `pack5`, `{heavy: 1, medium: 2}`, `[heavy, medium]`, or a list of packs.

    A name, a mapping of classes to counts and a list of classes are one pack each, except for
    the names of `SQUADS`; a list of such packs, e.g. `[pack5, [heavy, scout]]`, is a team of
    several packs.

    Args:
      key: name of the setting, for error messages.
      value: the configured value.

    Raises:
      ValueError: one line, for an unknown class or pack, an empty pack or too large a team.
    """
    packs = _packs(key, value)
    size = sum(map(len, packs))
    if size > LARGEST_TEAM:
        raise ValueError(f"env.{key}={value}: has {size} mechs; at most {LARGEST_TEAM} are allowed")
    return Roster(
        classes=tuple(CLASSES.index(name) for name in chain(*packs)),
        packs=tuple(chain(*([number] * len(pack) for number, pack in enumerate(packs)))),
    )


def _packs(key: str, value) -> list[tuple[str, ...]]:
    if isinstance(value, str) and value in SQUADS:
        return [PACKS[name] for name in SQUADS[value]]
    if isinstance(value, Sequence) and not isinstance(value, str) and not _all_classes(value):
        return [_pack(key, one) for one in value]
    return [_pack(key, value)]


def _all_classes(value: Sequence) -> bool:
    """Returns whether a list contains class names only; a misspelt class among classes counts as one."""
    known = [isinstance(name, str) and name in CLASSES for name in value]
    strangers = [one for one, ok in zip(value, known, strict=True) if not ok]
    return not value or (any(known) and not any(_is_pack(one) for one in strangers))


def _is_pack(value) -> bool:
    return not isinstance(value, str) or value in PACKS


def _pack(key: str, value) -> tuple[str, ...]:
    if isinstance(value, str):
        if value not in PACKS:
            raise ValueError(f"env.{key}={value}: unknown; allowed: {', '.join((*PACKS, *SQUADS))}, a list")
        return PACKS[value]
    if isinstance(value, Mapping):
        counts = {name: read_whole(f"{key}.{name}", count, 0, LARGEST_TEAM) for name, count in value.items()}
        value = [name for name, count in counts.items() for _ in range(count)]
    if not isinstance(value, Sequence) or not value:
        allowed = "a name, [class, ...], {class: count} or a list of these"
        raise ValueError(f"env.{key}={value}: must be {allowed}, with at least one mech")
    for name in value:
        if not isinstance(name, str) or name not in CLASSES:
            raise ValueError(f"env.{key}: unknown mech class {name!r}; allowed: {', '.join(CLASSES)}")
    return tuple(value)
