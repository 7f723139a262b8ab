"""Spaces of this project as Gymnasium's, and arrays for them."""

import numpy as np
from gymnasium import spaces

from jaxmarl_echelon.envs.spaces import Box, Discrete, MultiDiscrete, Space


def to_gymnasium_space(space: Space) -> spaces.Space:
    """Converts a space; bounds of floating boxes are rounded to their dtype, as observations are."""
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n)
    if isinstance(space, MultiDiscrete):
        return spaces.MultiDiscrete(np.asarray(space.sizes))
    assert isinstance(space, Box)
    low, high = (bound.astype(space.dtype) for bound in space.bounds())
    return spaces.Box(low, high, space.shape, space.dtype.type)


def read_actions(where: str, actions: object, shape: tuple[int, ...], space: Space) -> np.ndarray:
    """Returns actions of another library as an array of the space's dtype.

    Raises:
      ValueError: one line, for another shape, something that is no number, or a choice that is no whole one.
    """
    try:
        with np.errstate(invalid="ignore"):  # found below
            given = np.asarray(actions, space.dtype)
    except (TypeError, ValueError):
        given = None
    if given is None or given.shape != shape:
        found = type(actions).__name__ if given is None else list(given.shape)
        raise ValueError(f"{where}={found}: must be numbers of shape {list(shape)}, in {space}")
    raw = np.asarray(actions)
    if not isinstance(space, Box) and raw.dtype.kind == "f" and (given != raw).any():
        raise ValueError(f"{where}={raw[given != raw][0]}: must be whole numbers, in {space}")
    return given
