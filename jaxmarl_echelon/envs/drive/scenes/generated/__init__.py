"""Generated scenes: road networks, junctions, signals and traffic."""
