"""Rollouts: simultaneous decisions, turn games, and games against a pool."""
