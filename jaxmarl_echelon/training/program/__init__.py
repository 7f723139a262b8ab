"""The program of a run: its initial state, updates and evaluations as pure functions."""
