"""Simulation of a battle: movement, sensors, weapons, damage, heat and terrain."""
