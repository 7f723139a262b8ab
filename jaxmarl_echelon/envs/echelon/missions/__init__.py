"""Squads of mechs under mission orders."""
