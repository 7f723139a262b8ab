"""Scenes: generated, read from files, checked, and kept on disk as arrays."""
