"""Replay of transitions on the device. See docs/reference/trainer.md 11."""
