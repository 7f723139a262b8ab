"""Writes frames as a GIF of limited size."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

MOST_BYTES = 5_000_000
_FEWEST_FRAMES = 4


def save_gif(
    path: str | Path,
    last: int,
    draw: Callable[[np.ndarray], Sequence[Image.Image]],
    durations: Callable[[np.ndarray], np.ndarray],
    *,
    stride: int = 1,
    hold: int = 2000,
) -> None:
    """Writes an animation as a GIF below 5 MB; doubles the stride until the file is small enough.

    Args:
      path: file to write.
      last: index of the last moment, which is always shown.
      draw: `(moments) -> images`, draws increasing moments.
      durations: `(moments) -> milliseconds`, from each moment to the next.
      stride: smallest number of moments from one image to the next.
      hold: duration of the last image, ms.
    """
    while True:
        moments = np.unique(np.append(np.arange(0, last, stride), last))
        images = draw(moments)
        shown = [*durations(moments).astype(int).tolist(), hold]
        images[0].save(path, save_all=True, append_images=images[1:], duration=shown, loop=0)
        if Path(path).stat().st_size < MOST_BYTES or len(images) < _FEWEST_FRAMES:
            return
        stride *= 2


def make_palette(colours: Sequence[tuple[int, int, int]]) -> Image.Image:
    """Returns an image whose palette has these RGB colours, for `Image.quantize`."""
    image = Image.new("P", (1, 1))
    image.putpalette([channel for colour in colours for channel in colour])
    return image
