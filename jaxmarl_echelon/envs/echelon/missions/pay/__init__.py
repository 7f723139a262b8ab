"""Rewards of missions: components, gates and credit of single mechs."""
