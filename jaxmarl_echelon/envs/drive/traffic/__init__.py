"""Simulation of traffic: motion, contacts, signals and bodies that follow routes."""
