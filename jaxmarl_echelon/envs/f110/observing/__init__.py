"""Observations of drivers: lidar scans and the state of both cars."""
