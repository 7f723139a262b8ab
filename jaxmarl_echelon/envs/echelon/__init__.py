"""Battles of mechs in voxel terrain."""
