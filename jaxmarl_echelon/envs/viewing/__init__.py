"""The viewing kit: canvas, panels, GIFs and the page that replays a recording."""
