"""Learners as pure functions: networks, optimisers, on-policy and off-policy algorithms."""
