"""Scenarios: ground, forces and orders, drawn per episode."""
