"""Optimisers, and a faster form of short gradient steps on CPUs."""
