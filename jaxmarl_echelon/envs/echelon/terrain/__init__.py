"""Voxel terrain: generation, checks, navigation and the bank of maps."""
