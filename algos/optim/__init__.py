"""Optimisers, and how a CPU computes short gradient steps."""
