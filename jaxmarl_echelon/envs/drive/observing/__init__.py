"""Observations of drivers: features, their layouts, and the nearest bodies and road segments."""
