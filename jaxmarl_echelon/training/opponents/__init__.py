"""Roles that a pool plays, and the seats of turn games."""
