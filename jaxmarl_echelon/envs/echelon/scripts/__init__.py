"""Scripted mechs."""
