"""Drawing surface over a map from above, and outlines of boxes."""

import numpy as np
from PIL import Image, ImageDraw


class MapCanvas:
    """Image of a map from above for drawing in world coordinates, y upwards.

    Attributes:
      image: the image.
      draw: draws on the image, in pixels.
      scale: pixels per unit of length.
    """

    def __init__(self, image: Image.Image, scale: float, anchor, origin: tuple[float, float]):
        """Places the map in an image.

        Args:
          image: to draw on.
          scale: pixels per unit of length.
          anchor: a point (x, y) of the world.
          origin: the anchor's pixel.
        """
        self.image, self.scale, self.anchor, self.origin = image, scale, np.asarray(anchor), origin
        self.draw = ImageDraw.Draw(image)

    def pixel(self, point) -> tuple[float, float]:
        """Returns the pixel of a point (x, y, ...)."""
        x, y = (np.asarray(point)[:2] - self.anchor) * self.scale
        return self.origin[0] + float(x), self.origin[1] - float(y)

    def box(self, center, half: float, **style) -> None:
        """Draws a square of half side `half` around a point."""
        self.draw.rectangle(self._square(center, half), **style)

    def disc(self, center, radius: float, **style) -> None:
        """Draws a circle."""
        self.draw.ellipse(self._square(center, radius), **style)

    def line(self, start, end, colour, width: int = 2) -> None:
        """Draws a line between two points."""
        self.draw.line([self.pixel(start), self.pixel(end)], fill=colour, width=width)

    def polygon(self, points, **style) -> None:
        """Draws a polygon."""
        self.draw.polygon([self.pixel(point) for point in points], **style)

    def _square(self, center, half: float) -> tuple[float, float, float, float]:
        x, y = self.pixel(center)
        reach = half * self.scale
        return x - reach, y - reach, x + reach, y + reach
