"""Orders as English sentences."""

from collections.abc import Sequence

from jaxmarl_echelon.envs.echelon.missions.state import PARAMETERS

# Words for low, middle and high values of each parameter; empty for middle values.
_WORDS = {
    "risk": ("little resistance expected", "", "strong enemies expected"),
    "loss_appetite": ("preserve the force", "", "at all costs"),
    "time_pressure": ("take your time", "", "at once"),
    "grouping": ("dispersed", "", "close together"),
}
_LOW, _HIGH = 1 / 3, 2 / 3


def order_in_words(verb: str, parameters: Sequence[float], zone: Sequence[float]) -> str:
    """Returns an order in words: "Assault (20, 34), radius 7: at all costs, at once".

    Args:
      verb: name.
      parameters: in [0, 1], in the order of `PARAMETERS`.
      zone: x, y and radius of the objective, voxels.
    """
    said = []
    for name, value in zip(PARAMETERS, parameters, strict=True):
        low, middle, high = _WORDS[name]
        said.append(low if value < _LOW else high if value > _HIGH else middle)
    words = ", ".join(filter(None, said)) or "as usual"
    return (
        f"{verb.replace('_', ' ').capitalize()} ({zone[0]:.0f}, {zone[1]:.0f}), radius {zone[2]:.0f}: {words}"
    )
