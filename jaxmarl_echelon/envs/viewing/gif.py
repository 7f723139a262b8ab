"""Writes frames as a GIF of limited size."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

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


def limit_gif(path: str | Path, frames: int, side: int, size: int) -> None:
    """Rewrites an animation with fewer and smaller frames, if it is above these limits.

    Frames are left out evenly, with the last one kept and their durations added to the frames before them.

    Args:
      path: a GIF, rewritten in place.
      frames: most frames.
      side: most pixels of the longer side.
      size: most bytes; twice as many frames are left out until it is met, down to a still picture.
    """
    with Image.open(path) as image:
        count, width, height = getattr(image, "n_frames", 1), *image.size
        scale = min(1.0, side / max(width, height))
        if count <= frames and scale == 1.0 and Path(path).stat().st_size <= size:
            return
        shape = max(1, round(width * scale)), max(1, round(height * scale))
        shown = [one.convert("RGB").resize(shape) for one in ImageSequence.Iterator(image)]
        times = [one.info.get("duration", 100) for one in ImageSequence.Iterator(image)]
    stride = max(1, -(-(count - 1) // max(frames - 1, 1)))
    while True:
        kept = np.unique(np.append(np.arange(0, count - 1, stride), count - 1))
        durations = np.add.reduceat(times, kept).astype(int).tolist()
        images = [shown[index].quantize(64, dither=Image.Dither.NONE) for index in kept]
        images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0)
        if Path(path).stat().st_size <= size or len(kept) == 1:
            return
        stride *= 2
        if stride >= count:
            shown, times, count = shown[-1:], [sum(times)], 1


def make_palette(colours: Sequence[tuple[int, int, int]]) -> Image.Image:
    """Returns an image whose palette has these RGB colours, for `Image.quantize`."""
    image = Image.new("P", (1, 1))
    image.putpalette([channel for colour in colours for channel in colour])
    return image
