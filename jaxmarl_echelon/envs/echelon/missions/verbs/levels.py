"""Force structure from a unit to a company, and the squad orders of each level's orders.

The parameters of an order are the same at all levels. Reference: docs/reference/echelon.md 15.10.
"""

from typing import NamedTuple


class CommandLevel(NamedTuple):
    """One level of command.

    Attributes:
      size: mechs.
      parts: number of forces of the level below; 0 for single mechs.
      leaders: mechs that belong to none of them.
      verbs: orders of the level, with the orders of its squads, main effort first.
    """

    size: int
    parts: int
    leaders: int
    verbs: dict[str, tuple[str, ...]]


COMMAND_LEVELS = {
    "unit": CommandLevel(1, 0, 1, {}),
    "squad": CommandLevel(
        10, 9, 1, {n: (n,) for n in ("assault", "hold", "overwatch", "flank", "suppress", "scout", "stage")}
    ),
    "platoon": CommandLevel(
        32,
        3,
        2,
        {
            "assault": ("assault", "suppress", "overwatch"),
            "hold": ("hold", "hold", "overwatch"),
            "support": ("overwatch", "suppress", "stage"),
            "flank": ("flank", "suppress", "stage"),
            "recon": ("scout", "scout", "overwatch"),
        },
    ),
    "company": CommandLevel(
        100,
        3,
        4,
        {
            "seize": ("assault", "flank", "suppress", "overwatch"),
            "defend": ("hold", "hold", "overwatch", "stage"),
            "delay": ("hold", "suppress", "overwatch"),
            "withdraw": ("stage", "overwatch", "suppress"),
            "screen": ("scout", "overwatch", "stage"),
        },
    ),
}


def list_squad_orders() -> dict[str, tuple[str, ...]]:
    """Returns squad orders by mission name: `assault`, `platoon_assault`, `company_seize`."""
    found = {}
    for level, facts in COMMAND_LEVELS.items():
        prefix = "" if level == "squad" else f"{level}_"
        found |= {f"{prefix}{verb}": squads for verb, squads in facts.verbs.items()}
    return found
