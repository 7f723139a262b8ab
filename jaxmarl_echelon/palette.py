"""Colours of pictures, pages and plots, which people with red-green colour blindness tell apart, too.

Colours that occur together differ for normal vision and for simulated deuteranopia, which a test measures.
"""

BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#117733"
WINE, GOLD, SKY, INDIGO, PURPLE = "#882255", "#e0a800", "#56b4e9", "#332288", "#aa4499"
NEUTRAL = "#7a7f85"

# Methods, variants and cars that are drawn together.
SERIES = (BLUE, ORANGE, GREEN, WINE, GOLD, SKY, INDIGO)
# The side that is judged, filled, and its opponent, outlined.
ATTACKER, DEFENDER = ORANGE, BLUE
# Ground and lines.
PAPER, INK = "#fafaf8", "#1e1e1e"
# Colours of numbers: from low to high; from below through a middle to above.
RISING, DIVERGING = "viridis", "PuOr"


def contrast_text(colour: str) -> str:
    """Returns the colour, white or black, of text that is read on a background `#rrggbb`."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"
