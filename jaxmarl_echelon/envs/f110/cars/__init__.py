"""Simulation of cars: motion, lidar, collisions and ends of episodes."""
