"""Hyper-parameter search by Optuna over vectorised groups of runs."""
