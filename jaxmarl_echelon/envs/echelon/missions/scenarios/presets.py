"""Named scenarios: predefined combinations of settings."""

from collections.abc import Mapping
from typing import Any

_QUIET = {"mission": "scout", "risk": 0.3, "loss_appetite": 0.1, "time_pressure": 0.4, "grouping": 0.3}
PRESETS: dict[str, dict[str, Any]] = {
    # There are no enemies, but the squad does not know it.
    "nervous_empty_room": {
        **_QUIET,
        "friendly_count": 5,
        "enemy_count": 0,
        "terrain": "urban",
        "los_complexity": 0.8,
    },
    # The order's risk underestimates the enemy.
    "hornets_nest": {**_QUIET, "friendly_count": 5, "enemy_count": 18, "terrain": "urban"},
    # Assault at all costs with a damaged force.
    "depleted_force": {
        "mission": "assault",
        "risk": 0.7,
        "loss_appetite": 0.8,
        "time_pressure": 0.9,
        "grouping": 0.8,
        "friendly_count": 3,
        "enemy_count": 8,
        "health": "critical",
    },
}


def with_preset(name: str | None, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with those of a preset; settings in `given` that differ from the defaults win.

    Raises:
      ValueError: one line, for an unknown preset.
    """
    if name is None:
        return dict(given)
    if name not in PRESETS:
        raise ValueError(f"env.scenario={name}: unknown; allowed: {', '.join(PRESETS)}")
    told = {key: value for key, value in given.items() if _plain(value) != _plain(defaults.get(key))}
    return {**given, **PRESETS[name], **told}


def _plain(value):
    return list(value) if isinstance(value, tuple) else value
