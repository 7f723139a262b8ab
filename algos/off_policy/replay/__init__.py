"""Replay of transitions on the device."""
