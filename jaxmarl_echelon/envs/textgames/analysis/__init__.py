"""Exact analysis of small games: positions, game trees, exploitability."""
