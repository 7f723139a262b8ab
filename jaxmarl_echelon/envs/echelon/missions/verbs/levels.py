"""Orders of squads, platoons and companies, as lists of squad orders.

The parameters of an order are the same at all levels. Reference: docs/reference/echelon.md 15.10.
"""

# By level and order: the orders of the level's squads, main effort first.
SQUAD_ORDERS: dict[str, dict[str, tuple[str, ...]]] = {
    "squad": {n: (n,) for n in ("assault", "hold", "overwatch", "flank", "suppress", "scout", "stage")},
    "platoon": {
        "assault": ("assault", "suppress", "overwatch"),
        "hold": ("hold", "hold", "overwatch"),
        "support": ("overwatch", "suppress", "stage"),
        "flank": ("flank", "suppress", "stage"),
        "recon": ("scout", "scout", "overwatch"),
    },
    "company": {
        "seize": ("assault", "flank", "suppress", "overwatch"),
        "defend": ("hold", "hold", "overwatch", "stage"),
        "delay": ("hold", "suppress", "overwatch"),
        "withdraw": ("stage", "overwatch", "suppress"),
        "screen": ("scout", "overwatch", "stage"),
    },
}


def list_squad_orders() -> dict[str, tuple[str, ...]]:
    """Returns squad orders by mission name: `assault`, `platoon_assault`, `company_seize`."""
    found = {}
    for level, orders in SQUAD_ORDERS.items():
        prefix = "" if level == "squad" else f"{level}_"
        found |= {f"{prefix}{order}": squads for order, squads in orders.items()}
    return found
